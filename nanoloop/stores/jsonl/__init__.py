"""Sessions as files that a pager can show, in a folder that processes share."""

from nanoloop.stores.jsonl.store import JsonlStore

__all__ = ["JsonlStore"]
