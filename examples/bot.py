"""A bot in ten lines. It answers each chat in order and remembers what was said."""

import anyio

from nanoloop import AgentLoop, ScriptedProvider


async def main() -> None:
    """Start the loop, ask twice, stop it."""
    # A real model: AgentLoop("openai:gpt-5.4-mini", store="sqlite:bot.db")
    async with AgentLoop(ScriptedProvider(["Hello Ada!", "Ada, you told me just now."])) as loop:
        for text in ("Hello, I am Ada.", "What is my name?"):
            print("you:", text)
            print("bot:", await loop.ask(text))


anyio.run(main)
