"""A store's URL: which kind of store it means, and where that is."""

from __future__ import annotations

import re
from pathlib import Path

from nanoloop import plugins

FORMS = "memory:, jsonl:FOLDER, sqlite:FILE, redis://… or postgresql://…"
FOLDER, FILE = "sessions", "sessions.sqlite"
"""Where `jsonl:` and `sqlite:` keep sessions in the data folder when they name no place."""
_PATHS = {"jsonl", "sqlite"}
_SERVERS = {
    *("redis", "rediss", "unix", "redis+cluster", "rediss+cluster"),
    *("postgresql", "postgres"),
}


def parts(url: str) -> tuple[str, str]:
    """The kind of store and its place; raises ValueError if it isn't a store's URL."""
    kind, colon, place = url.partition(":")
    is_whole = re.match(r"//[^/]|///.", place) is not None
    is_path = kind in _PATHS and bool(colon)
    is_ours = is_path or url == "memory:" or (kind in _SERVERS and is_whole)
    if is_ours or (colon and plugins.is_installed("stores", kind)):
        return kind, place
    raise ValueError(f"not a store: write {FORMS}")


def path_of(url: str, data: Path) -> Path | None:
    """The file or folder that it names; None if sessions are in neither."""
    kind, place = parts(url)
    if kind not in _PATHS:
        return None
    return Path(place).expanduser() if place else data / (FOLDER if kind == "jsonl" else FILE)


# Strict: of a URL whose password has an @, ? or / unescaped, a part would pass for its host.
_WHERE = re.compile(r"//(?:[^@/?#]*@)?(?P<where>[^@?#]*)(?:\?[^@]*)?")


def shown(url: str, data: Path) -> str:
    """Where that is, for people: a path, or a server without its user, password and options."""
    kind, place = parts(url)
    if kind == "memory":
        return kind
    found = _WHERE.fullmatch(place)
    return str(path_of(url, data) or f"{kind}://{found['where'] if found else '…'}")


def store_url(url: str) -> str:
    """The URL itself; raises ValueError like `parts`."""
    parts(url)
    return url


def default_url(data: Path) -> str:
    """Where a data folder's sessions are: in files if it has any, else in one database."""
    has_files = next((data / FOLDER).glob("*.jsonl"), None) is not None
    return "jsonl:" if has_files and not (data / FILE).exists() else "sqlite:"
