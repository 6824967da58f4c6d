"""A message that is changed or taken back: while it waits, while it is answered, and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from nanoloop.errors import HistoryNotLoaded
from nanoloop.intake import amended_by, amendment
from nanoloop.messages import Inbound
from nanoloop.session.entry import Entry, fresh_id
from nanoloop.session.queue import reworded
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions

if TYPE_CHECKING:
    from nanoloop.exchange import Exchange


async def change(session: Session, message: Inbound, *, sessions: Sessions) -> None:
    """Change what waits for its turn; of what was heard the model is told. Durable then."""
    name, told = amended_by(message) or "", amendment(message)

    def act(session: Session) -> None:
        if not session.amend_held(name, None if message.deletes else message.text):
            if not session.has_seen(name):
                return
            session.add_entry(told)
        _know(session, message)

    await sessions.change(session, act)


def _know(session: Session, message: Inbound) -> None:
    """Let it be known when it is heard again, as soon as what it changed is durable."""
    if message.message_id is not None:
        session.know([message.message_id])


async def asked_anew(
    exchange: Exchange,
    message: Inbound,
    *,
    exchange_for: Callable[[Session, Inbound], Exchange],
    sessions: Sessions,
) -> Exchange | None:
    """The question that was being answered as it is now, durable; None where it is taken back."""
    session, asked = exchange.session, exchange.message
    # No await from here until it is heard anew: no commit has the question taken back only.
    _know(session, message)
    question = _taken_back(exchange, message)
    if question is None:  # what was done for it, or told to it, must not be forgotten
        await exchange.interrupt(amendment(message), goes_on=not message.deletes)
        return None if message.deletes else exchange_for(session, asked)
    if message.deletes:
        await sessions.change(session, lambda _: None)
        return None
    again = exchange_for(session, replace(asked, text=message.text, burst_seconds=0))
    await again.hear(replace(reworded(question, message.text), id=fresh_id()))
    return again


def _taken_back(exchange: Exchange, message: Inbound) -> Entry | None:
    """The question, which the session has no more; None where more than that came of it."""
    session = exchange.session
    is_the_one = exchange.message.message_id == amended_by(message)
    if not is_the_one or session.awaiting != session.last_seq:
        return None
    try:
        return session.undo()[0]
    except HistoryNotLoaded:  # all before it has left the window
        return None
