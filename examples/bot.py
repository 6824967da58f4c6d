"""A bot in fifteen lines. It answers each chat in order and remembers what was said."""

import anyio

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.providers.scripted import ScriptedProvider


async def main() -> None:
    """Start the loop, ask twice, stop it."""
    # A real model: OpenAIProvider(model=..., api_key=...) from nanoloop.providers.openai
    loop = AgentLoop(provider=ScriptedProvider(["Hello Ada!", "Ada, you told me just now."]))
    chat = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        for text in ("Hello, I am Ada.", "What is my name?"):
            print("you:", text)
            print("bot:", (await chat.ask(text)).text)
        loop.bus.close()


anyio.run(main)
