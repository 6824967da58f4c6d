"""A hand-written loop over the SDK: a list for each chat, its end is sent; nothing is durable."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai

from tests.bench.peers.said import LIMIT, MODEL, PROMPT
from tests.bench.peers.worker import Turn


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer."""
    chats: dict[str, list[Any]] = defaultdict(list)
    system = {"role": "system", "content": PROMPT}
    async with openai.AsyncOpenAI(base_url=place["url"], api_key="none") as client:

        async def turn(chat: str, text: str) -> str:
            messages = chats[chat]
            messages.append({"role": "user", "content": text})
            reply = await client.chat.completions.create(
                model=MODEL, messages=[system, *messages[-LIMIT:]]
            )
            answer = reply.choices[0].message.content or ""
            messages.append({"role": "assistant", "content": answer})
            return answer

        yield turn
