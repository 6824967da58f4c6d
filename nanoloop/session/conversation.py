"""What was said: the log, the window on it, the summary, and what waits for its turn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, Unpack

from nanoloop.errors import HistoryNotLoaded
from nanoloop.session.chat import (
    HandedMessages,
    begins_apart,
    entries_of,
    entry_text,
    messages_of,
    rough_tokens,
    tool_result_of_block,
)
from nanoloop.session.entry import TOOL_CALL, Entry, copied
from nanoloop.session.head import ABOUT, HEARD, SUMMARY, WAITING, Identity, Record
from nanoloop.session.ids import new_id
from nanoloop.session.log import (
    Digest,
    Log,
    Quotes,
    cut,
    cut_to_fit,
    message_count,
    quotes_in,
    whole_before,
)
from nanoloop.session.queue import (
    MESSAGE_ID,
    NOTED_LIMIT,
    MessageIds,
    is_asked,
    last_exchange,
    reworded,
)

TOKENS = ("tokens_in", "tokens_out", "tokens_cached")
"""The kinds of tokens that a session counts, in the order that its head has them."""
TITLE_LIMIT = 60
"""Characters of the first user's words that make the title."""


class Conversation(Record):
    """A log that forgets nothing: what leaves the window stays in it."""

    def __init__(
        self,
        *,
        token_counter: Callable[[str], int] | None = None,
        **identity: Unpack[Identity],
    ) -> None:
        super().__init__(**identity)
        self.token_counter = token_counter
        """Counts a text's tokens better than four characters each."""
        self._log = Log()
        self._summary = Digest(value="")
        self._kept: Quotes = ()
        self._summary_spent: dict[str, int] = {}
        self._seen = MessageIds()
        self._turns = 0
        self._spent: dict[str, int] = {}
        self._epoch = 0
        self._awaiting = 0
        self.summary_in_progress = False
        """Whether a task is summarising right now; never saved."""
        self.held_pending = 0
        """How many of the newest pending entries `release` leaves in memory."""

    @property
    def turns(self) -> int:
        """Assistant messages so far."""
        return self._turns

    @property
    def epoch(self) -> int:
        """Moves with every reset: work begun in an earlier one is dropped."""
        return self._epoch

    @property
    def spent(self) -> Mapping[str, int]:
        """The tokens of all turns so far, by kind; not to be changed."""
        return self._spent

    def spend(self, tokens: Mapping[str, int]) -> None:
        """Add what a turn has taken."""
        with self._lock:
            for name, count in tokens.items():
                self._spent[name] = self._spent.get(name, 0) + count
            self._touch()

    # The log

    def add_entry(self, entry: Entry) -> Entry:
        """Append a copy of the entry; returns another, with its number."""
        return self._append(entry.copy()).copy()

    def append_message(self, message: Mapping[str, Any]) -> None:
        """Append a chat message, in OpenAI form or in blocks."""
        with self._lock:
            for entry in begins_apart(entries_of(message), self.newest):
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
        return next((str(e.content.get("tool")) for e in calls if e.call_id == call_id), "")

    def _append(self, entry: Entry) -> Entry:
        with self._lock:
            entry = self._log.append(entry)
            self._ledger.add(entry)
            self._count(entry)
            self._touch(by_user=True)
            self._keep_bounds()
            return entry

    def _count(self, entry: Entry) -> None:
        if entry.role == "assistant":
            self._turns += 1
        elif entry.role == "user":
            self._seen.add(entry.metadata.get(MESSAGE_ID))
            if not self._title:
                self._title = title_of(entry)
                self._ledger.touch([ABOUT])

    def _keep_bounds(self) -> None:
        """What has to happen after every append."""
        most = self._max_history or 0
        if 0 < most < self._log.window_length:
            self._log.show_from(cut(self._log.window, keep=most))

    def _whole(self) -> Sequence[Entry]:
        if not self._log.is_whole:
            raise HistoryNotLoaded(self._id)
        return self._log.entries

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The window as chat messages, oldest first."""
        with self._lock:
            return messages_of(self._log.window)

    @property
    def window(self) -> tuple[Entry, ...]:
        """The entries that the model sees word for word; not to be changed."""
        with self._lock:
            return tuple(self._log.window)

    @property
    def newest(self) -> Entry | None:
        """The last entry of the log; not to be changed."""
        return self._log.entries[-1] if self._log.entries else None

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

    def has_entry(self, seq: int) -> bool:
        """Whether this entry belongs to the present history and was not taken back."""
        with self._lock:
            return self._log.start <= seq <= self._log.last and not self._log.is_hidden(seq)

    def has_seen(self, message_id: str) -> bool:
        """Whether a message with this id is in the log, as far back as ids are remembered."""
        return message_id in self._seen

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
        """Cut the window to half, the exchange going on kept whole; False if nothing left it."""
        with self._lock:
            window = self._log.window
            keep = max(1, message_count(window) // 2)
            return self._cut(cut(window, keep=keep, align="user"))[1]

    def trim_to_fit(self, room: float, size: Callable[[Entry], int]) -> bool:
        """Cut the window so that it fits, the exchange going on kept whole; whether anything left.

        The cut falls where a user's message begins.
        """
        with self._lock:
            return self._cut(cut_to_fit(self._log.window, room=room, size=size))[1]

    # The summary

    @property
    def summary(self) -> str:
        """What stands for the entries that left the window; "" while nothing does."""
        return str(self._summary.value)

    @summary.setter
    def summary(self, text: str) -> None:
        self.update_summary(text)

    @property
    def ledger(self) -> Quotes:
        """What is kept word for word beside the summary; not to be changed."""
        return self._kept

    @property
    def summary_spent(self) -> Mapping[str, int]:
        """What all summaries of this session have cost so far; not to be changed."""
        return self._summary_spent

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

    def is_pending(self, entry: Entry) -> bool:
        """Whether this entry of the log waits to be summarised, in memory or not."""
        with self._lock:
            if not self.covered_seq < entry.seq <= self.pending_seq:
                return False
            return not self._log.is_hidden(entry.seq) and not self._log.shows(entry.seq)

    def update_summary(
        self,
        text: str,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        ledger: Iterable[Mapping[str, Any]] | None = None,
        spent: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the summary and, together with it, how far it reaches; False if it came too late.

        Without `seq` only the text changes. Its reach only moves forward, and never over what is
        still in the window; an `epoch` that has passed drops the whole. A `ledger` replaces the
        one there is; `spent` is added to what there is.
        """
        with self._lock:
            self.summary_in_progress = False
            if epoch is not None and epoch != self._epoch:
                return False
            reach = self._summary.seq if seq is None else min(seq, self._log.evicted)
            if seq is not None and reach < self._summary.seq:
                return False
            self._summary = Digest(value=text, seq=reach)
            self._kept = self._kept if ledger is None else quotes_in(tuple(ledger))
            for name, count in (spent or {}).items():
                self._summary_spent[name] = self._summary_spent.get(name, 0) + count
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
            self._kept = ()
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

    def context_size(self) -> int:
        """Tokens of the window: as the token counter has it, or four characters each."""
        with self._lock:
            texts = [entry_text(entry) for entry in self._log.window]
        if self.token_counter is not None:
            return sum(self.token_counter(text) for text in texts)
        return rough_tokens(sum(len(text) for text in texts))

    # What stores need

    def release(self) -> None:
        """Forget, in memory only, what is durable and not in the window, nor held as pending."""
        with self._lock:
            upto = self._ledger.saved_seq
            if self.held_pending:
                upto = min(upto, self._newest_pending(self.held_pending))
            self._log.release(upto)

    def _newest_pending(self, count: int) -> int:
        """The number behind which at most so many pending entries stand."""
        return max(self.covered_seq, self._log.evicted - count)

    def missing_pending(self) -> tuple[int, int] | None:
        """Where entries that are to be held are in the store only: after this, up to that."""
        with self._lock:
            after, upto = self._newest_pending(self.held_pending), self._log.released
            if not self.held_pending or self._log.is_whole or upto <= after:
                return None
            return after, upto

    def bring_back(self, entries: Iterable[Entry], *, after: int, upto: int) -> None:
        """Take what the store has with `after < seq <= upto` into memory again."""
        with self._lock:
            self._log.bring_back(entries, after=after, upto=upto)

    def _head(self) -> dict[str, Any]:
        head = {
            **super()._head(),
            "epoch": self._epoch,
            **self._log.head(),
            "covered": self._summary.seq,
            "turns": self._turns,
            "count": self._log.count,
        }
        spent = [self._spent.get(name, 0) for name in TOKENS] if self._spent else []
        beside = {"awaiting": self._awaiting, "spent": spent}
        return {**head, **{name: value for name, value in beside.items() if value}}

    def _section(self, name: str) -> Any:
        if name == SUMMARY:
            beside = {"ledger": copied(self._kept), "spent": dict(self._summary_spent)}
            stated = {key: value for key, value in beside.items() if value}
            return {"value": self._summary.value, "seq": self._summary.seq, **stated}
        return super()._section(name)

    def _restore(self, head: Mapping[str, Any], sections: Mapping[str, Any]) -> None:
        super()._restore(head, sections)
        self._epoch = int(head.get("epoch", 0))
        self._turns = int(head.get("turns", 0))
        self._awaiting = int(head.get("awaiting", 0))
        self._spent = spent_in(head)
        summary = sections.get(SUMMARY) or {}
        self._summary = Digest(value=summary.get("value", ""), seq=int(summary.get("seq", 0)))
        self._kept = quotes_in(summary.get("ledger"))
        self._summary_spent = {k: int(v) for k, v in (summary.get("spent") or {}).items()}

    def _restore_log(self, log: Log, head_last: int, seen: Iterable[str]) -> None:
        self._log = log
        counted = [entry for entry in log.entries if entry.seq <= head_last]
        said = (entry.metadata.get(MESSAGE_ID) for entry in counted if entry.role == "user")
        self._seen.add(*seen, *said)
        for entry in log.entries[len(counted) :]:  # written, but their head was lost
            self._count(entry)


def spent_in(head: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of all turns, by kind, as a head has them."""
    return dict(zip(TOKENS, map(int, head.get("spent") or ()), strict=False))


def title_of(entry: Entry) -> str:
    """The title that a user's first message gives."""
    return " ".join(str(entry.content.get("text") or "").split())[:TITLE_LIMIT]


class QueuedConversation(Conversation):
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


ChatMessages = Mapping[str, Any] | Sequence[Mapping[str, Any]]


class ChangeableHistory(QueuedConversation):
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
            groups = HandedMessages(self._whole()).entries_for(messages)
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
        groups = HandedMessages(self._log.entries).entries_for(messages)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """Keep the newest entries; hand the older ones on."""

    keep: int = 1000
    """Entries that a history holds at most."""
    take: Callable[[list[Entry]], object]
    """Gets the old entries before they go; if it raises, they stay."""
