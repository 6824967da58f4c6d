"""Where a PostgreSQL is, in words that may be shown. Pure."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from nanoloop.errors import SettingsError

_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def shown(url: str) -> str:
    """The URL without its password and its options."""
    parts = urlsplit(url)
    user, at, where = parts.netloc.rpartition("@")
    return f"{parts.scheme}://{user.partition(':')[0]}{at}{where}{parts.path}"


def schema_name(name: str) -> str:
    """The same name; raises `SettingsError` where it could mean anything else in a statement."""
    if not _SCHEMA.fullmatch(name):
        raise SettingsError(
            f"schema is {name!r}: use lower-case letters, digits and _, not a digit first, "
            "at most 63 characters"
        )
    return name
