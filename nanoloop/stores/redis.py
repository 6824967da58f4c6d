"""Sessions in Redis 7 or newer, or Valkey; each commit is one request, written whole or not at all.

Each session has a hash for its data and a sorted set for its entries. All keys share one prefix.
Each session belongs to one of 64 shards, whose number in braces is the hash tag of the session's
keys, so that a cluster keeps them all on one node. The shard's lists of sessions have the same tag,
so they change in the same step as the session, on one server and in a cluster, and are never out of
date. A chat's recorded messages are kept on the chat's shard; on one server, they change in this
step too.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import chain
from typing import Any, TypeVar
from zlib import crc32

import anyio

from nanoloop import defaults
from nanoloop.errors import AlreadyHeard, SessionDamaged, StoreError
from nanoloop.protocols import Node, OwedSession, Seal
from nanoloop.session.entry import Entry, from_rfc3339, utc_now
from nanoloop.session.head import ABOUT, WAITING
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
from nanoloop.stores.redis_server import (
    BEAT,
    BETWEEN,
    COMMIT,
    NAMES,
    READ,
    REBIND,
    REMOVE,
    TAKE_OVER,
    Argument,
    Call,
    RedisServer,
)
from nanoloop.stores.snapshot import (
    NOTED,
    as_it_is,
    chat_of,
    decoding,
    encoded,
    entries_of,
    expiry,
    head_of,
    noted_in,
    owed_in,
    sections_of,
)
from nanoloop.stores.store import DatabaseStore

T = TypeVar("T")
GRACE_MS = 3_600_000
"""How long after its expiry Redis drops a session by itself, in case no sweep removes it."""
PAGE, ENTRIES = 200, 2000
"""How many sessions, or entries of a history, are read in one request."""


class RedisStore(DatabaseStore):
    """A store in Redis 7 or newer, or Valkey, for any number of processes."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "nanoloop",
        timeout_seconds: float = defaults.STORE_TIMEOUT_SECONDS,
        clock: Callable[[], datetime] = utc_now,
        seal: Seal | None = None,
    ) -> None:
        """Create the store; no request is made before the first call.

        If the server is unavailable, a call is retried, and fails after a total of
        `timeout_seconds`.
        """
        server = RedisServer(url, timeout_seconds=timeout_seconds)
        super().__init__(_Rows(server, RedisKeys(prefix)), clock=clock, seal=seal)


class _Rows:
    """The rows of sessions; nearly every call is one request to Redis."""

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
        elsewhere = list(self._heard_elsewhere(commit))
        if any(await self._ask(*(("ZSCORE", *each) for each in elsewhere))):
            raise AlreadyHeard(commit.id)
        call = COMMIT(
            [*self._keys.of(commit.id), *(key for key, _ in self._heard(commit))],
            commit.id,
            based_on,
            now,
            commit.commit_id,
            commit.updated_at,
            "" if commit.expires_at is None else commit.expires_at,
            self._drops_at(commit),
            commit.grows,
            _lines((entry.seq, text_of(entry)) for entry in commit.rewritten),
            _lines(zip((e.seq for e in commit.entries), commit.texts, strict=True)),
            b"\n".join(name for _, name in self._heard(commit)),
            commit.owes,
            _owed(commit.head, commit.expires_at),
            *_fields(commit),
        )
        (stood,) = await self._server.ask(call)
        if stood == b"heard":
            raise AlreadyHeard(commit.id)
        if stood.decode() == based_on:
            await self._ask(*_noting(elsewhere, commit.updated_at))
        return str(stood.decode())

    def _heard(self, commit: Commit) -> Iterable[tuple[bytes, bytes]]:
        """Yield the commit's messages, each with the key of the set that it is written to."""
        for chat, name in commit.heard:
            beside = commit.id if self._server.is_cluster else chat
            yield self._keys.heard(beside), _heard_name(chat, name)

    def _heard_elsewhere(self, commit: Commit) -> Iterable[tuple[bytes, bytes]]:
        """Yield the messages that another node of a cluster must record too, for lookups by chat.

        They are checked before the commit and written after it. So only two simultaneous commits
        for one chat in two sessions could both accept the same message.
        """
        for (beside, name), (chat, _) in zip(self._heard(commit), commit.heard, strict=True):
            if self._keys.heard(chat) != beside:
                yield self._keys.heard(chat), name

    def _drops_at(self, commit: Commit) -> Argument:
        """Return when Redis drops the session by itself, in ms since 1970, or ""."""
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
        (row,) = await self._ask(READ(self._keys.of(session_id)[:2], view))
        if row is None:
            return None
        with decoding(session_id):
            head, sections, size, lines, past = row  # shorter if a field is missing
            stored = StoredSession(
                head=head_of(session_id, head, json.loads),
                sections=sections_of(session_id, json.loads(sections).items(), as_it_is),
                entries=_entries(session_id, lines),
                size=int(size),
            )
        return stored, past

    async def _all(self, session_id: str, past: bytes, *, upto: int) -> list[Entry] | None:
        """Read all entries in pages, so as not to block others; None if one was rewritten."""
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

    # All sessions

    async def delete_expired(self, *, now: int) -> int:
        forgotten = f"({now - HEARD_SECONDS * 1_000_000}"
        await self._ask(
            *(
                ("ZREMRANGEBYSCORE", self._keys.heard_in(n), "-inf", forgotten)
                for n in range(SHARDS)
            )
        )
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
                    yield OwedSession(
                        id=name.decode(),
                        revision=int(revision),
                        by=as_text(by),
                        erasing=not revision.startswith(_NOT_ERASING),
                    )

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

    # Messages

    async def has_heard(self, chat: str, message_id: str) -> bool:
        key, name = self._keys.heard(chat), _heard_name(chat, message_id)
        (at,) = await self._ask(("ZSCORE", key, name))
        return at is not None

    async def heard(self) -> AsyncIterator[HeardMessage]:
        for shard in range(SHARDS):
            (found,) = await self._ask(("ZRANGE", self._keys.heard_in(shard), 0, -1, "WITHSCORES"))
            for name, at in zip(found[::2], found[1::2], strict=True):
                chat, message_id = json.loads(name)
                yield HeardMessage(chat=chat, id=message_id, at=int(at))

    async def hear(self, messages: Sequence[HeardMessage]) -> None:
        for page in _pages(messages):
            named = [(self._keys.heard(m.chat), _heard_name(m.chat, m.id)) for m in page]
            calls = (_noting([each], m.at) for each, m in zip(named, page, strict=True))
            await self._ask(*chain.from_iterable(calls))

    # Keys

    async def bind(self, key: str, session_id: str) -> None:
        await self._ask(("HSET", *self._keys.binding(key), as_bytes(session_id)))

    async def rebind(self, key: str, session_id: str, *, was: str | None) -> bool:
        place, name = self._keys.binding(key)
        old = "" if was is None else as_bytes(was)
        (done,) = await self._ask(REBIND([place], name, as_bytes(session_id), old))
        return bool(done)

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


def _heard_name(chat: str, message_id: str) -> bytes:
    return json.dumps([chat, message_id]).encode()


def _noting(heard: Iterable[tuple[bytes, bytes]], at: int) -> Iterable[Call]:
    return (("ZADD", key, "NX", at, name) for key, name in heard)


_NOT_ERASING = b"+"
"""Marks a revision with no pending erasure; earlier versions neither write nor read the mark."""


def _owed(head: Mapping[str, Any], expires_at: int | None) -> bytes:
    """Return a session's value for the index of pending work."""
    sign = b"" if head.get("erasing") else _NOT_ERASING
    moment = "" if expires_at is None else expires_at
    return sign + f"{head['rev']} {moment} ".encode() + as_bytes(str(head.get("by") or ""))


def _node(name: bytes, told: bytes, age: int, holds: Iterable[bytes]) -> Node:
    place, pid = json.loads(told)
    held = frozenset(map(as_text, holds))
    return Node(id=as_text(name), place=place, pid=pid, holds=held, age=age / 1000)


async def _names(server: RedisServer, keys: RedisKeys) -> list[str]:
    """Return the ids of all sessions, most recently changed first."""
    return [name for _, name in await _changed(server, keys)]


async def _changed(server: RedisServer, keys: RedisKeys) -> list[tuple[float, str]]:
    """Return each session with its last change in microseconds since 1970, most recent first."""
    shards = await server.ask(*(NAMES([keys.sessions(shard)]) for shard in range(SHARDS)))
    words = [word for shard in shards for word in shard.decode().split()]
    return sorted(zip(map(float, words[1::2]), words[::2], strict=True), reverse=True)


def _expired(expiring: bytes, now: int) -> Call:
    return ("ZRANGE", expiring, "-inf", f"({now}", "BYSCORE")


def _glanced(
    session_id: str, head: bytes | None, about: bytes | None, size: bytes | None
) -> StoredSession | SessionDamaged | None:
    """Return a session's overview, or None if the session was removed in the meantime."""
    if head is None:
        return None
    return StoredSession.glance(session_id, head, about, size, json.loads)


def _has_expired(stored: StoredSession | SessionDamaged, now: int) -> bool:
    moment = None if isinstance(stored, SessionDamaged) else expiry(stored.head)
    return moment is not None and micros(moment) < now


def _pages(names: Sequence[T]) -> Iterable[Sequence[T]]:
    return (names[start : start + PAGE] for start in range(0, len(names), PAGE))


SHARDS = 64
_PREFIX = re.compile(r"[A-Za-z0-9_.:@/-]+")


class RedisKeys:
    """The keys under one prefix."""

    def __init__(self, prefix: str) -> None:
        """Create the keys; raise ValueError if the prefix contains a forbidden character.

        Letters, digits and _.:@/- are allowed.
        """
        if not _PREFIX.fullmatch(prefix):
            raise ValueError(f"prefix is {prefix!r}: use letters, digits and _ . : @ / -")
        self._prefix = prefix
        self.format = f"{prefix}:format".encode()
        self.nodes = f"{prefix}:nodes".encode()
        """The Redis key of the hash of living processes."""

    def of(self, session_id: str) -> tuple[bytes, ...]:
        """Return a session's Redis keys: its data, its entries, and its shard's lists."""
        lists = (self.sessions, self.expiring, self.owing, self.behind)
        shard = _shard(as_bytes(session_id))
        own = (self.part(session_id, kind) for kind in (b"session", b"entries"))
        return *own, *(named(shard) for named in lists)

    def part(self, session_id: str, kind: bytes) -> bytes:
        """Return the session's own Redis key of this kind."""
        name = as_bytes(session_id)
        return self._key(_shard(name), kind) + b":" + name

    def sessions(self, shard: int) -> bytes:
        """Return the Redis key of a shard's session names, sorted by last change."""
        return self._key(shard, b"sessions")

    def expiring(self, shard: int) -> bytes:
        """Return the Redis key of a shard's expiring session names, sorted by expiry."""
        return self._key(shard, b"expiring")

    def owing(self, shard: int) -> bytes:
        """Return the Redis key of a shard's index of sessions with pending work for their chats."""
        return self._key(shard, b"owing")

    def behind(self, shard: int) -> bytes:
        """Return the Redis key of a shard's index of sessions that need only a summary."""
        return self._key(shard, b"behind")

    def heard(self, name: str) -> bytes:
        """Return the Redis key of the recorded messages on this chat's or session's shard."""
        return self.heard_in(_shard(as_bytes(name)))

    def heard_in(self, shard: int) -> bytes:
        """Return the Redis key of a shard's messages, sorted by when they were recorded."""
        return self._key(shard, b"heard")

    def bindings(self, shard: int) -> bytes:
        """Return the Redis key of the hash that maps a shard's chat keys to their sessions."""
        return self._key(shard, b"bindings")

    def binding(self, key: str) -> tuple[bytes, bytes]:
        """Return the Redis key that holds a chat's binding, and the field inside it."""
        name = as_bytes(key)
        return self.bindings(_shard(name)), name

    def _key(self, shard: int, kind: bytes) -> bytes:
        return f"{self._prefix}:{{{shard:02}}}:".encode() + kind


def as_bytes(text: str) -> bytes:
    """Encode any text as bytes, even half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def as_text(name: bytes) -> str:
    """Decode bytes as text; replace invalid bytes, such as those after damage."""
    try:
        return name.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return name.decode("utf-8", "replace")


def _shard(name: bytes) -> int:
    return crc32(name) % SHARDS


async def _take_over(server: RedisServer, keys: RedisKeys) -> None:
    """Add pending work to the index, and the messages of format 1 to their chats."""
    changed = await _changed(server, keys)
    since = changed[0][0] - HEARD_SECONDS * 1_000_000 if changed else 0
    for page in _pages([name for _, name in changed]):
        left: Sequence[str] = page
        while left:
            rows = await server.ask(*(_former(keys, name) for name in left))
            ids = await server.ask(*(("ZRANGE", keys.part(n, b"seen"), 0, -1) for n in left))
            found = map(_FormerSession, left, rows, ids)
            # A session without `rev` already has format 2: another process was first, or has
            # committed.
            older = [each for each in found if each.rev is not None]
            if heard := [call for each in older if each.at >= since for call in each.notes(keys)]:
                await server.ask(*heard)
            done = await server.ask(*(each.takes(keys) for each in older)) if older else []
            left = [each.id for each, is_done in zip(older, done, strict=True) if not is_done]


def _former(keys: RedisKeys, session_id: str) -> Call:
    fields = ("rev", "head", "expires_at", *map("section:{}".format, (ABOUT, NOTED, WAITING)))
    return ("HMGET", keys.of(session_id)[0], *fields)


class _FormerSession:
    """A session in format 1."""

    def __init__(self, name: str, row: Sequence[bytes | None], ids: Sequence[bytes]) -> None:
        self.id = name
        self.rev, self._head, self._expires_at, about, *noted = row
        self._chat = chat_of(name, about, json.loads)
        self._heard = [*map(json.loads, ids)]
        self._heard += [each for raw in noted for each in noted_in(raw, json.loads)]

    @property
    def at(self) -> int:
        """The time of the last change, in microseconds since 1970."""
        with suppress(SessionDamaged):
            return micros(from_rfc3339(self._stored()["updated_at"]))
        return 0

    def _stored(self) -> Mapping[str, Any]:
        return head_of(self.id, self._head, json.loads)

    def notes(self, keys: RedisKeys) -> Iterable[Call]:
        """Return the calls that record this session's messages for its chat."""
        names = [_heard_name(self._chat, each) for each in self._heard]
        places = {keys.heard(self._chat), keys.heard(self.id)}
        return _noting([(place, name) for place in places for name in names], self.at)

    def takes(self, keys: RedisKeys) -> Call:
        """Return the call that converts the session to format 2."""
        head: Mapping[str, Any] = {}
        with suppress(SessionDamaged):
            head = self._stored()
        session, *_, owing, behind = keys.of(self.id)
        expires_at = int(self._expires_at) if self._expires_at else None
        rev = self.rev or b""
        own = [session, keys.part(self.id, b"seen"), owing, behind]
        index = _owed({**head, "rev": int(rev)}, expires_at)
        owed = owed_in(self._head, json.loads), index
        return TAKE_OVER(own, self.id, rev, *owed)


FORMAT = 2
Upgrade = Callable[[RedisServer, RedisKeys], Awaitable[None]]
UPGRADES: Mapping[int, Upgrade] = {1: _take_over}
"""The upgrades from each older format to the next; running one twice or concurrently is safe."""


class Layout:
    """The layout in Redis, which is checked once before the first call."""

    def __init__(self, server: RedisServer, keys: RedisKeys) -> None:
        self._server = server
        self._keys = keys
        self._is_ready = False
        self._one_at_a_time = anyio.Lock()
        self.may_expire = False
        """True if Redis may expire sessions itself; False if it might drop them too early."""

    async def ready(self) -> None:
        """Reject an unusable server, and upgrade an older layout to this one."""
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
                f"the sessions in Redis have format {int(found)}, but this version supports "
                f"{FORMAT}: install a newer nanoloop, or choose another prefix or database"
            )
        for number in range(int(found), FORMAT):
            await UPGRADES[number](self._server, self._keys)
            await self._server.ask(("SET", self._keys.format, number + 1))
