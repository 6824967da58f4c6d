"""Sessions in Redis 7 or newer, or Valkey: each commit is one request, written whole or not.

A hash says what each session is, sorted sets have its entries and ids. All keys stand under one
prefix, and those of one session on one node of a cluster: it belongs to one of 64 shards, whose
number in braces is the hash tag of its keys. The shard's list of sessions has the same tag: it is
changed in the same step as the session, and can't lag behind it, on one server or in a cluster.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from zlib import crc32

import anyio

from nanoloop import defaults
from nanoloop.errors import SessionDamaged, StoreError
from nanoloop.protocols import Node, OwedSession, Seal
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.session.queue import SEEN_LIMIT
from nanoloop.stores.database import (
    FORGET_NODE_SECONDS,
    NODE_SECONDS,
    Commit,
    StoredSession,
    micros,
    text_of,
)
from nanoloop.stores.redis_server import (
    BEAT,
    BETWEEN,
    COMMIT,
    NAMES,
    NOTE_OWED,
    READ,
    REMOVE,
    Argument,
    Call,
    RedisServer,
)
from nanoloop.stores.snapshot import (
    OWES_NOTHING,
    as_it_is,
    decoding,
    encoded,
    entries_of,
    expiry,
    head_of,
    owes,
    sections_of,
)
from nanoloop.stores.store import DatabaseStore

GRACE_MS = 3_600_000
"""So much later than its time Redis drops a session by itself, should no sweep do it before."""
PAGE, ENTRIES = 200, 2000
"""Sessions looked at, and entries of a whole history read, in one request."""


class RedisStore(DatabaseStore):
    """Sessions in Redis 7 or newer, or Valkey, for any number of processes."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "nanoloop",
        timeout_seconds: float = defaults.STORE_TIMEOUT_SECONDS,
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
    ) -> None:
        """Nothing is asked before the first call.

        A call is tried again while the server is away, and fails after `timeout_seconds` in all.
        """
        server = RedisServer(url, timeout_seconds=timeout_seconds)
        super().__init__(_Rows(server, RedisKeys(prefix)), clock=clock, seal=seal)


class _Rows:
    """The rows of sessions, one request to Redis for nearly every call."""

    def __init__(self, server: RedisServer, keys: RedisKeys) -> None:
        self._server = server
        self._keys = keys
        self._layout = Layout(server, keys)

    async def _ask(self, *calls: Call) -> list[Any]:
        await self._layout.ready()
        return await self._server.ask(*calls) if calls else []

    # One session

    async def insert(self, commit: Commit, *, over: int | None) -> bool:
        based_on = "" if over is None else str(over)
        return await self._write(commit, based_on) == based_on

    async def commit(self, commit: Commit, *, now: int) -> int | None:
        stood = await self._write(commit, str(commit.revision), now=str(now))
        return int(stood) if stood else None

    async def _write(self, commit: Commit, based_on: str, *, now: str = "") -> str:
        await self._layout.ready()
        call = COMMIT(
            self._keys.of(commit.id),
            commit.id,
            based_on,
            now,
            commit.commit_id,
            commit.updated_at,
            "" if commit.expires_at is None else commit.expires_at,
            self._drops_at(commit),
            commit.grows,
            SEEN_LIMIT,
            _lines((entry.seq, text_of(entry)) for entry in commit.rewritten),
            _lines(zip((e.seq for e in commit.entries), commit.texts, strict=True)),
            _lines((seq, json.dumps(name).encode()) for seq, name in commit.message_ids.items()),
            commit.owes,
            _owed(commit.head["rev"], commit.expires_at, commit.by),
            *_fields(commit),
        )
        (stood,) = await self._server.ask(call)
        return str(stood.decode())

    def _drops_at(self, commit: Commit) -> Argument:
        """When Redis drops it by itself, in milliseconds since 1970; "" for never."""
        if commit.expires_at is None or not self._layout.may_expire:
            return ""
        return commit.expires_at // 1000 + GRACE_MS

    async def head(self, session_id: str) -> Mapping[str, Any] | None:
        (head,) = await self._ask(("HGET", self._keys.of(session_id)[0], "head"))
        return None if head is None else head_of(session_id, head, json.loads)

    async def window(self, session_id: str) -> StoredSession | None:
        found = await self._read(session_id, "window")
        return found and found[0]

    async def whole(self, session_id: str) -> StoredSession | None:
        while (found := await self._read(session_id, "about")) is not None:
            stored, past = found
            entries = await self._all(session_id, past, upto=int(stored.head.get("last", 0)))
            if entries is not None:
                return replace(stored, entries=entries)
        return None

    async def _read(self, session_id: str, view: str) -> tuple[StoredSession, bytes] | None:
        (row,) = await self._ask(READ(self._keys.of(session_id)[:3], view))
        if row is None:
            return None
        head, sections, seen, size, lines, past = row
        with decoding(session_id):
            stored = StoredSession(
                head=head_of(session_id, head, json.loads),
                sections=sections_of(session_id, json.loads(sections).items(), as_it_is),
                entries=_entries(session_id, lines),
                seen={int(seq): name for seq, name in json.loads(seen).items()},
                size=int(size),
            )
        return stored, past

    async def _all(self, session_id: str, past: bytes, *, upto: int) -> list[Entry] | None:
        """All entries, none of them holding up others for long; None where the past was changed."""
        entries: list[Entry] = []
        while True:
            after = entries[-1].seq if entries else 0
            page, then = await self._page(session_id, after, upto, ENTRIES)
            if then != past:
                return None
            entries += page
            if len(page) < ENTRIES:
                return entries

    async def between(
        self, session_id: str, *, after: int, upto: int | None, limit: int | None
    ) -> Sequence[Entry]:
        last, most = ("+inf" if upto is None else upto), (-1 if limit is None else limit)
        return (await self._page(session_id, after, last, most))[0]

    async def _page(
        self, session_id: str, after: int, upto: Argument, limit: int
    ) -> tuple[list[Entry], bytes]:
        ((lines, past),) = await self._ask(
            BETWEEN(self._keys.of(session_id)[:2], after, upto, limit)
        )
        return _entries(session_id, lines), past

    async def delete(self, session_id: str) -> None:
        await self._ask(REMOVE(self._keys.of(session_id), as_bytes(session_id), ""))

    # All of them

    async def delete_expired(self, *, now: int) -> int:
        found = await self._ask(*(_expired(self._keys.expiring(n), now) for n in range(SHARDS)))
        names = [name.decode() for shard in found for name in shard]
        removed = 0
        for page in _pages(names):
            calls = [REMOVE(self._keys.of(name), name, now) for name in page]
            removed += sum(await self._ask(*calls))
        return removed

    async def names(self) -> AsyncIterator[str]:
        await self._layout.ready()
        for name in await _names(self._server, self._keys):
            yield name

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        await self._layout.ready()
        for page in _pages(await _names(self._server, self._keys)):
            rows = await self._ask(*map(self._glance, page))
            for name, row in zip(page, rows, strict=True):
                stored = _glanced(name, *row)
                if stored is not None and not _has_expired(stored, now):
                    yield stored

    def _glance(self, session_id: str) -> Call:
        return ("HMGET", self._keys.of(session_id)[0], "head", f"section:{ABOUT}", "size")

    async def owing(self, *, now: int, pending: bool) -> AsyncIterator[OwedSession]:
        indexes = (self._keys.owing, self._keys.behind)[: 1 + pending]
        asked = [("HGETALL", index(shard)) for shard in range(SHARDS) for index in indexes]
        for found in await self._ask(*asked):
            for name, text in found.items():
                revision, expires_at, by = text.split(b" ", 2)
                if not expires_at or int(expires_at) >= now:
                    yield OwedSession(id=name.decode(), revision=int(revision), by=as_text(by))

    # Processes

    async def beat(self, node: Node) -> Sequence[Node]:
        told = json.dumps([node.place, node.pid])
        bounds = (round(NODE_SECONDS * 1000), round(FORGET_NODE_SECONDS * 1000))
        wanted = map(as_bytes, node.holds)
        call = BEAT([self._keys.nodes], as_bytes(node.id), told, *bounds, *wanted)
        (nodes,) = await self._ask(call)
        return [_node(*each) for each in nodes]

    async def leave(self, node_id: str) -> None:
        await self._ask(("HDEL", self._keys.nodes, as_bytes(node_id)))

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        await self._ask(("HSET", *self._keys.binding(key), as_bytes(session_id)))

    async def bound(self, key: str) -> str | None:
        (name,) = await self._ask(("HGET", *self._keys.binding(key)))
        return None if name is None else as_text(name)

    async def bindings(self) -> AsyncIterator[tuple[str, str]]:
        for shard in range(SHARDS):
            (bound,) = await self._ask(("HGETALL", self._keys.bindings(shard)))
            for key, name in bound.items():
                yield as_text(key), as_text(name)

    async def close(self) -> None:
        await self._server.close()


def _lines(numbered: Iterable[tuple[int, bytes]]) -> bytes:
    return b"\n".join(b"%d %s" % each for each in numbered)


def _entries(session_id: str, lines: bytes) -> list[Entry]:
    parted = (line.partition(b" ") for line in lines.split(b"\n") if line)
    with decoding(session_id):
        return entries_of(session_id, ((int(n), text) for n, _, text in parted), json.loads)


def _fields(commit: Commit) -> Iterable[Argument]:
    yield from (
        "revision",
        commit.head["rev"],
        "window",
        commit.window,
        "head",
        encoded(commit.head),
    )
    for name, value in commit.sections.items():
        yield from (f"section:{name}", encoded(value))


def _owed(revision: int, expires_at: int | None, by: str) -> bytes:
    """A session as the index of what is owed has it."""
    moment = "" if expires_at is None else expires_at
    return f"{revision} {moment} ".encode() + as_bytes(by)


def _node(name: bytes, told: bytes, age: int, holds: Iterable[bytes]) -> Node:
    place, pid = json.loads(told)
    held = frozenset(map(as_text, holds))
    return Node(id=as_text(name), place=place, pid=pid, holds=held, age=age / 1000)


async def _names(server: RedisServer, keys: RedisKeys) -> list[str]:
    """The ids of all sessions, the last changed first."""
    shards = await server.ask(*(NAMES([keys.sessions(shard)]) for shard in range(SHARDS)))
    words = [word for shard in shards for word in shard.decode().split()]
    changed = sorted(zip(map(float, words[1::2]), words[::2], strict=True), reverse=True)
    return [name for _, name in changed]


def _expired(expiring: bytes, now: int) -> Call:
    return ("ZRANGE", expiring, "-inf", f"({now}", "BYSCORE")


def _glanced(
    session_id: str, head: bytes | None, about: bytes | None, size: bytes | None
) -> StoredSession | SessionDamaged | None:
    """A session; None where it was removed while the others were looked at."""
    if head is None:
        return None
    return StoredSession.glance(session_id, head, about, int(size or 0), json.loads)


def _has_expired(stored: StoredSession | SessionDamaged, now: int) -> bool:
    moment = None if isinstance(stored, SessionDamaged) else expiry(stored.head)
    return moment is not None and micros(moment) < now


def _pages(names: Sequence[str]) -> Iterable[Sequence[str]]:
    return (names[start : start + PAGE] for start in range(0, len(names), PAGE))


SHARDS = 64
_PREFIX = re.compile(r"[A-Za-z0-9_.:@/-]+")


class RedisKeys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        """Raises ValueError where the prefix has other characters than letters, digits, _.:@/-."""
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"prefix is {prefix!r}: use letters, digits and _ . : @ / -")
        self._prefix = prefix
        self.format = f"{prefix}:format".encode()
        self.nodes = f"{prefix}:nodes".encode()
        """Which processes live."""

    def of(self, session_id: str) -> tuple[bytes, ...]:
        """Of a session: what it is, its entries, the ids it has seen; and its shard's lists."""
        name = as_bytes(session_id)
        shard = _shard(name)
        kinds = (b"session", b"entries", b"seen")
        session, entries, seen = (self._key(shard, kind) + b":" + name for kind in kinds)
        lists = (self.sessions, self.expiring, self.owing, self.behind)
        return session, entries, seen, *(named(shard) for named in lists)

    def sessions(self, shard: int) -> bytes:
        """The names of a shard's sessions, by the moment they changed."""
        return self._key(shard, b"sessions")

    def expiring(self, shard: int) -> bytes:
        """The names of those that expire, by the moment they do."""
        return self._key(shard, b"expiring")

    def owing(self, shard: int) -> bytes:
        """Those in which something is owed to their chat, with what the index says of each."""
        return self._key(shard, b"owing")

    def behind(self, shard: int) -> bytes:
        """Those in which nothing but a summary is owed, likewise."""
        return self._key(shard, b"behind")

    def bindings(self, shard: int) -> bytes:
        """Which session each chat's key means."""
        return self._key(shard, b"bindings")

    def binding(self, key: str) -> tuple[bytes, bytes]:
        """The one of these that has this chat's key, and its field there."""
        name = as_bytes(key)
        return self.bindings(_shard(name)), name

    def _key(self, shard: int, kind: bytes) -> bytes:
        return f"{self._prefix}:{{{shard:02}}}:".encode() + kind


def as_bytes(text: str) -> bytes:
    """Any text as bytes, half a surrogate pair too."""
    return text.encode("utf-8", "surrogatepass")


def as_text(name: bytes) -> str:
    """The text again."""
    return name.decode("utf-8", "surrogatepass")


def _shard(name: bytes) -> int:
    return crc32(name) % SHARDS


async def _note_owed(server: RedisServer, keys: RedisKeys) -> None:
    """Have the index know what is owed in the sessions of format 1."""
    for names in _pages(await _names(server, keys)):
        left: Sequence[str] = names
        while left:
            read = [("HMGET", keys.of(name)[0], "rev", "head", "expires_at") for name in left]
            rows = zip(left, await server.ask(*read), strict=True)
            # One that has no `rev` is of format 2: another process is first, or has committed.
            older = [(name, *row) for name, row in rows if row[0] is not None]
            done = await server.ask(*(_noting(keys, *each) for each in older)) if older else []
            left = [each[0] for each, noted in zip(older, done, strict=True) if not noted]


def _noting(
    keys: RedisKeys, session_id: str, rev: bytes, head: bytes | None, expires_at: bytes | None
) -> Call:
    try:
        stored = head_of(session_id, head, json.loads)
        owed, by = owes(stored), str(stored.get("by") or "")
    except SessionDamaged:  # it can't be opened either
        owed, by = OWES_NOTHING, ""
    session, *_, owing, behind = keys.of(session_id)
    said = _owed(int(rev), int(expires_at) if expires_at else None, by)
    return NOTE_OWED([session, owing, behind], session_id, rev, owed, said)


FORMAT = 2
Upgrade = Callable[[RedisServer, RedisKeys], Awaitable[None]]
UPGRADES: Mapping[int, Upgrade] = {1: _note_owed}
"""From each older format to the next; two processes may run one at a time, or again."""


class Layout:
    """Looked at once, before the first call."""

    def __init__(self, server: RedisServer, keys: RedisKeys) -> None:
        self._server = server
        self._keys = keys
        self._is_ready = False
        self._one_at_a_time = anyio.Lock()
        self.may_expire = False
        """Whether Redis may be told when a session expires: not where it would drop it earlier."""

    async def ready(self) -> None:
        """Refuse what can't be worked with, and bring an older layout up to this one."""
        if self._is_ready:
            return
        with anyio.CancelScope(shield=True):
            async with self._one_at_a_time:
                if not self._is_ready:
                    self.may_expire = await self._server.check()
                    await self._upgrade()
                    self._is_ready = True

    async def _upgrade(self) -> None:
        _, found = await self._server.ask(
            ("SET", self._keys.format, FORMAT, "NX"), ("GET", self._keys.format)
        )
        if int(found) > FORMAT:
            raise StoreError(
                f"the sessions in Redis are of format {int(found)}, and this version knows "
                f"{FORMAT}: install a newer nanoloop, or choose another prefix or database"
            )
        for number in range(int(found), FORMAT):
            await UPGRADES[number](self._server, self._keys)
            await self._server.ask(("SET", self._keys.format, number + 1))
