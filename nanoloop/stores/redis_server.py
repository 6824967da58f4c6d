"""A Redis server or cluster at a URL, its atomic scripts, and the sentences for its errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from typing import Any
from urllib.parse import urlsplit

import anyio

from nanoloop.errors import SettingsError, StoreError, how_to_install

try:
    from redis import exceptions
    from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"sessions in Redis need the redis package: {how_to_install('redis')}"
    ) from missing

CONNECTIONS = 32
"""The maximum number of connections; further calls wait for a free one."""
_CLUSTER = "+cluster"

Client = Redis | RedisCluster


def client_of(url: str, *, timeout_seconds: float) -> Client:
    """Create a client that doesn't connect or retry; raise `SettingsError` for a malformed URL."""
    options: dict[str, Any] = {
        "protocol": 2,
        "max_connections": CONNECTIONS,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),  # the caller retries, and knows when to stop
    }
    scheme, rest = url.split(":", 1) if ":" in url else ("", "")
    try:
        if scheme.endswith(_CLUSTER):
            return RedisCluster.from_url(f"{scheme.removesuffix(_CLUSTER)}:{rest}", **options)
        pool = BlockingConnectionPool.from_url(url, timeout=timeout_seconds, **options)
        return Redis.from_pool(pool)
    except ValueError:  # its text may contain the password
        raise SettingsError(
            "store.url is not a Redis URL: write redis://HOST:PORT/0, rediss://…, unix:///PATH or "
            "redis+cluster://HOST:PORT, and write special characters in the password as %XX"
        ) from None


def place_of(url: str) -> str:
    """Return the server's address for display, without user and password."""
    parts = urlsplit(url)
    if not parts.hostname:
        return parts.path
    return f"{parts.hostname}:{parts.port or 6379}"


async def disconnect_idle(client: Client) -> None:
    """Close idle connections, so that the next call reconnects, perhaps to another server."""
    if isinstance(client, Redis):
        await client.connection_pool.disconnect(inuse_connections=False)


FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
FAILURES = (exceptions.RedisError, exceptions.RedisClusterException)
PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,  # another server is the primary: reconnect to find it
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,
)
OLDEST = 7
LASTING = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""The connection errors that a retry can't fix."""


class RedisServer:
    """A Redis server or cluster at a URL."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        """Create the server; `timeout_seconds` limits a call including its retries.

        Each attempt may take a third of that.
        """
        self._timeout_seconds = timeout_seconds
        self._redis = client_of(url, timeout_seconds=timeout_seconds / 3)
        self._where = place_of(url)

    async def ask(self, *calls: Call) -> list[Any]:
        """Make these calls together and return their results; raise `StoreError` if that fails.

        They may be made twice, because the outcome is unknown after a lost connection.
        """
        with anyio.CancelScope(shield=True):  # time-limited; half an answer ruins a connection
            answers = await self._tried(calls)
        return answers  # noqa: RET504 - mypy assumes that the scope may swallow an error

    async def _tried(self, calls: Sequence[Call]) -> list[Any]:
        deadline = anyio.current_time() + self._timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._answers(calls)
            except FAILURES as error:
                if not _passes(error) or anyio.current_time() + pause > deadline:
                    raise StoreError(self._sentence(error)) from None
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _answers(self, calls: Sequence[Call]) -> list[Any]:
        answers = await self._sent(calls)
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            answers = await self._sent([in_full(call) for call in calls])
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                if isinstance(answer, exceptions.ReadOnlyError):
                    await disconnect_idle(self._redis)
                raise answer
        return answers

    async def _sent(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) > 1:
            pipeline = self._redis.pipeline(transaction=False)
            for call in calls:
                pipeline.execute_command(*call)
            return await pipeline.execute(raise_on_error=False)
        try:
            return [await self._redis.execute_command(*calls[0])]
        except exceptions.ResponseError as error:
            return [error]

    def _sentence(self, error: Exception) -> str:
        """Return the problem and the next step, without the password or any data that was sent."""
        for kind, mark, words in _SENTENCES:
            if isinstance(error, kind) and mark in str(error):
                return f"Redis at {self._where} {words}"
        code = str(error).partition(" ")[0]
        said = code if code.isupper() else type(error).__name__
        return f"Redis at {self._where} failed ({said}): see its log"

    async def check(self) -> bool:
        """Raise `StoreError` if the server is too old or drops sessions.

        Return True if the server never drops a key by itself.
        """
        (facts,) = await self.ask(("INFO",))
        version = str(facts.get("redis_version", ""))
        if int(version.partition(".")[0] or 0) < OLDEST:
            raise StoreError(
                f"Redis at {self._where} is version {version}: sessions need {OLDEST} or newer"
            )
        policy = str(facts.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            raise StoreError(
                f"Redis at {self._where} forgets sessions when its memory is full "
                f"(maxmemory-policy is {policy}): set it to noeviction"
            )
        return policy == "noeviction"

    @property
    def is_cluster(self) -> bool:
        """True for a cluster, where the keys changed in one step must be on one node."""
        return isinstance(self._redis, RedisCluster)

    async def close(self) -> None:
        """Close all connections; closing twice is allowed."""
        await self._redis.aclose()


_SENTENCES: tuple[tuple[type[Exception], str, str], ...] = (
    (LASTING[0], "", "refused the user or the password: check both in store.url"),
    (LASTING[1], "", "refused the user: check it in store.url"),
    (
        exceptions.NoPermissionError,
        "",
        "does not allow this user to do that: grant it ~PREFIX:* @read @write @scripting and info",
    ),
    (
        exceptions.OutOfMemoryError,
        "",
        "is out of memory: raise maxmemory or delete sessions; nothing was written",
    ),
    (
        exceptions.ResponseError,
        "MISCONF",
        "can't write to its disk: free some space there, and see its log; nothing was written",
    ),
    (exceptions.ReadOnlyError, "", "is a replica: name the primary in store.url"),
    (exceptions.TimeoutError, "", "took too long to answer: check whether it is busy or far away"),
    (exceptions.BusyLoadingError, "", "is still loading its data: try again in a moment"),
    (
        exceptions.ConnectionError,
        "CERTIFICATE_VERIFY_FAILED",
        "has a certificate that is not trusted here: add ?ssl_ca_certs=FILE to store.url",
    ),
    (exceptions.ConnectionError, "", "does not answer: start it, or check store.url"),
    (
        exceptions.RedisClusterException,
        "",
        "belongs to a cluster that does not answer: start it, or check store.url",
    ),
    (exceptions.ClusterDownError, "", "is in a cluster that is down: see CLUSTER INFO there"),
    (exceptions.AskError, "", "is part of a cluster: write redis+cluster://HOST:PORT in store.url"),
    (exceptions.InvalidResponse, "", "is not a Redis server: check store.url"),
)
"""Each error's class, part of its text, and the sentence for it; the first match applies."""


def _passes(error: Exception) -> bool:
    return isinstance(error, PASSING) and not isinstance(error, LASTING)


Argument = str | bytes | int
Call = tuple[Argument, ...]
"""A command and its arguments."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script, which Redis knows by its digest once it has run there."""

    text: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        name = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "name", name)

    def __call__(self, keys: Sequence[bytes], *arguments: Argument) -> Call:
        """Return the call that runs the script by its digest."""
        return ("EVALSHA", self.name, len(keys), *keys, *arguments)


COMMIT = Script("""#!lua
local session, entries, sessions, expiring, owing, behind = unpack(KEYS)
local id, based_on, now, token, updated_at, expires_at, drops_at, grows = unpack(ARGV)
local rewritten, added, heard, owes, owed = unpack(ARGV, 9, 13)
local stood = redis.call('HMGET', session, 'revision', 'expires_at', 'rev')
-- An older version that is still running expects `rev`, which this one does not write.
local rev = stood[1] or stood[3] or ''
if now ~= '' and (tonumber(stood[2]) or math.huge) < tonumber(now) then return '' end
if rev ~= based_on then return rev end
local names = {}
for name in string.gmatch(heard, '[^\\n]+') do
  table.insert(names, name)
  if redis.call('ZSCORE', KEYS[6 + #names], name) then return 'heard' end
end
for i, name in ipairs(names) do redis.call('ZADD', KEYS[6 + i], updated_at, name) end
if now == '' then
  redis.call('UNLINK', session, entries)
end
for line in string.gmatch(rewritten, '[^\\n]+') do
  local seq = string.match(line, '^%d+')
  redis.call('ZREMRANGEBYSCORE', entries, seq, seq)
  redis.call('ZADD', entries, seq, line)
end
for line in string.gmatch(added, '[^\\n]+') do
  redis.call('ZADD', entries, string.match(line, '^%d+'), line)
end
if now == '' or rewritten ~= '' then
  redis.call('HSET', session, 'past', token) -- entries read before this are no longer valid
end
redis.call('HSET', session, 'expires_at', expires_at, unpack(ARGV, 14))
redis.call('HDEL', session, 'rev')
redis.call('HINCRBY', session, 'size', grows)
redis.call('ZADD', sessions, updated_at, id)
if expires_at == '' then
  redis.call('ZREM', expiring, id)
else
  redis.call('ZADD', expiring, expires_at, id)
end
for kind, index in ipairs({owing, behind}) do
  if kind == tonumber(owes) then
    redis.call('HSET', index, id, owed)
  else
    redis.call('HDEL', index, id)
  end
end
-- A time that has passed by this server's clock is left to the sweep, which counts removals.
local drops = drops_at ~= '' and tonumber(drops_at) > redis.call('TIME')[1] * 1000
for _, key in ipairs({session, entries}) do
  if drops then redis.call('PEXPIREAT', key, drops_at) else redis.call('PERSIST', key) end
end
return rev
""")
"""Write a commit; return the revision found, an empty string, or `heard`.

Without `now`, the session is created, replacing any session at revision `based_on`. After the
session's own keys, pass the key of the chat's messages for each message.
"""

READ = Script("""#!lua flags=no-writes
local session, entries = unpack(KEYS)
local fields = redis.call('HGETALL', session)
if #fields == 0 then return false end
local kept, sections = {}, {}
for i = 1, #fields, 2 do
  local section = string.match(fields[i], '^section:(.*)')
  if section then
    table.insert(sections, cjson.encode(section) .. ':' .. fields[i + 1])
  else
    kept[fields[i]] = fields[i + 1]
  end
end
local lines = {}
if ARGV[1] == 'window' then
  lines = redis.call('ZRANGE', entries, kept.window, '+inf', 'BYSCORE')
end
return {
  kept.head, '{' .. table.concat(sections, ',') .. '}', kept.size,
  table.concat(lines, '\\n'), kept.past,
}
""")
"""Read a session; `window` includes the entries in its window, and `about` no entries."""

BETWEEN = Script("""#!lua flags=no-writes
local session, entries = unpack(KEYS)
local after, upto, limit = unpack(ARGV)
local lines = redis.call('ZRANGE', entries, '(' .. after, upto, 'BYSCORE', 'LIMIT', 0, limit)
return {table.concat(lines, '\\n'), redis.call('HGET', session, 'past')}
""")
"""Read some of a session's entries, and the token of the last rewrite."""

NAMES = Script("""#!lua flags=no-writes
return table.concat(redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), ' ')
""")
"""List a shard's sessions with the times of their last changes."""

REMOVE = Script("""#!lua flags=allow-oom
local session, entries, sessions, expiring, owing, behind = unpack(KEYS)
local id, now = unpack(ARGV)
local expires_at = redis.call('HGET', session, 'expires_at')
-- If Redis has dropped the session itself, only the lists of names still have it.
if now ~= '' and expires_at and (tonumber(expires_at) or math.huge) >= tonumber(now) then
  return 0
end
redis.call('UNLINK', session, entries)
redis.call('ZREM', expiring, id)
redis.call('HDEL', owing, id)
redis.call('HDEL', behind, id)
return redis.call('ZREM', sessions, id)
""")
"""Remove a session, with `now` only if it expired before; return how many were removed."""

TAKE_OVER = Script("""#!lua
local session, seen, owing, behind = unpack(KEYS)
local id, rev, owes, owed = unpack(ARGV)
if redis.call('HGET', session, 'rev') ~= rev then return 0 end
redis.call('HDEL', session, 'rev', 'section:heard')
redis.call('HSET', session, 'revision', rev)
redis.call('UNLINK', seen)
if owes ~= '0' then redis.call('HSET', owes == '1' and owing or behind, id, owed) end
return 1
""")
"""Add a session in format 1 to the index; return 0 if it has changed since."""

REBIND = Script("""#!lua
local key, session, was = unpack(ARGV)
if (redis.call('HGET', KEYS[1], key) or '') ~= was then return 0 end
redis.call('HSET', KEYS[1], key, session)
return 1
""")
"""Bind a chat's key if its current binding is `was`; an empty `was` means unbound."""

BEAT = Script("""#!lua flags=allow-oom
local id, told, lives, forgotten_after = unpack(ARGV)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local known, taken, nodes = redis.call('HGETALL', KEYS[1]), {}, {}
for i = 1, #known, 2 do
  local node = cjson.decode(known[i + 1])
  local age = math.abs(now - node.seen)
  if age >= tonumber(forgotten_after) then
    redis.call('HDEL', KEYS[1], known[i])
  elseif known[i] ~= id then
    table.insert(nodes, {known[i], node.told, age, node.holds})
    if age < tonumber(lives) then
      for _, account in ipairs(node.holds) do taken[account] = true end
    end
  end
end
local holds = {}
for i = 5, #ARGV do
  if not taken[ARGV[i]] then table.insert(holds, ARGV[i]) end
end
redis.call('HSET', KEYS[1], id, cjson.encode({seen = now, told = told, holds = holds}))
table.insert(nodes, {id, told, 0, holds})
return nodes
""")
"""Record that a process is alive, by this server's clock; return all with their ages in ms.

This works even if there is no memory left for messages.
"""

_SCRIPTS = (COMMIT, READ, BETWEEN, NAMES, REMOVE, TAKE_OVER, REBIND, BEAT)
_BY_NAME = {script.name: script for script in _SCRIPTS}


def in_full(call: Call) -> Call:
    """Return the call with the script's text, for a Redis that doesn't know the script yet."""
    command, name, *rest = call
    return ("EVAL", _BY_NAME[str(name)].text, *rest) if command == "EVALSHA" else call
