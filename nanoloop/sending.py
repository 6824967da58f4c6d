"""An answer on its way: owed by its session until its chat has it, also over a restart."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from nanoloop.errors import NanoloopError
from nanoloop.intake import inbound_of
from nanoloop.messages import Inbound, Outbound
from nanoloop.protocols import Bus, Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

LOOK_BACK = 200
"""Entries before an answer among which its question is looked for."""


def reply_to(
    message: Inbound, text: str, kind: Any = "notice", session_id: str | None = None
) -> Outbound:
    """A text for the chat that the message came from."""
    return Outbound(
        channel=message.channel,
        chat=message.chat,
        text=text,
        kind=kind,
        reply_to=message.message_id,
        session_id=session_id,
    )


async def send_answer(
    answer: Outbound, *, bus: Bus, store: Store, session: Session, seq: int
) -> None:
    """Send it; where its channel can tell, the session hears when it has arrived."""

    async def arrived() -> None:
        session.arrived(seq)
        with suppress(NanoloopError):  # then it stays owed, and is sent again after a restart
            await store.save(session)

    await bus.publish(answer, arrived=arrived if seq in session.unsent else None)


async def send_owed(session: Session, *, bus: Bus, store: Store) -> None:
    """Send again what may not have arrived before a restart, in order."""
    for seq in session.unsent:
        entries = await store.entries(session.id, after=max(0, seq - LOOK_BACK), upto=seq)
        question = _question(entries)
        if question is None or entries[-1].seq != seq:  # erased, or taken back
            session.arrived(seq)
        elif question.channel in bus.channels:
            text = str(entries[-1].content.get("text") or "")
            answer = reply_to(question, text, "answer", session.id)
            await send_answer(
                named(answer, entries[-1]), bus=bus, store=store, session=session, seq=seq
            )


def named(answer: Outbound, entry: Entry) -> Outbound:
    """The answer with a name that it keeps, however often it is sent."""
    return replace(answer, id=entry.id)


def _question(entries: list[Entry]) -> Inbound | None:
    asked = [entry for entry in entries if entry.role == "user" and entry.metadata.get("channel")]
    return inbound_of(asked[-1]) if asked else None
