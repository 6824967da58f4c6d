"""Send answers; each stays pending in its session until its chat has it, even after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from nanoloop.errors import SessionNotFound, StoreError, TurnLost
from nanoloop.events import FailureTold, about, announce
from nanoloop.intake import inbound_of
from nanoloop.messages import Attachment, Inbound, Outbound
from nanoloop.nodes import Nodes
from nanoloop.protocols import Bus, Store
from nanoloop.sentences import Apology, Say, Sentences
from nanoloop.session.entry import APPROVAL, SCHEME, TOOL_CALL, Entry, named_files, without_files
from nanoloop.session.queue import is_asked
from nanoloop.session.session import Session
from nanoloop.session.speech import FILES
from nanoloop.sessions import Sessions
from nanoloop.tools.approval import choices_in, question_text, shown_seqs
from nanoloop.writing import leave_alone

if TYPE_CHECKING:
    from nanoloop.agents import Agents
    from nanoloop.attachments import Attachments, StoredFile

LOOK_BACK = 200
"""How many of the entries before an answer are searched first for its question."""


def reply_to(
    message: Inbound,
    text: str,
    kind: Any = "notice",
    session_id: str | None = None,
    *,
    incident: str | None = None,
    said: Entry | None = None,
) -> Outbound:
    """Create a text for the chat that sent this message.

    An answer has the id of the entry in which it was `said`, each time that it is sent.
    """
    return Outbound(
        channel=message.channel,
        chat=message.chat,
        text=text,
        kind=kind,
        reply_to=message.message_id,
        session_id=session_id,
        incident=incident,
        id=None if said is None else said.id,
    )


class Notices:
    """The loop's own notices to chats; failures are also announced to the operator."""

    def __init__(
        self, bus: Bus, sentences: Sentences, *, agents: Agents, sessions: Sessions
    ) -> None:
        self._bus = bus
        self._sentences = sentences
        self.told_of_store: dict[str, set[str]] = {}
        """For each chat, the messages for which it was told that the store is unavailable."""
        self._agents = agents
        self._sessions = sessions

    def speaking(self, message: Inbound) -> Sentences:
        """Return the sentences in the language of the message's agent or channel."""
        session = self._sessions.known(message.session_key)
        named = self._agents.get(message.agent or "", self._agents.default)
        agent = named if session is None else self._agents.of(session)
        return self._sentences.speaking(agent.language or message.language)

    def text(self, message: Inbound, name: str, /, **facts: Any) -> str:
        """Return a sentence in the language for this message's chat."""
        return self.speaking(message).text(name, **facts)

    async def say(self, message: Inbound, name: str) -> None:
        """Send a sentence to the message's chat."""
        await self.publish(reply_to(message, self.text(message, name)))

    async def apologise(self, message: Inbound, error: Exception) -> None:
        """Tell the message's chat in plain words what failed."""
        apology = self.apology(message.session_key, error, to=message)
        await self.publish(reply_to(message, apology.text, "error", incident=apology.incident))

    async def store_is_away(self, key: str, message: Inbound, error: Exception) -> None:
        """Tell the chat that the store is unavailable, once per outage.

        On a channel without confirmations, someone may be waiting for each message, so each
        gets a reply.
        """
        told = self.told_of_store.setdefault(key, set())
        name = "" if self._bus.confirms(message.channel) else message.message_id or ""
        if name not in told:
            told.add(name)
            await self.apologise(message, error)

    def store_is_back(self, key: str) -> None:
        """Record that the store has done what the chat was waiting for."""
        self.told_of_store.pop(key, None)

    async def publish(self, said: Outbound) -> None:
        """Send a text; if the bus fails, only announce that, so that the lanes survive."""
        if not said.text:  # a command that is answered by the model
            return
        try:
            await self._bus.publish(said)
        except Exception as error:  # noqa: BLE001 - as above
            self.apology(said.chat, error)

    def apology(
        self,
        session_id: str,
        error: Exception,
        *,
        to: Inbound | None = None,
        turn_id: str = "",
        is_kept: bool = False,
    ) -> Apology:
        """Announce a failure to the operator, and return the sentence for the chat."""
        incident = self._sentences.incidents.of(error, place=session_id)
        with about(session_id=session_id, turn_id=turn_id):
            announce(FailureTold(**incident.facts))
        sentences = self._sentences if to is None else self.speaking(to)
        return sentences.apology(error, incident.incident, is_kept=is_kept)


@dataclass(slots=True)
class ChatClaim:
    """This process's claim on a chat, valid until its answer is sent."""

    nodes: Nodes
    sessions: Sessions
    session_id: str
    seq: int
    """The answer's number."""
    lapses: int
    """How often the process had lapsed when the claim was last known to be valid."""

    async def is_good(self) -> bool:
        """Return True if the chat still belongs to this process; if unsure, reread the session."""
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
                if session.queue.senders.get(self.seq, session.by) != self.nodes.me:
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
    """Send an answer while the chat is ours, and record in the session that it arrived."""

    async def arrived() -> None:
        with suppress(Exception):  # on failure, it is sent again after a restart
            with suppress(SessionNotFound):
                # Opened again, because an undo may have replaced the object with this id.
                now = await sessions.open(session.id)
                if now.created_at == session.created_at:
                    await sessions.change(now, lambda session: session.arrived(seq))
            # After the commit: otherwise the answer would briefly look unsent and be sent again.
            sessions.has_arrived(session.id, seq)

    if seq not in session.unsent:
        return await bus.publish(answer, may_go=claim.is_good)
    sessions.sent(session.id, seq)
    return await bus.publish(answer, arrived=arrived, may_go=claim.is_good)


async def send_owed(
    session: Session,
    seq: int,
    *,
    bus: Bus,
    sessions: Sessions,
    nodes: Nodes,
    sentences: Callable[[Inbound], Sentences],
) -> None:
    """Resend an answer that might not have arrived before a restart, if its channel exists."""
    claim = ChatClaim(nodes, sessions, session.id, seq, nodes.lapses)
    question, answer = await _owed(sessions, session.id, seq)
    if (
        answer is not None
        and answer.type == APPROVAL
        and not await shown_in(answer, sessions.store, session.id)
    ):
        answer = None  # what it asked about was erased
    if question is not None and answer is not None and question.channel not in bus.channels:
        sessions.sent(session.id, seq)  # this process can't send it
        return
    claims = session.claims
    is_settled = question is None or answer is None
    # Never sent twice if the channel can't confirm arrival: it is recorded as sent beforehand.
    is_over = is_settled or not bus.confirms(question.channel if question else "")

    def act(session: Session) -> None:
        if session.claims != claims or seq not in session.unsent:  # another process was first
            raise TurnLost(session.id)
        if session.by != nodes.me and not is_settled:
            session.claim(nodes.me)
        if is_over:
            session.arrived(seq)
        else:
            session.owe(seq)

    if is_over or session.queue.senders.get(seq, session.by) != nodes.me:
        await sessions.change(session, act)
    if question is None or answer is None:
        return
    speaking = sentences(question)
    text = await text_of(answer, sessions.store, session.id, speaking.text)
    said = reply_to(question, text, "answer", session.id, said=answer)
    said = replace(said, choices=choices_in(answer, speaking.text))
    whole = await with_files(said, answer, sessions.attachments, speaking)
    await send_answer(whole, bus=bus, sessions=sessions, session=session, seq=seq, claim=claim)


async def text_of(answer: Entry, store: Store, session_id: str, say: Say) -> str:
    """Return an answer's text, or its question about tool calls."""
    if answer.type != APPROVAL:
        return str(answer.content["text"])
    return question_text(answer, await shown_in(answer, store, session_id), say)


async def shown_in(question: Entry, store: Store, session_id: str) -> dict[int, Entry]:
    """Return the calls and forms that a question shows, by number, without erased ones."""
    seqs = shown_seqs(question)
    entries = await store.entries(session_id, after=min(seqs) - 1, upto=max(seqs))
    return {entry.seq: entry for entry in entries if entry.type in {TOOL_CALL, APPROVAL}}


async def _owed(
    sessions: Sessions, session_id: str, seq: int
) -> tuple[Inbound | None, Entry | None]:
    """Return a question and its answer, each None if it was erased or undone."""
    question = answer = None
    for after in (seq - LOOK_BACK, 0):  # the whole history only if needed
        entries = await sessions.store.entries(session_id, after=max(0, after), upto=seq)
        answer = next((e for e in entries if e.seq == seq and _is_sent(e)), None)
        question = question_in(entries)
        if question is not None or answer is None:
            break
    return question, answer


def _is_sent(entry: Entry) -> bool:
    return entry.role == "assistant" or (entry.type == APPROVAL and "asks" in entry.content)


async def noted_files(
    entry: Entry, made: Iterable[Mapping[str, Any]], attachments: Attachments, session_id: str
) -> Entry:
    """Return the answer with facts about its files: those that it names, and those made for it."""
    facts: dict[str, Mapping[str, Any]] = {}
    for file_id in named_files(str(entry.content.get("text") or "")):
        if kept := await attachments.to_send(session_id, file_id):
            facts[f"{SCHEME}{file_id}"] = _facts_of(kept)
    for known in made:
        facts.setdefault(str(known["ref"]), known)
    return replace(entry, metadata={**entry.metadata, FILES: [*facts.values()]}) if facts else entry


async def with_files(
    answer: Outbound, entry: Entry, attachments: Attachments | None, sentences: Sentences
) -> Outbound:
    """Return the answer with its files as attachments, no longer named in its text.

    If a file is gone, or the session may not use it, the text says so in a sentence.
    """
    noted, named = _noted(entry), named_files(answer.text)
    files, lost = [], []
    for file_id in dict.fromkeys((*named, *noted)):
        kept = attachments and await attachments.to_send(answer.session_id or "", file_id)
        if kept:
            files.append(Attachment(**_facts_of(kept)))
        elif name := noted.get(file_id):
            lost.append(sentences.text("file_gone", name=name))
        else:
            lost.append(sentences.text("file_unknown"))
    if not (files or lost):
        return answer
    text = "\n\n".join(filter(None, (without_files(answer.text), *dict.fromkeys(lost))))
    return replace(answer, text=text, attachments=tuple(files))


def _facts_of(kept: StoredFile) -> dict[str, Any]:
    known: dict[str, Any] = {"kind": kept.kind, "ref": f"{SCHEME}{kept.id}", "name": kept.name}
    return known | {"mime_type": kept.mime_type, "size": kept.size}


def _noted(entry: Entry) -> dict[str, str]:
    """Return the names of the files recorded in an answer, by their ids."""
    known = entry.metadata.get(FILES)
    files = [file for file in known if isinstance(file, Mapping)] if isinstance(known, list) else []
    return {str(f.get("ref")).removeprefix(SCHEME): str(f.get("name") or "file") for f in files}


def question_in(entries: Sequence[Entry]) -> Inbound | None:
    """Return the newest message, or answer about a call, among these entries, or None."""
    asked = [e for e in entries if _is_question(e) and e.metadata.get("channel")]
    return inbound_of(asked[-1]) if asked else None


def _is_question(entry: Entry) -> bool:
    return is_asked(entry) or entry.type == APPROVAL  # a yes is answered like a message
