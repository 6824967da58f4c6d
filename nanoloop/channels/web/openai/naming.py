"""Which session a request names, and whether it is the caller's."""

from __future__ import annotations

from nanoloop.channels.web.callers import Caller
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.openai.refusing import Unfit, unfit
from nanoloop.channels.web.openai.request import ChatRequest
from nanoloop.channels.web.operation import Call
from nanoloop.channels.web.talking import lane_of
from nanoloop.session.ids import checked_id, id_for_key
from nanoloop.session.session import Session

HEADER = "X-Nanoloop-Session"
IGNORED = "X-Nanoloop-Ignored"
"""Names what a request says of the model that the model does not hear of."""
NAME_LIMIT = 500


def session_name(call: Call) -> str | None:
    """What a request calls its session, or None where it names none; raises a refusal.

    The header counts first; left empty, it says that there is none whatever `user` says.
    """
    asked: ChatRequest = call.body
    header = call.request.headers.get(HEADER)
    name = (asked.user if header is None else header) or ""
    if len(name) > NAME_LIMIT:
        raise unfit(HEADER, f"at most {NAME_LIMIT} characters")
    return name if name.strip() else None


async def named_session(call: Call, name: str) -> tuple[Session, str]:
    """The session and the key of its lane, begun where it is new; raises a refusal.

    A name is the caller's own, and nobody else's. In the header a whole id may stand too, which
    has a colon.
    """
    asked: ChatRequest = call.body
    agent = asked.model if asked.model in call.desk.shop.agents else None
    if ":" in name and HEADER in call.request.headers:
        session, key = await _by_id(call.desk, call.who, name)
    else:
        session, key = await _by_name(call.desk, call.who, name, agent)
    if agent is not None and session.agent != agent:
        session.agent = agent
    return session, key


async def _by_id(desk: Desk, caller: Caller, name: str) -> tuple[Session, str]:
    _check(caller, checked_id(name))
    session = await desk.shop.sessions.open(name)
    return session, await lane_of(desk, session)


async def _by_name(desk: Desk, caller: Caller, name: str, agent: str | None) -> tuple[Session, str]:
    key = id_for_key(f"{caller.prefix}{name}")
    _check(caller, key)
    session = await desk.shop.sessions.current(key, agent=agent)
    _check(caller, session.id)
    return session, key


def _check(caller: Caller, session_id: str) -> None:
    # Told alike whether it is there or not: nobody learns what others have.
    if not caller.sees(session_id):
        raise Unfit(403, "that session is not one of this token's", code="session_not_yours")
