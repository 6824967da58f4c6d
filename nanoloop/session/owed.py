"""What a chat is owed: a turn for each message that waits, an answer that has not arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from nanoloop.session.changes import HEARD, WAITING
from nanoloop.session.conversation import Conversation
from nanoloop.session.entry import Entry
from nanoloop.session.log import Log
from nanoloop.session.seen import MESSAGE_ID, NOTED_LIMIT


class Owed(Conversation):
    """A conversation that has messages of its chat before their turn, and after their answer."""

    _waiting: tuple[Entry, ...] = ()
    _unsent: tuple[int, ...] = ()
    _heard: tuple[str, ...] = ()

    # Messages that wait for their turn

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """What was said while an answer was under way, oldest first; in no log yet."""
        return self._waiting

    def hold(self, entry: Entry) -> None:
        """Keep a message until its turn comes."""
        with self._lock:
            self._seen.add(entry.metadata.get(MESSAGE_ID))
            self._wait((*self._waiting, entry.copy()), by_user=True)

    def drop_held(self, entry: Entry) -> None:
        """Be as if that message had never come, so that it may come again."""
        with self._lock:
            self._seen.remove(entry.metadata.get(MESSAGE_ID))
            self.let_go_held(entry.id)

    def take_held(self, entry_id: str) -> Entry | None:
        """That message, for its turn: once it is added to the log it waits no more; or None."""
        return next((entry for entry in self._waiting if entry.id == entry_id), None)

    def let_go_held(self, entry_id: str) -> None:
        """Let that message wait no more; it has its turn elsewhere."""
        with self._lock:
            if self.take_held(entry_id) is not None:
                self._wait(tuple(entry for entry in self._waiting if entry.id != entry_id))

    def _append(self, entry: Entry) -> Entry:
        # In one piece: a commit meanwhile, of another thread, has it in one place or the other.
        with self._lock:
            self.let_go_held(entry.id)
            return super()._append(entry)

    def amend_held(self, message_id: str, text: str | None) -> bool:
        """Give a waiting message other words, or with None take it back; False if none waits."""
        with self._lock:
            mine = [e for e in self._waiting if e.metadata.get(MESSAGE_ID) == message_id]
            for entry in mine:
                changed = () if text is None else (reworded(entry, text),)
                at = self._waiting.index(entry)
                self._wait((*self._waiting[:at], *changed, *self._waiting[at + 1 :]))
            return bool(mine)

    def _wait(self, waiting: tuple[Entry, ...], *, by_user: bool = False) -> None:
        self._waiting = waiting
        self._touch(WAITING, by_user=by_user)

    def know(self, message_ids: Iterable[str]) -> None:
        """Remember messages of this chat that are no entries here."""
        with self._lock:
            known = {**dict.fromkeys(self._heard), **dict.fromkeys(message_ids)}
            self._heard = tuple(known)[-NOTED_LIMIT:]
            self._touch(HEARD)
            self._seen.add(*self._heard)

    @property
    def heard(self) -> tuple[str, ...]:
        """The ids of the newest messages of this chat, oldest first."""
        with self._lock:
            return tuple(self._seen)

    # Answers on their way

    @property
    def unsent(self) -> tuple[int, ...]:
        """The numbers of answers that their chat may not have got, oldest first."""
        return self._unsent

    def owe(self, seq: int) -> None:
        """Note that this answer has to arrive."""
        with self._lock:
            self._unsent = (*self._unsent, seq)
            self._touch()

    def arrived(self, seq: int) -> None:
        """Note that this answer is in its chat, or never will be."""
        with self._lock:
            if seq in self._unsent:
                self._unsent = tuple(owed for owed in self._unsent if owed != seq)
                self._touch()

    # What stores need

    def _head(self) -> dict[str, Any]:
        beside = {"waiting": len(self._waiting), "unsent": list(self._unsent)}
        return {**super()._head(), **{name: value for name, value in beside.items() if value}}

    def _section(self, name: str) -> Any:
        if name == WAITING:
            return [entry.to_dict() for entry in self._waiting]
        return list(self._heard) if name == HEARD else super()._section(name)

    def _restore(self, head: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        super()._restore(head, sections)
        self._waiting = tuple(map(Entry.from_dict, sections.get(WAITING) or ()))
        self._unsent = tuple(map(int, head.get("unsent") or ()))
        self._heard = tuple(map(str, sections.get(HEARD) or ()))

    def _restore_log(self, log: Log, head_last: int, seen: Iterable[str]) -> None:
        super()._restore_log(log, head_last, (*seen, *self._heard))
        # One whose turn had come when a commit was torn is in the log already.
        there = {entry.id for entry in log.entries}
        self._waiting = tuple(entry for entry in self._waiting if entry.id not in there)
        self._seen.add(*(entry.metadata.get(MESSAGE_ID) for entry in self._waiting))


def reworded(entry: Entry, text: str) -> Entry:
    """The same message with other words; what came with it stays."""
    content = {**entry.content, "text": text}
    parts = content.pop("parts", None)
    if parts:
        rest = [part for part in parts if part.get("type") != "text"]
        content["parts"] = [{"type": "text", "text": text}, *rest]
    return replace(entry, content=content)
