"""Names on disk: every id has one file name, and no two ids share one."""

from __future__ import annotations

import hashlib
from urllib.parse import quote, unquote

NAME_LIMIT = 180
"""Characters of a name before its suffix; file systems allow 255 bytes with it."""
_READABLE = 100
_LONG = "%%"
"""Marks a shortened name: no percent-encoded name contains it."""


def file_name(name: str) -> str:
    """The safe file name of any text, without a suffix."""
    encoded = quote(name.encode("utf-8", "surrogatepass"), safe="@").replace("~", "%7E")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    if len(encoded) <= NAME_LIMIT:
        return encoded
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{encoded[:_READABLE].rstrip('%')}{_LONG}{digest}"


def name_of(file: str) -> str | None:
    """The text that a file name stands for; None where it was shortened."""
    return None if _LONG in file else unquote(file, errors="surrogatepass")
