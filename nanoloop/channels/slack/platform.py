"""The Slack platform: receives events over a socket and fetches missed messages."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import anyio
from anyio.abc import TaskGroup

from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.backlog import Gaps, SeenMessages
from nanoloop.channels.kit.platform import Hear, Limits, MessageGone, Place, Refused, Text, Upload
from nanoloop.channels.slack.hearing import (
    LIMIT_BYTES,
    People,
    SlackFiles,
    SlackHearing,
    escaped,
    written,
)
from nanoloop.channels.slack.web import ADDRESS, APP_TOKEN, BOT_TOKEN, Web, missing
from nanoloop.errors import Declined, SendLater
from nanoloop.lanes import Lanes
from nanoloop.plugins import Connected

LIMITS = Limits(text=4000, edit_seconds=1.2, file_bytes=LIMIT_BYTES, album=10)
"""The longest text that Slack accepts in an edit, and an edit rate that it always accepts."""
_SECONDS = 30.0
T = TypeVar("T")


class SlackPlatform:
    """One bot in one workspace."""

    name = "slack"

    def __init__(
        self, token: str, app_token: str, *, folder: Path | None = None, address: str = ADDRESS
    ) -> None:
        """Create the bot; given the data folder, it reads messages missed during a restart."""
        self.limits = LIMITS
        self._token = token
        self._app_token = app_token
        self._address = address
        self._seen = SeenMessages(folder and folder / "channels" / "slack.seen.sqlite")
        self._posted = PostedMessages()
        self._used: tuple[aiohttp.ClientSession, Web] | None = None

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on messages until the connection is lost."""
        session, web = self._open()
        is_lost = False
        try:
            me = await admitted(web)
            hearing = SlackHearing(me, people=People(web), files=self._files(session, web))
            await SlackListener(
                session,
                web=web,
                app=Web(session, token=self._app_token, setting=APP_TOKEN, address=self._address),
                hearing=hearing,
                hear=hear,
                seen=self._seen,
            ).run(self._begun(connected))
        except Declined as refusal:
            raise SendLater(f"Slack says {refusal}") from None
        except SendLater:
            # Don't cut off an answer that is being posted over another connection.
            is_lost = True
            raise
        finally:
            if not is_lost:
                await self._close()

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - the seam's name; Slack knows answers in threads only
        """Post a message, unless it has been posted already."""
        _, web = self._connected()
        if (known := await self._told(place, self._posted.find(web, place, id))) is not None:
            return known
        answer = await self._told(
            place,
            web.call(
                "chat.postMessage",
                channel=place.chat,
                thread_ts=place.thread or None,
                text=_text(text),
                mrkdwn=text.formatted is not None,
                metadata=metadata(id),
                unfurl_links=False,
                unfurl_media=False,
            ),
        )
        return str(answer["ts"])

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit one of the bot's messages."""
        _, web = self._connected()
        await self._told(
            None, web.call("chat.update", channel=place.chat, ts=message, text=_text(text))
        )

    async def remove(self, place: Place, message: str) -> None:
        """Delete one of the bot's messages; a message that can no longer be deleted remains."""
        _, web = self._connected()
        try:
            await self._told(None, web.call("chat.delete", channel=place.chat, ts=message))
        except (MessageGone, Declined):
            return

    async def typing(self, place: Place) -> None:
        """Do nothing: Slack has no typing indicator for bots."""

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file and return the file's id."""
        return await self.album(place, [file], reply_to=reply_to, id=id)

    async def album(
        self,
        place: Place,
        files: Sequence[Upload],
        *,
        reply_to: str | None,  # noqa: ARG002 - as above
        id: str,  # noqa: A002, ARG002 - as above
    ) -> str:
        """Post files in one message; the id is the first one's."""
        # Sent without the text, because a text can be found again if the connection breaks, but a
        # file can't.
        try:
            return await self._files(*self._connected()).post(place, files)
        except Refused:  # the scope for files is missing, but texts can still be sent
            raise Declined("the token may not send files") from None

    def rendered(self, markdown: str) -> str:
        """Convert Markdown to Slack's format."""
        return written(markdown)

    async def _told(self, place: Place | None, call: Awaitable[T]) -> T:
        """Await a call; if it fails but may have taken effect, mark the place as doubtful."""
        try:
            return await call
        except Refused:
            raise SendLater("the token was refused") from None
        except SendLater as later:
            if place is not None and later.reason != "rate limit":
                self._posted.doubt(place)
            raise

    def _connected(self) -> tuple[aiohttp.ClientSession, Web]:
        if self._used is None:
            raise SendLater("not connected")
        return self._used

    def _files(self, session: aiohttp.ClientSession, web: Web) -> SlackFiles:
        return SlackFiles(session, web, token=self._token, address=self._address)

    def _begun(self, connected: Callable[[], None]) -> Callable[[], None]:
        def begun() -> None:
            self._posted.begin()
            connected()

        return begun

    def _open(self) -> tuple[aiohttp.ClientSession, Web]:
        if self._used is None:
            session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=_SECONDS), trust_env=True
            )
            web = Web(session, token=self._token, setting=BOT_TOKEN, address=self._address)
            self._used = session, web
        return self._used

    async def _close(self) -> None:
        self._seen.close()
        if self._used is not None:
            session, _ = self._used
            self._used = None
            with anyio.CancelScope(shield=True):
                await session.close()


def _text(text: Text) -> str:
    return escaped(text.plain) if text.formatted is None else text.formatted


KIND = "nanoloop_message"
"""The type of metadata on the bot's messages."""
START_SECONDS = 600.0
"""How long after the start a chat may contain messages that an earlier run posted."""
REMEMBERED = 10_000
_LOOK_BACK = 100
_THREAD_SECONDS = 86_400.0


class PostedMessages:
    """Finds messages that may have been posted even though no response arrived."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._sure: BoundedDict[Place, None] = BoundedDict(REMEMBERED)
        self._doubtful: set[Place] = set()
        self._found: BoundedDict[str, str] = BoundedDict(REMEMBERED)

    def begin(self) -> None:
        """Record that messages can be posted from now on."""
        if self._began is None:
            self._began = self._clock()

    def doubt(self, place: Place) -> None:
        """Record that this place may contain a message whose id is unknown."""
        self._doubtful.add(place)

    async def find(self, web: Web, place: Place, name: str) -> str | None:
        """Return the id of the message posted under this name, if it may have been posted."""
        if self._is_in_doubt(place):
            # Discarded first, so that a failure during the search marks the place again.
            self._doubtful.discard(place)
            try:
                await self._look(web, place)
            except (Declined, Refused):
                pass  # the bot can't read this chat's history
            except BaseException:
                self._doubtful.add(place)
                raise
            self._sure[place] = None
        return self._found.get(name)

    def _is_in_doubt(self, place: Place) -> bool:
        is_early = self._began is not None and self._clock() - self._began < START_SECONDS
        return place in self._doubtful or (is_early and place not in self._sure)

    async def _look(self, web: Web, place: Place) -> None:
        method = "conversations.replies" if place.thread else "conversations.history"
        answer = await web.call(
            method,
            channel=place.chat,
            ts=place.thread or None,
            # Threads are listed oldest first, channels newest first.
            oldest=f"{time.time() - _THREAD_SECONDS:.6f}" if place.thread else None,
            limit=_LOOK_BACK,
            include_all_metadata=True,
        )
        for message in answer.get("messages") or ():
            name = _name(message)
            if name is not None:
                self._found[name] = str(message.get("ts"))


def metadata(name: str) -> dict[str, Any]:
    """Return the metadata by which a message can be found."""
    return {"event_type": KIND, "event_payload": {"name": name}}


def _name(message: dict[str, Any]) -> str | None:
    marked = message.get("metadata") or {}
    if marked.get("event_type") != KIND:
        return None
    name = (marked.get("event_payload") or {}).get("name")
    return name if isinstance(name, str) else None


NEEDED = ("chat:write", "im:history", "users:read")
"""Scopes that every bot needs; other missing scopes are reported when they are needed."""


async def admitted(web: Web) -> str:
    """Return the bot's own id; raises `Refused` with advice if Slack rejects the token."""
    answer, headers = await web.answer("auth.test")
    granted = headers.get("x-oauth-scopes")
    if granted is not None:
        has = {scope.strip() for scope in granted.split(",")}
        if lacking := [scope for scope in NEEDED if scope not in has]:
            raise Refused(missing(BOT_TOKEN, ", ".join(lacking)))
    return str(answer["user_id"])


async def connect(token: str, app_token: str, *, address: str = ADDRESS) -> Connected:
    """Return the account that the tokens belong to.

    Raise `Refused` if a token can't be used, or `SendLater` if Slack can't be reached.
    """
    async with aiohttp.ClientSession() as session:
        bot = Web(session, token=token, setting=BOT_TOKEN, address=address)
        app = Web(session, token=app_token, setting=APP_TOKEN, address=address)
        await admitted(bot)
        about = await bot.call("auth.test")
        await app.call("apps.connections.open")
    bot_name, team = about.get("user", "the bot"), about.get("team", "the workspace")
    says = f"The tokens belong to @{bot_name} in {team}: write to it under Apps, or /invite it"
    return Connected(settings={"token": token, "app_token": app_token}, says=[says])


PING_SECONDS = 20.0


class SlackListener:
    """Receives all events over one connection, and reconnects when Slack asks for it."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        web: Web,
        app: Web,
        hearing: SlackHearing,
        hear: Hear,
        seen: SeenMessages,
    ) -> None:
        """Create the object; `app` is the Web API with the app's own token."""
        self._session = session
        self._app = app
        self._hearing = hearing
        self._hear = hear
        self._gaps = Gaps(seen, since=partial(since, web), take=self._take)
        self._envelopes = Envelopes(self._take)

    async def run(self, connected: Callable[[], None]) -> None:
        """Pass on messages until the connection is lost; raises `SendLater` or `Refused`."""
        async with self._envelopes.lanes, anyio.create_task_group() as group:
            # Caught inside the task group, which would wrap the error.
            failure = await self._failure(connected, group)
            group.cancel_scope.cancel()
        raise failure

    async def _failure(self, connected: Callable[[], None], group: TaskGroup) -> Exception:
        try:
            await self._receive(partial(self._catch_up, connected, group))
            while True:
                await self._receive(_nothing)
        except (SendLater, Refused) as known:
            return known
        except Declined as refusal:
            return SendLater(f"Slack says {refusal}")
        except (aiohttp.ClientError, OSError) as error:
            return SendLater(f"the network failed ({type(error).__name__})")

    async def _receive(self, greeted: Callable[[], Awaitable[None]]) -> None:
        """Receive until Slack asks for a new connection, which redelivers unacknowledged events."""
        answer = await self._app.call("apps.connections.open")
        async with self._session.ws_connect(str(answer["url"]), heartbeat=PING_SECONDS) as socket:
            await self._envelopes.receive(socket, greeted)

    async def _catch_up(self, connected: Callable[[], None], group: TaskGroup) -> None:
        await self._gaps.close(self._envelopes.lanes.put, group)
        connected()

    async def _take(self, event: Event) -> None:
        with self._gaps.taking():
            heard = await self._hearing.heard(event)
            if heard is None:
                return
            await self._hear(heard)
        if not (heard.edits or heard.deletes):
            self._gaps.note(Place(heard.chat, heard.thread), heard.id)


async def _nothing() -> None:
    """Do nothing: within the same session, a new connection misses no messages."""


WAITING = 200
"""How many events from one chat may be queued before the socket has to wait."""
_SWITCHED_OFF = (
    "Socket Mode is turned off for this Slack app: turn it on under Socket Mode at "
    "api.slack.com/apps"
)

Event = Mapping[str, Any]
Take = Callable[[Event], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Envelope:
    id: str
    event: Event
    socket: aiohttp.ClientWebSocketResponse


class Envelopes:
    """Passes on events, in order within each chat."""

    def __init__(self, take: Take) -> None:
        """Create the object; `take` returns once an event has been stored, and never raises."""
        self._take = take
        self.lanes: Lanes[str, _Envelope | Callable[[], Awaitable[None]]] = Lanes(
            self._handle, limit=WAITING, name="slack"
        )
        """One queue per chat; other jobs that must run in order with the events can be added."""

    async def receive(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        greeted: Callable[[], Awaitable[None]],
    ) -> None:
        """Receive until Slack asks for another connection.

        Raises `SendLater` if the connection is lost, and `Refused` if the bot may not connect.
        """
        is_greeted = False
        async for frame in socket:
            said = json.loads(frame.data) if frame.type is aiohttp.WSMsgType.TEXT else {}
            match said.get("type"):
                case "hello":
                    await greeted()
                    is_greeted = True
                case "disconnect":
                    _leave(str(said.get("reason")), is_greeted=is_greeted)
                    return
                case _:
                    await self._open(socket, said)
        raise SendLater("the connection was closed")

    async def _open(self, socket: aiohttp.ClientWebSocketResponse, said: Mapping[str, Any]) -> None:
        if not (name := said.get("envelope_id")):
            return
        event = (said.get("payload") or {}).get("event") or {}
        await self.lanes.put(str(event.get("channel")), _Envelope(str(name), event, socket))

    async def _handle(self, _: str, item: _Envelope | Callable[[], Awaitable[None]]) -> None:
        if not isinstance(item, _Envelope):
            await item()
            return
        await self._take(item.event)
        await _acknowledge(item)


def _leave(reason: str, *, is_greeted: bool) -> None:
    """Do nothing if the bot may reconnect at once; otherwise raise `Refused` or `SendLater`."""
    if reason == "link_disabled":
        raise Refused(_SWITCHED_OFF)
    if not is_greeted or reason == "too_many_websockets":
        raise SendLater(f"Slack closed the connection ({reason})")


async def _acknowledge(envelope: _Envelope) -> None:
    try:
        await envelope.socket.send_json({"envelope_id": envelope.id})
    except (aiohttp.ClientError, OSError, RuntimeError):
        return  # Slack delivers it again, and it is then recognised


_PAGE = 200
_PAGES = 10


async def since(web: Web, place: Place, message: str) -> list[Mapping[str, Any]]:
    """Fetch messages after this one as events, oldest first; raises the errors of `Web.call`."""
    found: dict[str, Mapping[str, Any]] = {}
    cursor: str | None = None
    for _ in range(_PAGES):
        answer = await web.call(
            "conversations.replies" if place.thread else "conversations.history",
            channel=place.chat,
            ts=place.thread or None,
            oldest=message,
            limit=_PAGE,
            cursor=cursor,
        )
        for said in answer.get("messages") or ():
            found[str(said.get("ts"))] = {"type": "message", **said, "channel": place.chat}
        cursor = (answer.get("response_metadata") or {}).get("next_cursor") or None
        if cursor is None:
            break
    # Each page of a thread also contains its first message.
    return [found[ts] for ts in sorted(found) if ts > message]
