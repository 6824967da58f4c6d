"""nanoloop as it is by default, with the store that the place names: jsonl or sqlite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from nanoloop import Agent
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import collect_garbage_seldom
from nanoloop.protocols import Store
from nanoloop.providers.openai import OpenAIProvider
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from tests.bench.living import running, with_history
from tests.bench.peers.said import MODEL, PROMPT
from tests.bench.peers.worker import Turn


class Whole(DirectChannel):
    """A channel for code that wants no pieces, as the other systems are asked for none."""

    name = "whole"
    streams = False


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer, after the histories that the place wants were made."""
    provider = OpenAIProvider(model=MODEL, api_key="none", base_url=place["url"])
    store = store_in(place)
    for messages in place.get("histories", []):
        await with_history(store, f"{Whole.name}:history{messages}", messages)
    collect_garbage_seldom()  # as `nanoloop run` does
    async with running(provider, store, agent=Agent(prompt=PROMPT)) as loop:
        channel = Whole(loop.bus)

        async def turn(chat: str, text: str) -> str:
            return (await channel.ask(text, chat=chat)).text

        yield turn
    await provider.close()


def store_in(place: dict[str, Any]) -> Store:
    """The store of this kind."""
    folder = Path(place["folder"])
    durability = place.get("durability", "flush")
    if place["store"] == "jsonl":
        return JsonlStore(folder / "sessions", durability=durability)
    return SqliteStore(folder / "sessions.sqlite", durability=durability)
