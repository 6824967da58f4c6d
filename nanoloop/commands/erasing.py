"""What a chat can have erased for good: messages of its own, by their numbers in /history."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from nanoloop.commands.command import BUSY, Command, Runner
from nanoloop.errors import IndexUnusable
from nanoloop.events import Announce, RecallFailed
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.session.entry import ERASED
from nanoloop.session.note import last_exchange
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

USAGE = "/forget takes a number from /history, or two: /forget 12, /forget 12-15, /forget last"
MOST = 1000
"""Entries that go at once."""
_RANGE = re.compile(r"#?(\d{1,9})(?:\s*-\s*#?(\d{1,9}))?")


class Erasing:
    """Erases from the log, the summary, the ledger, the pins and the recall index."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        summarizer: Summarizer,
        recall: Recall | None,
        runner: Runner,
        announce: Announce,
    ) -> None:
        self._sessions = sessions
        self._summarizer = summarizer
        self._found_by = recall
        self._runner = runner
        self._announce = announce
        self.commands = (
            Command(
                name="forget",
                usage="erase a message for good, /forget NUMBER; the last exchange, /forget last",
                run=self._forget,
            ),
        )

    async def _forget(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current(message.session_key)
        last = last_exchange(session.window) if rest == "last" else ()
        seqs = [entry.seq for entry in last] or numbers(rest)
        if not seqs:
            return "Nothing has been said yet." if rest == "last" else USAGE
        between = {"after": seqs[0] - 1, "upto": seqs[-1]}
        entries = await self._sessions.store.entries(session.id, **between)
        entries = [entry for entry in entries if entry.seq in seqs]
        # Those erased already are among them: what failed behind the store is done again so.
        said = [entry.seq for entry in entries]
        if not said:
            return f"There is no message #{rest} here: /history shows the numbers."
        if self._runner.is_busy(message.session_key):
            return BUSY  # what is being answered may still quote it
        new = sum(entry.type != ERASED for entry in entries)
        told = (f"Erased for good: {_entries(new)}.", *await self._erase(session, said))
        return " ".join(told)

    async def _erase(self, session: Session, seqs: list[int]) -> list[str]:
        """Erase them; returns what there is to say of it."""
        before = session.summary
        session = await self._sessions.erase(session.id, seqs)
        if session.summary == before:
            return await self._leave_index(session, seqs)
        self._summarizer.fire_and_forget(session, force=True)
        reach = f"all that is left up to #{session.pending_seq}"
        told = f"The summary told of it: it is gone, and made anew from {reach}."
        return [told, *await self._leave_index(session, seqs)]

    async def _leave_index(self, session: Session, seqs: list[int]) -> list[str]:
        """What is to be said of the recall index, which may be out of order."""
        try:
            if self._found_by is not None:
                await self._found_by.forget(session.id, seqs)
        except IndexUnusable as failure:
            self._announce(RecallFailed(session_id=session.id, reason=str(failure)))
            return ["But /recall may still find it: say /forget once more later."]
        return []


def numbers(text: str) -> range:
    """The numbers that a text names, such as 12 or 12-15; empty where it names none."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return range(0)
    first, last = int(found[1]), int(found[2] or found[1])
    return range(first, last + 1) if 0 < first <= last < first + MOST else range(0)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"
