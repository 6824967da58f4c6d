"""Finding a session among many."""

from datetime import datetime, timezone

import pytest

from nanoloop.protocols import SessionInfo
from nanoloop.sessions import ENTRIES_READ, matching, mentions
from nanoloop.stores.in_memory import InMemoryStore

NOW = datetime(2026, 1, 2, tzinfo=timezone.utc)


def info(session_id, *, key=None, title=""):
    counts = dict.fromkeys(("entries", "awaiting", "pending", "size"), 0)
    times = {"created_at": NOW, "updated_at": NOW, "expires_at": None}
    return SessionInfo(id=session_id, key=key, title=title, agent=None, **counts, **times)


INFOS = [
    info("a1", title="the best Tea"),
    info("tg-42", key="telegram:42", title="Teapots"),
    info("tea@x", title="Other"),
    info("b", key="terminal:work", title="nothing"),
]


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("tea", ["tg-42", "tea@x", "a1"]),
        ("TELEGRAM:", ["tg-42"]),
        ("wor", ["b"]),
        ("ork", []),
        ("", ["a1", "tg-42", "tea@x", "b"]),
    ],
)
def test_b3_4_beginnings_come_first_then_titles_that_have_it(text, ids):
    assert [each.id for each in matching(INFOS, text)] == ids


async def test_b3_4_all_words_have_to_be_in_one_message_wherever_it_stands():
    store = InMemoryStore()
    session = await store.create(id="s")
    session.add_message("user", "a grey Cat")
    for _ in range(ENTRIES_READ):
        session.add_message("assistant", "hm")
    session.add_message("user", "a brown DOG")
    await store.save(session)
    assert await mentions(store, "s", "cat grey")
    assert await mentions(store, "s", "dog brown")
    assert not await mentions(store, "s", "cat dog")
    assert not await mentions(store, "gone", "cat")
