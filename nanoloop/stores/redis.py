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
from nanoloop.protocols import Seal
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.head import ABOUT
from nanoloop.session.queue import SEEN_LIMIT
from nanoloop.stores.database import Commit, StoredSession, micros, text_of
from nanoloop.stores.redis_server import (
    BETWEEN,
    COMMIT,
    NAMES,
    READ,
    REMOVE,
    Argument,
    Call,
    RedisServer,
)
from nanoloop.stores.snapshot import (
    as_it_is,
    decoding,
    encoded,
    entries_of,
    expiry,
    head_of,
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
        for name in await self._names():
            yield name

    async def glances(self, *, now: int) -> AsyncIterator[StoredSession | SessionDamaged]:
        for page in _pages(await self._names()):
            rows = await self._ask(*map(self._glance, page))
            for name, row in zip(page, rows, strict=True):
                stored = _glanced(name, *row)
                if stored is not None and not _has_expired(stored, now):
                    yield stored

    async def _names(self) -> list[str]:
        """The ids of all sessions, the last changed first."""
        shards = await self._ask(*(NAMES([self._keys.sessions(n)]) for n in range(SHARDS)))
        words = [word for shard in shards for word in shard.decode().split()]
        changed = sorted(zip(map(float, words[1::2]), words[::2], strict=True), reverse=True)
        return [name for _, name in changed]

    def _glance(self, session_id: str) -> Call:
        return ("HMGET", self._keys.of(session_id)[0], "head", f"section:{ABOUT}", "size")

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
    yield from ("rev", commit.head["rev"], "window", commit.window, "head", encoded(commit.head))
    for name, value in commit.sections.items():
        yield from (f"section:{name}", encoded(value))


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

    def of(self, session_id: str) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """Of a session: what it is, its entries, the ids it has seen; and its shard's two lists."""
        name = as_bytes(session_id)
        shard = _shard(name)
        kinds = (b"session", b"entries", b"seen")
        session, entries, seen = (self._key(shard, kind) + b":" + name for kind in kinds)
        return session, entries, seen, self.sessions(shard), self.expiring(shard)

    def sessions(self, shard: int) -> bytes:
        """The names of a shard's sessions, by the moment they changed."""
        return self._key(shard, b"sessions")

    def expiring(self, shard: int) -> bytes:
        """The names of those that expire, by the moment they do."""
        return self._key(shard, b"expiring")

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


FORMAT = 1
Upgrade = Callable[[RedisServer, RedisKeys], Awaitable[None]]
UPGRADES: Mapping[int, Upgrade] = {}
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
