"""A Discord bot in code: `DISCORD_TOKEN=… python discord_bot.py`, with a bot's token."""

import os
from pathlib import Path

import anyio

from nanoloop import Agent, AgentLoop, ScriptedProvider
from nanoloop.channels.discord import DiscordSettings
from nanoloop.channels.kit.channel import make_channel


async def main() -> None:
    """Answer everyone who writes to it, until it is stopped."""
    own = DiscordSettings(token=os.environ["DISCORD_TOKEN"], users=("*",))
    channel = make_channel("discord", own, folder=Path("data"))
    poet = Agent("poet", prompt="You answer in verse.")
    # A real model: AgentLoop("openai:gpt-5.4-mini", store="sqlite:data/bot.db", agent=poet)
    loop = AgentLoop(ScriptedProvider(), agent=poet)
    loop.bus.attach(channel)  # before the start, which also sends what an earlier run still owes
    async with loop:
        await channel.run(loop.bus)


if __name__ == "__main__":
    anyio.run(main)
