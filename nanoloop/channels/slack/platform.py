"""Slack: a bot's messages over the Web API, and over Socket Mode what is said to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import aiohttp
import anyio

from nanoloop.channels.platform.errors import MessageGone, Refused
from nanoloop.channels.platform.platform import Hear, Limits, Place, Text, Upload
from nanoloop.channels.platform.seen import Seen
from nanoloop.channels.slack.admission import admitted
from nanoloop.channels.slack.files import LIMIT_BYTES, Files
from nanoloop.channels.slack.hearing import Hearing
from nanoloop.channels.slack.listening import Listening
from nanoloop.channels.slack.mrkdwn import escaped, written
from nanoloop.channels.slack.people import People
from nanoloop.channels.slack.posted import Posted, metadata
from nanoloop.channels.slack.web import ADDRESS, APP_TOKEN, BOT_TOKEN, Web
from nanoloop.errors import Declined, SendLater

LIMITS = Limits(text=4000, edit_seconds=1.2, file_bytes=LIMIT_BYTES)
"""An edit may not be longer than that, and fifty of them in a minute are sure to be taken."""
_SECONDS = 30.0
T = TypeVar("T")


class SlackPlatform:
    """One bot in one workspace."""

    name = "slack"

    def __init__(
        self, token: str, app_token: str, *, folder: Path | None = None, address: str = ADDRESS
    ) -> None:
        """With a `folder`, the data folder, a gap is caught up with after a restart too."""
        self.limits = LIMITS
        self._token = token
        self._app_token = app_token
        self._address = address
        self._seen = Seen(folder and folder / "channels" / "slack.seen.sqlite")
        self._posted = Posted()
        self._used: tuple[aiohttp.ClientSession, Web] | None = None

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Hand over what is said until the connection is lost."""
        session, web = self._open()
        is_lost = False
        try:
            me = await admitted(web)
            hearing = Hearing(me, people=People(web), files=self._files(session, web))
            await Listening(
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
            # An answer may be on its way over another connection: it is not cut off.
            is_lost = True
            raise
        finally:
            if not is_lost:
                await self._close()

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - the seam's name; Slack knows answers in threads only
        """Post a message, unless it is there already."""
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
        """Let one of our messages say this."""
        _, web = self._connected()
        await self._told(
            None, web.call("chat.update", channel=place.chat, ts=message, text=_text(text))
        )

    async def remove(self, place: Place, message: str) -> None:
        """Take one of our messages back; one that may not be deleted any more stays."""
        _, web = self._connected()
        try:
            await self._told(None, web.call("chat.delete", channel=place.chat, ts=message))
        except (MessageGone, Declined):
            return

    async def typing(self, place: Place) -> None:
        """Nothing: Slack has no such for bots."""

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - as above
        """Post a file; the id is the file's."""
        files = self._files(*self._connected())
        return await self._told(None, files.post(place, file))

    def rendered(self, markdown: str) -> str:
        """This Markdown in Slack's form."""
        return written(markdown)

    async def _told(self, place: Place | None, call: Awaitable[T]) -> T:
        """What it returns; a failure that may have been a success puts the place in doubt."""
        try:
            return await call
        except Refused:
            raise SendLater("the token is refused") from None
        except SendLater as later:
            if place is not None and later.reason != "rate limit":
                self._posted.doubt(place)
            raise

    def _connected(self) -> tuple[aiohttp.ClientSession, Web]:
        if self._used is None:
            raise SendLater("not connected")
        return self._used

    def _files(self, session: aiohttp.ClientSession, web: Web) -> Files:
        return Files(session, web, token=self._token, address=self._address)

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
