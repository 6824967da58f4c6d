"""What of a session is where: the log, what is pending, the window, the summary and its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import JSONResponse, Response

from nanoloop.channels.web.access import Refusal
from nanoloop.channels.web.api import ApiCall, Backend, Operation, RequestBody, serve
from nanoloop.channels.web.conversations import SESSION
from nanoloop.events import WindowTrimmed
from nanoloop.session.entry import Entry
from nanoloop.session.log import message_count
from nanoloop.session.session import Session
from nanoloop.tokens import entry_tokens, text_tokens


class CorrectedSummary(RequestBody):
    """Another text for the summary."""

    text: Annotated[str, Field(max_length=20_000)]


@serve("GET", f"{SESSION}/memory")
async def memory(call: ApiCall) -> Response:
    """What of the session is where."""
    session = await call.backend.parts.sessions.open(call.session_id)
    return JSONResponse(await _shown(call.backend, session))


@serve("PUT", f"{SESSION}/memory/summary")
async def correct(call: ApiCall, given: CorrectedSummary) -> Response:
    """Set the summary right."""
    sessions = call.backend.parts.sessions
    session = await sessions.open(call.session_id)
    is_being_written = session.summary_in_progress
    session.update_summary(given.text.strip())
    # The one being written finds it changed, and drops its own.
    session.summary_in_progress = is_being_written
    await sessions.store.save(session)
    call.backend.feeds.of(session.id).add("memory", {"reason": "edited"})
    return JSONResponse(await _shown(call.backend, session))


@serve("POST", f"{SESSION}/memory/summarise", status=202)
async def summarise(call: ApiCall) -> Response:
    """Have older messages summarised now."""
    parts = call.backend.parts
    session = await parts.sessions.open(call.session_id)
    evicted, did_trim = session.trim_if_needed(limit=parts.keep, min_keep=parts.keep)
    if did_trim:
        await parts.sessions.store.save(session)
        session.release()
        kept = message_count(session.window)
        parts.announce(WindowTrimmed(session_id=session.id, evicted=len(evicted), kept=kept))
        if parts.recall is not None:
            parts.recall.follow(session.id)
    if parts.summarizer.fire_and_forget(session, force=True) or did_trim:
        return Response(status_code=202)
    if session.summary_in_progress:
        raise Refusal(409, "a summary is being written already")
    raise Refusal(409, f"the last {parts.keep} messages always stay word for word")


async def _shown(backend: Backend, session: Session) -> dict[str, Any]:
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


OPERATIONS: Sequence[Operation] = (memory, correct, summarise)
