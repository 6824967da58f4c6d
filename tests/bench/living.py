"""What a benchmark lives with: a model server in a process of its own, a loop, a history."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio

from nanoloop import AgentLoop, Entry
from nanoloop.protocols import Provider, Store

SERVER = Path(__file__).parent.parent / "openai_server.py"
SAID = "I went to the market this morning and bought apples, bread and two kinds of cheese."
ANSWERED = "That sounds like a good morning; did you also find the olives you were looking for?"


@contextmanager
def server(text: str = ANSWERED) -> Iterator[str]:
    """The URL of a model server that answers at once, in a process of its own."""
    command = [sys.executable, str(SERVER), "--text", text]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@asynccontextmanager
async def running(provider: Provider, store: Store, **options: Any) -> AsyncIterator[AgentLoop]:
    """A loop that answers until the end of the block."""
    loop = AgentLoop(provider=provider, store=store, **options)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        try:
            yield loop
        finally:
            loop.bus.close()
    await store.close()


async def with_history(
    store: Store, session_id: str, messages: int, *, window: int = 10, at_once: int = 2000
) -> None:
    """Make a session of so many messages: the last ones in the window, the others summarised."""
    session = await store.create(id=session_id)
    for first in range(0, messages, at_once):
        for number in range(first, min(messages, first + at_once)):
            session.add_entry(entry(number))
        session.trim_if_needed(window, window)
        session.update_summary("They talked about the market.", seq=session.pending_seq)
        await store.save(session)
        session.release()


def entry(number: int) -> Entry:
    """The message that stands at this place of a history."""
    if number % 2:
        return Entry.message("assistant", ANSWERED)
    return Entry.message("user", SAID, metadata={"message_id": f"old{number}"})
