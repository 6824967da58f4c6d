"""What an event of Slack says: a message, an edit, a deletion, or nothing for a bot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

from nanoloop.channels.platform.platform import File, Heard
from nanoloop.channels.slack.files import Files
from nanoloop.channels.slack.mrkdwn import named, read
from nanoloop.channels.slack.people import People

_SPOKEN = {None, "bot_message", "file_share", "me_message", "thread_broadcast"}
"""Kinds of messages in which someone says something."""
Event = Mapping[str, Any]


class Hearing:
    """Understands events for one bot."""

    def __init__(self, me: str, *, people: People, files: Files) -> None:
        """`me` is the bot's own id."""
        self._me = me
        self._people = people
        self._files = files

    async def heard(self, event: Event) -> Heard | None:
        """What the kit is to hear of it, if anything."""
        if event.get("type") not in ("message", "app_mention") or not event.get("channel"):
            return None
        match event.get("subtype"):
            case "message_changed":
                return await self._changed(event)
            case "message_deleted":
                before = {"ts": event.get("deleted_ts"), **(event.get("previous_message") or {})}
                return self._taken_back(event, before)
            case kind if kind in _SPOKEN:
                return await self._said(event, event)
        return None

    async def _changed(self, event: Event) -> Heard | None:
        now, before = event.get("message") or {}, event.get("previous_message") or {}
        if now.get("subtype") == "tombstone":  # its thread goes on
            return self._taken_back(event, {**before, "ts": now.get("ts")})
        # Slack tells of links that got their picture, and of answers in a thread, as well.
        if now.get("subtype") not in _SPOKEN or now.get("text") == before.get("text"):
            return None
        heard = await self._said(event, now)
        if heard is None:
            return None
        since = (now.get("edited") or {}).get("ts") or event.get("event_ts") or event.get("ts")
        return _amendment(heard, id=f"{heard.id}.{since}", edits=heard.id)

    def _taken_back(self, event: Event, before: Event) -> Heard | None:
        ts = before.get("ts")
        if not ts:
            return None
        heard = self._heard(event, before, text="", name="")
        return _amendment(heard, id=f"{ts}.deleted", deletes=str(ts))

    async def _said(self, event: Event, message: Event) -> Heard | None:
        if not message.get("ts"):
            return None
        raw = str(message.get("text") or "")
        if self._is_bots(message):
            return self._heard(event, message, text=raw, name="")
        names = await self._people.names(named(raw) - {self._me})
        name = await self._people.name(str(message.get("user")))
        # A space before a command keeps Slack from taking it for one of its own.
        return self._heard(event, message, text=read(raw, names).strip(), name=name)

    def _heard(self, event: Event, message: Event, *, text: str, name: str) -> Heard:
        chat, ts = str(event["channel"]), str(message["ts"])
        raw = str(message.get("text") or "")
        is_named = self._me in named(raw)
        thread = str(message.get("thread_ts") or "")
        return Heard(
            chat=chat,
            id=ts,
            sender=str(message.get("user") or message.get("bot_id") or ""),
            name=name,
            text=text,
            private=event.get("channel_type") == "im" or chat.startswith("D"),
            addressed=is_named or message.get("parent_user_id") == self._me,
            mention=f"<@{self._me}>" if is_named else "",
            thread="" if thread == ts else thread,
            quote="\n\n".join(_shared(message)),
            files=self._attached(message),
            is_bot=self._is_bots(message),
            time=_time(ts),
        )

    def _is_bots(self, message: Event) -> bool:
        return bool(message.get("bot_id")) or message.get("user") == self._me

    def _attached(self, message: Event) -> tuple[File, ...]:
        return tuple(self._files.file(file) for file in message.get("files") or ())


def _shared(message: Event) -> Iterator[str]:
    """The words of messages that this one passes on."""
    for attachment in message.get("attachments") or ():
        if attachment.get("is_share") and attachment.get("text"):
            yield read(str(attachment["text"]), {})


def _amendment(heard: Heard, **changes: Any) -> Heard:
    return replace(heard, files=(), **changes)


def _time(ts: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(ts), timezone.utc)
    except (ValueError, OverflowError):
        return datetime.now(timezone.utc)
