"""One conversation: its log and window, its digests, its state. Pure data, no I/O.

It is built in layers, each a file: `Record` (who, how long, state), `Conversation` (log, window,
summary), `Owed` (what waits for its turn or has not arrived), `History` (the whole of it),
`Resizing` (memo, settings, policy), `Portable` (export and import), `Pinned` (kept in view),
`Erasing` (for good), and on top `Session`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from nanoloop.session.arrived import Arrived
from nanoloop.session.changes import ABOUT, MEMO, SETTINGS, STATE, SUMMARY, Changes
from nanoloop.session.codec import parsed
from nanoloop.session.display import conversation, counted, displayed
from nanoloop.session.entry import Entry, copied, utc_now
from nanoloop.session.erasing import Erasing
from nanoloop.session.kept import placed
from nanoloop.session.log import Digest, Log
from nanoloop.session.markdown import as_markdown
from nanoloop.session.record import Identity
from nanoloop.session.rendering import Rendered, rendered
from nanoloop.session.resizing import Handlers

__all__ = ["ABOUT", "MEMO", "SETTINGS", "STATE", "SUMMARY", "Changes", "Session"]


class Given(Identity, Handlers, total=False):
    """What a session may be created with."""


class _Load:
    """`Session.load(text)` makes a session, `session.load(text)` fills that one."""

    def __get__(self, session: Session | None, owner: type[Session]) -> Callable[..., Session]:
        return partial(_loaded, owner() if session is None else session)


def _loaded(
    session: Session,
    text: str | bytes | Mapping[str, Any],
    format: str | None = None,  # noqa: A002 - the seed's name
    key_path: str | None = None,
) -> Session:
    """Take in what an export, or a part of one, says; what it doesn't say stays as it is."""
    return session.load_dict(parsed(text, format, key_path))


class Session(Erasing):
    """A conversation that forgets nothing: what leaves the window stays in the log."""

    load = _Load()

    def __init__(self, **given: Unpack[Given]) -> None:
        if unknown := given.keys() - Given.__annotations__.keys():
            raise TypeError(f"a session takes no {', '.join(sorted(unknown))}")
        names = Identity.__annotations__
        identity: Identity = {k: v for k, v in given.items() if k in names}  # type: ignore[assignment]
        handlers: Handlers = {k: v for k, v in given.items() if k not in names}  # type: ignore[assignment]
        super().__init__(handlers=handlers, **identity)

    # For people

    def display(self, last: int = 20, width: int = 80) -> str | None:
        """The last messages of the window, a line each; None where there is none."""
        return displayed(self.window, last=last, width=width)

    def stats(self) -> dict[str, Any]:
        """Messages of the window by role, calls of tools, and the names of the tools used."""
        return counted(self.window)

    def conversation_text(self) -> str:
        """`[role] content` of each message of the window, a blank line between them."""
        return conversation(self.window)

    def to_markdown(self) -> str:
        """The whole history for people to read."""
        with self._lock:
            about = f"Session `{self._id}`, begun {self._created_at:%Y-%m-%d %H:%M}"
            entries = list(self._whole())
        return as_markdown(entries, title=self.title, about=about, summary=self.summary)

    def rendered(self, limit: int = 0) -> list[Rendered]:
        """The last entries of the window as text for a model's context, oldest first; 0 is all."""
        window = self.window
        return [rendered(entry) for entry in (window[-limit:] if limit > 0 else window)]

    def fork(self, upto: int | str | None = None) -> Session:
        """A new session with the history up to an entry, by its number or id, it included.

        Summary and memo come along where they stand for nothing behind it.
        """
        with self._lock:
            last = self._fork_point(upto)
            entries = [entry for entry in self._whole() if entry.seq <= last]
            fork = Session(**self._inherited())
            fork._load_history(self._shown_upto(entries))
            fork._state = copied(self._state)
            fork._options.replace(self._options.own())
            fork._title = self._title
            fork._take_handlers(self)
            if self._summary.seq <= last:
                covered = sum(entry.seq <= self._summary.seq for entry in entries)
                fork._summary = Digest(value=self.summary, seq=covered)
                fork._kept = placed(self._kept, entries)
            if self._memo.seq <= last:
                covered = sum(entry.seq <= self._memo.seq for entry in entries)
                fork._memo = Digest(value=copied(self._memo.value), seq=covered)
            fork._pins = placed((pin for pin in self.pins if pin["seq"] <= last), entries)
            fork._touch(ABOUT, STATE, SUMMARY, MEMO, SETTINGS)
            return fork

    def _fork_point(self, upto: int | str | None) -> int:
        if upto is None:
            return self._log.last
        if isinstance(upto, int):
            return upto
        for entry in self._whole():
            if entry.id == upto:
                return entry.seq
        raise ValueError(f"session {self._id!r} has no entry {upto!r}")

    def _shown_upto(self, entries: list[Entry]) -> Arrived:
        shown = {entry.seq for entry in self._log.window}
        window = [entry for entry in entries if entry.seq in shown]
        return Arrived(entries=entries, window=window or entries)

    def _inherited(self) -> Given:
        return {
            "agent": self._agent,
            "metadata": {**self._metadata, "forked_from": self._id},
            "max_history": self._max_history,
            "ttl": self._ttl,
            "sliding": self._sliding,
            "clock": self._clock,
            "settings": self._options.parent,
            "token_counter": self.token_counter,
        }

    # What stores need

    @classmethod
    def restored(
        cls,
        *,
        head: Mapping[str, Any],
        sections: Mapping[str, Any],
        entries: Iterable[Entry],
        after: int = 0,
        seen: Iterable[str] = (),
        clock: Callable[[], datetime] = utc_now,
    ) -> Session:
        """The session that a store kept, with all entries whose number is above `after`.

        `seen` are message ids from before that; entries newer than the head are taken in.
        """
        session = cls(id=sections[ABOUT]["id"], clock=clock)
        session._restore(head, sections)
        log = Log.restored(head, entries, after=after)
        session._restore_log(log, int(head.get("last", 0)), seen)
        session._ledger.restored(revision=int(head.get("rev", 0)), saved_seq=log.last)
        return session
