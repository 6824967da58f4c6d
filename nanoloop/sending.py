"""An answer on its way: owed by its session until its chat has it, also over a restart."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from nanoloop.errors import SessionNotFound, StoreError, TurnLost
from nanoloop.events import TurnFailed, about, announce
from nanoloop.intake import inbound_of
from nanoloop.messages import Inbound, Outbound
from nanoloop.nodes import Nodes
from nanoloop.protocols import Bus
from nanoloop.sentences import Apology, Sentences
from nanoloop.session.entry import Entry
from nanoloop.session.queue import is_asked
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.writing import leave_alone

LOOK_BACK = 200
"""Entries before an answer among which its question is looked for first."""


def reply_to(
    message: Inbound,
    text: str,
    kind: Any = "notice",
    session_id: str | None = None,
    *,
    incident: str | None = None,
) -> Outbound:
    """A text for the chat that the message came from."""
    return Outbound(
        channel=message.channel,
        chat=message.chat,
        text=text,
        kind=kind,
        reply_to=message.message_id,
        session_id=session_id,
        incident=incident,
    )


class Notices:
    """What the loop itself says to chats, and tells the operator of what failed."""

    def __init__(self, bus: Bus, sentences: Sentences) -> None:
        self._bus = bus
        self._sentences = sentences

    def text(self, name: str) -> str:
        """The sentence with this name."""
        return self._sentences.text(name)

    async def say(self, message: Inbound, name: str) -> None:
        """Say the sentence with this name to the chat that the message came from."""
        await self.publish(reply_to(message, self.text(name)))

    async def apologise(self, message: Inbound, error: Exception) -> None:
        """Tell that chat what failed, in words for people."""
        apology = self.apology(message.session_key, error)
        await self.publish(reply_to(message, apology.text, "error", incident=apology.incident))

    async def publish(self, said: Outbound) -> None:
        """Send it; a bus that fails must not end every lane."""
        try:
            await self._bus.publish(said)
        except Exception as error:  # noqa: BLE001 - as its docstring says
            self.apology(said.chat, error)

    def apology(
        self, session_id: str, error: Exception, *, turn_id: str = "", is_kept: bool = False
    ) -> Apology:
        """What the chat is told; what the operator is told of it goes to the log."""
        incident = self._sentences.incidents.of(error, place=session_id)
        with about(session_id=session_id, turn_id=turn_id):
            announce(TurnFailed(**incident.facts))
        return self._sentences.apology(error, incident.incident, is_kept=is_kept)


@dataclass(slots=True)
class ChatClaim:
    """This process's claim on a chat, as long as what it has to send there is not sent."""

    nodes: Nodes
    sessions: Sessions
    session_id: str
    lapses: int
    """The process's own, from before the claim was last known to be good."""

    async def is_good(self) -> bool:
        """Whether the chat is still this process's; read again where it may not be."""
        while not self.nodes.is_sure(self.lapses):
            try:
                await self.nodes.beat()
                lapses = self.nodes.lapses
                session = await self.sessions.fresh(self.session_id)
            except SessionNotFound:
                return False
            except StoreError:
                await leave_alone()
            else:
                if session.by != self.nodes.me:
                    return False
                self.lapses = lapses
        return True


async def send_answer(
    answer: Outbound,
    *,
    bus: Bus,
    sessions: Sessions,
    session: Session,
    seq: int,
    claim: ChatClaim,
) -> None:
    """Send it as long as the chat is ours; where its channel can tell, the session hears of it."""

    async def arrived() -> None:
        with suppress(Exception):  # then it stays owed, and is sent again after a restart
            with suppress(SessionNotFound):
                # Opened again: since an undo, say, another object is the one of this id.
                now = await sessions.open(session.id)
                if now.created_at == session.created_at:
                    await sessions.change(now, lambda session: session.arrived(seq))
            # Not before: between the two it would seem to be owed, and not on its way.
            sessions.has_arrived(session.id, seq)

    if seq not in session.unsent:
        return await bus.publish(answer, may_go=claim.is_good)
    sessions.sent(session.id, seq)
    return await bus.publish(answer, arrived=arrived, may_go=claim.is_good)


async def send_owed(
    session: Session, seq: int, *, bus: Bus, sessions: Sessions, nodes: Nodes
) -> None:
    """Send again what may not have arrived before a restart; not where its channel is gone."""
    claim = ChatClaim(nodes, sessions, session.id, nodes.lapses)
    question, answer = await _owed(sessions, session.id, seq)
    if question is not None and answer is not None and question.channel not in bus.channels:
        sessions.sent(session.id, seq)  # as far as this process goes
        return
    claims = session.claims
    is_settled = question is None or answer is None
    # Never twice where nothing can tell what has arrived: then it is kept before it is sent.
    is_over = is_settled or not bus.confirms(question.channel if question else "")

    def act(session: Session) -> None:
        if session.claims != claims:  # another process was first
            raise TurnLost(session.id)
        if session.by != nodes.me and not is_settled:
            session.claim(nodes.me)
        if is_over:
            session.arrived(seq)

    if is_over or session.by != nodes.me:
        await sessions.change(session, act)
    if question is None or answer is None:
        return
    text = reply_to(question, str(answer.content["text"]), "answer", session.id)
    answer_named = named(text, answer)
    await send_answer(
        answer_named, bus=bus, sessions=sessions, session=session, seq=seq, claim=claim
    )


async def _owed(
    sessions: Sessions, session_id: str, seq: int
) -> tuple[Inbound | None, Entry | None]:
    """A question and its answer; None for what was erased or taken back."""
    question = answer = None
    for after in (seq - LOOK_BACK, 0):  # the whole history only where much was done for it
        entries = await sessions.store.entries(session_id, after=max(0, after), upto=seq)
        answer = next((e for e in entries if e.seq == seq and e.role == "assistant"), None)
        question = question_in(entries)
        if question is not None or answer is None:
            break
    return question, answer


def named(answer: Outbound, entry: Entry) -> Outbound:
    """The answer with a name that it keeps, however often it is sent."""
    return replace(answer, id=entry.id)


def question_in(entries: Sequence[Entry]) -> Inbound | None:
    """The newest message of a chat among these, or None."""
    asked = [e for e in entries if is_asked(e) and e.metadata.get("channel")]
    return inbound_of(asked[-1]) if asked else None
