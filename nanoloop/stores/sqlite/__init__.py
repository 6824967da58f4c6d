"""Sessions as rows of one file, which any number of processes may read and write."""

from nanoloop.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
