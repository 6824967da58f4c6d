"""Discord as a platform."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any

import anyio
import discord

from nanoloop.channels.discord.client import Client, explained
from nanoloop.channels.kit.backlog import SeenMessages
from nanoloop.channels.kit.markdown import Markup, render, utf16
from nanoloop.channels.kit.platform import Hear, Limits, MessageGone, Place, Text, Upload
from nanoloop.errors import Declined, SendLater

LIMITS = Limits(text=2000, size=utf16, edit_seconds=1.2, typing_seconds=10.0, file_bytes=10_000_000)
"""Five edits in five seconds are allowed in a channel, and posts count too."""
READY_SECONDS = 1.0


class DiscordPlatform:
    """One bot on Discord."""

    name = "discord"

    def __init__(
        self, token: str, *, folder: Path | None = None, ready_seconds: float = READY_SECONDS
    ) -> None:
        """With a `folder`, the data folder, a gap is caught up with after a restart too."""
        self.limits = LIMITS
        self._token = token
        self._ready_seconds = ready_seconds
        self._seen = SeenMessages(folder and folder / "channels" / "discord.seen.sqlite")
        self._client: Client | None = None

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Hand over what is said until the connection is lost."""
        self._client = Client(seen=self._seen, ready_seconds=self._ready_seconds)
        try:
            await self._client.serve(self._token, hear, connected)
        finally:
            client, self._client = self._client, None
            self._seen.close()
            with anyio.CancelScope(shield=True):
                await client.close()

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - the seam's name
        """Post a message; Discord knows one that is posted again within some minutes."""
        with explained():
            message = await self._channel(place).send(
                text.best,
                nonce=_nonce(id),
                suppress_embeds=True,
                **_answering(place, reply_to),
            )
        return str(message.id)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Let one of our messages say this."""
        with explained():
            await self._channel(place).get_partial_message(int(message)).edit(content=text.best)

    async def remove(self, place: Place, message: str) -> None:
        """Take one of our messages back."""
        try:
            with explained():
                await self._channel(place).get_partial_message(int(message)).delete()
        except (MessageGone, Declined):
            return

    async def typing(self, place: Place) -> None:
        """Show that an answer is being written."""
        with explained():
            await self._channel(place).typing()

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file."""
        with explained():
            message = await self._channel(place).send(
                file=discord.File(BytesIO(file.data), filename=file.name),
                nonce=_nonce(id),
                **_answering(place, reply_to),
            )
        return str(message.id)

    def rendered(self, markdown: str) -> str:
        """This Markdown as Discord shows it."""
        return written(markdown)

    def _channel(self, place: Place) -> discord.PartialMessageable:
        if self._client is None or self._client.is_closed():
            raise SendLater("not connected")
        return self._client.get_partial_messageable(int(place.thread or place.chat))


def _nonce(name: str) -> str:
    """At most 25 characters, the same for the same name."""
    return blake2b(name.encode(), digest_size=12).hexdigest()


def _answering(place: Place, message: str | None) -> dict[str, Any]:
    """What makes it an answer; to a message that is gone, it is none."""
    if message is None:
        return {}
    reference = discord.MessageReference(
        message_id=int(message),
        channel_id=int(place.thread or place.chat),
        fail_if_not_exists=False,
    )
    return {"reference": reference}


_HEADINGS = 3
"""Deeper ones are not known."""


def written(markdown: str) -> str:
    """The text in Discord's Markdown."""
    return render(markdown, _FORM)


def _escaped(text: str) -> str:
    return discord.utils.escape_markdown(text, as_needed=True)


def _code(code: str) -> str:
    return f"`` {code} ``" if "`" in code else f"`{code}`"


def _block(code: str, language: str) -> str:
    whole = code.replace("```", "\u200b".join("```"))
    return f"```{language}\n{whole}\n```"


def _heading(text: str, level: int) -> str:
    return f"{'#' * level} {text}" if level <= _HEADINGS else f"**{text}**"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _link(text: str, address: str) -> str:
    """In angle brackets, so that no picture of the page is shown below."""
    return f"<{address}>" if text == address else f"[{text}](<{address}>)"


_FORM = Markup(
    escape=_escaped,
    bold=lambda text: f"**{text}**",
    italic=lambda text: f"*{text}*",
    strike=lambda text: f"~~{text}~~",
    code=_code,
    block=_block,
    link=_link,
    quote=_quote,
    heading=_heading,
    bullet="- ",
)
