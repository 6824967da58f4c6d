"""Reports changes by other processes to the readers of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import ReferenceType, ref

import anyio

from nanoloop.channels.web.conversations import shown_about
from nanoloop.channels.web.dialogue import CHANNEL, shown_accepted, shown_answer
from nanoloop.channels.web.feed import Feed, Feeds
from nanoloop.errors import NanoloopError, SessionNotFound
from nanoloop.nodes import Nodes
from nanoloop.session.entry import MESSAGE, THINKING, Entry
from nanoloop.session.log import Log
from nanoloop.session.queue import is_asked, message_id_of
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions

LOOKED_AT = 200
"""How many sessions are checked at once; with more readers, each is checked less often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """The state of a session when its readers were last told about it."""

    log: ReferenceType[Log]
    """Refers to another object once the session has been reloaded from its store."""
    upto: int
    """The number of the last entry before the question that is being answered, if any."""
    newest: int
    taken_back: tuple[tuple[int, int], ...]
    """The parts of the log that were undone."""
    asked: tuple[int, ...]
    """The numbers of the tool calls that wait for a person's answer."""
    elsewhere: int
    """The number of the question that another process is answering, or 0."""
    moved: str
    about: Mapping[str, Any]
    memory: tuple[Any, ...]


class SessionWatch:
    """Checks only the sessions that are being read."""

    def __init__(self, feeds: Feeds, *, sessions: Sessions, nodes: Nodes) -> None:
        self._feeds = feeds
        self._sessions = sessions
        self._nodes = nodes
        self._looked_at: list[str] = []

    async def run(self) -> None:
        """Check until cancelled, at intervals that depend on how many processes share the store."""
        while True:
            await anyio.sleep(self._nodes.look_seconds)
            await self.look()

    async def look(self) -> None:
        """Report the changes in the sessions that are being read."""
        if not self._looked_at:
            self._looked_at = self._feeds.being_read()
        for session_id in list(islice(self._looked_at, LOOKED_AT)):
            self._looked_at.remove(session_id)
            with suppress(NanoloopError):  # the store failed; requests report that
                await self._look_at(session_id)

    async def _look_at(self, session_id: str) -> None:
        try:
            revision = await self._sessions.store.revision(session_id)
            session = await self._sessions.seen_at(session_id, revision)
        except SessionNotFound:
            self._sessions.forget(session_id)
            if self._feeds.of(session_id).sight is not None:
                self.tell_deleted(session_id)
        else:
            self.catch_up(session)

    def catch_up(self, session: Session) -> None:
        """Report other processes' changes since the last check; readers already know ours."""
        feed = self._feeds.of(session.id)
        before, now = feed.sight, self._sight_of(session)
        feed.sight = now
        if before is None:
            for entry in _said(session, now.upto):
                feed.is_news("accepted", _name_of(entry))
            return
        if before.taken_back != now.taken_back:
            feed.add("undone", {})  # whichever process undid it
        if before.asked != now.asked:
            feed.add("approval", {"waiting": list(now.asked)})
        if before.log() is not session.log:
            self._tell_talk(feed, session, before, now)
            self._tell_standing(feed, session, before, now)

    def tell_deleted(self, session_id: str) -> None:
        """Tell a session's readers that it has been deleted."""
        feed = self._feeds.of(session_id)
        if feed.sight is not None:
            feed.sight = None
            feed.add("session", {"deleted": True})
        self._tell_changed(session_id)

    def _sight_of(self, session: Session) -> Sight:
        is_elsewhere = session.awaiting and self._nodes.is_other(session.by)
        digest = (session.summary, session.covered_seq, session.pending_seq)
        return Sight(
            log=ref(session.log),
            upto=session.awaiting - 1 if session.awaiting else session.last_seq,
            newest=session.newest.seq if session.newest is not None else 0,
            taken_back=session.log.hidden,
            asked=tuple(approval.number for approval in session.approvals.asked),
            elsewhere=session.awaiting if is_elsewhere else 0,
            moved=session.moved,
            about=shown_about(session),
            memory=(*digest, tuple(session.ledger), tuple(session.pins)),
        )

    def _tell_talk(self, feed: Feed, session: Session, before: Sight, now: Sight) -> None:
        for entry in _said(session, before.upto):
            if feed.is_news("accepted", _name_of(entry)):
                feed.add("accepted", shown_accepted(entry))
        if now.elsewhere and now.elsewhere != before.elsewhere:
            feed.add("turn", {"state": "started"})
        for question, answer in _answers(session, before.upto):
            if feed.is_news("answer", answer.id):
                feed.add("answer", _shown_answer(question, answer))
        if not session.awaiting and self._has_ended(session, before, now):
            feed.add("turn", {"state": "finished"})
            self._tell_changed(session.id)

    def _tell_standing(self, feed: Feed, session: Session, before: Sight, now: Sight) -> None:
        """Report a session's changes, except new messages."""
        if now.memory != before.memory:
            feed.add("memory", {"reason": "changed"})
        if now.moved and now.moved != before.moved:
            feed.add("session", {"moved_to": now.moved})
        if now.about != before.about:
            feed.add("session", now.about)
            self._tell_changed(session.id)

    def _has_ended(self, session: Session, before: Sight, now: Sight) -> bool:
        """Return whether a turn in another process has ended."""
        is_others = session.by != self._nodes.me
        return bool(before.elsewhere) or (is_others and now.newest > before.newest)

    def _tell_changed(self, session_id: str) -> None:
        self._feeds.changes.add("sessions", {"id": session_id}, about=session_id)


def _shown_answer(question: Entry, answer: Entry) -> dict[str, Any]:
    shown = shown_answer(answer)
    if not shown["attachments"]:
        del shown["attachments"]
    return {"message_id": message_id_of(question), **shown, "kind": "answer"}


def _said(session: Session, after: int) -> list[Entry]:
    """Return the web channel's messages after this number, including those still waiting."""
    said = (*(entry for entry in session.window if entry.seq > after), *session.waiting)
    return [entry for entry in said if is_asked(entry) and _is_ours(entry)]


def _is_ours(entry: Entry) -> bool:
    """Return whether a message is from the web channel; others inform their chats themselves."""
    return bool(entry.metadata.get("channel") == CHANNEL)


def _name_of(entry: Entry) -> str:
    return message_id_of(entry) or entry.id


def _answers(session: Session, after: int) -> Iterator[tuple[Entry, Entry]]:
    """Yield the web channel's answered questions after this number, with their answers."""
    for question, *said in _exchanges([e for e in session.window if e.seq > after]):
        ends = [entry for entry in said if entry.type != THINKING and entry.role != "user"]
        is_open = session.awaiting and session.awaiting >= question.seq
        is_answered = ends and ends[-1].type == MESSAGE and not ends[-1].metadata.get("stopped")
        if is_answered and not is_open and _is_ours(question):
            yield question, ends[-1]


def _exchanges(entries: Sequence[Entry]) -> list[list[Entry]]:
    found: list[list[Entry]] = []
    for entry in entries:
        if is_asked(entry):
            found.append([entry])
        elif found:
            found[-1].append(entry)
    return found
