"""Saying something in a session: sent, stopped, asked again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any
from uuid import uuid4

import anyio
from pydantic import Field
from starlette.responses import JSONResponse, Response

from nanoloop.attachments import SCHEME, TEXT_SHOWN
from nanoloop.channels.web.callers import Caller
from nanoloop.channels.web.conversations import SESSION
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.history import shown_attachment, typed
from nanoloop.channels.web.malformed import quoted
from nanoloop.channels.web.operation import Call, Operation, Taken
from nanoloop.channels.web.refusal import Refusal, try_later
from nanoloop.commands import BUSY
from nanoloop.messages import Attachment, Inbound
from nanoloop.session.queue import last_exchange
from nanoloop.session.session import Session

CHANNEL = "web"
MessageId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
Text = Annotated[str, Field(max_length=100_000)]
ROOM_SECONDS = 5
"""How long a question that is asked again waits for room on the bus."""


class Said(Taken):
    """A message."""

    text: Text = ""
    message_id: MessageId = Field(default_factory=lambda: uuid4().hex)
    """Made by who sends it: the same one sent again is answered once."""
    attachments: Annotated[list[str], Field(max_length=10)] = Field(default_factory=list)
    """Ids of what was uploaded before."""


class Again(Taken):
    """The last question again."""

    text: Text | None = None
    """In other words; left out, in the same."""
    message_id: MessageId = Field(default_factory=lambda: uuid4().hex)


async def say(call: Call) -> Response:
    """Put a message on the bus; its answer comes as events."""
    said: Said = call.body
    if not said.text.strip() and not said.attachments:
        raise Refusal(422, "text: say something")
    session = await call.desk.shop.sessions.open(call.session_id)
    files = [await _attached(call.desk, call.who, file) for file in said.attachments]
    key = await lane_of(call.desk, session)
    message = inbound(session, said.text, said.message_id, key=key, files=files)
    call.desk.shop.bus.put_nowait(message)
    tell_accepted(call.desk, session.id, message)
    return JSONResponse({"message_id": said.message_id}, status_code=202)


async def _attached(desk: Desk, caller: Caller, attachment_id: str) -> Attachment:
    kept = await desk.attachments.about(attachment_id)
    data = await desk.attachments.data(attachment_id) if kept is not None else None
    if kept is None or data is None or not caller.sees(kept.owner):
        advice = "upload it first, and send the id that comes back"
        raise Refusal(422, f"attachments: there is no file {quoted(attachment_id)}: {advice}")
    text = data.decode("utf-8", "replace") if kept.kind == "file" else None
    return Attachment(
        kind=kept.kind,
        ref=f"{SCHEME}{kept.id}",
        name=kept.name,
        mime_type=kept.mime_type,
        size=kept.size,
        text=text if text is None else _bounded(text),
    )


def _bounded(text: str) -> str:
    if len(text) <= TEXT_SHOWN:
        return text
    return f"{text[:TEXT_SHOWN]}\n[… {len(text) - TEXT_SHOWN} characters left out]"


def inbound(
    session: Session, text: str, message_id: str, *, key: str, files: Sequence[Attachment] = ()
) -> Inbound:
    """A message of the web for this session."""
    return Inbound(
        channel=CHANNEL,
        chat=session.id,
        text=text,
        message_id=message_id,
        attachments=tuple(files),
        key=key,
    )


async def lane_of(desk: Desk, session: Session) -> str:
    """The key whose lane this session's messages wait in; from now on it means this session.

    Raises a refusal for a session of another channel that its chat has left behind.
    """
    key = session.key or session.id
    sessions = desk.shop.sessions
    if await sessions.current_id(key) == session.id:
        return key
    if not key.startswith(f"{CHANNEL}:"):
        raise Refusal(409, "its chat goes on in another session: write there")
    if desk.shop.runner.is_busy(key):
        raise Refusal(409, BUSY)
    await sessions.switch(key, session.id)
    return key


def tell_accepted(desk: Desk, session_id: str, message: Inbound) -> None:
    """Tell all who read the session that this was said."""
    files = [
        {"ref": f.ref, "kind": f.kind, "name": f.name, "mime_type": f.mime_type, "size": f.size}
        for f in message.attachments
    ]
    accepted: dict[str, Any] = {
        "message_id": message.message_id,
        "text": message.text,
        "attachments": [shown_attachment(file) for file in files],
    }
    desk.feeds.of(session_id).add("accepted", accepted)


async def stop(call: Call) -> Response:
    """Stop the answer that is going on."""
    session = await call.desk.shop.sessions.open(call.session_id)
    stopped = call.desk.shop.runner.stop(session.key or session.id)
    return JSONResponse({"stopped": stopped})


async def retry(call: Call) -> Response:
    """Take the last exchange back and ask again."""
    again: Again = call.body
    shop = call.desk.shop
    session = await shop.sessions.open(call.session_id)
    key = await lane_of(call.desk, session)
    if not session.shows_earlier:
        session = await shop.sessions.store.get(session.id)
    message = await _asked_again(call, session, key)
    # No await between this and the undo: a message that comes then waits for its turn.
    if shop.runner.is_busy(key):
        raise Refusal(409, BUSY)
    await shop.sessions.undo(session)
    call.desk.feeds.of(session.id).add("undone", {})
    with anyio.move_on_after(ROOM_SECONDS):
        await shop.bus.put(message)
        tell_accepted(call.desk, session.id, message)
        return JSONResponse({"message_id": again.message_id}, status_code=202)
    raise try_later(503, "it was taken back but not asked again: send it anew", seconds=2)


async def _asked_again(call: Call, session: Session, key: str) -> Inbound:
    """The last question of the session, in other words where there are some."""
    again: Again = call.body
    known = session.entries_between(0, session.last_seq)
    asked = next(iter(last_exchange(known)), None)
    if asked is None:
        raise Refusal(409, "there is nothing to ask again")
    files = [str(file.get("ref")) for file in asked.metadata.get("attachments") or ()]
    return inbound(
        session,
        typed(asked) if again.text is None else again.text,
        again.message_id,
        key=key,
        files=[
            await _attached(call.desk, call.who, file.removeprefix(SCHEME))
            for file in files
            if file.startswith(SCHEME)
        ],
    )


OPERATIONS: Sequence[Operation] = (
    Operation(
        method="POST",
        path=f"{SESSION}/messages",
        says="Say something; the answer comes as events",
        run=say,
        body=Said,
        status=202,
    ),
    Operation(
        method="POST", path=f"{SESSION}/stop", says="Stop the answer that is going on", run=stop
    ),
    Operation(
        method="POST",
        path=f"{SESSION}/retry",
        says="Take the last exchange back and ask again",
        run=retry,
        body=Again,
        status=202,
    ),
)
