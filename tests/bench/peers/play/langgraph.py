"""langgraph with langmem: an `AsyncSqliteSaver` and a `SummarizationNode`, as langmem's example."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypedDict

from langchain_core.messages import AnyMessage, SystemMessage
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langmem.short_term import SummarizationNode

from tests.bench.peers.said import LIMIT, MESSAGE_TOKENS, MODEL, PROMPT
from tests.bench.peers.worker import Turn


class State(MessagesState):
    """The whole chat, and what the node keeps."""

    context: dict[str, Any]


class Asked(TypedDict):
    """What the model sees."""

    summarized_messages: list[AnyMessage]
    context: dict[str, Any]


@asynccontextmanager
async def opened(place: dict[str, Any]) -> AsyncIterator[Turn]:
    """Ready to answer."""
    model = ChatOpenAI(model=MODEL, base_url=place["url"], api_key="none")

    async def call_model(state: Asked) -> dict[str, Any]:
        messages = [SystemMessage(PROMPT), *state["summarized_messages"]]
        return {"messages": [await model.ainvoke(messages)]}

    graph = StateGraph(State)
    tokens = LIMIT * MESSAGE_TOKENS
    summarize = SummarizationNode(
        model=model, max_tokens=tokens, max_tokens_before_summary=tokens, max_summary_tokens=256
    )
    graph.add_node("summarize", summarize)
    graph.add_node("call_model", call_model)
    graph.add_edge(START, "summarize")
    graph.add_edge("summarize", "call_model")
    async with AsyncSqliteSaver.from_conn_string(str(Path(place["folder"]) / "s.sqlite")) as saver:
        compiled = graph.compile(checkpointer=saver)

        async def turn(chat: str, text: str) -> str:
            config = {"configurable": {"thread_id": chat}}
            said = await compiled.ainvoke({"messages": [("user", text)]}, config)
            return str(said["messages"][-1].content)

        yield turn
