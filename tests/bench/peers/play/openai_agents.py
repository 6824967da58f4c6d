"""openai-agents: a `SQLiteSession` in a file for each chat, with the newest messages taken.

Its compaction needs OpenAI's own Responses API; over chat completions the limit is what there is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    SessionSettings,
    SQLiteSession,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from tests.bench.peers.said import LIMIT, MODEL, PROMPT
from tests.bench.peers.worker import Turn


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer."""
    set_tracing_disabled(disabled=True)
    file = Path(place["folder"]) / "sessions.sqlite"
    sessions: dict[str, SQLiteSession] = {}
    async with AsyncOpenAI(base_url=place["url"], api_key="none") as client:
        model = OpenAIChatCompletionsModel(model=MODEL, openai_client=client)
        agent = Agent(name="companion", instructions=PROMPT, model=model)

        async def turn(chat: str, text: str) -> str:
            if chat not in sessions:
                settings = SessionSettings(limit=LIMIT)
                sessions[chat] = SQLiteSession(chat, file, session_settings=settings)
            return str((await Runner.run(agent, text, session=sessions[chat])).final_output)

        yield turn
        for session in sessions.values():
            session.close()
