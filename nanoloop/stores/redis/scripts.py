"""What Redis runs in one piece: each script reads or writes the keys of one session.

Entries and message ids travel as lines, a number and a JSON text each, so that a request has a
handful of arguments however much it brings. JSON has no line breaks of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha1

Argument = str | bytes | int
Call = tuple[Argument, ...]
"""One command and its arguments."""


@dataclass(frozen=True, slots=True)
class Script:
    """A text in Lua, known to Redis by its digest once it ran there."""

    text: str
    name: str = field(init=False)

    def __post_init__(self) -> None:
        name = sha1(self.text.encode(), usedforsecurity=False).hexdigest()
        object.__setattr__(self, "name", name)

    def __call__(self, keys: Sequence[bytes], *arguments: Argument) -> Call:
        """Run it by its name."""
        return ("EVALSHA", self.name, len(keys), *keys, *arguments)


COMMIT = Script("""#!lua
local session, entries, seen, sessions, expiring = unpack(KEYS)
local id, based_on, now, token, updated_at, expires_at, lasts_ms, grows, seen_limit = unpack(ARGV)
local stood = redis.call('HMGET', session, 'rev', 'expires_at', 'tokens')
local rev, tokens = stood[1] or '', stood[3] or ''
if string.find(tokens, token, 1, true) then
  return based_on -- asked again because the answer got lost: it is written
end
if now ~= '' and (tonumber(stood[2]) or math.huge) < tonumber(now) then return '' end
if rev ~= based_on then return rev end
if now == '' then
  redis.call('UNLINK', session, entries, seen)
  tokens = ''
end
for line in string.gmatch(ARGV[10], '[^\\n]+') do
  local seq = string.match(line, '^%d+')
  redis.call('ZREMRANGEBYSCORE', entries, seq, seq)
  redis.call('ZADD', entries, seq, line)
end
for line in string.gmatch(ARGV[11], '[^\\n]+') do
  redis.call('ZADD', entries, string.match(line, '^%d+'), line)
end
for line in string.gmatch(ARGV[12], '[^\\n]+') do
  local seq, name = string.match(line, '^(%d+) (.+)')
  redis.call('ZADD', seen, seq, name)
end
redis.call('ZREMRANGEBYRANK', seen, 0, -seen_limit - 1)
if now == '' or ARGV[10] ~= '' then
  redis.call('HSET', session, 'past', token) -- what was read of it before is not true any more
end
tokens = string.sub(token .. tokens, 1, 16 * #token)
redis.call('HSET', session, 'tokens', tokens, 'expires_at', expires_at, unpack(ARGV, 13))
redis.call('HINCRBY', session, 'size', grows)
redis.call('ZADD', sessions, updated_at, id)
if expires_at == '' then
  redis.call('ZREM', expiring, id)
else
  redis.call('ZADD', expiring, expires_at, id)
end
for _, key in ipairs({session, entries, seen}) do
  if lasts_ms == '' then redis.call('PERSIST', key) else redis.call('PEXPIRE', key, lasts_ms) end
end
return rev
""")
"""Write a commit; returns the revision that was there, or an empty text.

Without `now` the session is made anew, in place of the one at `based_on` or of none.
"""

READ = Script("""#!lua flags=no-writes
local session, entries, seen = unpack(KEYS)
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
local names, ids = redis.call('ZRANGE', seen, 0, -1, 'WITHSCORES'), {}
for i = 1, #names, 2 do table.insert(ids, '"' .. names[i + 1] .. '":' .. names[i]) end
local lines = {}
if ARGV[1] == 'window' then
  lines = redis.call('ZRANGE', entries, kept.window, '+inf', 'BYSCORE')
end
return {
  kept.head, '{' .. table.concat(sections, ',') .. '}', '{' .. table.concat(ids, ',') .. '}',
  kept.size, table.concat(lines, '\\n'), kept.past,
}
""")
"""What a session is, with the entries of its window or (`about`) with none."""

BETWEEN = Script("""#!lua flags=no-writes
local session, entries = unpack(KEYS)
local after, upto, limit = unpack(ARGV)
local lines = redis.call('ZRANGE', entries, '(' .. after, upto, 'BYSCORE', 'LIMIT', 0, limit)
return {table.concat(lines, '\\n'), redis.call('HGET', session, 'past')}
""")
"""Some of a session's entries, and the name of the past that they belong to."""

NAMES = Script("""#!lua flags=no-writes
return table.concat(redis.call('ZRANGE', KEYS[1], 0, -1, 'WITHSCORES'), ' ')
""")
"""The sessions of one shard, each with the moment it changed last."""

REMOVE = Script("""#!lua flags=allow-oom
local session, entries, seen, sessions, expiring = unpack(KEYS)
local id, now = unpack(ARGV)
local expires_at = redis.call('HGET', session, 'expires_at')
-- Where Redis itself was first, only the lists of names still know the session.
if now ~= '' and expires_at and (tonumber(expires_at) or math.huge) >= tonumber(now) then
  return 0
end
redis.call('UNLINK', session, entries, seen)
redis.call('ZREM', expiring, id)
return redis.call('ZREM', sessions, id)
""")
"""Remove a session, with `now` only if it has expired before that; returns how many that were."""

_BY_NAME = {script.name: script for script in (COMMIT, READ, BETWEEN, NAMES, REMOVE)}


def in_full(call: Call) -> Call:
    """The same call with the script's text, for a Redis that has not heard of it yet."""
    command, name, *rest = call
    return ("EVAL", _BY_NAME[str(name)].text, *rest) if command == "EVALSHA" else call
