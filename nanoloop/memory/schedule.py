"""Which sessions wait for a summary, and which may have one now."""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio

from nanoloop.events import Announce, SummaryPostponed
from nanoloop.memory.budget import Budget
from nanoloop.memory.writer import SummaryWriter, line_size
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session


class Admission:
    """Rests after failures, open breakers, spent budgets, and too little to be worth a call."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        rests: Backoff,
        writer: SummaryWriter,
        budget: Budget,
        announce: Announce,
        clock: Callable[[], float],
    ) -> None:
        self._agenda = agenda
        self._rests = rests
        self._writer = writer
        self._budget = budget
        self._announce = announce
        self._clock = clock
        self.idle_seconds: float | None = None
        """How long a small amount may wait for more; None: it is sent at once."""

    def rests(self, session_id: str) -> bool:
        """Whether it failed a short while ago."""
        return self._rests.until(session_id) is not None

    def failed(self, session: Session) -> None:
        """Leave it alone for a while, longer after each failure."""
        self._rests.after_failure(session.id)
        self._postpone(session, "failure", self._rests.wake_at(session.id))

    def succeeded(self, session: Session) -> None:
        """Forget that it ever failed."""
        self._rests.after_success(session.id)

    def has_to_wait(
        self,
        session: Session,
        batch: Sequence[Entry] = (),
        *,
        even_small: bool = False,
        even_resting: bool = False,
    ) -> bool:
        """Whether it must not be asked for now; without a `batch`, as far as that is known."""
        now = self._clock()
        if not even_resting and not batch and self.rests(session.id):
            self._postpone(session, "failure", self._rests.wake_at(session.id))
        elif not self._budget.has_room:
            self._postpone(session, "budget", now + self._budget.seconds_to_midnight)
        elif (until := self._writer.rests_until) is not None:
            self._postpone(session, "breaker", until)
        elif not even_small and self._is_small(session, batch):
            self._postpone(session, "small", now + (self.idle_seconds or 0))
        else:
            return False
        return True

    def _is_small(self, session: Session, batch: Sequence[Entry]) -> bool:
        """Whether there is less to summarise than the summary is long, so that more should come.

        What waits unseen is thus never more than the summary is long, and never for longer than
        the chat goes on.
        """
        if self.idle_seconds is None:
            return False
        if batch:
            is_all = batch[-1].seq >= session.pending_seq
            return is_all and sum(map(line_size, batch)) < len(session.summary)
        known = self._agenda.of(session.id)
        return (
            known is not None and known.why == "small" and known.pending_seq == session.pending_seq
        )

    def _postpone(self, session: Session, why: Why, due: float) -> None:
        now, upto = self._clock(), session.pending_seq
        waiting = Waiting(session=session, why=why, since=now, due=due, pending_seq=upto)
        is_new = self._agenda.put(waiting)
        if is_new and why != "failure":  # that was told when it failed
            seconds = round(due - now, 3)
            self._announce(SummaryPostponed(session_id=session.id, reason=why, seconds=seconds))


Why = Literal["failure", "breaker", "budget", "small"]
"""It failed a short while ago; no model may be asked; the day's tokens are spent; there is less
to summarise than a summary is long."""

LIMIT = 1000
"""Sessions that are held in memory for this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """One session that waits."""

    session: Session
    why: Why
    since: float
    due: float
    pending_seq: int
    """How far what waits reached when it was last looked at."""


class Agenda:
    """Who waits, the longest waiting first."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._changed = anyio.Event()
        self._waiting: OrderedDict[str, Waiting] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, waiting: Waiting) -> bool:
        """Let it wait; returns whether it did not wait for the same reason already."""
        before = self._waiting.pop(waiting.session.id, None)
        self._waiting[waiting.session.id] = waiting
        if len(self._waiting) > self._limit:
            self._waiting.popitem(last=False)
        self._changed.set()
        return before is None or before.why != waiting.why

    def of(self, session_id: str) -> Waiting | None:
        """What this session waits for, if it does."""
        return self._waiting.get(session_id)

    def remove(self, session_id: str) -> None:
        """It waits no more; one that did not is fine."""
        self._waiting.pop(session_id, None)

    def due(self, now: float) -> list[Waiting]:
        """Those whose time has come."""
        return [waiting for waiting in self._waiting.values() if waiting.due <= now]

    def that_are(self, why: Why) -> list[Waiting]:
        """Those that wait for this reason."""
        return [waiting for waiting in self._waiting.values() if waiting.why == why]

    async def changed(self) -> None:
        """Wait until someone has been put on it."""
        await self._changed.wait()
        self._changed = anyio.Event()

    @property
    def next_due(self) -> float | None:
        """When the first of them is due; None where none waits."""
        return min((waiting.due for waiting in self._waiting.values()), default=None)

    @property
    def counts(self) -> dict[Why, int]:
        """How many wait for each reason."""
        return dict(Counter(waiting.why for waiting in self._waiting.values()))


RETRY_SECONDS = 5
"""How long to wait after a failed call; doubled with each further failure."""
RETRY_LIMIT_SECONDS = 600
"""How long that wait may become."""
PATIENCE_SECONDS = 6 * 3600
"""The longest pause between two tries that nobody's message brings about: a text that no model
takes must not be paid for every few minutes, for ever."""
BACKOFF_LIMIT = 10_000
"""Sessions whose failures are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failures:
    count: int
    until: float
    wake_at: float


class Backoff:
    """Counts failures for each session, and says when the next try is due."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def until(self, session_id: str) -> float | None:
        """The end of its rest; None where it does not rest."""
        failures = self._failures.get(session_id)
        resting = failures is not None and self._clock() < failures.until
        return failures.until if failures is not None and resting else None

    def wake_at(self, session_id: str) -> float:
        """When to try again though nobody speaks: at first the end of its rest, then later."""
        failures = self._failures.get(session_id)
        return self._clock() if failures is None else failures.wake_at

    def after_failure(self, session_id: str) -> float:
        """The end of the rest that a failure begins."""
        before = self._failures.pop(session_id, None)
        count = before.count + 1 if before else 1
        doubled = RETRY_SECONDS * 2.0 ** min(count - 1, 30)
        rest = min(doubled, RETRY_LIMIT_SECONDS)
        # Not all sessions the same time, or all of them would come back at once.
        until = self._clock() + rest * random.uniform(0.5, 1)  # noqa: S311 - jitter, no secret
        wake_at = until + max(0, min(doubled, PATIENCE_SECONDS) - rest)
        self._failures[session_id] = _Failures(count=count, until=until, wake_at=wake_at)
        if len(self._failures) > BACKOFF_LIMIT:
            self._failures.popitem(last=False)
        return until

    def after_success(self, session_id: str) -> None:
        """Forget that it ever failed."""
        self._failures.pop(session_id, None)
