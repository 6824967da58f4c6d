"""One conversation: its log and window, its digests, its state. Pure data, no I/O.

It is built in layers: `Record` (who, how long, state), `Conversation` (log, window, summary),
`QueuedConversation` (what waits for its turn or has not arrived), `ChangeableHistory` (the whole
of it), `Resizing` (memo, settings, policy), `Portable` (export and import), `Pinned` (kept in
view), `Erasing` (for good), and on top `Session`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Unpack

from nanoloop.errors import NotPossible
from nanoloop.session.conversation import title_of
from nanoloop.session.entry import ERASED, Entry, copied, utc_now
from nanoloop.session.export import (
    ImportedHistory,
    Portable,
    Rendered,
    as_markdown,
    conversation_text,
    counted,
    displayed,
    parsed,
    rendered,
)
from nanoloop.session.head import ABOUT, MEMO, SETTINGS, STATE, SUMMARY, Identity
from nanoloop.session.log import Digest, Log, Quotes, quotes_by_place, quotes_in, quotes_moved
from nanoloop.session.queue import MESSAGE_ID
from nanoloop.session.resize import Handlers

PINS = "pins"
MOST_PINS = 10
"""Messages that can be pinned at a time."""
PIN_CHARS = 1000
"""Characters of a pinned message that stay in view."""
_WHO_CHARS = 40


class Pinned(Portable):
    """A session with copies of some messages beside its summary, each with its number."""

    _pins: Quotes = ()

    @property
    def pins(self) -> Quotes:
        """What is pinned, in the order of the log; not to be changed."""
        return tuple(pin for pin in self._pins if not self._log.is_hidden(pin["seq"]))

    def pin(self, entry: Entry) -> None:
        """Keep this message of the log in view; raises `NotPossible` where that can't be."""
        text = str(entry.content.get("text") or "").strip()
        if entry.role is None or not text:
            raise NotPossible(f"#{entry.seq} says nothing that could be pinned")
        with self._lock:
            others = [pin for pin in self.pins if pin["seq"] != entry.seq]
            if len(others) >= MOST_PINS:
                raise NotPossible(f"{MOST_PINS} messages are pinned already: /unpin one first")
            pin = {"seq": entry.seq, "text": _bounded(text), "who": _speaker(entry)}
            self._pins = tuple(sorted([*others, pin], key=lambda each: int(each["seq"])))
            self._touch(SUMMARY)

    def unpin(self, seq: int | None = None) -> int:
        """Keep it in view no longer, or none of them; returns how many those were."""
        with self._lock:
            left = tuple(pin for pin in self.pins if seq is not None and pin["seq"] != seq)
            count = len(self.pins) - len(left)
            if count:
                self._pins = left
                self._touch(SUMMARY)
            return count

    def clear(self) -> None:
        """Empty the history and everything drawn from it; the state stays."""
        with self._lock:
            super().clear()
            self._pins = ()

    def to_dict(self) -> dict[str, Any]:
        """The complete state, without any secret of the settings."""
        with self._lock:
            data = super().to_dict()
            pins = quotes_by_place(self.pins, self._whole())
            return {**data, PINS: list(pins)} if pins else data

    def _load_history(self, history: ImportedHistory) -> None:
        super()._load_history(history)
        self._pins = ()  # their numbers were the old history's

    def _load_digests(self, data: Mapping[str, Any], memo_cursor: int | None) -> None:
        super()._load_digests(data, memo_cursor)
        if data.get(PINS) is not None:
            self._pins = quotes_moved(quotes_in(data[PINS]), self._log.start - 1)

    def _section(self, name: str) -> Any:
        value = super()._section(name)
        return {**value, PINS: copied(self._pins)} if name == SUMMARY and self._pins else value

    def _restore(self, head: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        super()._restore(head, sections)
        self._pins = quotes_in((sections.get(SUMMARY) or {}).get(PINS))


def _bounded(text: str) -> str:
    left_out = len(text) - PIN_CHARS
    return text if left_out <= 0 else f"{text[:PIN_CHARS]} […{left_out} characters left out]"


def _speaker(entry: Entry) -> str:
    told = entry.metadata.get("sender") if entry.metadata.get("group") else None
    return " ".join(str(told or entry.role).split())[:_WHO_CHARS]


class Erasing(Pinned):
    """A session whose entries can be erased; a store's `erase` does it, so that it lasts."""

    def erase(self, seqs: Collection[int], *, stored: Iterable[Entry] = ()) -> None:
        """Leave nothing of these entries, and begin a new epoch: a summary being written is late.

        Where the summary tells of one, it goes, with the ledger, and the whole history waits to
        be summarised anew. `stored` are the entries as the store has them. Once more does no harm.
        """
        with self._lock:
            gone = frozenset(seqs)
            said = {entry.seq: entry for entry in (*stored, *self._log.erase(gone))}
            self._ledger.erase(gone)
            for entry in said.values():
                self._forget_trace(entry)
            self._erase_digests(gone - {seq for seq, e in said.items() if e.type == ERASED})
            self._awaiting = 0 if self._awaiting in gone else self._awaiting
            self._epoch += 1
            self._touch(ABOUT, SUMMARY, MEMO)

    def _forget_trace(self, entry: Entry) -> None:
        if entry.role == "user":
            self._seen.remove(entry.metadata.get(MESSAGE_ID))
            self._title = "" if self._title == title_of(entry) else self._title

    def _erase_digests(self, gone: Collection[int]) -> None:
        self._pins = tuple(pin for pin in self._pins if pin["seq"] not in gone)
        first = min(gone, default=self._log.last + 1)
        if first <= self._summary.seq:
            self._summary = Digest(value="", seq=self._log.start - 1)
            self._kept = ()
        if first <= self._memo.seq:
            self._memo = Digest(value={}, seq=self._memo.seq)


class SessionArguments(Identity, Handlers, total=False):
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

    def __init__(self, **given: Unpack[SessionArguments]) -> None:
        if unknown := given.keys() - SessionArguments.__annotations__.keys():
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
        return conversation_text(self.window)

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
                fork._kept = quotes_by_place(self._kept, entries)
            if self._memo.seq <= last:
                covered = sum(entry.seq <= self._memo.seq for entry in entries)
                fork._memo = Digest(value=copied(self._memo.value), seq=covered)
            fork._pins = quotes_by_place((pin for pin in self.pins if pin["seq"] <= last), entries)
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

    def _shown_upto(self, entries: list[Entry]) -> ImportedHistory:
        shown = {entry.seq for entry in self._log.window}
        window = [entry for entry in entries if entry.seq in shown]
        return ImportedHistory(entries=entries, window=window or entries)

    def _inherited(self) -> SessionArguments:
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
