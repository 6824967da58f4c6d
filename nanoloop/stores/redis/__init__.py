"""Sessions in Redis 7 or newer, or Valkey: each commit is one request, written whole or not."""

from nanoloop.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
