"""nanobot: its loop from a config file, with its own sessions, tools and templates.

Its token counter would load a table from the network, again for every count where there is none: it
is given one that needs none. It streams all answers.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from loguru import logger

from tests.bench.peers.said import LIMIT, MESSAGE_TOKENS, MODEL, PROMPT
from tests.bench.peers.worker import Turn

ANSWER_TOKENS = 1024
FIXED_TOKENS = 9_700
"""Its system prompt, its tools and its reserves."""


class Counter:
    """Takes four characters for a token."""

    def encode(self, text: str) -> list[str]:
        """The tokens."""
        return [text[at : at + 4] for at in range(0, len(text), 4)]

    def decode(self, tokens: list[str]) -> str:
        """The text again."""
        return "".join(tokens)


def config(place: dict[str, Any], workspace: Path) -> dict[str, Any]:
    """What one writes into its config file for a server of one's own."""
    defaults = {
        "workspace": str(workspace),
        "model": MODEL,
        "provider": "custom",
        "maxTokens": ANSWER_TOKENS,
        "contextWindowTokens": FIXED_TOKENS + LIMIT * MESSAGE_TOKENS,
    }
    server = {"apiKey": "none", "apiBase": place["url"]}
    return {"agents": {"defaults": defaults}, "providers": {"custom": server}}


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer."""
    home = Path(place["folder"])
    os.environ["HOME"] = str(home)  # nobody's own set-up is read or changed
    workspace = home / "workspace"
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text(PROMPT)
    file = home / "config.json"
    file.write_text(json.dumps(config(place, workspace)))
    logger.remove()

    from nanobot.nanobot import Nanobot  # noqa: PLC0415 - after its home was named
    from nanobot.utils import helpers  # noqa: PLC0415 - as above

    helpers._get_token_encoding = Counter
    bot = Nanobot.from_config(file)

    async def turn(chat: str, text: str) -> str:
        return (await bot.run(text, session_key=f"sdk:{chat}")).content or ""

    yield turn
    await bot._loop.aclose()
