"""pydantic-ai: each run's new messages as JSON in SQLite, as its chat example keeps them.

The example reads a chat back for every request; here it is read once and then kept in memory, which
is the faster way. A history processor keeps the newest messages.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from pydantic_ai import Agent
from pydantic_ai.capabilities import ProcessHistory
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.bench.peers.said import LIMIT, MODEL, PROMPT
from tests.bench.peers.worker import Turn

TABLE = "CREATE TABLE messages (id INTEGER PRIMARY KEY, chat TEXT, list TEXT)"


async def newest(messages: list[ModelMessage]) -> list[ModelMessage]:
    """The end of it, beginning with a user's message."""
    return messages[-(LIMIT - 1) :] if len(messages) > LIMIT else messages


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer."""
    database = sqlite3.connect(Path(place["folder"]) / "chats.sqlite")
    database.execute(TABLE)
    histories: dict[str, list[ModelMessage]] = defaultdict(list)
    async with AsyncOpenAI(base_url=place["url"], api_key="none") as client:
        model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
        agent = Agent(model, instructions=PROMPT, capabilities=[ProcessHistory(newest)])

        async def turn(chat: str, text: str) -> str:
            result = await agent.run(text, message_history=histories[chat])
            row = (chat, result.new_messages_json().decode())
            database.execute("INSERT INTO messages (chat, list) VALUES (?, ?)", row)
            database.commit()
            histories[chat].extend(result.new_messages())
            return result.output

        yield turn
    database.close()
