"""A bot's connection to chats in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nanoloop.channels.platform.platform import Hear, Place, Text, Upload

if TYPE_CHECKING:
    from nanoloop.testing.channels.fake_chats import FakeChats


class FakePlatform:
    """A bot's connection to the chats."""

    def __init__(self, chats: FakeChats) -> None:
        self._chats = chats
        self.name = chats.name
        self.limits = chats.limits

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Hand over what was said and not acknowledged, until the connection is cut."""
        await self._chats.listen(hear, connected)

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - the seam\'s name
        """Post a message."""
        return await self._chats.take_post(place, text, reply_to, id)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit a message."""
        await self._chats.take_edit(place, message, text)

    async def remove(self, place: Place, message: str) -> None:
        """Remove a message."""
        self._chats.take_back(place, message)

    async def typing(self, place: Place) -> None:
        """Show that the bot types."""
        self._chats.typing.append(str(place))

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file."""
        self._chats.uploads.append(file)
        text = Text(plain=f"[{file.name}]")
        return await self._chats.take_post(place, text, reply_to, id)

    def rendered(self, markdown: str) -> str | None:
        """The same, with its bold marks as this platform has them."""
        return markdown.replace("**", "*")
