"""Whether a session's summary may be asked for now; one that may not is put on the agenda."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from nanoloop.events import Announce, SummaryPostponed
from nanoloop.memory.agenda import Agenda, Waiting, Why
from nanoloop.memory.budget import Budget
from nanoloop.memory.rests import Rests
from nanoloop.memory.transcript import line_size
from nanoloop.memory.writer import Writer
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session


class Admission:
    """Rests after failures, open breakers, spent budgets, and too little to be worth a call."""

    def __init__(
        self,
        *,
        agenda: Agenda,
        rests: Rests,
        writer: Writer,
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
