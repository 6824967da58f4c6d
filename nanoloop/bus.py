"""The in-process bus; both directions are bounded, and a slow chat doesn't delay other chats."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import uniform
from typing import Self

import anyio

from nanoloop.errors import BusClosed, BusFull, LaneFull, SendLater, reason_of
from nanoloop.events import SendFailed, SendPostponed, TextStreamed, announce
from nanoloop.fairness import Shares
from nanoloop.lanes import Lanes
from nanoloop.messages import Delivery, Inbound, Outbound, Outcome
from nanoloop.protocols import Channel
from nanoloop.sentences import ENGLISH

SEND_TIMEOUT_SECONDS = 120
"""How long a channel may take to send one message before the attempt fails."""
LONGEST_REST_SECONDS = 60.0
"""The longest delay before a failed send is retried."""
SHORTEST_REST_SECONDS = 0.1
"""The shortest delay before a retry, even if the channel asks for less."""


@dataclass(frozen=True, slots=True)
class _QueuedItem:
    """An item on its way to a chat."""

    says: Outbound | TextStreamed
    arrived: Callable[[], Awaitable[None]] | None = None
    may_go: Callable[[], Awaitable[bool]] | None = None

    def is_worth_a_try(self, error: Exception) -> bool:
        """Return True if the send should be retried.

        A slow send is retried only if a caller waits for it.
        """
        is_slow = isinstance(error, TimeoutError) and self.arrived is not None
        return (isinstance(error, SendLater) or is_slow) and isinstance(self.says, Outbound)


@dataclass(slots=True)
class _Settled:
    """The outcome of a message that was handed in."""

    event: anyio.Event = field(default_factory=anyio.Event)
    outcome: Outcome = "kept"


class InProcessBus:
    """A message bus with any number of channels on one side and one consumer on the other."""

    def __init__(
        self,
        *,
        inbound_limit: int = 1000,
        outbound_limit: int = 100,
        busy: Callable[[Inbound], str] = lambda _: ENGLISH["full"],
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._sleep = sleep
        self._inbound_limit = inbound_limit
        self._outbound_limit = outbound_limit
        self._busy = busy
        self._unacknowledged: dict[int, Inbound] = {}
        self._shares = Shares(inbound_limit)
        self._untaken: deque[int] = deque()
        self._settled: dict[int, _Settled] = {}
        self._count = 0
        self._is_closed = False
        self._arrived = anyio.Event()
        self._room = anyio.Event()
        self._channels: dict[str, Channel] = {}
        self._held: dict[tuple[str, str], TextStreamed] = {}
        self._chats: Lanes[tuple[str, str], _QueuedItem] = Lanes(
            self._send, limit=outbound_limit, name="chat"
        )

    async def __aenter__(self) -> Self:
        await self._chats.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._chats.__aexit__(*exc)

    # Incoming

    def put_nowait(self, message: Inbound) -> None:
        """Accept a message, or tell its chat that the bus is full and raise `BusFull`.

        Some room is reserved for owners that have no message in the bus yet.
        """
        if self._is_closed or not self._shares.has_room(message.owner):
            self._refuse(message)
            raise BusClosed if self._is_closed else BusFull(self._inbound_limit)
        self._count += 1
        self._shares.take(message.owner)
        self._unacknowledged[self._count] = message
        self._untaken.append(self._count)
        self._arrived.set()

    async def hand_in(self, message: Inbound) -> Outcome:
        """Accept a message like `put_nowait`, then wait for its outcome and return it.

        If the caller is cancelled while waiting, the message stays in the bus and is still stored.
        """
        self.put_nowait(message)
        settled = self._settled[self._count] = _Settled()
        await settled.event.wait()
        return settled.outcome

    def _refuse(self, message: Inbound) -> None:
        busy = Outbound(
            channel=message.channel,
            chat=message.chat,
            text=self._busy(message),
            kind="notice",
            reply_to=message.message_id,
        )
        try:
            self._chats.put_nowait((message.channel, message.chat), _QueuedItem(busy))
        except (LaneFull, RuntimeError) as why:  # RuntimeError: the bus has ended
            error = type(why).__name__
            announce(SendFailed(channel=busy.channel, chat=busy.chat, error=error))

    async def put(self, message: Inbound) -> None:
        """Accept a message as soon as there is room."""
        while not self._is_closed and not self._shares.has_room(message.owner):
            if self._room.is_set():  # shared by all waiting callers, so that all of them wake up
                self._room = anyio.Event()
            await self._room.wait()
        self.put_nowait(message)

    async def deliveries(self) -> AsyncIterator[Delivery]:
        """Yield the messages to answer.

        A new consumer also gets the messages that the last one did not acknowledge.
        """
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

    async def _acknowledge(self, number: int, outcome: Outcome = "kept") -> None:
        if (message := self._unacknowledged.pop(number, None)) is not None:
            self._shares.give_back(message.owner)
        self._room.set()
        if (settled := self._settled.pop(number, None)) is not None:
            settled.outcome = outcome
            settled.event.set()

    def close(self) -> None:
        """Stop accepting messages."""
        self._is_closed = True
        self._arrived.set()
        self._room.set()

    # Outgoing

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of the attached channels."""
        return tuple(self._channels)

    @property
    def states(self) -> Mapping[str, str]:
        """The state of each attached channel that has a `state`."""
        return {
            name: str(channel.state)
            for name, channel in self._channels.items()
            if hasattr(channel, "state")
        }

    def attach(self, channel: Channel) -> None:
        """Serve this channel's chats from now on."""
        self._channels[channel.name] = channel

    def streams(self, channel: str) -> bool:
        """Return True if the channel wants answers in pieces."""
        return channel in self._channels and self._channels[channel].streams

    def confirms(self, channel: str) -> bool:
        """Return True if the channel confirms which messages have arrived."""
        return bool(getattr(self._channels.get(channel), "confirms", False))

    async def publish(
        self,
        message: Outbound,
        *,
        arrived: Callable[[], Awaitable[None]] | None = None,
        may_go: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """Queue a text for its chat, waiting only while too many of the chat's texts are unsent.

        `may_go` is called right before each attempt; if it returns False, the text is dropped.
        `arrived` is called once the text has arrived, or has failed permanently.
        """
        chat = (message.channel, message.chat)
        if chat in self._held and self._held[chat].reply_to == message.reply_to:
            del self._held[chat]  # the whole text contains the pieces
        await self._chats.put(chat, _QueuedItem(message, arrived, may_go))

    def publish_nowait(self, piece: TextStreamed) -> None:
        """Queue a piece of an answer.

        Half of a chat's room is reserved for whole texts. A piece that does not fit is sent with
        the next one, so a chat can miss only the last pieces.
        """
        chat = (piece.channel, piece.chat)
        held = self._held.pop(chat, None)
        if held is not None and held.reply_to == piece.reply_to:
            piece = replace(piece, text=held.text + piece.text)
        if self._chats.waiting(chat) < self._outbound_limit // 2:
            self._chats.put_nowait(chat, _QueuedItem(piece))
        else:
            self._held[chat] = piece

    async def flush(self) -> None:
        """Wait until everything published has been sent or has failed."""
        await self._chats.idle()

    async def _send(self, chat: tuple[str, str], item: _QueuedItem) -> None:
        if item.may_go is not None and not await item.may_go():
            return
        error = await self._error_of(item.says)
        tries = 1
        while error is not None and item.is_worth_a_try(error):
            await self._rest(chat, error, tries)
            if item.may_go is not None and not await item.may_go():
                return
            error = await self._error_of(item.says)
            tries += 1
        if error is not None:
            why = "no such channel" if isinstance(error, LookupError) else reason_of(error)
            announce(SendFailed(channel=chat[0], chat=chat[1], error=why))
        if item.arrived is not None:
            await item.arrived()

    async def _error_of(self, says: Outbound | TextStreamed) -> Exception | None:
        """Send the item, and return the error that prevented it, or None."""
        try:
            channel = self._channels[says.channel]
            with anyio.fail_after(SEND_TIMEOUT_SECONDS):
                await channel.send(says)
        except Exception as error:  # noqa: BLE001 - one chat's failure must not stop the others
            return error
        return None

    async def _rest(self, chat: tuple[str, str], error: Exception, tries: int) -> None:
        known = error.seconds if isinstance(error, SendLater) else None
        backoff = min(LONGEST_REST_SECONDS, 2.0 ** min(tries - 1, 10)) * uniform(0.5, 1)  # noqa: S311
        seconds = backoff if known is None else max(SHORTEST_REST_SECONDS, known)
        reason = error.reason if isinstance(error, SendLater) else "it took too long"
        announce(
            SendPostponed(
                channel=chat[0], chat=chat[1], reason=reason, seconds=round(seconds, 3), tries=tries
            )
        )
        await self._sleep(seconds)
