"""A conversation as the loop and stores use it: identity, state, log, queue and digests.

Stores keep its data in `Head` and `PARTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from operator import attrgetter
from threading import RLock
from typing import Any
from weakref import WeakMethod

from nanoloop.errors import HistoryNotLoaded
from nanoloop.session.approvals import Approvals
from nanoloop.session.chat import messages_of
from nanoloop.session.digest import Digest, Quotes, Summary, added, pinned
from nanoloop.session.entry import ERASED, Entry, copied, entries_in, title_of, utc_now
from nanoloop.session.head import (
    ABOUT,
    APPROVALS,
    MEMO,
    SETTINGS,
    STATE,
    SUMMARY,
    WAITING,
    Changes,
    ChangeTracker,
    Head,
    Identity,
    new_id,
)
from nanoloop.session.log import Archive, Log, cut, cut_to_fit, message_count, whole_before
from nanoloop.session.options import Options
from nanoloop.session.queue import Next, Queue, is_asked, last_exchange


class Conversation:
    """A thread-safe conversation; entries that leave the window stay in its log."""

    def __init__(
        self,
        *,
        about: Identity,
        clock: Callable[[], datetime] = utc_now,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.about = about
        """The conversation's identity and lifetime."""
        self.lock = RLock()
        """Held while anything in the conversation changes."""
        self.log = Log()
        """The entries and the window; changed only through this object."""
        # A weak reference, so that an unused session is freed at once, without garbage collection.
        me = WeakMethod(self._settings_changed)
        self.settings = Options(settings, changed=lambda: changed() if (changed := me()) else None)
        """The conversation's settings, which take priority over defaults and those passed in."""
        self.queue = Queue()
        """Waiting messages and unsent answers; changed only through this object."""
        self.approvals = Approvals()
        """The tool calls that are waiting for a person's yes; changed only through `approvals`."""
        self.updated_at = about.created_at
        """The time of the last change; reading does not count as a change."""
        self.turns = 0
        """The number of assistant messages so far."""
        self.epoch = 0
        """Increases with every reset; work that was begun in an earlier epoch is discarded."""
        self.spent: Mapping[str, int] = {}
        """The tokens of all turns so far, by kind."""
        self.resized: Mapping[str, Any] = {}
        """The last resize's type, turn and reason, and the newest number then; empty before it."""
        self.moved = ""
        """The id of the session in which the chat continues, or ""."""
        self.by, self.claims, self.stopped = "", 0, 0
        """The process at work, how often work was claimed, and the claim to stop; see `Head`."""
        self.erasures, self.erasing = 0, Head().erasing
        """How often entries were erased, and where copies of them may remain; see `Head`."""
        self.summary_in_progress = False
        """True while a task is writing a summary; never saved."""
        self.held_pending = 0
        """How many of the newest pending entries `release` keeps in memory."""
        self._clock = clock
        self.archiving: Archive | None = None
        """The archive that receives the oldest messages when there are too many, or None."""
        self.tracker = ChangeTracker()
        """Keeps track of which parts of the conversation are durable."""
        self._state: dict[str, Any] = {}
        self._summary = Summary()
        self._memo = Digest(value={})
        self._awaiting = 0
        self._expires_at = self._expiry_from_now()

    # Identity and lifetime

    @property
    def id(self) -> str:
        """The session's id in stores."""
        return self.about.id

    @property
    def key(self) -> str | None:
        """The chat that the session belongs to."""
        return self.about.key

    @property
    def agent(self) -> str | None:
        """The name of the agent that answers in the session."""
        return self.about.agent

    @agent.setter
    def agent(self, name: str | None) -> None:
        self._become(agent=name)

    @property
    def title(self) -> str:
        """The title set by the user, or else the user's first words."""
        return self.about.title

    @title.setter
    def title(self, text: str) -> None:
        self._become(title=text)

    @property
    def max_history(self) -> int | None:
        """The maximum number of messages in the window, or None."""
        return self.about.max_history

    @max_history.setter
    def max_history(self, count: int | None) -> None:
        self._become(max_history=count)

    def _become(self, **changed: Any) -> None:
        with self.lock:
            self.about = replace(self.about, **changed)
            self.touch(ABOUT)

    def has_expired(self) -> bool:
        """Return True if the conversation has expired."""
        return self._expires_at is not None and self._clock() > self._expires_at

    def _expiry_from_now(self) -> datetime | None:
        ttl = self.about.ttl
        try:
            return None if ttl is None else self._clock() + timedelta(seconds=ttl)
        except OverflowError:  # later than the last date that Python supports
            return None

    def _settings_changed(self) -> None:
        with self.lock:
            self.touch(SETTINGS)

    # The log

    def spend(self, tokens: Mapping[str, int]) -> None:
        """Add a turn's tokens to the total."""
        with self.lock:
            self.spent = added(self.spent, tokens)
            self.touch()

    def add_entry(self, entry: Entry) -> Entry:
        """Append a copy of the entry to the log, and return another copy with its number."""
        return self.append(entry).copy()

    def append(self, entry: Entry) -> Entry:
        """Like `add_entry`, but return the log's own entry, which must not be modified."""
        # Under one lock, so that a commit in another thread finds a waiting message in the queue or
        # the log.
        with self.lock:
            self.let_go_held(entry.id)
            entry = self.log.append(entry)
            self.tracker.add(entry)
            self._count(entry)
            self.touch(by_user=True)
            self._keep_bounds()
            return entry

    def _count(self, entry: Entry) -> None:
        if entry.role == "assistant":
            self.turns += 1
        elif entry.role == "user" and not self.about.title:
            self.about = replace(self.about, title=title_of(entry))
            self.tracker.touch([ABOUT])

    def _keep_bounds(self) -> None:
        """Enforce the limits on window and history after an append."""
        most = self.about.max_history or 0
        if 0 < most < self.log.window_length:
            self.log.show_from(cut(self.log.window, keep=most))
        if self.archiving and self.log.is_whole and self.log.count > self.archiving.keep:
            self.archive(self.archiving.keep, self.archiving.take)

    def whole(self) -> Sequence[Entry]:
        """Return the whole history; raise `HistoryNotLoaded` if some of it is only in a store."""
        if not self.log.is_whole:
            raise HistoryNotLoaded(self.id)
        return self.log.entries

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The window as chat messages, oldest first."""
        with self.lock:
            return messages_of(self.log.window)

    @property
    def window(self) -> tuple[Entry, ...]:
        """The entries that the model sees in full; they must not be modified."""
        with self.lock:
            return tuple(self.log.window)

    @property
    def newest(self) -> Entry | None:
        """The last entry in the log, or None; it must not be modified."""
        return self.log.entries[-1] if self.log.entries else None

    def entry_at(self, seq: int) -> Entry | None:
        """Return the entry with this number in the window, or None; it must not be modified."""
        newest = self.newest  # nearly always the last entry
        if newest is not None and newest.seq == seq:
            return newest
        return next((entry for entry in self.window if entry.seq == seq), None)

    @property
    def entry_count(self) -> int:
        """The number of entries in the whole history, including those not in memory."""
        return self.log.count

    @property
    def last_seq(self) -> int:
        """The number of the newest entry."""
        return self.log.last

    def entries_between(self, after: int, upto: int) -> list[Entry]:
        """Return the entries in memory with `after < seq <= upto`; they must not be modified."""
        with self.lock:
            return list(self.log.between(after, upto))

    def has_entry(self, seq: int) -> bool:
        """Return True if this entry belongs to the current history and was not undone."""
        with self.lock:
            return self.log.start <= seq <= self.log.last and not self.log.is_hidden(seq)

    # The window

    def trim_if_needed(self, limit: int, min_keep: int) -> tuple[list[dict[str, Any]], bool]:
        """Cut the window to about its last `min_keep` messages if it has more than `limit`.

        Return the messages that were cut, and whether any were. The window then begins at a user's
        message. A single turn that is longer than the limit is not cut.
        """
        with self.lock:
            window = self.log.window
            if limit <= 0 or message_count(window) <= limit:
                return [], False
            return self._cut(cut(window, keep=max(1, min_keep), align="user"))

    def _cut(self, index: int) -> tuple[list[dict[str, Any]], bool]:
        if index == 0:
            return [], False
        left = self.log.show_from(index)
        self.touch()
        return messages_of(left), True

    def shrink(self) -> bool:
        """Halve the window, but keep the current exchange; return False if nothing was cut."""
        with self.lock:
            window = self.log.window
            keep = max(1, message_count(window) // 2)
            return self._cut(cut(window, keep=keep, align="user"))[1]

    def trim_to_fit(self, room: float, size: Callable[[Entry], int]) -> bool:
        """Cut the window to fit, but keep the current exchange; return True if anything was cut.

        The cut is always made at a user's message.
        """
        with self.lock:
            return self._cut(cut_to_fit(self.log.window, room=room, size=size))[1]

    # The queue

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """The messages sent during an answer, oldest first; they are not in the log yet."""
        return self.queue.waiting

    def hold(self, entry: Entry) -> None:
        """Queue a message until its turn comes."""
        with self.lock:
            self.queue.hold(entry.copy())
            self.touch(WAITING, by_user=True)

    def next(self, sent: Container[int] = ()) -> Next:
        """Return the next pending step; answers in `sent` are already being sent."""
        with self.lock:
            return self.queue.next(self._awaiting, sent, self.moved)

    def let_go_held(self, entry_id: str) -> bool:
        """Remove a message from the queue; return False if it was not there."""
        with self.lock:
            did_wait = bool(self.queue.waiting) and self.queue.let_go(entry_id)
            if did_wait:
                self.touch(WAITING)
            return did_wait

    def amend_held(self, message_id: str, text: str | None) -> bool:
        """Change a waiting message's text, or delete the message if None; False if not found."""
        with self.lock:
            has_changed = self.queue.amend(message_id, text)
            if has_changed:
                self.touch(WAITING)
            return has_changed

    def hear(self, chat: str, message_id: str) -> bool:
        """Make the next commit record this message, and fail if the message was recorded before.

        Return False if the message is already part of the next commit.
        """
        with self.lock:
            return self.tracker.hear(chat, message_id)

    @property
    def unsent(self) -> tuple[int, ...]:
        """The numbers of answers that might not have arrived, oldest first."""
        return self.queue.unsent

    def owe(self, seq: int) -> None:
        """Record that this answer is still to be delivered, by the process that answers now."""
        with self.lock:
            self.queue.owe(seq)
            self.touch()

    def arrived(self, seq: int) -> None:
        """Record that this answer has been delivered or has permanently failed."""
        with self.lock:
            if self.queue.arrived(seq):
                self.touch()

    @property
    def awaiting(self) -> int:
        """The number of the user's message that has no answer yet, or 0."""
        return self._awaiting

    @awaiting.setter
    def awaiting(self, seq: int) -> None:
        with self.lock:
            self._awaiting = seq
            self.touch()

    def claim(self, by: str) -> int:
        """Claim the session's work for this process, and return the claim's number."""
        with self.lock:
            if by != self.by:
                self.queue.leave_sending_to(self.by)
            self.by = by
            self.claims += 1
            self.touch()
            return self.claims

    def ask_to_stop(self) -> None:
        """Ask the session's current turn to stop, in whichever process it runs."""
        with self.lock:
            self.stopped = self.claims
            self.touch()

    # The digests

    @property
    def summary(self) -> str:
        """The summary of the entries that left the window, or ""."""
        return self._summary.value

    @summary.setter
    def summary(self, text: str) -> None:
        self.update_summary(text)

    @property
    def ledger(self) -> Quotes:
        """The quotes kept beside the summary; they must not be modified."""
        return self._summary.ledger

    @property
    def summary_spent(self) -> Mapping[str, int]:
        """The cost of all the session's summaries so far; it must not be modified."""
        return self._summary.spent

    @property
    def covered_seq(self) -> int:
        """Entries up to this number are summarised, or no longer part of the history."""
        return max(self._summary.seq, self.log.start - 1)

    @property
    def pending_seq(self) -> int:
        """Entries after `covered_seq`, up to this number, left the window without a summary."""
        return self.log.evicted

    @property
    def has_pending(self) -> bool:
        """True if any entries are pending."""
        return self.pending_seq > self.covered_seq

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The pending entries that are in memory; they must not be modified."""
        with self.lock:
            return tuple(self.log.pending(self.covered_seq))

    def is_pending(self, entry: Entry) -> bool:
        """Return True if this entry of the log is pending, whether or not it is in memory."""
        with self.lock:
            if not self.covered_seq < entry.seq <= self.pending_seq:
                return False
            return not self.log.is_hidden(entry.seq) and not self.log.shows(entry.seq)

    def update_summary(
        self,
        text: str,
        *,
        seq: int | None = None,
        epoch: int | None = None,
        ledger: Iterable[Mapping[str, Any]] | None = None,
        spent: Mapping[str, int] | None = None,
    ) -> bool:
        """Set the summary and the number up to which it reaches; return False if it is too late.

        Without `seq`, only the text changes. The number only increases, and never reaches into the
        window. A summary with an outdated `epoch` is discarded. A `ledger` replaces the current
        one; `spent` is added to the total.
        """
        with self.lock:
            self.summary_in_progress = False
            if epoch is not None and epoch != self.epoch:
                return False
            reach = self._summary.seq if seq is None else min(seq, self.log.evicted)
            if seq is not None and reach < self._summary.seq:
                return False
            self._summary = self._summary.renewed(text, seq=reach, ledger=ledger, spent=spent)
            self.touch(SUMMARY)
            return True

    # Pins

    @property
    def pins(self) -> Quotes:
        """The pinned messages, in log order; they must not be modified."""
        return tuple(pin for pin in self._summary.pins if not self.log.is_hidden(pin["seq"]))

    def pin(self, entry: Entry) -> None:
        """Keep this message from the log in view; raise `NotPossible` if it can't be pinned."""
        with self.lock:
            self._pin(pinned(self.pins, entry))

    def unpin(self, seq: int | None = None) -> int:
        """Unpin this message, or all of them; return how many were unpinned."""
        with self.lock:
            pins = self.pins
            left = tuple(pin for pin in pins if seq is not None and pin["seq"] != seq)
            if len(left) < len(pins):
                self._pin(left)
            return len(pins) - len(left)

    def _pin(self, pins: Quotes) -> None:
        self._summary = replace(self._summary, pins=pins)
        self.touch(SUMMARY)

    # Resets and removals

    def reset_history(self) -> None:
        """Empty the history and start a new epoch; keep memo, summary and state."""
        with self.lock:
            self.log.restart()
            self.resized = {}
            self.turns = 0
            self._awaiting = 0
            self.epoch += 1
            self.touch()

    def clear(self) -> None:
        """Empty the history and everything derived from it; keep the state."""
        with self.lock:
            self.reset_history()
            self._summary = Summary(seq=self.log.last, spent=self.summary_spent)
            self._memo = Digest(value={}, seq=self.log.last)
            self.touch(SUMMARY, MEMO)

    def undo(self) -> list[Entry]:
        """Undo the last exchange, from the user's message on, and return its entries, or [].

        Undone entries stay in the store but are never shown. Any notes among them about earlier
        messages are added again. Raise `HistoryNotLoaded` if the entries before the exchange are
        only in the store.
        """
        with self.lock:
            asked = sum(map(is_asked, self.log.entries))
            if asked < 2:  # noqa: PLR2004 - the one to undo, and the one to show instead
                self.whole()
            exchange = last_exchange(self.log.entries)
            if exchange:
                self._take_back(exchange)
            return exchange

    def _take_back(self, exchange: Sequence[Entry]) -> None:
        taken = self.log.take_back(exchange[0].seq)
        asked = (entry.seq for entry in reversed(self.log.entries) if is_asked(entry))
        self.log.widen_to(next(asked, self.log.start))
        self.turns -= sum(entry.role == "assistant" for entry in taken)
        self._awaiting = 0
        for note in taken:
            if note not in exchange:  # about an earlier message
                self.append(replace(note, id=new_id()))
        if self.resized:
            turn = min(int(self.resized.get("turn", 0)), self.turns)
            self.resized = {**self.resized, "turn": turn}
        self.touch()

    def archive(
        self, keep: int, take: Callable[[list[Entry]], object] | None = None
    ) -> list[Entry]:
        """Remove and return all but the newest `keep` entries.

        `take` receives them first; if it raises an error, nothing changes. Pending entries are
        kept, so that the summary misses nothing.
        """
        with self.lock:
            entries = self.whole()
            waiting = self.log.pending(self.covered_seq)
            last = len(entries) if not waiting else self.log.index_of(waiting[0].seq)
            last = whole_before(entries, min(last, max(0, len(entries) - keep)))
            old = [entry.copy() for entry in entries[:last]]
            if old and take is not None:
                take(old)
            if old:
                self.log.forget(old[-1].seq)
                self.touch()
            return old

    def erase(self, seqs: Collection[int], *, stored: Iterable[Entry] = ()) -> None:
        """Erase these entries and start a new epoch, so that a summary in progress is discarded.

        If the summary covers one of them, the summary and its ledger are removed, and the whole
        history becomes pending again. `stored` are the entries as stored. Erasing twice is
        harmless. Call this through a store's `erase`, which makes it durable.
        """
        with self.lock:
            gone = frozenset(seqs)
            said = {entry.seq: entry for entry in (*stored, *self.log.erase(gone))}
            self.tracker.erase(gone)
            titles = {title_of(entry) for entry in said.values() if entry.role == "user"}
            if self.about.title in titles:
                self.about = replace(self.about, title="")
            gone -= {seq for seq, entry in said.items() if entry.type == ERASED}
            self._summary = self._summary.without(gone, start=self.log.start - 1)
            if gone and min(gone) <= self._memo.seq:
                self._memo = Digest(value={}, seq=self.log.start - 1)
            self._awaiting = 0 if self._awaiting in seqs else self._awaiting
            self.epoch += 1
            self.touch(ABOUT, SUMMARY, MEMO)

    # Memory use

    def release(self) -> None:
        """Free memory: drop durable entries that are neither in the window nor held as pending."""
        with self.lock:
            upto = self.tracker.saved_seq
            if self.held_pending:
                upto = min(upto, self._newest_pending(self.held_pending))
            self.log.release(upto)

    def _newest_pending(self, count: int) -> int:
        """Return the number after which there are at most this many pending entries."""
        return max(self.covered_seq, self.log.evicted - count)

    def missing_pending(self) -> tuple[int, int] | None:
        """Return the range (after, upto) of entries to load again from the store, or None."""
        with self.lock:
            after, upto = self._newest_pending(self.held_pending), self.log.released
            if not self.held_pending or self.log.is_whole or upto <= after:
                return None
            return after, upto

    def bring_back(self, entries: Iterable[Entry], *, after: int, upto: int) -> None:
        """Load the store's entries with `after < seq <= upto` into memory again."""
        with self.lock:
            self.log.bring_back(entries, after=after, upto=upto)

    # For stores

    @property
    def revision(self) -> int:
        """The last commit's number, which only increases; a new session may start at any number."""
        return self.tracker.revision

    def touch(self, *parts: str, by_user: bool = False) -> None:
        """Record that these parts and the head have changed."""
        self.tracker.touch(parts)
        self.updated_at = self._clock()
        if by_user and self.about.sliding:
            self._expires_at = self._expiry_from_now()

    def changes(self) -> Changes | None:
        """Return the changes that are not yet durable, or None if there are none."""
        with self.lock:
            if self.tracker.is_saved:
                return None
            return Changes(
                revision=self.tracker.revision,
                entries=self.tracker.fresh,
                head=self.head().dump(),
                sections={name: self.part(name) for name in self.tracker.changed},
                tick=self.tracker.tick,
                heard=self.tracker.heard,
            )

    def committed(self, changes: Changes) -> None:
        """Record that these changes are durable; repeated or late calls are harmless."""
        with self.lock:
            if changes.revision >= self.tracker.revision:
                self.tracker.committed(changes)

    def head(self) -> Head:
        """Return the head to store with the next commit."""
        return Head(
            rev=self.tracker.revision + 1,
            updated_at=self.updated_at,
            expires_at=self._expires_at,
            epoch=self.epoch,
            start=self.log.start,
            last=self.log.last,
            window=self.log.window_seq,
            shown=self.log.shown,
            hidden=self.log.hidden,
            covered=self._summary.seq,
            turns=self.turns,
            count=self.log.count,
            awaiting=self._awaiting,
            spent=self.spent,
            waiting=len(self.queue.waiting),
            unsent=self.queue.unsent,
            senders=self.queue.senders,
            resized=self.resized,
            moved=self.moved,
            by=self.by,
            claims=self.claims,
            stopped=self.stopped,
            erasures=self.erasures,
            erasing=self.erasing,
        )

    def part(self, name: str) -> Any:
        """Return a part in its stored form, by its name in `PARTS`."""
        return PARTS[name][0](self)

    def restore(self, head: Head, parts: Mapping[str, Any]) -> None:
        """Restore everything but the log from a stored head and parts."""
        for name, (_, load) in PARTS.items():
            if parts.get(name) is not None:
                load(self, parts[name])
        self.updated_at, self._expires_at = head.updated_at, head.expires_at
        self.epoch, self.erasures, self.erasing = head.epoch, head.erasures, head.erasing
        self.turns, self.spent, self._awaiting = head.turns, head.spent, head.awaiting
        self.queue.unsent, self.queue.senders = head.unsent, head.senders
        self.resized, self.moved = head.resized, head.moved
        self.by, self.claims, self.stopped = head.by, head.claims, head.stopped

    def restore_log(self, head: Head, log: Log) -> None:
        """Restore the log from a store; its entries may be newer than the head."""
        self.log = log
        self.queue.restored(log.entries)
        for entry in log.between(head.last, log.last):
            self._count(entry)
        self.tracker.restored(revision=head.rev, saved_seq=log.last)


Part = tuple[Callable[[Conversation], Any], Callable[[Conversation, Any], object]]


def _value(name: str, dump: Callable[[Any], Any], load: Callable[[Any], Any]) -> Part:
    """Return a part that stores an attribute of the conversation or its queue."""
    owner, _, attribute = name.rpartition(".")
    of: Callable[[Conversation], Any] = attrgetter(owner) if owner else lambda session: session
    return (
        lambda session: dump(getattr(of(session), attribute)),
        lambda session, stored: setattr(of(session), attribute, load(stored)),
    )


PARTS: Mapping[str, Part] = {
    ABOUT: _value("about", Identity.dump, Identity.load),
    STATE: _value("_state", copied, copied),
    SUMMARY: _value("_summary", Summary.dump, Summary.load),
    MEMO: _value("_memo", Digest.dump, Digest.load),
    SETTINGS: (lambda session: session.settings.own(), lambda me, tree: me.settings.replace(tree)),
    WAITING: _value(
        "queue.waiting",
        lambda waiting: [entry.to_dict() for entry in waiting],
        lambda stored: tuple(entries_in(stored)),
    ),
    APPROVALS: _value("approvals", Approvals.dump, Approvals.load),
}
"""The parts of a session that stores keep beside head and entries: how to write and read each."""
