"""The whole history of a session, and the acts that change it on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, Unpack

from nanoloop.session.archive import Archive
from nanoloop.session.chat import messages_of
from nanoloop.session.entry import Entry
from nanoloop.session.ids import new_id
from nanoloop.session.matching import Handed
from nanoloop.session.note import is_asked, last_exchange
from nanoloop.session.owed import Owed
from nanoloop.session.record import Identity
from nanoloop.session.window import whole_before

ChatMessages = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class History(Owed):
    """A conversation whose history can be read, set, taken back, archived and replaced."""

    def __init__(
        self,
        *,
        token_counter: Callable[[str], int] | None = None,
        archive: Archive | None = None,
        **identity: Unpack[Identity],
    ) -> None:
        super().__init__(token_counter=token_counter, **identity)
        self._archive = archive

    def _keep_bounds(self) -> None:
        super()._keep_bounds()
        if self._archive and self._log.is_whole and self._log.count > self._archive.keep:
            self.archive(self._archive.keep, self._archive.take)

    def history(self, limit: int = 0) -> list[Entry]:
        """The newest entries first, at most `limit`; 0, negative or too large is all of them.

        Equal timestamps: the last added comes first.
        """
        with self._lock:
            entries = sorted(self._whole(), key=lambda e: (e.timestamp, e.seq), reverse=True)
            return [entry.copy() for entry in (entries[:limit] if limit > 0 else entries)]

    @property
    def full_chat_history(self) -> list[dict[str, Any]]:
        """The whole history as chat messages, oldest first."""
        with self._lock:
            return messages_of(self._whole())

    @full_chat_history.setter
    def full_chat_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        with self._lock:
            shown = self.messages
            groups = Handed(self._whole()).entries_for(messages)
            self._replace([entry for group in groups for entry in group])
            self._show_messages(shown)

    @property
    def current_chat_history(self) -> list[dict[str, Any]]:
        """The window as chat messages, oldest first."""
        return self.messages

    @current_chat_history.setter
    def current_chat_history(self, messages: Sequence[Mapping[str, Any]]) -> None:
        with self._lock:
            self._show_messages(messages)

    def _show_messages(self, messages: Sequence[Mapping[str, Any]]) -> None:
        groups = Handed(self._log.entries).entries_for(messages)
        self._log.show(entry for group in groups for entry in group)
        self._touch()

    def set_chat_history(self, messages: ChatMessages) -> Self:
        """Begin the history anew with these messages; memo, summary and state stay."""
        with self._lock:
            self.reset_history()
            return self.add_chat_history(messages)

    def add_chat_history(self, messages: ChatMessages) -> Self:
        """Append one message or several."""
        with self._lock:
            for message in [messages] if isinstance(messages, Mapping) else messages:
                self.append_message(message)
        return self

    def reset_chat_history(self) -> Self:
        """Empty the history; memo, summary and state stay."""
        self.reset_history()
        return self

    def _replace(self, entries: Sequence[Entry]) -> dict[int, Entry]:
        """Make these the history; returns each as it is now, by the `id()` of what was given.

        A tail of the log stays as it is. Anything else is written again behind it: numbers only
        grow, and what is durable is never rewritten.
        """
        seqs = [entry.seq for entry in entries]
        if seqs and seqs == [e.seq for e in self._log.between(seqs[0] - 1, self._log.last)]:
            self._log.forget(seqs[0] - 1)
            self._touch()
            return {id(entry): entry for entry in entries}
        return self._write_again(entries)

    def _write_again(self, entries: Sequence[Entry]) -> dict[int, Entry]:
        waiting = self._awaiting
        self._log.restart()
        again: dict[int, Entry] = {}
        for entry in entries:
            again[id(entry)] = self._log.append(entry)
            self._ledger.add(again[id(entry)])
            if waiting and entry.seq == waiting:
                self._awaiting = again[id(entry)].seq
        self._touch()
        return again

    def undo(self) -> list[Entry]:
        """Take back the last exchange, from the user's message on; [] where there is none.

        What was taken back stays in the store and is in no view. A note that stands among it and
        is about an earlier message is told anew. Raises `HistoryNotLoaded` where
        what came before it is only in the store.
        """
        with self._lock:
            asked = sum(map(is_asked, self._log.entries))
            if asked < 2:  # noqa: PLR2004 - the one that goes, and the one to show then
                self._whole()
            exchange = last_exchange(self._log.entries)
            if not exchange:
                return []
            taken = self._log.take_back(exchange[0].seq)
            self._log.widen_to(self._newest_asked())
            self._turns -= sum(entry.role == "assistant" for entry in taken)
            self._awaiting = 0
            for note in taken:
                if note not in exchange:  # it is about what stays
                    self._append(replace(note, id=new_id()))
            self._touch()
            return exchange

    @property
    def shows_earlier(self) -> bool:
        """Whether the window has an exchange before the last one."""
        return sum(map(is_asked, self.window)) > 1

    def _newest_asked(self) -> int:
        asked = (entry.seq for entry in reversed(self._log.entries) if is_asked(entry))
        return next(asked, self._log.start)

    def archive(
        self, keep: int, take: Callable[[list[Entry]], object] | None = None
    ) -> list[Entry]:
        """Let the oldest entries go, down to the newest `keep`; returns them.

        `take` gets them first: if it raises, nothing has changed. What waits to be summarised
        stays, so that the summary misses nothing.
        """
        with self._lock:
            entries = self._whole()
            waiting = self._log.pending(self.covered_seq)
            last = len(entries) if not waiting else self._log.index_of(waiting[0].seq)
            last = whole_before(entries, min(last, max(0, len(entries) - keep)))
            old = [entry.copy() for entry in entries[:last]]
            if old and take is not None:
                take(old)
            if old:
                self._log.forget(old[-1].seq)
                self._touch()
            return old
