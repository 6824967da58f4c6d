"""Parse a store's URL into its kind and place."""

from __future__ import annotations

import re
from pathlib import Path

from nanoloop import plugins

FORMS = "memory:, jsonl:FOLDER, sqlite:FILE, redis://… or postgresql://…"
FOLDER, FILE = "sessions", "sessions.sqlite"
"""The default file names for `jsonl:` and `sqlite:` in the data folder."""
_PATHS = {"jsonl", "sqlite"}
_SERVERS = {
    *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
    *("postgresql", "postgres"),
}


def parts(url: str) -> tuple[str, str]:
    """Split a store's URL into its kind and place; raise ValueError if it is not valid."""
    kind, colon, place = url.partition(":")
    is_whole = re.match(r"//[^/]|///.", place) is not None
    is_path = kind in _PATHS and bool(colon)
    is_ours = is_path or url == "memory:" or (kind in _SERVERS and is_whole)
    if is_ours or (colon and plugins.is_installed("stores", kind)):
        return kind, place
    raise ValueError(f"not a store: write {FORMS}")


def path_of(url: str, data: Path) -> Path | None:
    """Return the file or folder in a store's URL, or None for other kinds of stores."""
    kind, place = parts(url)
    if kind not in _PATHS:
        return None
    return Path(place).expanduser() if place else data / (FOLDER if kind == "jsonl" else FILE)


# Strict: if a password contained an unescaped @, ? or /, part of it would pass for the host.
_WHERE = re.compile(r"//(?:[^@/?#]*@)?(?P<where>[^@?#]*)(?:\?[^@]*)?")


def shown(url: str, data: Path) -> str:
    """Return a store's place in a form to show to people, without user, password and options."""
    kind, place = parts(url)
    if kind == "memory":
        return kind
    found = _WHERE.fullmatch(place)
    return str(path_of(url, data) or f"{kind}://{found['where'] if found else '…'}")


def store_url(url: str) -> str:
    """Return the URL; raise ValueError like `parts`."""
    parts(url)
    return url


def default_url(data: Path) -> str:
    """Return a data folder's default store: its JSONL files if it has any, otherwise a database."""
    has_files = next((data / FOLDER).glob("*.jsonl"), None) is not None
    return "jsonl:" if has_files and not (data / FILE).exists() else "sqlite:"
