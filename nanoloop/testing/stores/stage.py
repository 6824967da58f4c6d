"""What the store test suite works with: a clock that it sets, and some sessions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

STRANGE = ("🙂 żółć 漢字", "\ud800 half", "a\u2028b\u0085c", "nul\x00nul", "line\nline\r\n", "")
"""Texts that a store has to return unchanged."""


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        """The time that it was set to."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let this many seconds pass."""
        self.now += timedelta(seconds=seconds)


def say(session: Session, count: int, *, text: str = "message") -> None:
    """Add this many messages, from people and the model in turn."""
    for number in range(count):
        session.add_message("assistant" if number % 2 else "user", f"{text} {number}")


async def said(store: Store, count: int, *, keep: int | None = None) -> Session:
    """A session with this many messages, of which the window shows the last `keep`."""
    session = await store.create(id="s")
    say(session, count)
    if keep is not None:
        session.trim_if_needed(1, keep)
    await store.save(session)
    return session


def texts(entries: Iterable[Entry]) -> list[str]:
    """What these entries say."""
    return [entry.content["text"] for entry in entries]


async def infos(store: Store) -> list[SessionInfo]:
    """All sessions at a glance."""
    return [info async for info in store.list()]


def everything_in(folder: Path) -> str:
    """Everything in a folder and below it, as text."""
    files = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    return "\n".join(files)
