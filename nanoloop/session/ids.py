"""Names of sessions: which are safe, and how new ones are made."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Container
from datetime import datetime
from uuid import uuid4

from nanoloop.errors import InvalidSessionId

ID_LIMIT = 200
"""Characters a session id may have."""

_SAFE = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.:@-]{{0,{ID_LIMIT - 1}}}")
_UNSAFE_CHARACTER = re.compile(r"[^A-Za-z0-9_.:@-]")


def new_id() -> str:
    """A fresh id: 32 lowercase hex digits."""
    return uuid4().hex


def checked_id(session_id: object) -> str:
    """The same id; raises `InvalidSessionId` where it could not name a session safely."""
    if not isinstance(session_id, str) or not _SAFE.fullmatch(session_id):
        raise InvalidSessionId(session_id)
    return session_id


def timestamp_id(
    moment: datetime | None = None, *, taken: Container[str] | Callable[[str], bool] = ()
) -> str:
    """`session-YYYYMMDD-HHMMSS`, with -01, -02 … where that one is taken."""
    is_taken = taken if callable(taken) else taken.__contains__
    base = (moment or datetime.now().astimezone()).strftime("session-%Y%m%d-%H%M%S")
    if not is_taken(base):
        return base
    number = 1
    while is_taken(f"{base}-{number:02d}"):
        number += 1
    return f"{base}-{number:02d}"


def id_for_key(key: str) -> str:
    """The id of a routing key's first session: the key itself where it is safe.

    Any other key keeps what is readable of it, and a digest tells it from its likes.
    """
    if _SAFE.fullmatch(key) and len(key) <= ID_LIMIT - 20:  # room for the stamp of a later one
        return key
    readable = _UNSAFE_CHARACTER.sub("-", key)[:100].lstrip("_.:@-") or "chat"
    return f"{readable}@{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:20]}"
