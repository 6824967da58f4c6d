"""Where a PostgreSQL is, in words that may be shown. Pure."""

from __future__ import annotations

import re

from nanoloop.errors import SettingsError

# Strict: of a URL whose password has a # or ? unescaped, a part would pass for its host.
_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://(?:(?P<user>[^:@/?#]*)(?::[^@/?#]*)?@)?"
    r"(?P<where>[^@/?#]*(?:/[^@?#]*)?)(?:\?[^@]*)?"
)
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")


def shown(url: str) -> str:
    """The URL without its password and its options; of one that is odd, nothing."""
    found = _URL.fullmatch(url)
    if found is None:
        return "PostgreSQL"
    scheme, user, where = found.group("scheme", "user", "where")
    return f"{scheme}://{user}@{where}" if user else f"{scheme}://{where}"


def schema_name(name: str) -> str:
    """The same name; raises `SettingsError` where it could mean anything else in a statement."""
    if not _SCHEMA.fullmatch(name):
        raise SettingsError(
            f"schema is {name!r}: use lower-case letters, digits and _, not a digit first, "
            "at most 63 characters"
        )
    return name
