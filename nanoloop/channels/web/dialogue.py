"""API operations on a session's messages: list, send, stop and retry them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import Annotated, Any
from uuid import uuid4

import anyio
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from nanoloop.channels.web.access import LATER_SECONDS, Caller, Refusal, try_later
from nanoloop.channels.web.api import ApiCall, Backend, Operation, RequestBody, quoted, serve
from nanoloop.channels.web.conversations import SESSION
from nanoloop.channels.web.feed import shown_attachment, shown_choice
from nanoloop.channels.web.names import ENTRIES_READ, OTHER_BODY, MessageName
from nanoloop.messages import Attachment, Inbound, Outcome, Quote, Rank
from nanoloop.sending import shown_in
from nanoloop.session.entry import (
    APPROVAL,
    MESSAGE,
    SCHEME,
    THINKING,
    TOOL_CALL,
    TOOL_RESULT,
    Entry,
    rfc3339,
    without_files,
)
from nanoloop.session.queue import (
    is_command_text,
    last_exchange,
    message_id_of,
    messages_among,
)
from nanoloop.session.session import Session
from nanoloop.session.speech import name_of, quotes_of, typed
from nanoloop.sessions import check_undo
from nanoloop.tools.approval import choices_in, question_text

CHANNEL = "web"
MessageId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
Text = Annotated[str, Field(max_length=100_000)]
KEPT_SECONDS = 5
"""How long a request waits for its message to be stored before its client has to retry."""


class NewMessage(RequestBody):
    """A message to send."""

    text: Text = ""
    message_id: MessageId = Field(default_factory=lambda: uuid4().hex)
    """Chosen by the sender; a message sent again with the same id is answered only once."""
    attachments: Annotated[list[str], Field(max_length=10)] = Field(default_factory=list)
    """The ids of earlier uploads."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"required": ["text"], "properties": {"text": {"pattern": r"\S"}}},
                {"required": ["attachments"], "properties": {"attachments": {"minItems": 1}}},
            ]
        }
    )


class Retry(RequestBody):
    """A request to answer the last question again."""

    text: Text | None = None
    """The question's new text; by default, the text stays the same."""
    message_id: MessageId = Field(default_factory=lambda: uuid4().hex)


@serve("POST", f"{SESSION}/messages", status=202, refuses=(422,), takes_names=True)
async def say(call: ApiCall, said: NewMessage) -> Response:
    """Send a message; the answer arrives as events."""
    if not said.text.strip() and not said.attachments:
        raise Refusal(422, "text: must not be empty")
    body = f"{call.session_id}\n{said.model_dump_json(exclude_unset=True)}"
    named = call.backend.names.of(call.request, call.who, body)
    session = await call.backend.parts.sessions.open(call.session_id)
    call.check_ask(session, said.text)
    files = [await _attachment(call.backend, call.who, file) for file in said.attachments]
    key = await lane_of(call.backend, session, call.who.account)
    name = _name_of(said, named, session)
    message = asked_by(call, session, said.text, name, key=key, files=files)
    outcome = await hand_in(call.backend, message)
    if outcome == "repeated":
        check_same((*session.waiting, *session.window), message)
    return JSONResponse({"message_id": name}, status_code=202)


def _name_of(said: NewMessage | Retry, named: MessageName, session: Session) -> str:
    """Return the message's id: the one given, or else one derived from its name."""
    named.settle(session)
    return said.message_id if "message_id" in said.model_fields_set else named.message_id


def check_same(known: Iterable[Entry], message: Inbound) -> None:
    """Raise `Refusal` if one of these entries has the message's id but a different text."""
    said = (entry for entry in known if entry.type == MESSAGE)  # a yes has its id, and no text
    named = (entry for entry in said if message_id_of(entry) == message.message_id)
    if any(typed(entry) != message.text for entry in named):
        raise Refusal(422, OTHER_BODY)


async def hand_in(backend: Backend, message: Inbound) -> Outcome:
    """Submit a message, which is stored when this returns; raises `Refusal`.

    A message refused with 503 may still be stored later; thanks to its id, it is answered once.
    """
    outcome = await _kept(backend, message)
    # No await since it was stored, so readers see the message before its answer.
    tell_accepted(backend, message)
    return outcome


async def _kept(backend: Backend, message: Inbound) -> Outcome:
    sentences = backend.parts.sentences
    with anyio.move_on_after(KEPT_SECONDS):
        outcome = await backend.parts.bus.hand_in(replace(message, language=backend.parts.language))
        if outcome == "full":
            raise try_later(429, sentences.text("busy"), seconds=LATER_SECONDS)
        if outcome != "failed":
            return outcome
    raise try_later(503, sentences.text("store_down"), seconds=LATER_SECONDS)


async def _attachment(backend: Backend, caller: Caller, attachment_id: str) -> Attachment:
    kept = await backend.attachments.about(attachment_id)
    may = kept is not None and caller.may_use(kept.owner, kept.sessions)
    data = await backend.attachments.data(attachment_id) if may else None
    if kept is None or data is None:
        advice = "upload it first, and send the returned id"
        raise Refusal(422, f"attachments: there is no file {quoted(attachment_id)}: {advice}")
    about = Attachment(
        kind=kept.kind,
        ref=f"{SCHEME}{kept.id}",
        name=kept.name,
        mime_type=kept.mime_type,
        size=kept.size,
    )
    if kept.kind != "file":
        return about
    found = await backend.attachments.document(kept, data)
    return replace(about, text=found.shown(about.ref), chars=found.chars)


def inbound(
    session: Session,
    text: str,
    message_id: str,
    *,
    key: str,
    account: str,
    files: Sequence[Attachment] = (),
) -> Inbound:
    """Build a message from the web channel for this session."""
    return Inbound(
        channel=CHANNEL,
        chat=session.id,
        text=text,
        message_id=message_id,
        attachments=tuple(files),
        key=key,
        account=account,
    )


def asked_by(
    call: ApiCall,
    session: Session,
    text: str,
    message_id: str,
    *,
    key: str,
    files: Sequence[Attachment] = (),
) -> Inbound:
    """Build the caller's message; a command may choose only among the caller's agents."""
    message = inbound(session, text, message_id, key=key, account=call.who.account, files=files)
    if not is_command_text(text):
        return message
    rank: Rank = "operator" if call.who.is_operator else "user"
    return replace(message, agent=call.agent_to_name, agents=tuple(call.agents), rank=rank)


async def lane_of(backend: Backend, session: Session, account: str) -> str:
    """Return the key whose lane this session's messages wait in; switch the key to this session.

    Raises `Refusal` if the session belongs to another channel whose chat has switched to another.
    """
    key = session.key or session.id
    sessions = backend.parts.sessions
    if (await sessions.current(key)).id == session.id:
        return key
    if not key.startswith(f"{CHANNEL}:"):
        raise Refusal(409, "its chat continues in another session: write to that one")
    if backend.parts.runner.is_busy(key):  # otherwise running messages would be affected
        text, name = f"/switch {session.id}", f"switch-{uuid4().hex}"
        await _kept(backend, inbound(session, text, name, key=key, account=account))
    else:
        await sessions.switch(key, session.id)
    return key


def tell_accepted(backend: Backend, message: Inbound) -> None:
    """Tell all readers of the session about a new message."""
    feed = backend.feeds.of(message.chat)
    if not feed.is_news("accepted", str(message.message_id)):
        return
    files = [
        {"ref": f.ref, "kind": f.kind, "name": f.name, "mime_type": f.mime_type, "size": f.size}
        for f in message.attachments
    ]
    accepted: dict[str, Any] = {
        "message_id": message.message_id,
        "text": message.text,
        "attachments": [shown_attachment(file) for file in files],
    }
    feed.add("accepted", accepted)


@serve("POST", f"{SESSION}/stop")
async def stop(call: ApiCall) -> Response:
    """Stop the current answer."""
    session = await call.backend.parts.sessions.fresh(call.session_id)
    stopped = await call.backend.parts.runner.stop_anywhere(session.key or session.id)
    return JSONResponse({"stopped": stopped})


@serve("POST", f"{SESSION}/retry", status=202, refuses=(422,), takes_names=True)
async def retry(call: ApiCall, again: Retry) -> Response:
    """Discard the last exchange and answer its question again."""
    backend, sessions = call.backend, call.backend.parts.sessions
    body = f"{call.session_id}\nretry\n{again.model_dump_json(exclude_unset=True)}"
    named = backend.names.of(call.request, call.who, body)
    session = await sessions.fresh(call.session_id)
    call.check_ask(session)
    key = await lane_of(backend, session, call.who.account)
    name = _name_of(again, named, session)
    if not await sessions.store.has_heard(key, name):
        _check_again(session)
    message = inbound(session, again.text or "", name, key=key, account=call.who.account)
    await _kept(backend, replace(message, again=True))
    _tell_again(backend, session, name)
    return JSONResponse({"message_id": name}, status_code=202)


def _check_again(session: Session) -> None:
    """Raise `Refusal` if there is no question to answer again, or its answer can't be undone."""
    if session.awaiting or messages_among(session.waiting):
        return
    if not last_exchange(session.entries_between(0, session.last_seq)):
        raise Refusal(409, "there is no question to ask again")
    check_undo(session)


def _tell_again(backend: Backend, session: Session, name: str) -> None:
    """Tell all readers of the session which question is being answered again."""
    backend.watch.catch_up(session)
    known = (*session.waiting, *session.window)
    asked = next((entry for entry in known if message_id_of(entry) == name), None)
    feed = backend.feeds.of(session.id)
    if asked is not None and feed.is_news("accepted", name):
        feed.add("accepted", shown_accepted(asked))


def shown_accepted(entry: Entry) -> dict[str, Any]:
    """Return a stored message in the form sent to readers."""
    files = entry.metadata.get("attachments") or ()
    return {
        "message_id": message_id_of(entry),
        "text": typed(entry),
        "attachments": [shown_attachment(file) for file in files],
    }


class MessagesQuery(BaseModel):
    """Selects messages: at most `limit` before this number, or the newest."""

    before: Annotated[int, Field(ge=1, le=2**53)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


@serve("GET", f"{SESSION}/messages")
async def messages(call: ApiCall, asked: MessagesQuery) -> Response:
    """List a session's messages, page by page from the newest."""
    sessions = call.backend.parts.sessions
    session = await sessions.fresh(call.session_id)
    upto = session.last_seq if asked.before is None else min(asked.before - 1, session.last_seq)
    found = await _newest(call.backend, session, upto=upto, count=asked.limit + 1)
    page = found[-asked.limit :]
    before = page[0]["seq"] if len(found) > len(page) else None
    return JSONResponse({"messages": page, "before": before})


async def _newest(
    backend: Backend, session: Session, *, upto: int, count: int
) -> list[dict[str, Any]]:
    """Return at least this many of the newest messages up to a number, or all if fewer exist."""
    found: list[dict[str, Any]] = []
    while len(found) < count and upto > 0:
        after = max(0, upto - ENTRIES_READ)
        entries = await backend.parts.sessions.store.entries(session.id, after=after, upto=upto)
        shown = [(entry, shown_entry(entry)) for entry in entries]
        found[:0] = [
            told | await _question(backend, session, entry) if entry.type == APPROVAL else told
            for entry, told in shown
            if told is not None
        ]
        upto = after
    return found


async def _question(backend: Backend, session: Session, entry: Entry) -> dict[str, Any]:
    """Return what a question about tool calls asks, and the choices that are still open."""
    sentences = backend.parts.sentences.speaking(backend.parts.language)
    shown = await shown_in(entry, backend.parts.sessions.store, session.id)
    asks = [_asked(session, ask, shown.get(ask["seq"])) for ask in entry.content["asks"]]
    waiting = {str(ask["number"]) for ask in asks if ask["state"] == "asked"}
    choices = choices_in(entry, sentences.text)
    return {
        "text": question_text(entry, shown, sentences.text),
        "asks": asks,
        "choices": [shown_choice(each) for each in choices if each.text.split()[1] in waiting],
    }


def _asked(session: Session, ask: Mapping[str, Any], call: Entry | None) -> dict[str, Any]:
    """Return a call that a person was asked about, and what has become of the question."""
    told = {"number": ask["number"], "tool": ask.get("tool"), "who": ask["who"]}
    told["arguments"] = None if call is None else call.content.get("parameters")
    known = session.approvals.numbered(ask["number"])
    if known is None or known.code != ask["code"]:
        return {**told, "state": session.approvals.why_closed(ask["number"], ask["code"]) or "gone"}
    until = datetime.fromtimestamp(known.expires_at, timezone.utc)
    is_late = known.state == "asked" and until <= datetime.now(timezone.utc)
    return {**told, "state": "expired" if is_late else known.state, "expires_at": rfc3339(until)}


def shown_entry(entry: Entry) -> dict[str, Any] | None:
    """Return an entry in the form shown on the page, or None if it is not shown."""
    told = _TELLS.get(entry.type)
    if told is None or (entry.type == APPROVAL and "asks" not in entry.content):
        return None
    about = {"seq": entry.seq, "id": entry.id, "time": rfc3339(entry.timestamp)}
    return {**about, "text": "", "attachments": [], **told(entry)}


def _message(entry: Entry) -> dict[str, Any]:
    files = entry.metadata.get("attachments") or []
    told = {
        "role": entry.role,
        "text": typed(entry),
        "attachments": [shown_attachment(file) for file in files],
    }
    if entry.role == "assistant":
        told |= shown_answer(entry)
    marks = {name: entry.metadata[name] for name in _MARKS if entry.metadata.get(name)}
    if quotes := [_shown_quote(quote) for quote in quotes_of(entry)]:
        marks["quotes"] = quotes
    return {**told, **marks}


def _shown_quote(quote: Quote) -> dict[str, str]:
    return {"kind": quote.kind, "name": name_of(quote.speaker), "text": quote.text}


_MARKS = ("message_id", "sender", "stopped", "finish_reason")


def shown_answer(entry: Entry) -> dict[str, Any]:
    """Return an answer's text, with its files in a separate list."""
    files = entry.metadata.get("attachments") or ()
    text = without_files(str(entry.content.get("text") or ""))
    return {"text": text, "attachments": [shown_attachment(file) for file in files]}


def _call(entry: Entry) -> dict[str, Any]:
    content = entry.content
    asked = {"tool": content.get("tool"), "arguments": content.get("parameters")}
    return {"role": TOOL_CALL, **asked, "call_id": entry.call_id}


def _result(entry: Entry) -> dict[str, Any]:
    content = entry.content
    success = bool(content.get("success", True))
    result = content.get("result") if success else content.get("error")
    return {
        "role": TOOL_RESULT,
        "tool": content.get("tool"),
        "result": result,
        "success": success,
        "call_id": entry.call_id,
    }


def _thought(entry: Entry) -> dict[str, Any]:
    return {"role": THINKING, "text": str(entry.content.get("text") or "")}


def _approval(_: Entry) -> dict[str, Any]:
    return {"role": APPROVAL}


_TELLS = {
    MESSAGE: _message,
    TOOL_CALL: _call,
    TOOL_RESULT: _result,
    THINKING: _thought,
    APPROVAL: _approval,
}


OPERATIONS: Sequence[Operation] = (messages, say, stop, retry)
