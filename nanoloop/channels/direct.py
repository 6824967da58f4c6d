"""A channel for code: ask a question in a chat, get its answer back."""

from __future__ import annotations

from uuid import uuid4

import anyio

from nanoloop.events import TextStreamed
from nanoloop.messages import Inbound, Outbound
from nanoloop.protocols import Bus, OnText


class DirectChannel:
    """Talks to the loop from inside the program, as any other channel does from outside."""

    name = "direct"
    streams = True

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._arrived: dict[str, anyio.Event] = {}
        self._answers: dict[str, Outbound] = {}
        self._listeners: dict[str, OnText] = {}
        bus.attach(self)

    async def ask(
        self, text: str, *, chat: str = "default", sender: str = "", on_text: OnText | None = None
    ) -> Outbound:
        """The answer to this message, once it is there; an error is an answer too."""
        message_id = uuid4().hex
        self._arrived[message_id] = anyio.Event()
        if on_text is not None:
            self._listeners[message_id] = on_text
        try:
            await self._bus.put(
                Inbound(
                    channel=self.name, chat=chat, text=text, sender=sender, message_id=message_id
                )
            )
            await self._arrived[message_id].wait()
            return self._answers.pop(message_id)
        finally:
            del self._arrived[message_id]
            self._listeners.pop(message_id, None)

    async def run(self, bus: Bus) -> None:
        """Nothing comes in by itself: `ask` puts it on the bus."""

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Hand an answer to whoever asked, and its pieces before it."""
        if isinstance(item, TextStreamed):
            if item.reply_to in self._listeners:
                self._listeners[item.reply_to](item.text)
        elif item.reply_to in self._arrived:
            self._answers[str(item.reply_to)] = item
            self._arrived[str(item.reply_to)].set()
