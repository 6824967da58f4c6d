"""API operations on the caller's sessions: list, create, change, export, delete, follow."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from anyio.to_thread import run_sync
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from nanoloop.channels.web.access import Refusal, number_in
from nanoloop.channels.web.api import ApiCall, Backend, Operation, RequestBody, quoted, serve
from nanoloop.channels.web.feed import EventStream, Feed, FeedCursor, FeedEvent
from nanoloop.protocols import ARCHIVED, SessionInfo
from nanoloop.session.entry import Entry, rfc3339
from nanoloop.session.head import new_id
from nanoloop.session.log import message_count
from nanoloop.session.session import Session
from nanoloop.sessions import matching, mentions
from nanoloop.tokens import entry_tokens, text_tokens
from nanoloop.words import did_you_mean

SESSION = "/api/sessions/{session}"
SEARCHED = 50
"""The number of recent sessions whose messages are searched if no title matches."""
Title = Annotated[str, Field(min_length=1, max_length=200)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
_MEDIA = {"md": "text/markdown", "json": "application/json", "yaml": "application/yaml"}


class SessionsQuery(BaseModel):
    """Selects the sessions to list."""

    search: Annotated[str, Field(max_length=200)] = ""
    archived: bool = False
    limit: Annotated[int, Field(ge=1, le=200)] = 50
    after: Annotated[str, Field(max_length=200)] = ""
    """The `next` value from the previous page."""


class NewSession(RequestBody):
    """The settings of a new session."""

    agent: Name | None = None
    title: Title | None = None


class SessionChange(RequestBody):
    """The fields to change; all others stay as they are."""

    title: Title | None = None
    archived: bool | None = None
    agent: Name | None = None


class ExportQuery(BaseModel):
    """The format to export in."""

    format: Literal["md", "json", "yaml"] = "md"


@serve("GET", "/api/sessions")
async def list_sessions(call: ApiCall, asked: SessionsQuery) -> Response:
    """List sessions."""
    infos = await (_found if asked.search.strip() else _newest)(call, asked)
    ids = [info.id for info in infos]
    start = ids.index(asked.after) + 1 if asked.after in ids else 0
    page = infos[start : start + asked.limit]
    is_more = len(infos) > start + len(page)
    shown = [_shown_info(call.backend, info) for info in page]
    return JSONResponse({"sessions": shown, "next": page[-1].id if is_more else None})


async def _visible(call: ApiCall, asked: SessionsQuery) -> AsyncIterator[SessionInfo]:
    async for info in call.backend.parts.sessions.store.list():
        if info.archived == asked.archived and call.who.sees(info.id):
            yield info


async def _newest(call: ApiCall, asked: SessionsQuery) -> list[SessionInfo]:
    """Return the latest sessions, stopping one after the requested page."""
    infos: list[SessionInfo] = []
    end = None if asked.after else asked.limit
    async for info in _visible(call, asked):
        infos.append(info)
        if info.id == asked.after:
            end = len(infos) + asked.limit
        if end is not None and len(infos) > end:
            break
    return infos


async def _found(call: ApiCall, asked: SessionsQuery) -> list[SessionInfo]:
    store = call.backend.parts.sessions.store
    infos = [info async for info in _visible(call, asked)]
    return matching(infos, asked.search) or [
        info for info in infos[:SEARCHED] if await mentions(store, info.id, asked.search)
    ]


@serve("POST", "/api/sessions", status=201, refuses=(422,))
async def begin(call: ApiCall, given: NewSession) -> Response:
    """Create a session."""
    session_id = f"{call.who.prefix}{new_id()}"
    if not call.who.sees(session_id):
        raise Refusal(403, "this token may not create sessions: its pattern allows only one")
    agent = _chosen_agent(call, given.agent)
    sessions = call.backend.parts.sessions
    session = await sessions.named(session_id, agent=agent)
    if given.title:
        await sessions.rename(session, given.title)
    _tell(call.backend, session)
    return JSONResponse(shown_session(call.backend, session), status_code=201)


def _chosen_agent(call: ApiCall, name: str | None) -> str | None:
    """Return the agent for a new session, or None for the default one; raises `Refusal`."""
    if name is not None:
        return _known_agent(call, name)
    call.check_agent(call.agent)
    return call.agent_to_name


def _known_agent(call: ApiCall, name: str) -> str:
    agents = call.agents  # agents that the caller may not use are never named
    if name in agents:
        return name
    advice = did_you_mean(name, agents, "/api/me lists them", shown=str)
    raise Refusal(422, f"there is no agent {quoted(name)}: {advice}")


@serve("GET", SESSION)
async def show(call: ApiCall) -> Response:
    """Show a session's title, agent and state."""
    session = await call.backend.parts.sessions.fresh(call.session_id)
    return JSONResponse(shown_session(call.backend, session))


@serve("PATCH", SESSION, refuses=(422,))
async def change(call: ApiCall, given: SessionChange) -> Response:
    """Rename or archive a session, or change its agent."""
    sessions = call.backend.parts.sessions
    session = await sessions.fresh(call.session_id)
    agent = None if given.agent is None else _known_agent(call, given.agent)
    if given.title is not None:
        await sessions.rename(session, given.title)
    if agent is not None:
        await sessions.change(session, lambda now: setattr(now, "agent", agent))
    if given.archived is not None:
        await sessions.archive(session.id, archived=given.archived)
    _tell(call.backend, session)
    return JSONResponse(shown_session(call.backend, session))


@serve("DELETE", SESSION, status=204)
async def delete(call: ApiCall) -> Response:
    """Delete a session for good."""
    parts, session_id = call.backend.parts, call.session_id
    session = await parts.sessions.fresh(session_id)
    await parts.sessions.delete(session_id)
    call.backend.receipts.forget(session_id)
    call.backend.watch.tell_deleted(session_id)
    # Last: a turn stopped before the deletion would still send its client half an answer.
    await parts.runner.stop_anywhere(session.key or session_id)
    return Response(status_code=204)


@serve("GET", f"{SESSION}/export", produces=tuple(_MEDIA.values()))
async def export(call: ApiCall, form: ExportQuery) -> Response:
    """Download a whole session as a file."""
    session = await call.backend.parts.sessions.store.get(call.session_id)
    work = {"md": session.to_markdown, "json": session.dump_json, "yaml": session.dump_yaml}
    text = await run_sync(work[form.format])
    name = quote(f"{session.title or session.id}.{form.format}", safe="")
    return Response(
        text.encode("utf-8", "replace"),
        media_type=f"{_MEDIA[form.format]}; charset=utf-8",
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{name}"},
    )


def _tell(backend: Backend, session: Session) -> None:
    backend.feeds.of(session.id).add("session", shown_about(session))
    backend.feeds.changes.add("sessions", {"id": session.id}, about=session.id)


def shown_about(session: Session) -> dict[str, Any]:
    """Return a session's title, agent and whether it is archived."""
    is_archived = bool(session.metadata.get(ARCHIVED))
    return {"title": session.title, "agent": session.agent, "archived": is_archived}


def shown_session(backend: Backend, session: Session) -> dict[str, Any]:
    """Return a session's title, agent and state."""
    shown = _shown(backend, session)
    shown["entries"] = session.entry_count
    shown["pending"] = max(0, session.pending_seq - session.covered_seq)
    shown["archived"] = bool(session.metadata.get(ARCHIVED))
    return shown


def _shown_info(backend: Backend, info: SessionInfo) -> dict[str, Any]:
    """Like `shown_session`, but for a session that is not open."""
    shown = _shown(backend, info)
    shown |= {"entries": info.entries, "pending": info.pending, "archived": info.archived}
    return shown


def _shown(backend: Backend, session: Session | SessionInfo) -> dict[str, Any]:
    return {
        "id": session.id,
        "title": session.title,
        "agent": session.agent,
        "created_at": rfc3339(session.created_at),
        "updated_at": rfc3339(session.updated_at),
        "awaiting": session.awaiting,
        "busy": backend.parts.runner.is_busy(session.key or session.id),
    }


class EventsQuery(BaseModel):
    """Selects the events to include."""

    list: bool = False
    """Whether to include changes to the list of sessions."""


@serve("GET", f"{SESSION}/events", produces=("text/event-stream",))
async def of_session(call: ApiCall, asked: EventsQuery) -> ASGIApp:
    """Follow a session's events as they happen; resumable by Last-Event-ID."""
    session = await call.backend.parts.sessions.fresh(call.session_id)
    # First, so that changes made while nobody was reading are before the reader's position.
    call.backend.watch.catch_up(session)
    feed = call.backend.feeds.of(session.id)
    watched = FeedCursor(feed, after=_last_event_id(call))
    first = [FeedEvent(watched.place, "hello", _hello(call.backend, session, feed))]
    if watched.has_gap:
        first.append(FeedEvent(watched.place, "reset", {}))
    every = [watched]
    if asked.list:
        every.append(FeedCursor(call.backend.feeds.changes, sees=call.who.sees))
    return _stream(call, every, first)


def _hello(backend: Backend, session: Session, feed: Feed) -> dict[str, Any]:
    """Return the session's state, including the current answer so far."""
    key, running = session.key or session.id, feed.running
    return {
        "session": session.id,
        "busy": backend.parts.runner.is_busy(key),
        "waiting": backend.parts.runner.waiting(key),
        "message_id": running.message_id if running else None,
        "text": running.text if running else "",
    }


@serve("GET", "/api/events", produces=("text/event-stream",))
async def of_all(call: ApiCall) -> ASGIApp:
    """Follow changes to the list of sessions as they happen."""
    watched = FeedCursor(call.backend.feeds.changes, sees=call.who.sees)
    hello = FeedEvent(watched.place, "hello", {}, is_place=False)
    return _stream(call, [watched], [hello])


def _stream(
    call: ApiCall, watched: Sequence[FeedCursor], first: Sequence[FeedEvent]
) -> EventStream:
    """Return a stream of these feeds that ends when the reader loses access."""
    return EventStream(
        call.backend.streams,
        watched,
        first=first,
        owner=call.who.account,
        login=call.backend.access.login_of(call.request),
    )


def _last_event_id(call: ApiCall) -> int | None:
    """Return the id of the last event that the client received, or None if it sent none."""
    return number_in(call.request.headers.get("last-event-id", ""))


class CorrectedSummary(RequestBody):
    """A corrected text for the summary."""

    text: Annotated[str, Field(max_length=20_000)]


@serve("GET", f"{SESSION}/memory")
async def memory(call: ApiCall) -> Response:
    """Show which parts of a session are in the log, the summary and the window."""
    session = await call.backend.parts.sessions.fresh(call.session_id)
    return JSONResponse(await _memory_of(call.backend, session))


@serve("PUT", f"{SESSION}/memory/summary")
async def correct(call: ApiCall, given: CorrectedSummary) -> Response:
    """Correct the summary."""
    sessions = call.backend.parts.sessions
    session = await sessions.fresh(call.session_id)
    await sessions.correct_summary(session, given.text.strip())
    call.backend.feeds.of(session.id).add("memory", {"reason": "edited"})
    return JSONResponse(await _memory_of(call.backend, session))


@serve("POST", f"{SESSION}/memory/summarise", status=202)
async def summarise(call: ApiCall) -> Response:
    """Start summarising older messages now."""
    parts = call.backend.parts
    session = await parts.sessions.fresh(call.session_id)
    evicted = await parts.summarizer.compact(session, keep=parts.keep)
    if evicted is not None:
        if parts.recall is not None:
            parts.recall.follow(session.id)
        return Response(status_code=202)
    if session.summary_in_progress:
        raise Refusal(409, "a summary is already being written")
    raise Refusal(409, f"the last {parts.keep} messages are always kept word for word")


async def _memory_of(backend: Backend, session: Session) -> dict[str, Any]:
    store = backend.parts.sessions.store
    first = await store.entries(session.id, limit=1)
    covered, left = session.covered_seq, session.pending_seq
    pending = await store.entries(session.id, after=covered, upto=left) if left > covered else []
    return {
        "log": {
            "entries": session.entry_count,
            "first": first[0].seq if first else 0,
            "last": session.last_seq,
        },
        "covered": covered,
        "pending": _part(pending),
        "window": _part(session.window),
        "tokens": {
            "window": sum(map(entry_tokens, session.window)),
            "pending": sum(map(entry_tokens, pending)),
            "summary": text_tokens(session.summary),
        },
        "summary": {"text": session.summary, "seq": covered if session.summary else 0},
        "ledger": [dict(item) for item in session.ledger],
        "pins": [dict(pin) for pin in session.pins],
        "receipts": backend.receipts.of(session.id),
        "spent": dict(session.summary_spent),
        "running": session.summary_in_progress,
        "waiting": backend.parts.summarizer.waits_for(session.id),
    }


def _part(entries: Sequence[Entry]) -> dict[str, int]:
    return {
        "first": entries[0].seq if entries else 0,
        "last": entries[-1].seq if entries else 0,
        "count": len(entries),
        "messages": message_count(entries),
    }


OPERATIONS: Sequence[Operation] = (
    list_sessions,
    begin,
    show,
    change,
    delete,
    export,
    of_session,
    of_all,
    memory,
    correct,
    summarise,
)
