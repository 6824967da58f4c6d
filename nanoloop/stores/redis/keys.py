"""Names of keys: all under one prefix, and those of one session on one node of a cluster.

A session belongs to one of 64 shards, whose number in braces is the hash tag of its keys. The
shard's list of sessions has the same tag: it is changed in the same step as the session, and can't
lag behind it, on one server or in a cluster.
"""

from __future__ import annotations

import re
from zlib import crc32

SHARDS = 64
_PREFIX = re.compile(r"[A-Za-z0-9_.:@/-]+")


class Keys:
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
