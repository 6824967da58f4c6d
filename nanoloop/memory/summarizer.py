"""The background task that adds entries outside the window to the summary."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from nanoloop import defaults
from nanoloop.errors import ModelResting, SessionNotFound, StoreConflict, StoreError
from nanoloop.events import (
    SummaryCommitted,
    SummaryDropped,
    SummaryFailed,
    SummaryStarted,
    WindowTrimmed,
    about,
    announce,
)
from nanoloop.memory.facts import Item, found_in, merged
from nanoloop.memory.schedule import (
    BreakerState,
    Budget,
    Schedule,
    Spent,
    Waiting,
    Why,
    local_now,
)
from nanoloop.memory.writer import PROMPT, SummaryWriter, Written, batches, line_size
from nanoloop.protocols import Provider, Store
from nanoloop.sentences import Say, in_english
from nanoloop.session.entry import Entry
from nanoloop.session.log import message_count
from nanoloop.session.session import Session
from nanoloop.writing import SessionWriter

Callback = Callable[[str], Awaitable[None] | None]
Opened = Callable[[str], Awaitable[Session]]
"""Opens a session by its id, or raises `SessionNotFound`."""

LEAST_PAUSE_SECONDS = 0.01
"""The shortest pause between two checks for due sessions, whatever the clock shows."""
BATCH_CHARS = 24_000
"""The maximum length of text in one call; a longer text takes several successive calls."""
IDLE_SECONDS = 600
"""How long a chat must be quiet before a text shorter than its summary is summarised."""
READ_AHEAD = 200
"""How many entries are read from the store at a time."""


T = TypeVar("T")


@dataclass(eq=False, repr=False)
class Summarizer:
    """Summarises sessions in its own background tasks, which run only inside `async with`.

    Outside `async with`, as in a script, it manages its tasks itself: nothing cancels them, and
    nothing retries sessions that have to wait.
    """

    provider: Provider
    model: str | None = None
    _: KW_ONLY
    store: Store | None = None
    """The store that contains the sessions; a loop sets its own."""
    fallback_model: str | None = None
    timeout_seconds: float = defaults.SUMMARY_TIMEOUT_SECONDS
    batch_chars: int = BATCH_CHARS
    daily_tokens: int | None = None
    spent_file: Path | None = None
    """If this file is set, the count of a day's tokens survives a restart."""
    idle_seconds: float | None = None
    """How long a text that is shorter than the summary waits for more text."""
    max_concurrent: int = 16
    prompt: str = PROMPT
    """The instructions for the model."""
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], datetime] = local_now

    def __post_init__(self) -> None:
        self._budget = Budget(self.daily_tokens, kept_in=self.spent_file, now=self.now)
        models = [self.model] if self.fallback_model is None else [self.model, self.fallback_model]
        self._writer = SummaryWriter(
            self.provider,
            models,
            timeout_seconds=self.timeout_seconds,
            chars=self.batch_chars,
            budget=self._budget,
            clock=self.clock,
            prompt=self.prompt,
        )
        self._schedule = Schedule(
            clock=self.clock,
        )
        self._writes = None if self.store is None else SessionWriter(self.store)
        self._open: Opened | None = None if self.store is None else self.store.load
        self._limiter = anyio.Semaphore(self.max_concurrent)
        self._group: TaskGroup | None = None
        self._loose: set[asyncio.Task[None]] = set()
        self._folded_now: set[Session] = set()
        self._worked_beside: set[Session] = set()
        self._idle = anyio.Event()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._keep_time, name="summary agenda")
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        group, self._group = self._group, None
        assert group is not None  # noqa: S101 - entered before it is left
        group.cancel_scope.cancel()
        return await group.__aexit__(*exc)  # type: ignore[arg-type]

    def keep_in(self, writer: SessionWriter, *, opened: Opened) -> None:
        """Use the loop's store and sessions unless another store was given."""
        if self.store in {None, writer.store}:
            self.store, self._writes, self._open = writer.store, writer, opened

    async def _change(self, session: Session, act: Callable[[Session], T]) -> T:
        return act(session) if self._writes is None else await self._writes.change(session, act)

    # State

    @property
    def running(self) -> int:
        """The number of sessions that are being summarised."""
        return len(self._folded_now)

    @property
    def working_beside(self) -> int:
        """The number of sessions that have other work running, such as a resize."""
        return len(self._worked_beside)

    def is_resting(self, session_id: str) -> bool:
        """Return True if this session's summary failed recently and is not being retried yet."""
        return self._schedule.is_resting(session_id)

    def waits_for(self, session_id: str) -> Why | None:
        """Return why this session's summary has to wait, or None."""
        waiting = self._schedule.waiting(session_id)
        return waiting.why if waiting else None

    def spent_today(self) -> Spent:
        """Return the calls and tokens used since midnight; without a file, since the start."""
        return self._budget.spent_today

    @property
    def waiting(self) -> Mapping[Why, int]:
        """The number of sessions waiting for each reason."""
        return self._schedule.counts

    @property
    def models(self) -> Mapping[str, BreakerState]:
        """The breaker state of each model; "" is the provider's default model."""
        return self._writer.models

    # Starting

    def fire_and_forget(
        self,
        session: Session,
        *evicted: object,
        force: bool = False,
        focus: str = "",
        **claimed: object,
    ) -> bool:
        """Start summarising pending entries; return False if nothing was started.

        If `summary_in_progress` is already set, only the caller that set it may start the summary,
        by passing what was evicted. A session has one task, which also summarises entries evicted
        while it runs. `force` ignores the backoff and summarises even small amounts; `focus` tells
        the model what to keep in mind.
        """
        if session in self._folded_now:
            return False
        if session.summary_in_progress and not (evicted or claimed):
            return False
        session.summary_in_progress = False
        if not session.has_pending:
            return False
        if not force and self._schedule.is_resting(session.id):
            self._schedule.rest(session)
            return False
        if self._has_to_wait(session, even_small=force):
            return False
        self._start(session, even_small=force, focus=focus)
        return True

    async def compact(self, session: Session, *, keep: int, focus: str = "") -> int | None:
        """Cut the window to about its last `keep` messages now, and summarise the rest.

        Return how many messages were cut, or None if none were and no summary was started.
        """
        evicted, did_trim = await self._change(
            session, lambda now: now.trim_if_needed(limit=keep, min_keep=keep)
        )
        if did_trim:
            session.release()
            kept = message_count(session.window)
            with about(session_id=session.id):
                announce(WindowTrimmed(evicted=len(evicted), kept=kept))
        did_start = self.fire_and_forget(session, force=True, focus=focus)
        return len(evicted) if did_trim or did_start else None

    def summarize_idle(self, after_seconds: float = 0) -> int:
        """Summarise pending texts in chats that are now quiet; return how many were started."""
        quiet_since = self.clock() - after_seconds
        idle = [w for w in self._schedule.waiting_for("small") if w.since <= quiet_since]
        return self._start_waiting(idle)

    def start_due(self) -> int:
        """Retry sessions that have waited long enough; return how many were started."""
        return self._start_waiting(self._schedule.due())

    def _start_waiting(self, all_waiting: Iterable[Waiting]) -> int:
        return sum(map(self._start_one, all_waiting))

    def _start_one(self, waiting: Waiting) -> bool:
        session = waiting.known()
        if session is not None:
            return self._start_known(session, even_small=waiting.why == "small")
        if self._open is None:  # it was only in memory, and is gone
            self._schedule.remove(waiting.session_id)
            return False
        self._schedule.try_later(waiting)
        work = partial(self._open_and_start, waiting, self._open)
        self._start_task(work, name=f"opening {waiting.session_id}")
        return True

    async def _open_and_start(self, waiting: Waiting, opened: Opened) -> None:
        try:
            session = await opened(waiting.session_id)
        except SessionNotFound:
            self._schedule.remove(waiting.session_id)
        except StoreError:  # unavailable: it keeps waiting
            return
        else:
            self._start_known(session, even_small=waiting.why == "small")

    def _start_known(self, session: Session, *, even_small: bool) -> bool:
        is_over = session.summary_in_progress or not session.has_pending
        if is_over or session.has_expired():
            self._schedule.remove(session.id)
        elif self._schedule.is_resting(session.id):
            self._schedule.rest(session)
        elif not self._has_to_wait(session, even_small=even_small):
            self._start(session, even_small=even_small)
            return True
        return False

    def _start(self, session: Session, *, even_small: bool, focus: str = "") -> None:
        self._schedule.remove(session.id)
        session.summary_in_progress = True
        self._folded_now.add(session)
        work = partial(self._fold, session, even_small, focus)
        with about(session_id=session.id):  # without the turn that requested it
            self._start_task(work, name=f"summary {session.id}")

    def work_beside(self, session: Session, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run other work for a session in a task, unless the session already has such a task."""
        if session not in self._worked_beside:
            self._worked_beside.add(session)
            self._start_task(partial(self._work, session, work), name=f"beside {session.id}")

    async def _work(self, session: Session, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        finally:
            self._worked_beside.discard(session)
            self._note_idle()

    def _start_task(self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> None:
        if self._group is not None:
            self._group.start_soon(work, name=name)
        else:
            task = asyncio.get_running_loop().create_task(work(), name=name)
            self._loose.add(task)
            task.add_done_callback(self._loose.discard)

    def _has_to_wait(
        self, session: Session, batch: Sequence[Entry] = (), *, even_small: bool = False
    ) -> bool:
        """Return True if the session has to wait; without a `batch`, judge by the last check."""
        rest = self._writer.rest
        if rest is None and not even_small and self._is_small(session, batch):
            rest = "small", self.clock() + (self.idle_seconds or 0)
        if rest is not None:
            self._schedule.postpone(session, *rest)
        return rest is not None

    def _is_small(self, session: Session, batch: Sequence[Entry]) -> bool:
        """Return True if the pending text is still shorter than the summary, and so should wait.

        So pending text is never longer than the summary, and waits only while the chat is active.
        """
        if self.idle_seconds is None or self._group is None:  # nothing would retry it
            return False
        if batch:
            is_all = batch[-1].seq >= session.pending_seq
            return is_all and sum(map(line_size, batch)) < len(session.summary)
        known = self._schedule.waiting(session.id)
        return (
            known is not None and known.why == "small" and known.pending_seq == session.pending_seq
        )

    async def _keep_time(self) -> None:
        while True:
            due = self._schedule.next_due
            pause = None if due is None else max(due - self.clock(), LEAST_PAUSE_SECONDS)
            with anyio.move_on_after(pause):
                await self._schedule.changed()
            self.start_due()

    async def drain(self, seconds: float) -> int:
        """Wait up to this long for running tasks; return how many are still running."""
        with anyio.move_on_after(seconds):
            while self._folded_now or self._worked_beside:
                self._idle = anyio.Event()
                await self._idle.wait()
        return self.running

    def _note_idle(self) -> None:
        if not (self._folded_now or self._worked_beside):
            self._idle.set()

    # Summarising

    async def summarize_async(
        self,
        evicted: Iterable[Entry | Mapping[str, Any]],
        previous_summary: str = "",
        callback: Callback | None = None,
    ) -> str:
        """Summarise the messages and the previous summary; raise `ProviderError` if that fails."""
        text = (await self._writer.write(evicted, previous_summary)).text
        if callback is not None:
            waited = callback(text)
            if waited is not None:
                await waited
        return text

    async def _fold(self, session: Session, even_small: bool, focus: str) -> None:
        epoch = session.epoch
        try:
            while session.has_pending and session.epoch == epoch:
                async with self._limiter:
                    went_well = await self._fold_batch(session, epoch, even_small, focus)
                if not went_well:
                    break
                even_small = True  # include the end of a long conversation
                self._schedule.succeeded(session)
                self._start_waiting(self._schedule.waiting_for("breaker"))
        finally:
            session.summary_in_progress = False
            self._folded_now.discard(session)
            self._note_idle()
        if session.epoch != epoch:  # erased or reset meanwhile: start what was requested since
            self.fire_and_forget(session, force=True)

    async def _fold_batch(self, session: Session, epoch: int, even_small: bool, focus: str) -> bool:
        """Summarise one batch; return False if the rest has to wait."""
        started = self.clock()
        try:
            batch = await self._next_batch(session)
            if not batch or self._has_to_wait(session, batch, even_small=even_small):
                return False
            return await self._folded(session, batch, epoch=epoch, focus=focus)
        except (SessionNotFound, StoreConflict) as gone:
            announce(SummaryDropped(reason=type(gone).__name__))
        except ModelResting:
            self._has_to_wait(session)
        except Exception as failure:  # noqa: BLE001 - a bug here must not stop all conversations
            self._note_failure(session, type(failure).__name__, started)
        return False

    def _note_failure(self, session: Session, reason: str, started: float) -> None:
        seconds = round(self.clock() - started, 3)
        announce(SummaryFailed(reason=reason, seconds=seconds))
        self._schedule.failed(session)

    # One batch: if a step raises an error, nothing has changed.

    async def _next_batch(self, session: Session) -> list[Entry]:
        """Return the oldest pending entries, as many as fit into one call."""
        after, upto = session.covered_seq, session.pending_seq
        entries: Sequence[Entry] = session.pending
        if self.store is not None and (not entries or entries[0].seq > after + 1):
            stored = await self.store.entries(session.id, after=after, upto=upto, limit=READ_AHEAD)
            entries = [entry for entry in stored if session.is_pending(entry)] or entries
        parts = batches(entries, chars=self._writer.chars)
        return parts[0] if parts else []

    async def _folded(
        self,
        session: Session,
        batch: Sequence[Entry],
        *,
        epoch: int,
        focus: str,
    ) -> bool:
        """Add a batch to the summary; return False if the result is too late."""
        started, before = self.clock(), session.summary
        self._announce_start(batch)
        written = await self._writer.write(batch, before, focus=focus)
        found = await _exact_in(batch)

        def act(session: Session) -> str:
            """Commit the summary; return why it must be dropped, or ""."""
            if session.epoch == epoch and session.summary != before:
                return "edited"
            is_in_time = session.update_summary(
                written.text,
                seq=batch[-1].seq,
                epoch=epoch,
                ledger=merged(session.ledger, found),
                spent=_spent(written),
            )
            session.summary_in_progress = True  # until this task ends, so that no other starts
            return "" if is_in_time else "reset"

        dropped = await self._change(session, act)
        if dropped:
            announce(SummaryDropped(reason=dropped))
            # If someone has rewritten the summary, keep their text and add the batch to it.
            return dropped == "edited"
        announce(self._receipt(batch, written, started))
        return True

    def _announce_start(self, batch: Sequence[Entry]) -> None:
        announce(
            SummaryStarted(
                first_seq=batch[0].seq,
                last_seq=batch[-1].seq,
                messages=message_count(batch),
            )
        )

    def _receipt(
        self, batch: Sequence[Entry], written: Written, started: float
    ) -> SummaryCommitted:
        return SummaryCommitted(
            first_seq=batch[0].seq,
            last_seq=batch[-1].seq,
            messages=message_count(batch),
            model=written.model,
            tokens_in=written.usage.tokens_in,
            tokens_out=written.usage.tokens_out,
            tokens_cached=written.usage.tokens_cached,
            seconds=round(self.clock() - started, 3),
            tries=written.tries,
        )


async def _exact_in(batch: Sequence[Entry]) -> list[Item]:
    found: list[Item] = []
    for entry in batch:
        found += found_in(entry)
        await checkpoint()  # scanning a long conversation takes milliseconds
    return found


def _spent(written: Written) -> dict[str, int]:
    return {
        "calls": written.tries,
        "tokens_in": written.usage.tokens_in,
        "tokens_out": written.usage.tokens_out,
        "tokens_cached": written.usage.tokens_cached,
    }


def state_text(summarizer: Summarizer, say: Say = in_english) -> str:
    """Return the summariser's state in one line."""
    spent, as_answers = summarizer.spent_today(), say("model_as_answers")
    waiting = ((count, say(f"wait_{why}")) for why, count in summarizer.waiting.items())
    models = {name: state for name, state in summarizer.models.items() if state != "closed"}
    parts = (
        say("summaries_running", count=summarizer.running),
        *(say("summaries_waiting", count=count, why=why) for count, why in waiting),
        *(say(f"model_{state}", model=name or as_answers) for name, state in models.items()),
        say("summaries_today", calls=spent.calls, tokens=spent.tokens),
    )
    return "; ".join(parts)
