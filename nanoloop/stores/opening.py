"""Open the store that a URL names, importing a database's library only if needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nanoloop import defaults, plugins
from nanoloop.protocols import Seal, Store
from nanoloop.stores.place import parts, path_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The settings for opening any kind of store."""

    data: Path
    durability: Literal["flush", "fsync"] = "flush"
    seal: Seal | None = None
    timeout_seconds: float = defaults.STORE_TIMEOUT_SECONDS
    """How long to keep retrying a server that does not answer."""
    read_only: bool = False

    def open(self, url: str) -> Store:
        """Create the store for this URL; nothing is read or written before its first use."""
        kind, _ = parts(url)
        make = _OPENERS.get(kind) or plugins.load("stores", kind).make
        made: Store = make(self, url)
        return made

    def at(self, url: str) -> Path:
        """Return the local path in a store's URL."""
        path = path_of(url, self.data)
        assert path is not None  # noqa: S101 - called only for URLs with a path
        return path

    @property
    def of_a_server(self) -> dict[str, Any]:
        """Return the arguments for a store on a server."""
        return {
            "seal": self.seal,
            "timeout_seconds": self.timeout_seconds,
        }


def _memory(_how: Opening, _url: str) -> Store:
    from nanoloop.stores.in_memory import InMemoryStore  # noqa: PLC0415 - imported only if used

    return InMemoryStore()


def _jsonl(how: Opening, url: str) -> Store:
    from nanoloop.stores.jsonl.store import JsonlStore  # noqa: PLC0415 - as above

    return JsonlStore(
        how.at(url),
        durability=how.durability,
        read_only=how.read_only,
        seal=how.seal,
    )


def _sqlite(how: Opening, url: str) -> Store:
    from nanoloop.stores.sqlite import BUSY_SECONDS, SqliteStore  # noqa: PLC0415 - as above

    return SqliteStore(
        how.at(url),
        durability=how.durability,
        read_only=how.read_only,
        seal=how.seal,
        busy_seconds=min(BUSY_SECONDS, how.timeout_seconds),
    )


def _redis(how: Opening, url: str) -> Store:
    from nanoloop.stores.redis import RedisStore  # noqa: PLC0415 - as above

    return RedisStore(url, **how.of_a_server)


def _postgres(how: Opening, url: str) -> Store:
    from nanoloop.stores.postgres import PostgresStore  # noqa: PLC0415 - as above

    return PostgresStore(url, **how.of_a_server)


_OPENERS: dict[str, Callable[[Opening, str], Store]] = {
    "memory": _memory,
    "jsonl": _jsonl,
    "sqlite": _sqlite,
    "redis": _redis,
    "rediss": _redis,
    "unix": _redis,
    "redis+cluster": _redis,
    "rediss+cluster": _redis,
    "postgresql": _postgres,
    "postgres": _postgres,
}
