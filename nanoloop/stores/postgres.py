"""Sessions in PostgreSQL, shared by any number of processes.

Nearly every call is a single statement.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeVar

from anyio.to_thread import run_sync

from nanoloop import defaults
from nanoloop.errors import AlreadyHeard, SessionDamaged
from nanoloop.protocols import Node, OwedSession, Seal
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.stores.database import (
    FORGET_NODE_SECONDS,
    HEARD_SECONDS,
    NODE_SECONDS,
    Commit,
    HeardMessage,
    StoredSession,
    micros,
    text_of,
)
from nanoloop.stores.postgres_server import (
    FAILURES,
    HEARD_KEY,
    Connections,
    Work,
    digest_of,
    from_json,
    migrate,
    plain,
    prepare,
    schema_name,
    unplain,
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


T = TypeVar("T")
Arguments = tuple[Any, ...]
_PAGE = 500
_EXPIRED_PAGE = 100
_NONE = 1 << 62
"""A number above all entries' numbers."""


class PostgresStore(DatabaseStore):
    """A store in the tables of one schema, which are created if they don't exist."""

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
        """Create the store; no call takes longer than `timeout_seconds`.

        At most `pool_size` connections are open at a time.
        """
        self._tables = _Tables(
            url,
            schema=schema_name(schema),
            pool_size=pool_size,
            timeout_seconds=timeout_seconds,
        )
        super().__init__(self._tables, clock=clock, seal=seal)

    async def migrate(self) -> str:
        """Create the tables or upgrade older ones; return what was done."""
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

        return await self._taking(commit, work)

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

        return await self._taking(commit, work)

    async def _taking(self, commit: Commit, work: Work[T]) -> T:
        """Run this work; raise `AlreadyHeard` if one of its messages was recorded before."""

        async def tried(server: Connection) -> tuple[T, ...]:
            try:
                return (await work(server),)
            except FAILURES as error:
                if getattr(error, "constraint_name", None) != HEARD_KEY:
                    raise
                return ()  # the connection is still usable

        done = await self._connections.run(tried)
        if not done:
            raise AlreadyHeard(commit.id)
        return done[0]

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
        since = as_time(now - HEARD_SECONDS * 1_000_000)
        await self._connections.run(lambda s: s.execute(self._sql.forget, since))
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
            # Both from one snapshot; entries as rows, because an array has a size limit.
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
        # All numbers first: each commit changes the order, and no session may be missed.
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
            yield OwedSession(
                id=unplain(row["id"]),
                revision=row["rev"],
                by=unplain(row["node"]),
                erasing=row["erasing"],
            )

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

    # Messages

    async def has_heard(self, chat: str, message_id: str) -> bool:
        arguments = (self._sql.has_heard, digest_of(plain(chat), plain(message_id)))
        found: bool = await self._connections.run(lambda s: s.fetchval(*arguments))
        return found

    async def heard(self) -> AsyncIterator[HeardMessage]:
        after = b""
        while True:
            page = await self._connections.run(
                lambda s: s.fetch(self._sql.heard, after, _PAGE)  # noqa: B023 - awaited here
            )
            for row in page:
                at = micros(row["heard_at"])
                yield HeardMessage(chat=unplain(row["chat"]), id=unplain(row["id"]), at=at)
            if len(page) < _PAGE:
                return
            after = page[-1]["digest"]

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        names = [(plain(each.chat), plain(each.id)) for each in messages]
        arguments = (
            [digest_of(*each) for each in names],
            [chat for chat, _ in names],
            [name for _, name in names],
            [as_time(each.at) for each in messages],
        )
        await self._connections.run(lambda s: s.execute(self._sql.hear, *arguments))

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        arguments = (_digest(key), plain(key), plain(session_id))
        await self._connections.run(lambda s: s.execute(self._sql.bind, *arguments))

    async def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        old = () if was is None else (plain(was),)
        statement = self._sql.rebind if old else self._sql.bind_first
        arguments = (statement, _digest(key), plain(key), plain(session_id), *old)
        return await self._connections.run(lambda s: s.fetchval(*arguments)) is not None

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
    """Return a digest of the key that fits into an index, however long the key is."""
    return sha256(key.encode("utf-8", "surrogatepass")).digest()


_MADE = """
WITH mine AS (
    INSERT INTO {schema}.session
        (id, rev, head, window_seq, updated_at, expires_at, size, owes, node)
    VALUES ($1, $2::bigint + 1, $3, $4, $5, $6, $7, $8, $9)
    ON CONFLICT (id) DO NOTHING
    RETURNING number
),"""
_ADVANCED = """
WITH mine AS (
    UPDATE {schema}.session
    SET rev = $2::bigint + 1, head = $3, window_seq = $4, updated_at = $5,
        expires_at = $6, size = size + $7::bigint, owes = $8, node = $9
    WHERE id = $1 AND rev = $2 AND (expires_at IS NULL OR expires_at >= $17)
    RETURNING number
),"""
_CONTENTS = """
named AS (
    INSERT INTO {schema}.section (session, name, value)
    SELECT mine.number, new.name, new.value
    FROM mine, unnest($10::text[], $11::json[]) AS new (name, value)
    ON CONFLICT (session, name) DO UPDATE SET value = excluded.value
),
added AS (
    INSERT INTO {schema}.entry (session, seq, content)
    SELECT mine.number, new.seq, new.content
    FROM mine, unnest($12::bigint[], $13::json[]) AS new (seq, content)
),
taken AS ( -- fails, with the whole statement, for a message heard before
    INSERT INTO {schema}.heard (digest, chat, id, heard_at)
    SELECT new.digest, new.chat, new.id, $5
    FROM mine, unnest($14::bytea[], $15::text[], $16::text[]) AS new (digest, chat, id)
)
SELECT number FROM mine
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """The SQL statements, with the schema's name filled in."""

    delete_over: str = "DELETE FROM {schema}.session WHERE id = $1 AND rev = $2"
    insert: str = f"{_MADE}{_CONTENTS}"
    commit: str = f"{_ADVANCED}{_CONTENTS}"
    """If the revision has changed, `insert` and `commit` write nothing and return None."""
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
SELECT head, size, parts.names, parts.values, shown.seqs, shown.contents
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
) AS shown
WHERE id = $1
"""
    """The query for a window, written so that any query plan reads a bounded range of entries."""
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
SELECT id, rev, node, strpos(head::text, '"erasing"') > 0 AS erasing FROM {schema}.session
WHERE owes > 0 AND owes <= $1 AND (expires_at IS NULL OR expires_at >= $2) ORDER BY number
"""
    has_heard: str = "SELECT EXISTS (SELECT FROM {schema}.heard WHERE digest = $1)"
    heard: str = """
SELECT digest, chat, id, heard_at FROM {schema}.heard WHERE digest > $1 ORDER BY digest LIMIT $2
"""
    hear: str = """
INSERT INTO {schema}.heard (digest, chat, id, heard_at)
SELECT * FROM unnest($1::bytea[], $2::text[], $3::text[], $4::timestamptz[])
ON CONFLICT DO NOTHING
"""
    forget: str = "DELETE FROM {schema}.heard WHERE heard_at < $1"
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
    bind_first: str = """
INSERT INTO {schema}.binding (digest, key, session) VALUES ($1, $2, $3)
ON CONFLICT (digest) DO NOTHING RETURNING 1
"""
    rebind: str = """
UPDATE {schema}.binding SET key = $2, session = $3 WHERE digest = $1 AND session = $4 RETURNING 1
"""
    bound: str = "SELECT session FROM {schema}.binding WHERE digest = $1"
    bindings: str = """
SELECT digest, key, session FROM {schema}.binding WHERE digest > $1 ORDER BY digest LIMIT $2
"""

    @classmethod
    def of(cls, schema: str) -> Statements:
        """Return all SQL statements for the tables in this schema."""
        texts = {field.name: str(field.default) for field in fields(cls)}
        return cls(**{name: text.format(schema=schema) for name, text in texts.items()})


_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def as_time(micros: int) -> datetime:
    """Convert microseconds since 1970 to a time."""
    return _EPOCH + timedelta(microseconds=micros)


def commit_arguments(commit: Commit) -> tuple[Any, ...]:
    """Return the arguments for the statements that write a session, in order."""
    heard = [(plain(chat), plain(name)) for chat, name in commit.heard]
    return (
        plain(commit.id),
        commit.revision,
        as_json(encoded(commit.head)),
        commit.window,
        as_time(commit.updated_at),
        None if commit.expires_at is None else as_time(commit.expires_at),
        commit.grows,
        commit.owes,
        plain(commit.by),
        list(commit.sections),
        [as_json(encoded(value)) for value in commit.sections.values()],
        [entry.seq for entry in commit.entries],
        [as_json(text) for text in commit.texts],
        [digest_of(chat, name) for chat, name in heard],
        [chat for chat, _ in heard],
        [name for _, name in heard],
    )


def rewritten(commit: Commit) -> tuple[Any, ...]:
    """Return the arguments for the statement that erases entries."""
    entries = commit.rewritten
    return (
        plain(commit.id),
        [entry.seq for entry in entries],
        [as_json(text_of(entry)) for entry in entries],
    )


def stored(session_id: str, row: Record, entries: Iterable[Record] | None = None) -> StoredSession:
    """Read a session from a row of `window`; its entries may come from separate rows."""
    pairs = zip(row["seqs"] or (), row["contents"] or (), strict=True)
    sections = zip(row["names"] or (), row["values"] or (), strict=True)
    return StoredSession(
        head=head_of(session_id, row["head"], from_json),
        sections=sections_of(session_id, sections, from_json),
        entries=entries_of(session_id, pairs, from_json)
        if entries is None
        else entries_from(session_id, entries),
        size=row["size"],
    )


def glance(row: Record) -> StoredSession | SessionDamaged:
    """Read a session's overview from a row of `glances`."""
    return StoredSession.glance(
        unplain(row["id"]), row["head"], row["value"], row["size"], from_json
    )


def entries_from(session_id: str, rows: Iterable[Record]) -> list[Entry]:
    """Read entries from rows of `between`."""
    pairs = ((row["seq"], row["content"]) for row in rows)
    return entries_of(session_id, pairs, from_json)


def as_json(text: bytes) -> str:
    """Return a value as a row stores it: as the original JSON text.

    Infinity and NaN are not valid JSON, so text that contains them is wrapped in a JSON string.
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
