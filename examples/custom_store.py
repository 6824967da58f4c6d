"""A store of your own: a table of plain text, as any key-value database has.

A session says what is not durable yet (`changes`), and hears when it is (`committed`).
"""

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

import anyio

from nanoloop import AgentLoop, Entry, Session, SessionExists, SessionNotFound
from nanoloop.errors import AlreadyHeard, StoreConflict
from nanoloop.protocols import Node, OwedSession, SessionInfo
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.head import Changes, Identity
from nanoloop.stores.snapshot import (
    OWES_CHAT,
    OWES_SUMMARY,
    has_expired,
    info_of,
    is_visible,
    owed_session,
    owes,
)


@dataclass
class Row:
    """A session: small and often written, large and seldom written, and only added to."""

    head: str = "{}"
    sections: dict[str, str] = field(default_factory=dict)
    entries: dict[int, str] = field(default_factory=dict)

    def write(self, changes: Changes) -> None:
        """Take all of it or nothing: a database would do this in one transaction."""
        self.head = json.dumps(changes.head)
        self.sections |= {name: json.dumps(part) for name, part in changes.sections.items()}
        self.entries |= {entry.seq: entry.to_json() for entry in changes.entries}


def is_over(row: Row) -> bool:
    """Whether the session's time has passed."""
    return has_expired(json.loads(row.head), datetime.now(timezone.utc))


class TableStore:
    """What `nanoloop.protocols.Store` asks for; each method there has its promise."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._ids: dict[str, str] = {}
        self._heard: set[tuple[str, str]] = set()

    async def create(self, *, replace: bool = False, **given: Any) -> Session:
        """Make a session."""
        session = Session(about=Identity(**given))
        await self.add(session, replace=replace)
        return session

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Keep a session that was made elsewhere."""
        if session.id in self.rows and not replace:
            raise SessionExists(session.id)
        self.rows[session.id] = Row(head=json.dumps({"rev": session.revision}))
        await self.save(session)

    async def save(self, session: Session) -> None:
        """Keep what is new in it, all or nothing; whoever comes second is refused."""
        row, changes = self._row(session.id), session.changes()
        if changes is None:
            return
        stored = json.loads(row.head)["rev"]
        if changes.revision != stored:
            raise StoreConflict(session.id, mine=changes.revision, theirs=stored)
        if not self._heard.isdisjoint(changes.heard):
            raise AlreadyHeard(session.id)
        self._heard.update(changes.heard)
        row.write(changes)
        session.committed(changes)

    async def get(self, session_id: str) -> Session:
        """Build the session again."""
        row = self._row(session_id)
        return Session.restored(
            head=json.loads(row.head),
            sections={name: json.loads(part) for name, part in row.sections.items()},
            entries=await self.entries(session_id),
        )

    load = get  # a large store reads only the window here

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Give the entries with `after < seq <= upto`."""
        row = self._row(session_id)
        head = json.loads(row.head)
        wanted = [seq for seq in row.entries if after < seq and (upto is None or seq <= upto)]
        return [
            Entry.from_dict(json.loads(row.entries[seq]), seq=seq)
            for seq in wanted
            if is_visible(head, seq)
        ][:limit]

    async def list(self) -> AsyncIterator[SessionInfo]:
        """Give every session at a glance, the last active first."""
        infos = [self._info(row) for row in self.rows.values() if not is_over(row)]
        for info in sorted(infos, key=lambda info: info.updated_at, reverse=True):
            yield info

    async def delete(self, session_id: str) -> None:
        """Remove it; a missing one is fine."""
        self.rows.pop(session_id, None)

    async def delete_expired(self) -> int:
        """Remove what expired."""
        over = [session_id for session_id, row in self.rows.items() if is_over(row)]
        for session_id in over:
            del self.rows[session_id]
        return len(over)

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Say whether this message was taken; a store that lasts forgets after 72 hours."""
        return (chat, message_id) in self._heard

    async def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Say where something is owed: a large store has an index of that."""
        wanted = {OWES_CHAT, OWES_SUMMARY} if pending else {OWES_CHAT}
        for session_id, row in list(self.rows.items()):
            head = json.loads(row.head)
            if owes(head) in wanted and not is_over(row):
                yield owed_session(session_id, head)

    async def beat(self, node: Node) -> Sequence[Node]:
        """Say which processes live: no other can see into this one's memory."""
        return [node]

    async def leave(self, node_id: str) -> None:
        """Forget a process: none is remembered here."""

    async def bind(self, key: str, session_id: str) -> None:
        """Let this chat mean that session."""
        self._ids[key] = session_id

    async def bound(self, key: str) -> str | None:
        """Say which session this chat means."""
        return self._ids.get(key)

    async def close(self) -> None:
        """Let go of connections: here there are none."""

    def _row(self, session_id: str) -> Row:
        row = self.rows.get(session_id)
        if row is None or is_over(row):
            raise SessionNotFound(session_id)
        return row

    def _info(self, row: Row) -> SessionInfo:
        size = sum(map(len, row.entries.values()))
        return info_of(json.loads(row.head), json.loads(row.sections["about"]), size=size)


async def ask(store: TableStore, text: str) -> str:
    """Start a loop on the store, ask once, and stop: each time is a new start."""
    async with AgentLoop(ScriptedProvider(), store=store) as loop:
        return await loop.ask(text, "ada")


async def main() -> None:
    """Start twice on one store."""
    store = TableStore()
    for text in ("Hello", "Hello again"):
        print("answer:", await ask(store, text))
    session = await store.get("direct:ada")
    print(f"stored: {len(session.full_chat_history)} messages in {[*store.rows]}")


if __name__ == "__main__":
    anyio.run(main)
