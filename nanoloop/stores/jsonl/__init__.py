"""Sessions as readable text files, in a folder that several processes share."""

from nanoloop.stores.jsonl.store import JsonlStore

__all__ = ["JsonlStore"]
