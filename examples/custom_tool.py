"""A tool of your own: a typed function with a docstring. The model learns both, and may call it."""

import anyio

from nanoloop import Agent, tool
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider

STOCK = {"apples": 12, "pears": 0}


@tool(effect="reads")  # without it, an equal call would run only once in a turn
async def stock(fruit: str) -> str:
    """Say how many of a fruit there are.

    Args:
        fruit: its name, in the plural
    """
    return f"{STOCK[fruit]} {fruit}"  # an error here is told to the model, and ends nothing


# What a model would do: ask for the tool, then answer with what it returned.
MODEL = ScriptedProvider(
    [
        Reply(tool_calls=(ToolCall(id="1", name="stock", arguments='{"fruit": "apples"}'),)),
        lambda messages, *_: f"We have {messages[-1]['content']}.",
    ]
)


async def main() -> None:
    """Let an agent answer with the tool."""
    print("the model is told:", stock.spec.parameters)
    agent = Agent("seller", prompt="You sell fruit.", provider=MODEL, tools=[stock])
    print("answer:", await agent.ask("Do you have apples?"))


anyio.run(main)
