"""strands: an agent for each chat with a `FileSessionManager` and summaries made before overflow.

One client is shared, as its documentation advises, so that connections are used again; summaries
are made in a loop of their own and have a client of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI
from strands import Agent
from strands.agent.conversation_manager import SummarizingConversationManager
from strands.models.openai import OpenAIModel
from strands.session.file_session_manager import FileSessionManager

from tests.bench.peers.said import KEPT, LIMIT, MESSAGE_TOKENS, MODEL, PROMPT
from tests.bench.peers.worker import Turn

THRESHOLD = 0.7
WINDOW = int(LIMIT * MESSAGE_TOKENS / THRESHOLD)
"""Tokens, so that its usual threshold is reached at the limit of messages."""


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer."""
    own = {"base_url": place["url"], "api_key": "none"}
    settings = {"model_id": MODEL, "stream": False, "context_window_limit": WINDOW}
    agents: dict[str, Agent] = {}
    async with AsyncOpenAI(**own) as client:
        model = OpenAIModel(client=client, **settings)
        aside = OpenAIModel(client_args=own, **settings)

        def agent(chat: str) -> Agent:
            return Agent(
                model=model,
                aux_model=aside,
                system_prompt=PROMPT,
                callback_handler=None,
                conversation_manager=SummarizingConversationManager(
                    summary_ratio=(LIMIT - KEPT) / LIMIT,
                    preserve_recent_messages=KEPT,
                    proactive_compression={"compression_threshold": THRESHOLD},
                ),
                session_manager=FileSessionManager(chat, str(Path(place["folder"]) / "sessions")),
            )

        async def turn(chat: str, text: str) -> str:
            if chat not in agents:
                agents[chat] = agent(chat)
            return str(await agents[chat].invoke_async(text))

        yield turn
