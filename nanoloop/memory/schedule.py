"""Decide when a summary may be requested, using a waiting list, a daily budget and breakers."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal
from weakref import ReferenceType, ref

import anyio

from nanoloop.bounded import BoundedDict
from nanoloop.events import BreakerClosed, BreakerOpened, SummaryPostponed, about, announce
from nanoloop.files import load_file, locked_file, make_folder, save_json, waited_lock
from nanoloop.protocols import Usage
from nanoloop.session.session import Session

Why = Literal["failure", "breaker", "budget", "small"]
"""Why a session waits: a recent failure, no available model, no budget left, or too little text.

Text that is still shorter than the summary is too little.
"""

SESSIONS_LIMIT = 1000
"""How many waiting sessions are kept in memory."""
FAILURES_LIMIT = 10_000
"""How many sessions' failures are remembered."""
RETRY_SECONDS = 5
"""The delay after a failed call; it doubles with each further failure."""
RETRY_LIMIT_SECONDS = 600
"""The longest delay after a failure."""
PATIENCE_SECONDS = 6 * 3600
"""The longest pause between two attempts without a new message.

It is long, so that a text that no model accepts isn't paid for every few minutes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A session that is waiting for its summary."""

    session_id: str
    known: ReferenceType[Session]
    """A weak reference to the session, because it may wait for hours."""
    why: Why
    since: float
    due: float
    pending_seq: int
    """The number of the last pending entry at the last check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """How often in a row a session's summary failed, and when to retry it."""

    count: int
    until: float
    """The earliest time for a retry."""
    wake_at: float
    """When to retry even without a new message; the delay grows with each failure."""


class Schedule:
    """The sessions that are waiting for a summary, longest waiting first, and when each is due."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._clock = clock
        self._waiting: BoundedDict[str, Waiting] = BoundedDict(SESSIONS_LIMIT)
        self._failures: BoundedDict[str, Failures] = BoundedDict(FAILURES_LIMIT)
        self._changed = anyio.Event()

    # Waiting sessions

    def waiting(self, session_id: str) -> Waiting | None:
        """Return this session's record if it is waiting, otherwise None."""
        return self._waiting.get(session_id)

    def waiting_for(self, why: Why) -> list[Waiting]:
        """Return the sessions that are waiting for this reason."""
        return [waiting for waiting in self._waiting.values() if waiting.why == why]

    def due(self) -> list[Waiting]:
        """Return the sessions whose summary is due."""
        now = self._clock()
        return [waiting for waiting in self._waiting.values() if waiting.due <= now]

    @property
    def next_due(self) -> float | None:
        """When the first waiting session is due, or None."""
        return min((waiting.due for waiting in self._waiting.values()), default=None)

    @property
    def counts(self) -> Mapping[Why, int]:
        """The number of sessions waiting for each reason."""
        return Counter(waiting.why for waiting in self._waiting.values())

    async def changed(self) -> None:
        """Wait until another session is added."""
        await self._changed.wait()
        self._changed = anyio.Event()

    def postpone(self, session: Session, why: Why, due: float) -> None:
        """Make a session wait; announce this unless it was already waiting for the same reason."""
        now = self._clock()
        before = self._waiting.get(session.id)
        self._waiting[session.id] = Waiting(
            session_id=session.id,
            known=ref(session),
            why=why,
            since=now,
            due=due,
            pending_seq=session.pending_seq,
        )
        self._changed.set()
        is_new = before is None or before.why != why
        if is_new and why != "failure":  # the failure has already been announced
            seconds = round(due - now, 3)
            with about(session_id=session.id):
                announce(SummaryPostponed(reason=why, seconds=seconds))

    def try_later(self, waiting: Waiting) -> None:
        """Retry a session a little later, because it can't be opened now."""
        due = self._clock() + RETRY_SECONDS
        self._waiting[waiting.session_id] = replace(waiting, due=due)

    def remove(self, session_id: str) -> None:
        """Remove a session, if it is waiting."""
        self._waiting.pop(session_id, None)

    # Failures

    def is_resting(self, session_id: str) -> bool:
        """Return True if this session's last attempt failed recently."""
        failures = self._failures.get(session_id)
        return failures is not None and self._clock() < failures.until

    def rest(self, session: Session) -> None:
        """Make a session wait longer because it failed recently."""
        self.postpone(session, "failure", self._failures[session.id].wake_at)

    def failed(self, session: Session) -> Failures:
        """Record a failure, which makes the session wait longer than the one before."""
        before = self._failures.get(session.id)
        count = before.count + 1 if before else 1
        doubled = RETRY_SECONDS * 2.0 ** min(count - 1, 30)
        rest = min(doubled, RETRY_LIMIT_SECONDS)
        # Random, so that not all sessions retry at the same moment.
        until = self._clock() + rest * random.uniform(0.5, 1)  # noqa: S311 - jitter, not a secret
        wake_at = until + max(0, min(doubled, PATIENCE_SECONDS) - rest)
        failures = Failures(count=count, until=until, wake_at=wake_at)
        self._failures[session.id] = failures
        self.rest(session)
        return failures

    def succeeded(self, session: Session) -> None:
        """Forget the session's failures."""
        self._failures.pop(session.id, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The number of calls and tokens used, including failed calls."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0

    @property
    def tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.tokens_in + self.tokens_out


def local_now() -> datetime:
    """Return the local time, because a day ends at the operator's midnight."""
    return datetime.now().astimezone()


class Budget:
    """Counts a day's tokens; without a limit, there is always room.

    If `kept_in` is a file, the count survives a restart, and several processes share the budget.
    """

    def __init__(
        self,
        daily_tokens: int | None = None,
        *,
        kept_in: Path | None = None,
        now: Callable[[], datetime] = local_now,
    ) -> None:
        self._daily_tokens = daily_tokens
        self._file = kept_in
        self._now = now
        self._day = now().date()
        self._spent = Spent()
        self._seen: tuple[int, int] | None = None
        """The file's identity and modification time when it was last read."""

    @property
    def spent_today(self) -> Spent:
        """The usage since midnight; without a file, that of this process only."""
        if self._now().date() != self._day:
            self._day, self._spent = self._now().date(), Spent()
        self._look()
        return self._spent

    @property
    def has_room(self) -> bool:
        """True if another call may be made today."""
        return self._daily_tokens is None or self.spent_today.tokens < self._daily_tokens

    @property
    def seconds_to_midnight(self) -> float:
        """The seconds until the next day begins."""
        now = self._now()
        midnight = (now + timedelta(days=1)).replace(hour=0, minute=0, second=0, microsecond=0)
        return (midnight - now).total_seconds()

    def add(self, usage: Usage) -> None:
        """Count a call."""
        with self._alone():
            self._add(usage)

    def take(self, usage: Usage) -> bool:
        """Count a call before it is made, if there is room; return False if there is none."""
        with self._alone(waits=True):
            if not self.has_room:
                return False
            self._add(usage)
            return True

    def correct(self, taken: Usage, used: Usage) -> None:
        """Count what a call has used instead of what was taken for it."""
        with self._alone(waits=True):
            spent = self.spent_today
            self._spent = replace(
                spent,
                tokens_in=max(0, spent.tokens_in - taken.tokens_in) + used.tokens_in,
                tokens_out=max(0, spent.tokens_out - taken.tokens_out) + used.tokens_out,
                tokens_cached=spent.tokens_cached + used.tokens_cached,
            )
            self._keep()

    def _add(self, usage: Usage) -> None:
        spent = self.spent_today
        self._spent = replace(
            spent,
            calls=spent.calls + 1,
            tokens_in=spent.tokens_in + usage.tokens_in,
            tokens_out=spent.tokens_out + usage.tokens_out,
            tokens_cached=spent.tokens_cached + usage.tokens_cached,
        )
        self._keep()

    def _keep(self) -> None:
        """Save the count; a failing disk does not stop summaries."""
        if self._file is not None:
            with suppress(OSError):
                save_json(self._file, {"day": str(self._day), **asdict(self._spent)})
                self._seen = self._stamp()

    def _look(self) -> None:
        """Read the usage that other processes have recorded today."""
        if self._file is not None:
            with suppress(OSError, ValueError, TypeError, AttributeError):
                if self._seen == (stamp := self._stamp()):
                    return
                self._seen = stamp
                said = json.loads(load_file(self._file))
                if said.pop("day", None) == str(self._day):
                    self._spent = Spent(**{name: int(count) for name, count in said.items()})

    def _stamp(self) -> tuple[int, int]:
        assert self._file is not None  # noqa: S101 - called only if there is a file
        there = self._file.stat()
        return there.st_ino, there.st_mtime_ns

    @contextmanager
    def _alone(self, *, waits: bool = False) -> Iterator[None]:
        """Keep other processes from counting.

        Unless this waits, one call may go uncounted if the lock is taken.
        """
        with ExitStack() as stack:
            if self._file is not None:
                with suppress(OSError):
                    make_folder(self._file.parent)
                    beside = self._file.with_name(f".{self._file.name}.lock")
                    stack.enter_context((waited_lock if waits else locked_file)(beside))
            yield


BreakerState = Literal["closed", "open", "half-open"]

FAILURES = 3
"""How many consecutive failures, in any sessions, open the breaker."""
BREAKER_SECONDS = 60
"""How long an open breaker blocks calls before it lets one through to test the model."""


class Breaker:
    """Allows calls to a model, or blocks them for a while after failures."""

    def __init__(
        self,
        model: str,
        *,
        clock: Callable[[], float],
    ) -> None:
        self.model = model
        self._clock = clock
        self._failures = 0
        self._open_until: float | None = None

    @property
    def state(self) -> BreakerState:
        """The breaker's state: `open` blocks every call, `half-open` allows one."""
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    @property
    def admits_at(self) -> float:
        """When the next call is allowed, by the breaker's clock; a time in the past means now."""
        return self._open_until or 0

    def admit(self) -> bool:
        """Return True if a call may be made now; report its result afterwards."""
        if self.state == "open":
            return False
        if self._open_until is not None:
            # Allow one call. If its result is never reported, another call is allowed later.
            self._open_until = self._clock() + BREAKER_SECONDS
        return True

    def succeeded(self) -> bool:
        """Record a successful call; return True if it closed the breaker."""
        was_open, self._open_until, self._failures = self._open_until is not None, None, 0
        if was_open:
            announce(BreakerClosed(model=self.model))
        return was_open

    def failed(self) -> None:
        """Record a failed call."""
        self._failures += 1
        if self._failures < FAILURES:
            return
        was_closed, self._open_until = self._open_until is None, self._clock() + BREAKER_SECONDS
        if was_closed:
            announce(
                BreakerOpened(model=self.model, failures=self._failures, seconds=BREAKER_SECONDS)
            )
