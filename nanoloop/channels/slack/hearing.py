"""Reads incoming messages from Slack: text, files and names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from io import BytesIO
from typing import Any, Literal

import aiohttp
from yarl import URL

from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.markdown import Markup, render
from nanoloop.channels.kit.platform import File, Heard, Place, Upload
from nanoloop.channels.slack.web import Web
from nanoloop.errors import Declined, NanoloopError, SendLater
from nanoloop.messages import Quote, Speaker

_SPOKEN = {None, "bot_message", "file_share", "me_message", "thread_broadcast"}
"""Subtypes of messages that people write."""
Event = Mapping[str, Any]


class SlackHearing:
    """Interprets events for one bot."""

    def __init__(self, me: str, *, people: People, files: SlackFiles) -> None:
        """Create the object; `me` is the bot's own id."""
        self._me = me
        self._people = people
        self._files = files

    async def heard(self, event: Event) -> Heard | None:
        """Convert an event to the kit's format; return None if it is not about a message."""
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
        if now.get("subtype") == "tombstone":  # a deleted message whose thread continues
            return self._taken_back(event, {**before, "ts": now.get("ts")})
        # Slack also reports link previews and replies in a thread as changes.
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
        # People type a space before a command so that Slack does not take it for its own.
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
            quotes=tuple(self._shared(message)),
            files=self._attached(message),
            is_bot=self._is_bots(message),
            time=_time(ts),
        )

    def _shared(self, message: Event) -> Iterator[Quote]:
        """Yield the forwarded messages; an author without an id can't be identified."""
        for attachment in message.get("attachments") or ():
            if attachment.get("is_share") and attachment.get("text"):
                who = str(attachment.get("author_id") or "")
                name = str(attachment.get("author_name") or "")
                by = Speaker(id=who, name=name, is_me=who == self._me) if who or name else None
                yield Quote(kind="forward", text=read(str(attachment["text"]), {}), speaker=by)

    def _is_bots(self, message: Event) -> bool:
        return bool(message.get("bot_id")) or message.get("user") == self._me

    def _attached(self, message: Event) -> tuple[File, ...]:
        return tuple(self._files.file(file) for file in message.get("files") or ())


def _amendment(heard: Heard, **changes: Any) -> Heard:
    return replace(heard, files=(), **changes)


def _time(ts: str) -> datetime:
    try:
        return datetime.fromtimestamp(float(ts), timezone.utc)
    except (ValueError, OverflowError):
        return datetime.now(timezone.utc)


KNOWN = 5000


class People:
    """Looks up people's names by id; an unknown person is called by the id."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self._names: BoundedDict[str, str] = BoundedDict(KNOWN)

    async def name(self, person: str) -> str:
        """Return this person's display name."""
        if person not in self._names:
            try:
                answer = await self._web.call("users.info", user=person)
            except NanoloopError:
                return person  # retried the next time
            self._names[person] = _name(answer.get("user") or {}) or person
        return self._names[person]

    async def names(self, people: Iterable[str]) -> Mapping[str, str]:
        """Return a mapping of these ids to names."""
        return {person: await self.name(person) for person in people}


def _name(user: Mapping[str, Any]) -> str:
    profile = user.get("profile") or {}
    return str(
        profile.get("display_name") or profile.get("real_name") or user.get("name") or ""
    ).strip()


LIMIT_BYTES = 20_000_000
UPLOAD_SECONDS = 100.0
_OWN = (".slack.com", ".slack-edge.com", ".slack-files.com")
_OK = 200
_REFUSALS = {400, 401, 403, 404, 413, 415, 422}
Kind = Literal["image", "audio", "video", "file"]
_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


class SlackFiles:
    """Downloads and posts files for one bot."""

    def __init__(
        self, session: aiohttp.ClientSession, web: Web, *, token: str, address: str
    ) -> None:
        self._session = session
        self._web = web
        self._token = token
        self._host = URL(address).host or ""

    def file(self, said: Mapping[str, Any]) -> File:
        """Describe the file in an event."""
        address = str(said.get("url_private_download") or said.get("url_private") or "")
        kind = _KINDS.get(str(said.get("mimetype") or "").partition("/")[0], "file")
        size = said.get("size")
        return File(
            kind="audio" if said.get("subtype") == "slack_audio" else kind,
            fetch=partial(self._fetch, address),
            name=str(said.get("name") or said.get("title") or ""),
            mime_type=str(said.get("mimetype") or ""),
            size=size if isinstance(size, int) else None,
        )

    async def post(self, place: Place, files: Sequence[Upload]) -> str:
        """Post files to a chat in one message; returns the first one's id."""
        put = []
        for file in files:
            begun = await self._web.call(
                "files.getUploadURLExternal", filename=file.name, length=len(file.data)
            )
            await self._put(str(begun["upload_url"]), file.data)
            put.append({"id": begun["file_id"], "title": file.name})
        await self._web.call(
            "files.completeUploadExternal",
            files=put,
            channel_id=place.chat,
            thread_ts=place.thread or None,
        )
        return str(put[0]["id"])

    async def _put(self, address: str, data: bytes) -> None:
        try:
            limit = aiohttp.ClientTimeout(total=UPLOAD_SECONDS)
            async with self._session.post(address, data=BytesIO(data), timeout=limit) as answer:
                if answer.status in _REFUSALS:
                    raise Declined(f"the file was refused ({answer.status})")
                if answer.status != _OK:
                    raise SendLater(f"Slack did not accept the file ({answer.status})")
        except (aiohttp.ClientError, OSError) as error:
            raise SendLater(f"the network failed ({type(error).__name__})") from None

    async def _fetch(self, address: str) -> bytes:
        host = URL(address).host or ""
        # Never send the token to another host, whatever address a message gives.
        if host != self._host and not host.endswith(_OWN):
            raise Declined("the file is hosted elsewhere")
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._session.get(address, headers=headers) as answer:
            if answer.status != _OK or _is_login(answer, address):
                raise Declined(f"the file can't be downloaded ({answer.status})")
            return await _bounded(answer)


def _is_login(answer: aiohttp.ClientResponse, address: str) -> bool:
    """Return whether Slack sent a login page, which means that the scope files:read is missing."""
    return answer.content_type == "text/html" and answer.url.path != URL(address).path


async def _bounded(answer: aiohttp.ClientResponse) -> bytes:
    data = b""
    async for piece in answer.content.iter_chunked(1 << 16):
        data += piece
        if len(data) > LIMIT_BYTES:
            break  # the kit rejects it as too large
    return data


_MARK = re.compile(r"<([^<>]+)>")
_PERSON = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_OPENABLE = ("http://", "https://", "mailto:")
_NARROW = "\u200b"
"""A zero-width space, which keeps two marks apart."""
_TICK = "\u02cb"
"""A character that looks like a backtick; real backticks are not allowed within code."""


def named(text: str) -> frozenset[str]:
    """Return the ids of the people mentioned in this text."""
    return frozenset(_PERSON.findall(text))


def read(text: str, names: Mapping[str, str]) -> str:
    """Return the text as people see it; an id that is not in `names` stays as `<@ID>`."""
    return _plain(_MARK.sub(lambda match: _seen(match[1], names), text))


def written(markdown: str) -> str:
    """Convert Markdown to Slack's format; the result can't mention anyone or hide a link."""
    return render(markdown, _FORM)


def escaped(text: str) -> str:
    """Escape text so that Slack can't interpret any of it as a mention."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _seen(mark: str, names: Mapping[str, str]) -> str:
    target, _, label = mark.partition("|")
    match target[0]:
        case "@":
            name = names.get(target[1:])
            return f"@{name}" if name else f"&lt;{target}&gt;"
        case "#":
            return f"#{label or target[1:]}"
        case "!":
            return label or f"@{target[1:].partition('^')[0]}"
    address = target.removeprefix("mailto:")
    return address if not label or label in address else f"[{label}]({target})"


def _plain(text: str) -> str:
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")


def _around(mark: str, text: str) -> str:
    """Put marks directly around the words of this text, unless it contains these marks."""
    bare = text.strip()
    if not bare or mark in bare:
        return text
    return text.replace(bare, f"{mark}{bare}{mark}", 1)


def _code(code: str) -> str:
    return f"`{escaped(code).replace('`', _TICK)}`"


def _block(code: str, _: str) -> str:
    whole = escaped(code).replace("```", _NARROW.join("```"))
    return f"```\n{whole}\n```"


def _link(text: str, address: str) -> str:
    if not address.startswith(_OPENABLE):
        return f"{text} ({escaped(address)})"
    target = escaped(address).replace("|", "%7C")
    label = text.replace("|", "¦").replace("\n", " ")
    return f"<{target}>" if label == target else f"<{target}|{label}>"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


_FORM = Markup(
    escape=escaped,
    bold=lambda text: _around("*", text),
    italic=lambda text: _around("_", text),
    strike=lambda text: _around("~", text),
    code=_code,
    block=_block,
    link=_link,
    quote=_quote,
)
