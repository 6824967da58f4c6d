"""A store that is away for a while: what a chat is told, and that each message is answered once."""

import sqlite3
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from nanoloop import Inbound
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.stores.opening import Opening
from tests.test_loop import running

CHATS = [f"chat{number}" for number in range(12)]
ANSWERS = ["You said: one", "You said: two"]
LOG = ["one", "You said: one", "two", "You said: two"]
PATIENCE_SECONDS = 10
"""What `store.timeout_seconds` is by default."""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def place(request, tmp_path):
    """A store's URL, and a context manager in which nobody can write to it."""
    if request.param == "sqlite":
        file = tmp_path / "store.db"
        return f"sqlite:{file}", lambda: taken(file)
    server = request.getfixturevalue(f"{request.param}_server")
    return server.url, lambda: down(server)


@contextmanager
def taken(file):
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN EXCLUSIVE")
    yield
    other.execute("ROLLBACK")
    other.close()


@contextmanager
def down(server):
    server.kill()
    yield
    server.start()


@asynccontextmanager
async def in_thread(blocking):
    await run_sync(blocking.__enter__)
    try:
        yield
    finally:
        await run_sync(blocking.__exit__, None, None, None)


def message(chat, text):
    return Inbound(channel="test", chat=chat, text=text, message_id=f"{chat}-{text}")


async def told_by_a_loop(place, *, seconds, patience, count):
    """What each chat was told whose store was away in the middle of its turn, and its log."""
    url, away = place
    provider = ScriptedProvider(held=True)
    store = Opening(data=Path(), timeout_seconds=patience).open(url)
    acknowledged = []

    async def hand_in(chat):
        await loop.bus.hand_in(message(chat, "two"))
        acknowledged.append(chat)

    async with running(provider, store=store, store_timeout_seconds=patience) as loop:
        loop.chats.confirms = True  # as a platform's does
        for chat in CHATS:
            await loop.bus.hand_in(message(chat, "one"))
        await provider.asked(len(CHATS))
        async with anyio.create_task_group() as tasks, in_thread(away()):
            provider.release(2 * len(CHATS))
            for chat in CHATS:
                tasks.start_soon(hand_in, chat)
            await anyio.sleep(seconds)
            assert acknowledged == []
        told = [await loop.chats.until(chat, count) for chat in CHATS]
        logs = [await loop.sessions.store.get(f"test:{chat}") for chat in CHATS]
    await store.close()
    return told, [[entry["content"] for entry in log.messages] for log in logs]


@pytest.mark.parametrize(
    "seconds",
    [pytest.param(3, marks=pytest.mark.slow), pytest.param(9, marks=pytest.mark.long)],
)
async def test_within_the_patience_no_chat_is_told_and_each_message_is_answered_once(
    place, seconds
):
    told, logs = await told_by_a_loop(place, seconds=seconds, patience=PATIENCE_SECONDS, count=2)
    assert told == [ANSWERS] * len(CHATS)
    assert logs == [LOG] * len(CHATS)


@pytest.mark.parametrize(
    ("seconds", "patience"),
    [
        pytest.param(6, 1, marks=pytest.mark.slow),  # it is tried twice in any case
        pytest.param(30, PATIENCE_SECONDS, marks=pytest.mark.long),
    ],
)
async def test_beyond_it_each_chat_is_told_once_and_each_message_is_answered_once(
    place, seconds, patience
):
    told, logs = await told_by_a_loop(place, seconds=seconds, patience=patience, count=3)
    for first, *others in told:
        assert ENGLISH["store_down"] in first
        assert others == ANSWERS
    assert logs == [LOG] * len(CHATS)
