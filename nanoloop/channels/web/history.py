"""What was said in a session, as the page shows it: page by page, from the newest backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from nanoloop.attachments import SCHEME
from nanoloop.channels.web.conversations import SESSION
from nanoloop.channels.web.operation import Call, Operation
from nanoloop.protocols import Store
from nanoloop.session.entry import MESSAGE, THINKING, TOOL_CALL, TOOL_RESULT, Entry, rfc3339

READ = 100
"""Entries that are read at a time."""


class Page(BaseModel):
    """Which messages: at most `limit` before this number, or the newest."""

    before: Annotated[int, Field(ge=1, le=2**53)] | None = None
    limit: Annotated[int, Field(ge=1, le=200)] = 50


async def messages(call: Call) -> Response:
    """A page of messages, oldest first, and where the one before it ends."""
    asked: Page = call.query
    sessions = call.desk.shop.sessions
    session = await sessions.open(call.session_id)
    upto = session.last_seq if asked.before is None else min(asked.before - 1, session.last_seq)
    found = await _newest(sessions.store, session.id, upto=upto, count=asked.limit + 1)
    page = found[-asked.limit :]
    before = page[0]["seq"] if len(found) > len(page) else None
    return JSONResponse({"messages": page, "before": before})


async def _newest(store: Store, session_id: str, *, upto: int, count: int) -> list[dict[str, Any]]:
    """At least so many of the newest messages up to a number, where there are so many."""
    found: list[dict[str, Any]] = []
    while len(found) < count and upto > 0:
        after = max(0, upto - READ)
        entries = await store.entries(session_id, after=after, upto=upto)
        found[:0] = [shown for entry in entries if (shown := shown_entry(entry)) is not None]
        upto = after
    return found


def shown_entry(entry: Entry) -> dict[str, Any] | None:
    """An entry as the page shows it, or None for what it doesn't show."""
    told = _TELLS.get(entry.type)
    if told is None:
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
    marks = {name: entry.metadata[name] for name in _MARKS if entry.metadata.get(name)}
    return {**told, **marks}


_MARKS = ("message_id", "sender", "stopped", "finish_reason")


def typed(entry: Entry) -> str:
    """What was typed, without what stands for attachments."""
    parts = entry.content.get("parts")
    files = len(entry.metadata.get("attachments") or ())
    if not files or not isinstance(parts, list):
        return str(entry.content.get("text") or "")
    return "\n".join(str(part.get("text") or "") for part in parts[: max(0, len(parts) - files)])


def shown_attachment(file: Mapping[str, Any]) -> dict[str, Any]:
    """What came with a message, and where it can be had."""
    ref = str(file.get("ref") or "")
    is_here = ref.startswith(SCHEME)
    url = f"/api/attachments/{ref.removeprefix(SCHEME)}" if is_here else None
    known = {name: file.get(name) for name in ("kind", "name", "mime_type", "size")}
    return {**known, "url": url}


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


_TELLS = {MESSAGE: _message, TOOL_CALL: _call, TOOL_RESULT: _result, THINKING: _thought}

OPERATIONS: Sequence[Operation] = (
    Operation(
        method="GET",
        path=f"{SESSION}/messages",
        says="What was said, page by page from the newest",
        run=messages,
        query=Page,
    ),
)
