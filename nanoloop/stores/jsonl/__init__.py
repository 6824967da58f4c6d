"""Sessions as files that a pager can show, in a folder that one process owns."""

from nanoloop.stores.jsonl.store import JsonlStore

__all__ = ["JsonlStore"]
