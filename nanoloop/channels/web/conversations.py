"""The sessions of whoever calls: listed, made, renamed, put away, exported, deleted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio.to_thread import run_sync
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response

from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.malformed import quoted
from nanoloop.channels.web.operation import Call, Operation, Taken
from nanoloop.channels.web.refusal import Refusal
from nanoloop.protocols import ARCHIVED, SessionInfo
from nanoloop.session.entry import rfc3339
from nanoloop.session.ids import new_id
from nanoloop.session.session import Session
from nanoloop.sessions import matching, mentions

SEARCHED = 50
"""Sessions whose messages are searched where no title fits: the last active ones."""
Title = Annotated[str, Field(min_length=1, max_length=200)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
_MEDIA = {"md": "text/markdown", "json": "application/json", "yaml": "application/yaml"}


class Listing(BaseModel):
    """Which sessions to list."""

    search: Annotated[str, Field(max_length=200)] = ""
    archived: bool = False
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    after: Annotated[str, Field(max_length=200)] = ""
    """The `next` of the page before."""


class Begun(Taken):
    """A session to begin."""

    agent: Name | None = None
    title: Title | None = None


class Changed(Taken):
    """What to change; the rest stays."""

    title: Title | None = None
    archived: bool | None = None
    agent: Name | None = None


class Form(BaseModel):
    """The form of an export."""

    format: Literal["md", "json", "yaml"] = "md"


async def list_sessions(call: Call) -> Response:
    """Those of the caller, the last active first."""
    asked: Listing = call.query
    infos = await (_found if asked.search.strip() else _newest)(call, asked)
    ids = [info.id for info in infos]
    start = ids.index(asked.after) + 1 if asked.after in ids else 0
    page = infos[start : start + asked.limit]
    is_more = len(infos) > start + len(page)
    shown = [_shown_info(call.desk, info) for info in page]
    return JSONResponse({"sessions": shown, "next": page[-1].id if is_more else None})


async def _visible(call: Call, asked: Listing) -> AsyncIterator[SessionInfo]:
    async for info in call.desk.shop.sessions.store.list():
        if info.archived == asked.archived and call.who.sees(info.id):
            yield info


async def _newest(call: Call, asked: Listing) -> list[SessionInfo]:
    """The last active ones, up to the first behind the page: the rest need not be read."""
    infos: list[SessionInfo] = []
    end = None if asked.after else asked.limit
    async for info in _visible(call, asked):
        infos.append(info)
        if info.id == asked.after:
            end = len(infos) + asked.limit
        if end is not None and len(infos) > end:
            break
    return infos


async def _found(call: Call, asked: Listing) -> list[SessionInfo]:
    store = call.desk.shop.sessions.store
    infos = [info async for info in _visible(call, asked)]
    return matching(infos, asked.search) or [
        info for info in infos[:SEARCHED] if await mentions(store, info.id, asked.search)
    ]


async def begin(call: Call) -> Response:
    """A new session, durable."""
    given: Begun = call.body
    session_id = f"{call.who.prefix}{new_id()}"
    if not call.who.sees(session_id):
        raise Refusal(403, "this token may not begin sessions: its pattern names a single one")
    agent = _known_agent(call.desk, given.agent)
    sessions = call.desk.shop.sessions
    session = await sessions.named(session_id, agent=agent)
    if given.title:
        session.title = " ".join(given.title.split())
        await sessions.store.save(session)
    _tell(call.desk, session)
    return JSONResponse(shown_session(call.desk, session), status_code=201)


def _known_agent(desk: Desk, name: str | None) -> str | None:
    agents = desk.shop.agents
    if name is None or name in agents:
        return name
    near = agents.nearest(name)
    advice = f"did you mean {near}?" if near else "/api/me lists who there is"
    raise Refusal(422, f"there is no agent {quoted(name)}: {advice}")


async def show(call: Call) -> Response:
    """One session."""
    session = await call.desk.shop.sessions.open(call.session_id)
    return JSONResponse(shown_session(call.desk, session))


async def change(call: Call) -> Response:
    """Its title, its agent, or whether it is put away."""
    given: Changed = call.body
    sessions = call.desk.shop.sessions
    session = await sessions.open(call.session_id)
    agent = _known_agent(call.desk, given.agent)
    if given.title is not None:
        session.title = " ".join(given.title.split())
    if agent is not None:
        session.agent = agent
    await sessions.store.save(session)
    if given.archived is not None:
        await sessions.archive(session.id, archived=given.archived)
    _tell(call.desk, session)
    return JSONResponse(shown_session(call.desk, session))


async def delete(call: Call) -> Response:
    """It is gone for good; an answer that is going on is stopped."""
    shop, session_id = call.desk.shop, call.session_id
    session = await shop.sessions.open(session_id)
    shop.runner.stop(session.key or session_id)
    await shop.sessions.store.delete(session_id)
    shop.sessions.forget(session_id)
    if shop.recall is not None:
        await shop.recall.forget(session_id)
    call.desk.receipts.forget(session_id)
    call.desk.feeds.of(session_id).add("session", {"deleted": True})
    call.desk.feeds.changes.add("sessions", {"id": session_id}, about=session_id)
    return Response(status_code=204)


async def export(call: Call) -> Response:
    """The whole of it as a file."""
    form: Form = call.query
    session = await call.desk.shop.sessions.store.get(call.session_id)
    work = {"md": session.to_markdown, "json": session.dump_json, "yaml": session.dump_yaml}
    text = await run_sync(work[form.format])
    name = quote(f"{session.title or session.id}.{form.format}", safe="")
    return Response(
        text.encode("utf-8", "replace"),
        media_type=f"{_MEDIA[form.format]}; charset=utf-8",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


def _tell(desk: Desk, session: Session) -> None:
    is_archived = bool(session.metadata.get(ARCHIVED))
    about = {"title": session.title, "agent": session.agent, "archived": is_archived}
    desk.feeds.of(session.id).add("session", about)
    desk.feeds.changes.add("sessions", {"id": session.id}, about=session.id)


def shown_session(desk: Desk, session: Session) -> dict[str, Any]:
    """A session at a glance."""
    shown = _shown(desk, session)
    shown["entries"] = session.entry_count
    shown["pending"] = max(0, session.pending_seq - session.covered_seq)
    shown["archived"] = bool(session.metadata.get(ARCHIVED))
    return shown


def _shown_info(desk: Desk, info: SessionInfo) -> dict[str, Any]:
    """The same, of one that was not opened."""
    shown = _shown(desk, info)
    shown |= {"entries": info.entries, "pending": info.pending, "archived": info.archived}
    return shown


def _shown(desk: Desk, session: Session | SessionInfo) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "agent": session.agent,
        "created_at": rfc3339(session.created_at),
        "updated_at": rfc3339(session.updated_at),
        "awaiting": session.awaiting,
        "busy": desk.shop.runner.is_busy(session.key or session.id),
    }


SESSION = "/api/sessions/{session}"
OPERATIONS: Sequence[Operation] = (
    Operation(
        method="GET", path="/api/sessions", says="List sessions", run=list_sessions, query=Listing
    ),
    Operation(
        method="POST",
        path="/api/sessions",
        says="Begin a session",
        run=begin,
        body=Begun,
        status=201,
    ),
    Operation(method="GET", path=SESSION, says="One session at a glance", run=show),
    Operation(
        method="PATCH",
        path=SESSION,
        says="Rename it, put it away, change its agent",
        run=change,
        body=Changed,
    ),
    Operation(method="DELETE", path=SESSION, says="Delete it for good", run=delete, status=204),
    Operation(
        method="GET",
        path=f"{SESSION}/export",
        says="The whole of it as a file",
        run=export,
        query=Form,
        produces="text/markdown",
    ),
)
