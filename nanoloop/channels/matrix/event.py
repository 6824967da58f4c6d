"""An event of a room, read with care: anyone may have written anything in it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

Event = Mapping[str, Any]

MESSAGE, STICKER = "m.room.message", "m.sticker"
MEMBER, REDACTION = "m.room.member", "m.room.redaction"
ENCRYPTED, TOMBSTONE = "m.room.encrypted", "m.room.tombstone"

_FALLBACK = re.compile(r"> <.*\n(?:>.*\n)*\n?")
"""What older clients put before a reply: the words that it answers."""


def table(of: Any, *keys: str) -> Mapping[str, Any]:
    """What stands there, if it is an object; else an empty one."""
    for key in keys:
        of = of.get(key) if isinstance(of, Mapping) else None
    return of if isinstance(of, Mapping) else {}


def words(of: Any, *keys: str) -> str:
    """What stands there, if it is a text; else an empty one."""
    *path, last = keys
    found = table(of, *path).get(last)
    return found if isinstance(found, str) else ""


def content(event: Event) -> Mapping[str, Any]:
    """What an event says."""
    return table(event, "content")


def moment(event: Event) -> datetime:
    """When its homeserver says it was; now, where that can't be."""
    try:
        return datetime.fromtimestamp(event["origin_server_ts"] / 1000, timezone.utc)
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return datetime.now(timezone.utc)


def thread(said: Mapping[str, Any]) -> str:
    """The message that begins the thread it was said in; empty outside threads."""
    relation = table(said, "m.relates_to")
    return words(relation, "event_id") if relation.get("rel_type") == "m.thread" else ""


def answered(said: Mapping[str, Any]) -> str:
    """The message that it answers; what threads name for clients that know none is not meant."""
    relation = table(said, "m.relates_to")
    if thread(said) and relation.get("is_falling_back"):
        return ""
    return words(relation, "m.in_reply_to", "event_id")


def edited(said: Mapping[str, Any]) -> str:
    """The message that is edited by it; empty where it is none."""
    relation = table(said, "m.relates_to")
    return words(relation, "event_id") if relation.get("rel_type") == "m.replace" else ""


def redacted(event: Event) -> str:
    """The message that it takes back."""
    return words(event, "redacts") or words(content(event), "redacts")


def text(said: Mapping[str, Any], name: str = "") -> str:
    """What a message says in words; `name` is who said it."""
    body = words(said, "body")
    if words(table(said, "m.relates_to"), "m.in_reply_to", "event_id"):
        body = _FALLBACK.sub("", body, count=1) if body.startswith("> <") else body
    match words(said, "msgtype"):
        case "m.emote":
            return f"* {name} {body}"
        case "m.location":
            return f"{body} {words(said, 'geo_uri')}".strip()
        case "m.image" | "m.file" | "m.audio" | "m.video":
            # Without a name of its own, the name of the file is all that it says.
            return "" if words(said, "filename") in ("", body) else body
        case _:
            return body
