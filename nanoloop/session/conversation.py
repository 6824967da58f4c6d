"""A conversation: identity and lifetime, state, log, queue, digests; for the loop and stores.

Everything that a store keeps of it is in `Head` and `PARTS`.
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
from nanoloop.session.chat import messages_of
from nanoloop.session.digest import Digest, Quotes, Summary, added, pinned
from nanoloop.session.entry import ERASED, Entry, copied, entries_in, title_of, utc_now
from nanoloop.session.head import (
    ABOUT,
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
    """A log that forgets nothing: what leaves the window stays in it. Thread-safe."""

    def __init__(
        self,
        *,
        about: Identity,
        clock: Callable[[], datetime] = utc_now,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.about = about
        """Its identity, and how long it lives."""
        self.lock = RLock()
        """Held while anything in here changes."""
        self.log = Log()
        """The entries and the window onto them; changed through this object only."""
        # Weakly: a session that nobody holds is gone at once, without waiting for the collector.
        me = WeakMethod(self._settings_changed)
        self.settings = Options(settings, changed=lambda: changed() if (changed := me()) else None)
        """Its settings: its own override those it was given, which override the defaults."""
        self.queue = Queue()
        """Waiting messages and unsent answers; changed through this object only."""
        self.updated_at = about.created_at
        """When anything in it last changed; reading is not a change."""
        self.turns = 0
        """Assistant messages so far."""
        self.epoch = 0
        """Advances with every reset: work begun in an earlier epoch is dropped."""
        self.spent: Mapping[str, int] = {}
        """The tokens of all turns so far, by kind."""
        self.resized: Mapping[str, Any] = {}
        """Type, turn and reason of the last resize, and the newest number then; empty if none."""
        self.moved = ""
        """The session in which its chat continues, if it does."""
        self.by, self.claims, self.stopped = "", 0, 0
        """Whose work in progress this is, and which claim is to stop, as in `Head`."""
        self.erasures, self.erasing = 0, Head().erasing
        """How often entries were erased, and of which copies may be left, as in `Head`."""
        self.summary_in_progress = False
        """Whether a task is summarising right now; never saved."""
        self.held_pending = 0
        """How many of the newest pending entries `release` leaves in memory."""
        self._clock = clock
        self.archiving: Archive | None = None
        """If set, takes the oldest messages beyond a certain number."""
        self.tracker = ChangeTracker()
        """Tracks which parts of it are durable."""
        self._state: dict[str, Any] = {}
        self._summary = Summary()
        self._memo = Digest(value={})
        self._awaiting = 0
        self._expires_at = self._expiry_from_now()

    # Who and how long

    @property
    def id(self) -> str:
        """Its name in stores."""
        return self.about.id

    @property
    def key(self) -> str | None:
        """The chat that it belongs to."""
        return self.about.key

    @property
    def agent(self) -> str | None:
        """The name of the agent that answers here."""
        return self.about.agent

    @agent.setter
    def agent(self, name: str | None) -> None:
        self._become(agent=name)

    @property
    def title(self) -> str:
        """The user's first words, or the title it was given."""
        return self.about.title

    @title.setter
    def title(self, text: str) -> None:
        self._become(title=text)

    @property
    def max_history(self) -> int | None:
        """The largest number of messages in the window, if set."""
        return self.about.max_history

    @max_history.setter
    def max_history(self, count: int | None) -> None:
        self._become(max_history=count)

    def _become(self, **changed: Any) -> None:
        with self.lock:
            self.about = replace(self.about, **changed)
            self.touch(ABOUT)

    def has_expired(self) -> bool:
        """Whether it has expired, strictly after the given moment."""
        return self._expires_at is not None and self._clock() > self._expires_at

    def _expiry_from_now(self) -> datetime | None:
        ttl = self.about.ttl
        try:
            return None if ttl is None else self._clock() + timedelta(seconds=ttl)
        except OverflowError:  # beyond the last date there is
            return None

    def _settings_changed(self) -> None:
        with self.lock:
            self.touch(SETTINGS)

    # The log

    def spend(self, tokens: Mapping[str, int]) -> None:
        """Add the tokens of a turn."""
        with self.lock:
            self.spent = added(self.spent, tokens)
            self.touch()

    def add_entry(self, entry: Entry) -> Entry:
        """Append a copy of the entry; returns another, with its number."""
        return self._append(entry).copy()

    def _append(self, entry: Entry) -> Entry:
        # In one piece: a commit meanwhile, of another thread, has what waited in one place or the
        # other.
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
        """Apply the bounds after every append."""
        most = self.about.max_history or 0
        if 0 < most < self.log.window_length:
            self.log.show_from(cut(self.log.window, keep=most))
        if self.archiving and self.log.is_whole and self.log.count > self.archiving.keep:
            self.archive(self.archiving.keep, self.archiving.take)

    def whole(self) -> Sequence[Entry]:
        """All entries of the history; raises `HistoryNotLoaded` if some are only in a store."""
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
        """The entries that the model sees word for word; not to be changed."""
        with self.lock:
            return tuple(self.log.window)

    @property
    def newest(self) -> Entry | None:
        """The last entry of the log; not to be changed."""
        return self.log.entries[-1] if self.log.entries else None

    def entry_at(self, seq: int) -> Entry | None:
        """The entry of the window with this number, or None; not to be changed."""
        newest = self.newest  # it is the one, nearly always
        if newest is not None and newest.seq == seq:
            return newest
        return next((entry for entry in self.window if entry.seq == seq), None)

    @property
    def entry_count(self) -> int:
        """Entries of the whole history, in memory or not."""
        return self.log.count

    @property
    def last_seq(self) -> int:
        """The number of the newest entry."""
        return self.log.last

    def entries_between(self, after: int, upto: int) -> list[Entry]:
        """The entries in memory with `after < seq <= upto`; not to be changed."""
        with self.lock:
            return list(self.log.between(after, upto))

    def has_entry(self, seq: int) -> bool:
        """Whether this entry belongs to the current history and was not undone."""
        with self.lock:
            return self.log.start <= seq <= self.log.last and not self.log.is_hidden(seq)

    # The window

    def trim_if_needed(self, limit: int, min_keep: int) -> tuple[list[dict[str, Any]], bool]:
        """Cut the window to about its last `min_keep` messages once it has more than `limit`.

        Returns what left it, as chat messages, and whether anything did. The cut is at a user's
        message; a single turn that is longer than the limit stays whole.
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
        """Halve the window, keeping the current exchange whole; False if nothing left it."""
        with self.lock:
            window = self.log.window
            keep = max(1, message_count(window) // 2)
            return self._cut(cut(window, keep=keep, align="user"))[1]

    def trim_to_fit(self, room: float, size: Callable[[Entry], int]) -> bool:
        """Cut the window to fit, keeping the current exchange whole; returns whether anything left.

        The cut is at a user's message.
        """
        with self.lock:
            return self._cut(cut_to_fit(self.log.window, room=room, size=size))[1]

    # The queue

    @property
    def waiting(self) -> tuple[Entry, ...]:
        """Messages sent while an answer was being written, oldest first; not in the log yet."""
        return self.queue.waiting

    def hold(self, entry: Entry) -> None:
        """Keep a message until its turn comes."""
        with self.lock:
            self.queue.hold(entry.copy())
            self.touch(WAITING, by_user=True)

    def next(self, sent: Container[int] = ()) -> Next:
        """What this chat is owed first; `sent` are answers that are already on their way."""
        with self.lock:
            return self.queue.next(self._awaiting, sent, self.moved)

    def let_go_held(self, entry_id: str) -> bool:
        """Remove that message from the queue; its turn is elsewhere. False if it wasn't waiting."""
        with self.lock:
            did_wait = bool(self.queue.waiting) and self.queue.let_go(entry_id)
            if did_wait:
                self.touch(WAITING)
            return did_wait

    def amend_held(self, message_id: str, text: str | None) -> bool:
        """Replace a waiting message's text, or delete the message if None; False if none waits."""
        with self.lock:
            has_changed = self.queue.amend(message_id, text)
            if has_changed:
                self.touch(WAITING)
            return has_changed

    def hear(self, chat: str, message_id: str) -> bool:
        """Have the next commit take this message; that commit fails if it was taken before.

        False if that commit already takes it.
        """
        with self.lock:
            return self.tracker.hear(chat, message_id)

    @property
    def unsent(self) -> tuple[int, ...]:
        """The numbers of answers that may not have arrived, oldest first."""
        return self.queue.unsent

    def owe(self, seq: int) -> None:
        """Note that this answer has to arrive, sent by the process that answers now."""
        with self.lock:
            self.queue.owe(seq)
            self.touch()

    def arrived(self, seq: int) -> None:
        """Note that this answer has arrived, or never will."""
        with self.lock:
            if self.queue.arrived(seq):
                self.touch()

    @property
    def awaiting(self) -> int:
        """The number of a user's message that has no answer yet, or 0."""
        return self._awaiting

    @awaiting.setter
    def awaiting(self, seq: int) -> None:
        with self.lock:
            self._awaiting = seq
            self.touch()

    def claim(self, by: str) -> int:
        """Claim the work here for this process; returns the claim's number."""
        with self.lock:
            if by != self.by:
                self.queue.leave_sending_to(self.by)
            self.by = by
            self.claims += 1
            self.touch()
            return self.claims

    def ask_to_stop(self) -> None:
        """Ask the turn in progress here to stop, wherever it runs."""
        with self.lock:
            self.stopped = self.claims
            self.touch()

    # The digests

    @property
    def summary(self) -> str:
        """The text that stands for the entries that left the window; "" if there is none."""
        return self._summary.value

    @summary.setter
    def summary(self, text: str) -> None:
        self.update_summary(text)

    @property
    def ledger(self) -> Quotes:
        """What is kept word for word alongside the summary; not to be changed."""
        return self._summary.ledger

    @property
    def summary_spent(self) -> Mapping[str, int]:
        """What all summaries of this session have cost so far; not to be changed."""
        return self._summary.spent

    @property
    def covered_seq(self) -> int:
        """Entries up to here are covered by the summary, or no longer belong to the history."""
        return max(self._summary.seq, self.log.start - 1)

    @property
    def pending_seq(self) -> int:
        """Entries above `covered_seq` up to here left the window and are not summarised yet."""
        return self.log.evicted

    @property
    def has_pending(self) -> bool:
        """Whether anything is pending."""
        return self.pending_seq > self.covered_seq

    @property
    def pending(self) -> tuple[Entry, ...]:
        """The pending entries that are in memory; not to be changed."""
        with self.lock:
            return tuple(self.log.pending(self.covered_seq))

    def is_pending(self, entry: Entry) -> bool:
        """Whether this entry of the log is pending, in memory or not."""
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
        """Set the summary and, together with it, its reach; False if it came too late.

        Without `seq` only the text changes. Its reach only moves forward, and never into the
        window; a past `epoch` discards everything. A `ledger` replaces the present one; `spent` is
        added.
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
        """What is pinned, in the order of the log; not to be changed."""
        return tuple(pin for pin in self._summary.pins if not self.log.is_hidden(pin["seq"]))

    def pin(self, entry: Entry) -> None:
        """Keep this message of the log in view; raises `NotPossible` if it can't be."""
        with self.lock:
            self._pin(pinned(self.pins, entry))

    def unpin(self, seq: int | None = None) -> int:
        """Unpin this message, or all; returns how many were unpinned."""
        with self.lock:
            pins = self.pins
            left = tuple(pin for pin in pins if seq is not None and pin["seq"] != seq)
            if len(left) < len(pins):
                self._pin(left)
            return len(pins) - len(left)

    def _pin(self, pins: Quotes) -> None:
        self._summary = replace(self._summary, pins=pins)
        self.touch(SUMMARY)

    # Beginnings, and what goes

    def reset_history(self) -> None:
        """Empty the history and begin a new epoch; memo, summary and state stay."""
        with self.lock:
            self.log.restart()
            self.resized = {}
            self.turns = 0
            self._awaiting = 0
            self.epoch += 1
            self.touch()

    def clear(self) -> None:
        """Empty the history and everything derived from it; the state stays."""
        with self.lock:
            self.reset_history()
            self._summary = Summary(seq=self.log.last, spent=self.summary_spent)
            self._memo = Digest(value={}, seq=self.log.last)
            self.touch(SUMMARY, MEMO)

    def undo(self) -> list[Entry]:
        """Undo the last exchange, from the user's message on; [] if there is none.

        What was undone stays in the store but appears in no view. A note in it about an earlier
        message is added again. Raises `HistoryNotLoaded` if what came before it is only in the
        store.
        """
        with self.lock:
            asked = sum(map(is_asked, self.log.entries))
            if asked < 2:  # noqa: PLR2004 - the one that goes, and the one to show then
                self.whole()
            exchange = last_exchange(self.log.entries)
            if exchange:
                self._take_back(exchange)
            return exchange

    def _take_back(self, exchange: Sequence[Entry]) -> None:
        taken = self.log.take_back(exchange[0].seq)
        self.log.widen_to(self._newest_asked())
        self.turns -= sum(entry.role == "assistant" for entry in taken)
        self._awaiting = 0
        for note in taken:
            if note not in exchange:  # it is about what stays
                self._append(replace(note, id=new_id()))
        if self.resized:
            turn = min(int(self.resized.get("turn", 0)), self.turns)
            self.resized = {**self.resized, "turn": turn}
        self.touch()

    def _newest_asked(self) -> int:
        asked = (entry.seq for entry in reversed(self.log.entries) if is_asked(entry))
        return next(asked, self.log.start)

    def archive(
        self, keep: int, take: Callable[[list[Entry]], object] | None = None
    ) -> list[Entry]:
        """Drop the oldest entries, down to the newest `keep`; returns them.

        `take` gets them first: if it raises, nothing has changed. Pending entries stay, so that the
        summary misses nothing.
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
        """Erase these entries, and begin a new epoch: a summary in progress comes too late.

        If the summary covers one of them it is removed, with the ledger, and the whole history is
        pending again. `stored` are the entries as the store has them. Repeating it does no harm. A
        store's `erase` calls this, so that it lasts.
        """
        with self.lock:
            gone = frozenset(seqs)
            said = {entry.seq: entry for entry in (*stored, *self.log.erase(gone))}
            self.tracker.erase(gone)
            for entry in said.values():
                self._forget_trace(entry)
            gone -= {seq for seq, entry in said.items() if entry.type == ERASED}
            self._summary = self._summary.without(gone, start=self.log.start - 1)
            if gone and min(gone) <= self._memo.seq:
                self._memo = Digest(value={}, seq=self.log.start - 1)
            self._awaiting = 0 if self._awaiting in seqs else self._awaiting
            self.epoch += 1
            self.touch(ABOUT, SUMMARY, MEMO)

    def _forget_trace(self, entry: Entry) -> None:
        if entry.role == "user" and self.about.title == title_of(entry):
            self.about = replace(self.about, title="")

    # What is in memory

    def release(self) -> None:
        """Release, in memory only, what is durable, not in the window and not held as pending."""
        with self.lock:
            upto = self.tracker.saved_seq
            if self.held_pending:
                upto = min(upto, self._newest_pending(self.held_pending))
            self.log.release(upto)

    def _newest_pending(self, count: int) -> int:
        """The number after which there are at most this many pending entries."""
        return max(self.covered_seq, self.log.evicted - count)

    def missing_pending(self) -> tuple[int, int] | None:
        """The range of entries to be held that are only in the store: after this, up to that."""
        with self.lock:
            after, upto = self._newest_pending(self.held_pending), self.log.released
            if not self.held_pending or self.log.is_whole or upto <= after:
                return None
            return after, upto

    def bring_back(self, entries: Iterable[Entry], *, after: int, upto: int) -> None:
        """Load the store's entries with `after < seq <= upto` into memory again."""
        with self.lock:
            self.log.bring_back(entries, after=after, upto=upto)

    # What stores need

    @property
    def revision(self) -> int:
        """Advances with every commit of its store; a new session may start at any number."""
        return self.tracker.revision

    def touch(self, *parts: str, by_user: bool = False) -> None:
        """Note that these parts and the head have changed."""
        self.tracker.touch(parts)
        self.updated_at = self._clock()
        if by_user and self.about.sliding:
            self._expires_at = self._expiry_from_now()

    def changes(self) -> Changes | None:
        """What is not durable yet, as of now; None if everything is."""
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
        """Note that these changes are durable; doing so again, or late, does no harm."""
        with self.lock:
            if changes.revision >= self.tracker.revision:
                self.tracker.committed(changes)

    def head(self) -> Head:
        """The state that its next commit stores."""
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
        """A part as stores write it, by its name in `PARTS`."""
        return PARTS[name][0](self)

    def restore(self, head: Head, parts: Mapping[str, Any]) -> None:
        """Restore everything but the log from a stored head and these parts."""
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
    """A part that is the value of an attribute of the conversation or its queue."""
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
}
"""What a store keeps of a session besides head and entries: how each part is written and read."""
