"""From a URL to a client of redis-py, imported by this file alone: one server, or a cluster."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from nanoloop.errors import SettingsError, how_to_install

try:
    from redis import exceptions
    from redis.asyncio import BlockingConnectionPool, Redis, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ModuleNotFoundError as missing:
    raise SettingsError(
        f"sessions in Redis need the package redis: {how_to_install('redis')}"
    ) from missing

__all__ = ["Client", "client_of", "disconnect_idle", "exceptions", "place_of"]

CONNECTIONS = 32
"""Held at most; who needs one more waits for it."""
_CLUSTER = "+cluster"

Client = Redis | RedisCluster


def client_of(url: str, *, timeout_seconds: float) -> Client:
    """A client that doesn't connect yet and asks once; raises `SettingsError` for a wrong URL."""
    options: dict[str, Any] = {
        "protocol": 2,
        "max_connections": CONNECTIONS,
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds,
        "retry": Retry(NoBackoff(), 0),  # whoever asks tries again, and knows when to stop
    }
    scheme, rest = url.split(":", 1) if ":" in url else ("", "")
    try:
        if scheme.endswith(_CLUSTER):
            return RedisCluster.from_url(f"{scheme.removesuffix(_CLUSTER)}:{rest}", **options)
        pool = BlockingConnectionPool.from_url(url, timeout=timeout_seconds, **options)
        return Redis.from_pool(pool)
    except ValueError:  # its text may hold the password
        raise SettingsError(
            "store.url is no Redis URL: write redis://HOST:PORT/0, rediss://…, unix:///PATH or "
            "redis+cluster://HOST:PORT, and any special characters of the password as %XX"
        ) from None


def place_of(url: str) -> str:
    """Where that is, for people: without the user and the password."""
    parts = urlsplit(url)
    if not parts.hostname:
        return parts.path
    return f"{parts.hostname}:{parts.port or 6379}"


async def disconnect_idle(client: Client) -> None:
    """Close what nobody uses now: the next call connects, maybe to another server of that name."""
    if isinstance(client, Redis):
        await client.connection_pool.disconnect(inuse_connections=False)
