"""One conversation: its log and window, its digests, its state. Pure data, no I/O."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import RLock
from typing import Any

from nanoloop.errors import HistoryNotLoaded
from nanoloop.session.chat import entries_of, messages_of, tool_result_of_block
from nanoloop.session.entry import (
    MESSAGE,
    TOOL_CALL,
    Entry,
    copied,
    from_rfc3339,
    rfc3339,
    utc_now,
)
from nanoloop.session.ids import checked_id, new_id
from nanoloop.session.log import Digest, Log
from nanoloop.session.size import rough_tokens
from nanoloop.session.window import cut, message_count

MESSAGE_ID = "message_id"
"""The metadata key of a user's entry that names the channel's message."""
SEEN_LIMIT = 512
"""Message ids that a session in memory remembers."""
TITLE_LIMIT = 60
"""Characters of the first user's words that make the title."""

ABOUT, STATE, SUMMARY, MEMO, SETTINGS = "about", "state", "summary", "memo", "settings"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What a store has to make durable in one piece."""

    revision: int
    """The revision these changes are based on; the commit makes it one more."""
    entries: tuple[Entry, ...]
    head: Mapping[str, Any]
    """Small, written with every commit."""
    sections: Mapping[str, Any]
    """Larger parts, only those that changed."""
    tick: int
    """The moment of the session's own clock at which they were taken."""


class Session:
    """A conversation that forgets nothing: what leaves the window stays in the log."""

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the seeds' name for it
        key: str | None = None,
        agent: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        max_history: int | None = None,
        ttl: float | None = None,
        sliding: bool = False,
        clock: Callable[[], datetime] = utc_now,
    ) -> None:
        self._id = checked_id(id) if id is not None else new_id()
        self._lock = RLock()
        self._clock = clock
        self._log = Log()
        self._summary = Digest(value="")
        self._state: dict[str, Any] = {}
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._key = key
        self._agent = agent
        self._title = ""
        self._metadata: dict[str, Any] = copied(metadata or {})
        self._max_history = max_history
        self._ttl = ttl if ttl and ttl > 0 else None
        self._sliding = sliding
        self._created_at = self._updated_at = clock()
        self._expires_at = self._expiry_from_now()
        self._turns = 0
        self._epoch = 0
        self._awaiting = 0
        self.summary_in_progress = False
        """Whether a task is summarising right now; never saved."""
        self._revision = 0
        self._saved_seq = 0
        self._tick = 1
        self._saved_tick = 0
        self._changed_at: dict[str, int] = {ABOUT: 1}

    # Who it is

    @property
    def id(self) -> str:
        """The name that stores know it by."""
        return self._id

    @property
    def key(self) -> str | None:
        """The chat that this session belongs to."""
        return self._key

    @property
    def created_at(self) -> datetime:
        """When it was made."""
        return self._created_at

    @property
    def updated_at(self) -> datetime:
        """When anything in it last changed; reading is no change."""
        return self._updated_at

    @property
    def agent(self) -> str | None:
        """The name of the agent that answers here."""
        return self._agent

    @agent.setter
    def agent(self, name: str | None) -> None:
        with self._lock:
            self._agent = name
            self._touch(ABOUT)

    @property
    def title(self) -> str:
        """The first user's words, or what it was renamed to."""
        return self._title

    @title.setter
    def title(self, text: str) -> None:
        with self._lock:
            self._title = text
            self._touch(ABOUT)

    @property
    def metadata(self) -> dict[str, Any]:
        """A copy of what it was created with."""
        return dict(copied(self._metadata))

    @property
    def max_history(self) -> int | None:
        """Messages that the window holds at most, when set."""
        return self._max_history

    @max_history.setter
    def max_history(self, count: int | None) -> None:
        with self._lock:
            self._max_history = count
            self._touch(ABOUT)

    @property
    def turns(self) -> int:
        """Assistant messages so far."""
        return self._turns

    @property
    def epoch(self) -> int:
        """Moves with every reset: work begun in an earlier one is dropped."""
        return self._epoch

    def has_expired(self) -> bool:
        """Whether its time is over, strictly after the moment it was given."""
        return self._expires_at is not None and self._clock() > self._expires_at

    # State

    def get(self, key: str) -> tuple[Any, bool]:
        """A copy of the value and True, or None and False."""
        with self._lock:
            return copied(self._state.get(key)), key in self._state

    def set(self, key: str, value: Any) -> None:
        """Keep a value under this key."""
        with self._lock:
            self._state[key] = copied(value)
            self._touch(STATE, by_user=True)

    def delete(self, key: str) -> None:
        """Remove a key; a missing one is fine."""
        with self._lock:
            self._state.pop(key, None)
            self._touch(STATE, by_user=True)

    @property
    def state(self) -> dict[str, Any]:
        """A copy of all values."""
        with self._lock:
            return dict(copied(self._state))

    # The log

    def add_entry(self, entry: Entry) -> Entry:
        """Append a copy of the entry; returns it with its number."""
        return self._append(entry.copy())

    def append_message(self, message: Mapping[str, Any]) -> None:
        """Append a chat message, in OpenAI form or in blocks."""
        with self._lock:
            for entry in entries_of(message):
                self._append(entry)

    def add_message(self, role: str, content: Any) -> None:
        """Append a message by role and content."""
        self.append_message({"role": role, "content": content})

    def add_tool_result(self, tool_use_id: str, result: Any) -> None:
        """Append the result of the call with this id."""
        with self._lock:
            block = {"tool_use_id": tool_use_id, "content": result}
            self._append(tool_result_of_block(block, self._tool_of(tool_use_id)))

    def _tool_of(self, call_id: str) -> str:
        calls = (e for e in reversed(self._log.entries) if e.type == TOOL_CALL)
        return next((e.content["tool"] for e in calls if e.call_id == call_id), "")

    def _append(self, entry: Entry) -> Entry:
        with self._lock:
            entry = self._log.append(entry)
            self._count(entry)
            self._touch(by_user=True)
            if self._max_history and self._max_history > 0:
                self._log.show_from(cut(self._log.window, keep=self._max_history))
            return entry

    def _count(self, entry: Entry) -> None:
        if entry.role == "assistant":
            self._turns += 1
        elif entry.role == "user":
            self._remember(entry.metadata.get(MESSAGE_ID))
            if not self._title:
                self._title = " ".join(str(entry.content.get("text") or "").split())[:TITLE_LIMIT]
                self._changed_at[ABOUT] = self._tick + 1

    def history(self, limit: int = 0) -> list[Entry]:
        """The newest entries first, at most `limit`; 0, negative or too large is all of them.

        Equal timestamps: the last added comes first.
        """
        with self._lock:
            entries = sorted(self._whole(), key=lambda e: (e.timestamp, e.seq), reverse=True)
            return [entry.copy() for entry in (entries[:limit] if limit > 0 else entries)]

    def _whole(self) -> Sequence[Entry]:
        if not self._log.is_whole:
            raise HistoryNotLoaded(self._id)
        return self._log.entries

    @property
    def full_chat_history(self) -> list[dict[str, Any]]:
        """The whole history as chat messages, oldest first."""
        with self._lock:
            return messages_of(self._whole())

    @property
    def current_chat_history(self) -> list[dict[str, Any]]:
        """The window as chat messages, oldest first."""
        with self._lock:
            return messages_of(self._log.window)

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The window as chat messages, oldest first."""
        return self.current_chat_history

    @property
    def window(self) -> tuple[Entry, ...]:
        """The entries that the model sees word for word; not to be changed."""
        with self._lock:
            return tuple(self._log.window)

    @property
    def entry_count(self) -> int:
        """Entries of the whole history, in memory or not."""
        return self._log.count

    @property
    def last_seq(self) -> int:
        """The number of the newest entry."""
        return self._log.last

    def entries_between(self, after: int, upto: int) -> list[Entry]:
        """The entries in memory with `after < seq <= upto`; not to be changed."""
        with self._lock:
            return list(self._log.between(after, upto))

    def has_seen(self, message_id: str) -> bool:
        """Whether a message with this id is in the log, as far back as ids are remembered."""
        return message_id in self._seen

    def _remember(self, message_id: str | None) -> None:
        if message_id is None:
            return
        self._seen[message_id] = None
        self._seen.move_to_end(message_id)
        if len(self._seen) > SEEN_LIMIT:
            self._seen.popitem(last=False)

    # The window

    def trim_if_needed(self, limit: int, min_keep: int) -> tuple[list[dict[str, Any]], bool]:
        """Cut the window to about its last `min_keep` messages once it has more than `limit`.

        Returns what left it, as chat messages, and whether anything did. The cut falls where a
        user's message begins; one turn that is longer than the limit stays whole.
        """
        with self._lock:
            window = self._log.window
            if limit <= 0 or message_count(window) <= limit:
                return [], False
            return self._cut(cut(window, keep=max(1, min_keep), align="user"))

    def _cut(self, index: int) -> tuple[list[dict[str, Any]], bool]:
        if index == 0:
            return [], False
        left = self._log.show_from(index)
        self._touch()
        return messages_of(left), True

    def shrink(self) -> bool:
        """Cut the window to half its messages, the exchange going on kept; False if nothing left."""
        with self._lock:
            window = self._log.window
            keep = max(1, message_count(window) // 2)
            return self._cut(cut(window, keep=keep, align="user"))[1]

    # The summary

    @property
    def summary(self) -> str:
        """What stands for the entries that left the window; "" while nothing does."""
        return str(self._summary.value)

    @property
    def covered_seq(self) -> int:
        """Entries up to here are stood for by the summary, or belong to no present history."""
        return max(self._summary.seq, self._log.start - 1)

    @property
    def pending_seq(self) -> int:
        """Entries above `covered_seq` up to here left the window and wait for their summary."""
        return self._log.evicted

    @property
    def has_pending(self) -> bool:
        """Whether anything waits to be summarised."""
        return self.pending_seq > self.covered_seq

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The waiting entries that are in memory; not to be changed."""
        with self._lock:
            return tuple(self._log.pending(self.covered_seq))

    def update_summary(
        self, text: str, *, seq: int | None = None, epoch: int | None = None
    ) -> bool:
        """Set the summary and, together with it, how far it reaches; False if it came too late.

        Without `seq` only the text changes. Its reach only moves forward, and never over what is
        still in the window; an `epoch` that has passed drops the whole.
        """
        with self._lock:
            self.summary_in_progress = False
            if epoch is not None and epoch != self._epoch:
                return False
            reach = self._summary.seq if seq is None else min(seq, self._log.evicted)
            if seq is not None and reach < self._summary.seq:
                return False
            self._summary = Digest(value=text, seq=max(reach, self._summary.seq))
            self._touch(SUMMARY)
            return True

    # Beginnings

    def reset_history(self) -> None:
        """Empty the history and begin a new epoch; memo, summary and state stay."""
        with self._lock:
            self._log.restart()
            self._turns = 0
            self._awaiting = 0
            self._epoch += 1
            self._touch()

    def clear(self) -> None:
        """Empty the history and everything drawn from it; the state stays."""
        with self._lock:
            self.reset_history()
            self._summary = Digest(value="", seq=self._log.last)
            self._touch(SUMMARY)

    # Waiting for an answer

    @property
    def awaiting(self) -> int:
        """The number of a user's message that has no answer yet, or 0."""
        return self._awaiting

    @awaiting.setter
    def awaiting(self, seq: int) -> None:
        with self._lock:
            self._awaiting = seq
            self._touch()

    # Size

    def context_size(self) -> int:
        """Tokens of the window, roughly: four characters each."""
        with self._lock:
            return rough_tokens(sum(_text_size(entry) for entry in self._log.window))

    # What stores need

    def _touch(self, *sections: str, by_user: bool = False) -> None:
        self._tick += 1
        for section in sections:
            self._changed_at[section] = self._tick
        self._updated_at = self._clock()
        if by_user and self._sliding:
            self._expires_at = self._expiry_from_now()

    def _expiry_from_now(self) -> datetime | None:
        return None if self._ttl is None else self._clock() + timedelta(seconds=self._ttl)

    @property
    def revision(self) -> int:
        """How many commits its store has made of it."""
        return self._revision

    def changes(self) -> Changes | None:
        """What is not durable yet, as of now; None when everything is."""
        with self._lock:
            if self._tick == self._saved_tick:
                return None
            return Changes(
                revision=self._revision,
                entries=tuple(self._log.between(self._saved_seq, self._log.last)),
                head=self._head(),
                sections={name: self._section(name) for name in self._changed_at},
                tick=self._tick,
            )

    def committed(self, changes: Changes) -> None:
        """Hear that these changes are durable now."""
        with self._lock:
            self._revision = changes.revision + 1
            if changes.entries:
                self._saved_seq = changes.entries[-1].seq
            self._changed_at = {
                name: tick for name, tick in self._changed_at.items() if tick > changes.tick
            }
            self._saved_tick = changes.tick

    def release(self) -> None:
        """Forget, in memory only, what is durable and not in the window."""
        with self._lock:
            self._log.release(self._saved_seq)

    def _head(self) -> dict[str, Any]:
        head = {
            "rev": self._revision + 1,
            "epoch": self._epoch,
            **self._log.head(),
            "covered": self._summary.seq,
            "turns": self._turns,
            "count": self._log.count,
            "updated_at": rfc3339(self._updated_at),
        }
        if self._awaiting:
            head["awaiting"] = self._awaiting
        if self._expires_at is not None:
            head["expires_at"] = rfc3339(self._expires_at)
        return head

    def _section(self, name: str) -> Any:
        if name == ABOUT:
            return self._about()
        if name == STATE:
            return copied(self._state)
        return {"value": self._summary.value, "seq": self._summary.seq}

    def _about(self) -> dict[str, Any]:
        about = {
            "id": self._id,
            "key": self._key,
            "created_at": rfc3339(self._created_at),
            "agent": self._agent,
            "title": self._title,
            "metadata": copied(self._metadata),
            "max_history": self._max_history,
            "ttl": self._ttl,
            "sliding": self._sliding,
        }
        return {name: value for name, value in about.items() if value not in (None, False, {}, "")}

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
        about = sections[ABOUT]
        session = cls(id=about["id"], clock=clock)
        session._restore_about(about)
        session._restore_head(head)
        session._log = Log.restored(head, entries, after=after)
        session._saved_seq = session._log.last
        summary = sections.get(SUMMARY) or {}
        session._summary = Digest(value=summary.get("value", ""), seq=int(summary.get("seq", 0)))
        session._state = copied(sections.get(STATE) or {})
        session._recount(int(head.get("last", 0)), seen)
        session._changed_at = {}
        session._saved_tick = session._tick
        return session

    def _restore_about(self, about: Mapping[str, Any]) -> None:
        self._key = about.get("key")
        self._agent = about.get("agent")
        self._title = about.get("title", "")
        self._metadata = copied(about.get("metadata") or {})
        self._max_history = about.get("max_history")
        self._ttl = about.get("ttl")
        self._sliding = bool(about.get("sliding", False))
        self._created_at = from_rfc3339(about.get("created_at"))

    def _restore_head(self, head: Mapping[str, Any]) -> None:
        self._revision = int(head.get("rev", 0))
        self._epoch = int(head.get("epoch", 0))
        self._turns = int(head.get("turns", 0))
        self._awaiting = int(head.get("awaiting", 0))
        self._updated_at = from_rfc3339(head.get("updated_at"))
        expires_at = head.get("expires_at")
        self._expires_at = from_rfc3339(expires_at) if expires_at else None

    def _recount(self, head_last: int, seen: Iterable[str]) -> None:
        for message_id in seen:
            self._remember(message_id)
        for entry in self._log.entries:
            if entry.seq > head_last:  # written, but its head was lost with the process
                self._count(entry)
            elif entry.role == "user":
                self._remember(entry.metadata.get(MESSAGE_ID))


def _text_size(entry: Entry) -> int:
    if entry.type == MESSAGE:
        return len(entry.content.get("text") or "")
    return sum(
        len(value) if isinstance(value, str) else len(str(value))
        for value in entry.content.values()
    )
