"""Socket Mode: what Slack tells comes in envelopes, each acknowledged once it is durable."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from nanoloop.channels.platform.errors import Refused
from nanoloop.errors import SendLater
from nanoloop.lanes import Lanes

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
