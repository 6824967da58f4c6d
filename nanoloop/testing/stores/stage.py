"""Helpers for the store's test suite: a clock that tests set, and some sessions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path

from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

STRANGE = ("🙂 żółć 漢字", "\ud800 half", "a\u2028b\u0085c", "nul\x00nul", "line\nline\r\n", "")
"""Texts that a store must return unchanged."""


class SetClock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        """Return the time that the test has set."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Move the clock forward by this many seconds."""
        self.now += timedelta(seconds=seconds)


def say(session: Session, count: int, *, text: str = "message") -> None:
    """Add this many messages, alternating between the user and the model."""
    for number in range(count):
        session.add_message("assistant" if number % 2 else "user", f"{text} {number}")


async def said(store: Store, count: int, *, keep: int | None = None) -> Session:
    """Create a session with this many messages, with the last `keep` in its window."""
    session = await store.create(id="s")
    say(session, count)
    if keep is not None:
        session.trim_if_needed(1, keep)
    await store.save(session)
    return session


def texts(entries: Iterable[Entry]) -> list[str]:
    """Return the texts of these entries."""
    return [entry.content["text"] for entry in entries]


async def infos(store: Store) -> list[SessionInfo]:
    """Return information about all sessions."""
    return [info async for info in store.list()]


def everything_in(folder: Path) -> str:
    """Return the contents of all files in a folder and its subfolders, as text."""
    files = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    return "\n".join(files)
