"""Sessions in PostgreSQL, shared by as many processes as there are."""

from nanoloop.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
