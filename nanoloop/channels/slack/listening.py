"""Events from Slack over its socket, and what was missed."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import aiohttp
import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.kit.backlog import Gaps, SeenMessages
from nanoloop.channels.kit.platform import Hear, Place, Refused
from nanoloop.channels.slack.hearing import SlackHearing
from nanoloop.channels.slack.web import Web
from nanoloop.errors import Declined, SendLater
from nanoloop.lanes import Lanes

PING_SECONDS = 20.0


class SlackListener:
    """Hears everything from one start of the connection to its end."""

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
        """`app` is the Web API with the app's own token."""
        self._session = session
        self._app = app
        self._hearing = hearing
        self._hear = hear
        self._gaps = Gaps(seen, since=partial(since, web), take=self._take)
        self._envelopes = Envelopes(self._take)

    async def run(self, connected: Callable[[], None]) -> None:
        """Hand over what is said until the connection is lost: a `SendLater`, or `Refused`."""
        async with self._envelopes.lanes, anyio.create_task_group() as group:
            # Caught within the group, which would wrap it.
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
        """Until Slack wants a new connection to be made: it delivers there what is open."""
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
    """A new connection of the same stay has nothing to catch up with."""


WAITING = 200
"""Events of one chat that may wait; then the socket waits."""
_SWITCHED_OFF = (
    "Socket Mode is switched off for this Slack app: switch it on under Socket Mode at "
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
    """Opens them, in order in each chat."""

    def __init__(self, take: Take) -> None:
        """`take` returns once an event is durable, and does not raise."""
        self._take = take
        self.lanes: Lanes[str, _Envelope | Callable[[], Awaitable[None]]] = Lanes(
            self._handle, limit=WAITING, name="slack"
        )
        """One for each chat; what else has to be done in a chat's order can be put there."""

    async def receive(
        self,
        socket: aiohttp.ClientWebSocketResponse,
        greeted: Callable[[], Awaitable[None]],
    ) -> None:
        """Take what comes until Slack wants another connection to be made.

        Raises `SendLater` where the connection is lost, and `Refused`.
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
    """Whether another connection is worth a try at once; raises where it is not."""
    if reason == "link_disabled":
        raise Refused(_SWITCHED_OFF)
    if not is_greeted or reason == "too_many_websockets":
        raise SendLater(f"Slack closes the connection ({reason})")


async def _acknowledge(envelope: _Envelope) -> None:
    try:
        await envelope.socket.send_json({"envelope_id": envelope.id})
    except (aiohttp.ClientError, OSError, RuntimeError):
        return  # it comes again, and is known then


_PAGE = 200
_PAGES = 10


async def since(web: Web, place: Place, message: str) -> list[Mapping[str, Any]]:
    """The messages as events, oldest first; raises as `Web.call` does."""
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
    # A thread's first message comes with each page of its answers.
    return [found[ts] for ts in sorted(found) if ts > message]
