"""Sessions in PostgreSQL, shared by as many processes as there are.

Each call is one statement, but for the rare ones.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync

from nanoloop import defaults
from nanoloop.errors import SessionDamaged
from nanoloop.protocols import Node, OwedSession, Seal
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.session.queue import SEEN_LIMIT
from nanoloop.stores.database import (
    FORGET_NODE_SECONDS,
    NODE_SECONDS,
    Commit,
    StoredSession,
    text_of,
)
from nanoloop.stores.postgres_server import (
    Connections,
    from_json,
    migrate,
    prepare,
    schema_name,
)
from nanoloop.stores.snapshot import (
    OWES_CHAT,
    OWES_SUMMARY,
    encoded,
    entries_of,
    head_of,
    sections_of,
)
from nanoloop.stores.store import DatabaseStore

if TYPE_CHECKING:
    from asyncpg import Connection, Record


Arguments = tuple[Any, ...]
_PAGE = 500
_EXPIRED_PAGE = 100
_NONE = 1 << 62
"""A number above all: entries from there on are none."""


class PostgresStore(DatabaseStore):
    """Sessions in the tables of one schema, which are made where there are none."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "nanoloop",
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
        pool_size: int = 10,
        timeout_seconds: float = defaults.STORE_TIMEOUT_SECONDS,
    ) -> None:
        """`pool_size` connections at most, and no call takes longer than `timeout_seconds`."""
        self._tables = _Tables(
            url,
            schema=schema_name(schema),
            pool_size=pool_size,
            timeout_seconds=timeout_seconds,
        )
        super().__init__(self._tables, clock=clock, seal=seal)

    async def migrate(self) -> str:
        """Make the tables, or bring older ones up to date; says what was done."""
        return await self._tables.migrate()


class _Tables:
    """The tables of one schema."""

    def __init__(self, url: str, *, schema: str, pool_size: int, timeout_seconds: float) -> None:
        self._schema = schema
        self._sql = Statements.of(schema)
        self._connections = Connections(
            url,
            size=pool_size,
            timeout_seconds=timeout_seconds,
            prepare=lambda server: prepare(server, schema),
        )

    async def migrate(self) -> str:
        return await self._connections.alone(lambda server: migrate(server, self._schema))

    # Writing

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        arguments = commit_arguments(commit)

        async def work(server: Connection) -> bool:
            if over is None:
                return await self._insert(server, arguments)
            async with server.transaction():
                await server.execute(self._sql.delete_over, arguments[0], over)
                return await self._insert(server, arguments)

        return await self._connections.run(work)

    async def _insert(self, server: Connection, arguments: Arguments) -> bool:
        return await server.fetchval(self._sql.insert, *arguments) is not None

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        arguments = commit_arguments(commit)

        async def work(server: Connection) -> int | None:
            if not commit.rewritten:
                return await self._commit(server, arguments, now)
            async with server.transaction():
                stood = await self._commit(server, arguments, now)
                if stood == commit.revision:
                    await server.execute(self._sql.rewrite, *rewritten(commit))
                return stood

        return await self._connections.run(work)

    async def _commit(self, server: Connection, arguments: Arguments, now: int) -> int | None:
        revision = int(arguments[1])
        moment = as_time(now)
        if await server.fetchval(self._sql.commit, *arguments, moment) is not None:
            return revision
        stood: int | None = await server.fetchval(self._sql.stands, arguments[0], moment)
        return stood

    async def delete(self, session_id: str) -> None:
        await self._connections.run(lambda s: s.execute(self._sql.delete, plain(session_id)))

    async def delete_expired(self, *, now: int) -> int:
        total, count = 0, _EXPIRED_PAGE
        arguments = (self._sql.delete_expired, as_time(now), _EXPIRED_PAGE)
        while count == _EXPIRED_PAGE:
            count = await self._connections.run(lambda s: s.fetchval(*arguments))
            total += count
        return total

    # Reading

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        text = await self._connections.run(
            lambda s: s.fetchval(self._sql.head, plain(session_id)),
        )
        return None if text is None else head_of(session_id, text, from_json)

    async def window(self, session_id: str) -> StoredSession | None:
        row = await self._connections.run(
            lambda s: s.fetchrow(self._sql.window, plain(session_id), None)
        )
        return None if row is None else stored(session_id, row)

    async def whole(self, session_id: str) -> StoredSession | None:
        name = plain(session_id)

        async def work(server: Connection) -> tuple[Any, Any]:
            # One view of both; and in rows, for an array has its limit.
            async with server.transaction(isolation="repeatable_read", readonly=True):
                row = await server.fetchrow(self._sql.window, name, _NONE)
                return row, await server.fetch(self._sql.between, name, 0, _NONE, None)

        row, entries = await self._connections.run(work)
        return None if row is None else await run_sync(stored, session_id, row, entries)

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        last = _NONE if upto is None else upto
        bounds = (max(-1, min(bound, _NONE)) for bound in (after, last))
        arguments = (plain(session_id), *bounds, limit)
        found = await self._connections.run(lambda s: s.fetch(self._sql.between, *arguments))
        return entries_from(session_id, found)

    async def names(self) -> AsyncIterator[str]:
        for row in await self._connections.run(lambda s: s.fetch(self._sql.names)):
            yield unplain(row["id"])

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        # All of them first: the order moves with every commit, and none may slip through.
        newest = await self._connections.run(lambda s: s.fetch(self._sql.newest, as_time(now)))
        numbers = [row["number"] for row in newest]
        for start in range(0, len(numbers), _PAGE):
            arguments = (as_time(now), numbers[start : start + _PAGE], ABOUT)
            for row in await self._connections.run(
                lambda s: s.fetch(self._sql.glances, *arguments)  # noqa: B023 - awaited here
            ):
                yield glance(row)

    async def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        arguments = (OWES_SUMMARY if pending else OWES_CHAT, as_time(now))
        for row in await self._connections.run(lambda s: s.fetch(self._sql.owing, *arguments)):
            yield OwedSession(id=unplain(row["id"]), revision=row["rev"], by=unplain(row["node"]))

    # Processes

    async def beat(self, node: Node) -> Sequence[Node]:
        told = plain(node.id), plain(node.place), node.pid, [plain(each) for each in node.holds]
        arguments = (self._sql.beat, *told, NODE_SECONDS, FORGET_NODE_SECONDS)
        return [
            Node(
                id=unplain(row["id"]),
                place=unplain(row["place"]),
                pid=row["pid"],
                holds=frozenset(map(unplain, row["holds"])),
                age=row["age"],
            )
            for row in await self._connections.run(lambda s: s.fetch(*arguments))
        ]

    async def leave(self, node_id: str) -> None:
        await self._connections.run(lambda s: s.execute(self._sql.leave, plain(node_id)))

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        arguments = (_digest(key), plain(key), plain(session_id))
        await self._connections.run(lambda s: s.execute(self._sql.bind, *arguments))

    async def bound(self, key: str) -> str | None:
        found = await self._connections.run(lambda s: s.fetchval(self._sql.bound, _digest(key)))
        return None if found is None else unplain(found)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        after = b""
        while True:
            page = await self._connections.run(
                lambda s: s.fetch(self._sql.bindings, after, _PAGE)  # noqa: B023 - awaited here
            )
            for row in page:
                yield unplain(row["key"]), unplain(row["session"])
            if len(page) < _PAGE:
                return
            after = page[-1]["digest"]

    async def close(self) -> None:
        await self._connections.close()


def _digest(key: str) -> bytes:
    """An index has room for this, however long the key is."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


_MADE = """
WITH mine AS (
    INSERT INTO {schema}.session
        (id, rev, head, window_seq, updated_at, expires_at, size, heard, owes, node)
    VALUES ($1, $2::bigint + 1, $3, $4, $5, $6, $7, $8, $15, $16)
    ON CONFLICT (id) DO NOTHING
    RETURNING number, heard
),"""
_ADVANCED = """
WITH mine AS (
    UPDATE {schema}.session
    SET rev = $2::bigint + 1, head = $3, window_seq = $4, updated_at = $5,
        expires_at = $6, size = size + $7::bigint, heard = heard + $8::bigint,
        owes = $15, node = $16
    WHERE id = $1 AND rev = $2 AND (expires_at IS NULL OR expires_at >= $17)
    RETURNING number, heard
),"""
_CONTENTS = """
named AS (
    INSERT INTO {schema}.section (session, name, value)
    SELECT mine.number, new.name, new.value
    FROM mine, unnest($9::text[], $10::json[]) AS new (name, value)
    ON CONFLICT (session, name) DO UPDATE SET value = excluded.value
),
added AS (
    INSERT INTO {schema}.entry (session, seq, heard, message_id, content)
    SELECT mine.number, new.seq, mine.heard - new.before_last, new.message_id, new.content
    FROM mine, unnest($11::bigint[], $12::bigint[], $13::text[], $14::json[])
        AS new (seq, before_last, message_id, content)
)
SELECT number FROM mine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """Each with the schema's name in it."""

    delete_over: str = "DELETE FROM {schema}.session WHERE id = $1 AND rev = $2"
    insert: str = f"{_MADE}{_CONTENTS}"
    commit: str = f"{_ADVANCED}{_CONTENTS}"
    """Both give None where it was not ours to write, and wrote nothing then."""
    rewrite: str = """
UPDATE {schema}.entry SET content = new.content
FROM unnest($2::bigint[], $3::json[]) AS new (seq, content)
WHERE session = (SELECT number FROM {schema}.session WHERE id = $1) AND entry.seq = new.seq
"""
    stands: str = """
SELECT rev FROM {schema}.session WHERE id = $1 AND (expires_at IS NULL OR expires_at >= $2)
"""
    head: str = "SELECT head FROM {schema}.session WHERE id = $1"
    window: str = """
SELECT head, size, parts.names, parts.values, shown.seqs, shown.contents, seen.seqs AS seen_seqs,
    seen.ids AS seen_ids
FROM {schema}.session,
LATERAL (
    SELECT array_agg(name) AS names, array_agg(value) AS values
    FROM {schema}.section WHERE session = number
) AS parts,
LATERAL (
    SELECT array_agg(seq) AS seqs, array_agg(content) AS contents
    FROM (
        SELECT seq, content FROM {schema}.entry
        WHERE session = number AND seq >= coalesce($2, window_seq) ORDER BY seq
    ) AS newest
) AS shown,
LATERAL (
    SELECT array_agg(seq ORDER BY seq) AS seqs, array_agg(message_id ORDER BY seq) AS ids
    FROM {schema}.entry
    WHERE entry.session = number AND entry.heard > session.heard - {seen_limit}
) AS seen
WHERE id = $1
"""
    """Flat: both ranges of entries are bounded by themselves, however the server plans to read."""
    between: str = """
SELECT seq, content FROM {schema}.entry
WHERE session = (SELECT number FROM {schema}.session WHERE id = $1)
    AND seq > $2 AND seq <= $3
ORDER BY seq LIMIT $4
"""
    delete: str = "DELETE FROM {schema}.session WHERE id = $1"
    delete_expired: str = """
WITH gone AS (
    DELETE FROM {schema}.session WHERE number IN (
        SELECT number FROM {schema}.session WHERE expires_at < $1
        ORDER BY expires_at LIMIT $2 FOR UPDATE SKIP LOCKED
    ) RETURNING number
)
SELECT count(*) FROM gone
"""
    newest: str = """
SELECT number FROM {schema}.session
WHERE (expires_at IS NULL OR expires_at >= $1) ORDER BY updated_at DESC, number
"""
    owing: str = """
SELECT id, rev, node FROM {schema}.session
WHERE owes > 0 AND owes <= $1 AND (expires_at IS NULL OR expires_at >= $2) ORDER BY number
"""
    beat: str = """
SELECT id, place, pid, holds,
    abs(extract(epoch FROM clock_timestamp() - seen))::double precision AS age
FROM {schema}.beat($1, $2, $3, $4, $5, $6)
"""
    leave: str = "DELETE FROM {schema}.node WHERE id = $1"
    names: str = "SELECT id FROM {schema}.session ORDER BY number"
    glances: str = """
SELECT id, head, size, value
FROM unnest($2::bigint[]) WITH ORDINALITY AS page (number, place)
JOIN {schema}.session USING (number)
LEFT JOIN {schema}.section ON section.session = number AND section.name = $3
WHERE (expires_at IS NULL OR expires_at >= $1)
ORDER BY place
"""
    bind: str = """
INSERT INTO {schema}.binding (digest, key, session) VALUES ($1, $2, $3)
ON CONFLICT (digest) DO UPDATE SET session = excluded.session
"""
    bound: str = "SELECT session FROM {schema}.binding WHERE digest = $1"
    bindings: str = """
SELECT digest, key, session FROM {schema}.binding WHERE digest > $1 ORDER BY digest LIMIT $2
"""

    @classmethod
    def of(cls, schema: str) -> Statements:
        """All of them, for the tables in this schema."""
        texts = {field.name: str(field.default) for field in fields(cls)}
        bounds = {"schema": schema, "seen_limit": SEEN_LIMIT}
        return cls(**{name: text.format(**bounds) for name, text in texts.items()})


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def as_time(micros: int) -> datetime:
    """Microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=micros)


def commit_arguments(commit: Commit) -> tuple[Any, ...]:
    """What the statements that write a session want, in their order."""
    ids = [commit.message_ids.get(entry.seq) for entry in commit.entries]
    heard = sum(name is not None for name in ids)
    return (
        plain(commit.id),
        commit.revision,
        as_json(encoded(commit.head)),
        commit.window,
        as_time(commit.updated_at),
        None if commit.expires_at is None else as_time(commit.expires_at),
        commit.grows,
        heard,
        list(commit.sections),
        [as_json(encoded(value)) for value in commit.sections.values()],
        [entry.seq for entry in commit.entries],
        [
            None if name is None else heard - nth
            for name, nth in zip(ids, _counted(ids), strict=True)
        ],
        [None if name is None else plain(name) for name in ids],
        [as_json(text) for text in commit.texts],
        commit.owes,
        plain(commit.by),
    )


def _counted(ids: Iterable[str | None]) -> Iterable[int]:
    """How many there are up to each of them."""
    return accumulate(int(name is not None) for name in ids)


def rewritten(commit: Commit) -> tuple[Any, ...]:
    """What the statement that erases wants."""
    entries = commit.rewritten
    return (
        plain(commit.id),
        [entry.seq for entry in entries],
        [as_json(text_of(entry)) for entry in entries],
    )


def stored(session_id: str, row: Record, entries: Iterable[Record] | None = None) -> StoredSession:
    """A session from a row of `window`; its entries may come from rows of their own."""
    pairs = zip(row["seqs"] or (), row["contents"] or (), strict=True)
    sections = zip(row["names"] or (), row["values"] or (), strict=True)
    return StoredSession(
        head=head_of(session_id, row["head"], from_json),
        sections=sections_of(session_id, sections, from_json),
        entries=entries_of(session_id, pairs, from_json)
        if entries is None
        else entries_from(session_id, entries),
        seen=dict(zip(row["seen_seqs"] or (), map(unplain, row["seen_ids"] or ()), strict=True)),
        size=row["size"],
    )


def glance(row: Record) -> StoredSession | SessionDamaged:
    """A session from a row of `glances`."""
    return StoredSession.glance(
        unplain(row["id"]), row["head"], row["value"], row["size"], from_json
    )


def entries_from(session_id: str, rows: Iterable[Record]) -> list[Entry]:
    """Entries from rows of `between`."""
    pairs = ((row["seq"], row["content"]) for row in rows)
    return entries_of(session_id, pairs, from_json)


def as_json(text: bytes) -> str:
    """A value as a row has it: JSON as it was written.

    Where it has Infinity or NaN in it, which are no JSON, it is the text of that as a JSON string.
    """
    is_odd = (b"Infinity" in text or b"NaN" in text) and not _is_json(text)
    return json.dumps(text.decode()) if is_odd else text.decode()


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError:
        return False
    return True


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def is_plain(text: str) -> bool:
    """Whether PostgreSQL takes it as text: no NUL, no half of a surrogate pair."""
    if "\0" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_QUOTE = '"'


def plain(text: str) -> str:
    """Any text as one that PostgreSQL takes: itself, or in quotes with escapes."""
    is_itself = is_plain(text) and not text.startswith(_QUOTE)
    return text if is_itself else json.dumps(text)


def unplain(text: str) -> str:
    """The text again."""
    return json.loads(text) if text.startswith(_QUOTE) else text
