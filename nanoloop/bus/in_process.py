"""The bus inside one process: bounded both ways, one slow chat holds up no other."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Self

import anyio

from nanoloop.errors import BusFull, LaneFull
from nanoloop.events import Announce, SendFailed, TextStreamed, silent
from nanoloop.lanes import Lanes
from nanoloop.messages import Delivery, Inbound, Outbound
from nanoloop.protocols import Channel

BUSY = "I have too much to do right now and did not take your message. Please send it again soon."


class InProcessBus:
    """Channels on one side, one consumer on the other."""

    def __init__(
        self,
        *,
        inbound_limit: int = 1000,
        outbound_limit: int = 100,
        send_timeout_seconds: float = 120,
        announce: Announce = silent,
    ) -> None:
        self._inbound_limit = inbound_limit
        self._outbound_limit = outbound_limit
        self._send_timeout_seconds = send_timeout_seconds
        self._announce = announce
        self._unacknowledged: dict[int, Inbound] = {}
        self._untaken: deque[int] = deque()
        self._count = 0
        self._is_closed = False
        self._arrived = anyio.Event()
        self._room = anyio.Event()
        self._channels: dict[str, Channel] = {}
        self._chats: Lanes[tuple[str, str], Outbound | TextStreamed] = Lanes(
            self._send, limit=outbound_limit, name="chat"
        )

    async def __aenter__(self) -> Self:
        await self._chats.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._chats.__aexit__(*exc)

    # In

    def put_nowait(self, message: Inbound) -> None:
        """Take a message in; where there is no room its chat is told, and `BusFull` raised."""
        if self._is_closed or len(self._unacknowledged) >= self._inbound_limit:
            self._refuse(message)
            raise BusFull(self._inbound_limit)
        self._count += 1
        self._unacknowledged[self._count] = message
        self._untaken.append(self._count)
        self._arrived.set()

    def _refuse(self, message: Inbound) -> None:
        busy = Outbound(
            channel=message.channel,
            chat=message.chat,
            text=BUSY,
            kind="notice",
            reply_to=message.message_id,
        )
        try:
            self._chats.put_nowait((message.channel, message.chat), busy)
        except (LaneFull, RuntimeError) as why:  # or nothing is carried any more
            error = type(why).__name__
            self._announce(SendFailed(channel=busy.channel, chat=busy.chat, error=error))

    async def put(self, message: Inbound) -> None:
        """Take a message in as soon as there is room."""
        while not self._is_closed and len(self._unacknowledged) >= self._inbound_limit:
            if self._room.is_set():  # one for all who wait, or all but the last were forgotten
                self._room = anyio.Event()
            await self._room.wait()
        self.put_nowait(message)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Messages to answer; a new consumer is given what the last one did not acknowledge."""
        self._untaken = deque(self._unacknowledged)
        while True:
            while not self._untaken:
                if self._is_closed:
                    return
                self._arrived = anyio.Event()
                await self._arrived.wait()
            number = self._untaken.popleft()
            yield Delivery(
                message=self._unacknowledged[number], ack=partial(self._acknowledge, number)
            )

    async def _acknowledge(self, number: int) -> None:
        self._unacknowledged.pop(number, None)
        self._room.set()

    def close(self) -> None:
        """Take nothing more in."""
        self._is_closed = True
        self._arrived.set()
        self._room.set()

    # Out

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the channels that are attached."""
        return tuple(self._channels)

    def attach(self, channel: Channel) -> None:
        """From now on that channel's chats are served by it."""
        self._channels[channel.name] = channel

    def streams(self, channel: str) -> bool:
        """Whether that channel wants pieces."""
        return channel in self._channels and self._channels[channel].streams

    async def publish(self, message: Outbound) -> None:
        """Send a text to its chat; waits only while that same chat has too many unsent."""
        await self._chats.put((message.channel, message.chat), message)

    def publish_nowait(self, piece: TextStreamed) -> None:
        """Send a piece of an answer; half of a chat's room is kept for whole texts."""
        chat = (piece.channel, piece.chat)
        if self._chats.waiting(chat) < self._outbound_limit // 2:
            self._chats.put_nowait(chat, piece)

    async def flush(self) -> None:
        """Wait until everything published has been sent or given up."""
        await self._chats.idle()

    async def _send(self, chat: tuple[str, str], item: Outbound | TextStreamed) -> None:
        error = "no such channel"
        if item.channel in self._channels:
            try:
                with anyio.fail_after(self._send_timeout_seconds):
                    await self._channels[item.channel].send(item)
            except Exception as failure:  # noqa: BLE001 - one chat's failure must not stop the others
                error = type(failure).__name__
            else:
                return
        self._announce(SendFailed(channel=chat[0], chat=chat[1], error=error))
