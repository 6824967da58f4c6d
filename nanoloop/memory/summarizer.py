"""The background summary: fold what left the window into the digest, and never be waited for.

While something is pending: take a batch, ask the model, commit text and reach together. A crash, a
failure, a second trim in the middle, a restart: the next fold begins where the reach stands.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup

from nanoloop.errors import BadAnswer, ProviderError, SessionNotFound, StoreConflict, StoreError
from nanoloop.events import (
    Announce,
    SummaryCommitted,
    SummaryDropped,
    SummaryFailed,
    SummaryStarted,
    silent,
)
from nanoloop.memory.transcript import batches, clipped, summary_request
from nanoloop.protocols import Provider, Reply, Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.session.window import message_count

Callback = Callable[[str], Awaitable[None] | None]

READ_AHEAD = 200
"""Entries read from the store at a time."""
FAILURES_KEPT = 10_000
"""Sessions whose failures are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    count: int
    wait_until: float


class Summarizer:
    """Summarises in tasks of its own, which live in its `async with`.

    Used without one, as in a script, it keeps its tasks by itself and nothing cancels them.
    """

    def __init__(
        self,
        provider: Provider,
        model: str | None = None,
        *,
        store: Store | None = None,
        max_words: int = 200,
        timeout_seconds: float = 60,
        batch_chars: int = 24_000,
        retry_seconds: float = 5,
        retry_limit_seconds: float = 600,
        max_concurrent: int = 16,
        announce: Announce = silent,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._model = model
        self._store = store
        self._max_words = max_words
        self._timeout_seconds = timeout_seconds
        self._batch_chars = batch_chars
        self._retry_seconds = retry_seconds
        self._retry_limit_seconds = retry_limit_seconds
        self._announce = announce
        self._clock = clock
        self._limiter = anyio.Semaphore(max_concurrent)
        self._group: TaskGroup | None = None
        self._loose: set[asyncio.Task[None]] = set()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()
        self._running = 0
        self._idle = anyio.Event()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        group, self._group = self._group, None
        assert group is not None  # noqa: S101 - entered before it is left
        group.cancel_scope.cancel()
        return await group.__aexit__(*exc)  # type: ignore[arg-type]

    @property
    def running(self) -> int:
        """How many sessions are being summarised now."""
        return self._running

    def is_resting(self, session_id: str) -> bool:
        """Whether this session's summary failed a short while ago and is left alone for now."""
        failures = self._failures.get(session_id)
        return failures is not None and self._clock() < failures.wait_until

    def fire_and_forget(self, session: Session, *_: object, **__: object) -> bool:
        """Start to fold in what is pending, and return at once; False where nothing is started.

        One task per session: what is evicted while it runs is folded in by the same one.
        """
        if session.summary_in_progress or not session.has_pending:
            return False
        if self.is_resting(session.id):
            return False
        session.summary_in_progress = True
        self._running += 1
        name = f"summary {session.id}"
        if self._group is not None:
            self._group.start_soon(self._fold, session, name=name)
        else:
            loop = asyncio.get_running_loop()
            task = loop.create_task(self._fold(session), name=name)
            self._loose.add(task)
            task.add_done_callback(self._loose.discard)
        return True

    async def drain(self, seconds: float) -> int:
        """Wait for the running ones, so long at most; returns how many are still not done."""
        with anyio.move_on_after(seconds):
            while self._running:
                self._idle = anyio.Event()
                await self._idle.wait()
        return self._running

    async def summarize_async(
        self,
        evicted: Iterable[Entry | Mapping[str, Any]],
        previous_summary: str = "",
        callback: Callback | None = None,
    ) -> str:
        """The new summary of these messages and the previous one; raises `ProviderError`."""
        text = (await self._summarized(evicted, previous_summary))[0]
        if callback is not None:
            waited = callback(text)
            if waited is not None:
                await waited
        return text

    async def _summarized(
        self, said: Iterable[Entry | Mapping[str, Any]], previous: str
    ) -> tuple[str, Reply]:
        messages = summary_request(said, previous, max_words=self._max_words)
        try:
            with anyio.fail_after(self._timeout_seconds):
                reply = await self._provider.chat(messages=messages, tools=None, model=self._model)
        except TimeoutError as late:
            raise BadAnswer(f"no summary within {self._timeout_seconds:g} s") from late
        return clipped(_accepted(reply), max_words=self._max_words), reply

    async def _fold(self, session: Session) -> None:
        epoch = session.epoch
        try:
            while session.has_pending and session.epoch == epoch:
                async with self._limiter:
                    went_well = await self._fold_batch(session, epoch)
                if not went_well:
                    break
        finally:
            session.summary_in_progress = False
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _fold_batch(self, session: Session, epoch: int) -> bool:
        """Fold one batch in; False where it is better to leave it for later."""
        started = self._clock()
        try:
            batch = await self._next_batch(session)
            if not batch:
                return False
            self._announce_start(session, batch)
            text, reply = await self._summarized(batch, session.summary)
            if await self._commit(session, epoch, batch[-1].seq, text):
                self._announce(self._receipt(session, batch, reply, started))
                return True
        except (SessionNotFound, StoreConflict) as gone:
            self._announce(SummaryDropped(session_id=session.id, reason=type(gone).__name__))
        except (ProviderError, StoreError) as failure:
            self._note_failure(session, type(failure).__name__, started)
        except Exception as bug:  # noqa: BLE001 - a bug in here must not stop every conversation
            self._note_failure(session, type(bug).__name__, started)
        return False

    async def _next_batch(self, session: Session) -> list[Entry]:
        """The oldest pending entries, as many as one call takes."""
        after, upto = session.covered_seq, session.pending_seq
        entries: Sequence[Entry] = session.pending
        if self._store is not None and (not entries or entries[0].seq > after + 1):
            stored = await self._store.entries(session.id, after=after, upto=upto, limit=READ_AHEAD)
            entries = [entry for entry in stored if session.is_pending(entry)] or entries
        parts = batches(entries, chars=self._batch_chars)
        return parts[0] if parts else []

    async def _commit(self, session: Session, epoch: int, seq: int, text: str) -> bool:
        if not session.update_summary(text, seq=seq, epoch=epoch):
            self._announce(SummaryDropped(session_id=session.id, reason="reset"))
            return False
        session.summary_in_progress = True  # until this task ends, so that it stays the only one
        if self._store is not None:
            await self._store.save(session)
            session.release()
        self._failures.pop(session.id, None)
        return True

    def _announce_start(self, session: Session, batch: list[Entry]) -> None:
        self._announce(
            SummaryStarted(
                session_id=session.id,
                first_seq=batch[0].seq,
                last_seq=batch[-1].seq,
                messages=message_count(batch),
            )
        )

    def _receipt(
        self, session: Session, batch: list[Entry], reply: Reply, started: float
    ) -> SummaryCommitted:
        return SummaryCommitted(
            session_id=session.id,
            first_seq=batch[0].seq,
            last_seq=batch[-1].seq,
            messages=message_count(batch),
            model=reply.model or self._model or "",
            tokens_in=reply.usage.tokens_in,
            tokens_out=reply.usage.tokens_out,
            tokens_cached=reply.usage.tokens_cached,
            seconds=round(self._clock() - started, 3),
        )

    def _note_failure(self, session: Session, reason: str, started: float) -> None:
        """Rest longer after each failure, and not all sessions the same time."""
        before = self._failures.pop(session.id, None)
        count = before.count + 1 if before else 1
        rest = min(self._retry_seconds * 2 ** (count - 1), self._retry_limit_seconds)
        until = self._clock() + rest * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret
        self._failures[session.id] = _Failures(count=count, wait_until=until)
        if len(self._failures) > FAILURES_KEPT:
            self._failures.popitem(last=False)
        seconds = round(self._clock() - started, 3)
        self._announce(SummaryFailed(session_id=session.id, reason=reason, seconds=seconds))


def _accepted(reply: Reply) -> str:
    """The summary in a reply; raises `BadAnswer` unless it ended normally and says something."""
    if reply.tool_calls:
        raise BadAnswer("the summary model called a tool: choose another with summary_model")
    if reply.finish_reason != "stop":
        raise BadAnswer(f"the summary was cut off ({reply.finish_reason})")
    if not reply.text.strip():
        raise BadAnswer("the summary model said nothing")
    return reply.text
