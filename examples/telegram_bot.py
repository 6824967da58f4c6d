"""A Telegram bot in code: `TELEGRAM_TOKEN=… python telegram_bot.py`, with a token of @BotFather's.

`nanoloop run` needs no code; a program of yours can add what it likes.
"""

import os
import random
from pathlib import Path

import anyio

from nanoloop import AgentLoop, ScriptedProvider
from nanoloop.channels.kit.channel import make_channel
from nanoloop.channels.telegram import TelegramSettings


def dice(sides: int = 6) -> int:
    """Roll a die."""
    return random.randint(1, sides)  # noqa: S311 - a game


async def main() -> None:
    """Answer everyone who writes to it, until it is stopped."""
    own = TelegramSettings(token=os.environ["TELEGRAM_TOKEN"], users=("*",))
    channel = make_channel("telegram", own, folder=Path("data"))
    # A real model: AgentLoop("openai:gpt-5.4-mini", store="sqlite:data/bot.db", tools=[dice])
    loop = AgentLoop(ScriptedProvider(), tools=[dice])
    loop.bus.attach(channel)  # before the start, which also sends what an earlier run still owes
    async with loop:
        await channel.run(loop.bus)


if __name__ == "__main__":
    anyio.run(main)
