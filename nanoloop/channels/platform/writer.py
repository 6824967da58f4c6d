"""Puts a text into a chat as messages: those that are there are edited, the others posted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from uuid import uuid4

from nanoloop.channels.platform.errors import FormatRefused, MessageGone, TooLong
from nanoloop.channels.platform.platform import Place, Platform, Text, Upload
from nanoloop.channels.platform.progress import Posted, Progress
from nanoloop.channels.platform.splitting import split

SHORTEST = 200
"""A platform that takes no message of that length takes none."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One answer's way into its chat."""

    answer: str
    """What it is known by, at each try."""
    place: Place
    reply_to: str | None = None
    name: str | None = None
    """Its own name, where it has one already."""


class Writer:
    """Writes to the chats of one platform."""

    def __init__(self, platform: Platform, progress: Progress) -> None:
        self._platform = platform
        self._progress = progress

    async def write(self, letter: Letter, markdown: str) -> None:
        """Have this answer say exactly that; where it fails half way, the next try goes on there.

        Raises what the platform raises.
        """
        limit = self._platform.limits.text
        while True:
            try:
                posted = self._progress.of(letter.answer, name=letter.name)
                await self._write(letter, posted, self.texts(markdown, limit))
            except TooLong:
                if limit <= SHORTEST:
                    raise
                limit //= 2
            else:
                return

    async def enclose(self, letter: Letter, files: list[Upload]) -> None:
        """Post these files, those that are not there yet; raises what the platform raises."""
        posted = self._progress.of(letter.answer, name=letter.name)
        for number, file in list(enumerate(files))[len(posted.messages) :]:
            reply_to = letter.reply_to if number == 0 else None
            message = await self._platform.upload(
                letter.place, file, reply_to=reply_to, id=f"{posted.name}.{number}"
            )
            self._progress.post(letter.answer, message, number=number)

    def texts(self, markdown: str, limit: int) -> list[Text]:
        """The messages of a text, each within the limit in both its forms."""
        size = self._platform.limits.size
        found: list[Text] = []
        for part in split(markdown, limit, size):
            text = Text(plain=part, formatted=self._platform.rendered(part) or None)
            if size(text.best) <= limit:
                found.append(text)
            elif size(part) > SHORTEST:
                found += self.texts(part, size(part) // 2)
            else:
                found.append(Text(plain=part))
        return found

    async def _write(self, letter: Letter, posted: Posted, texts: list[Text]) -> None:
        for number, text in enumerate(texts):
            if number >= len(posted.messages):
                await self._post(letter, posted, number, text)
            elif posted.says(number) != text and self._platform.limits.edit_seconds is not None:
                await self._edit(letter, posted, number, text)
        for number in reversed(range(len(texts), len(posted.messages))):
            await self._platform.remove(letter.place, posted.messages[number])
            self._progress.cut(letter.answer, number=number)

    async def _edit(self, letter: Letter, posted: Posted, number: int, text: Text) -> None:
        edit = partial(self._platform.edit, letter.place, posted.messages[number])
        try:
            await _in_some_form(edit, text)
        except MessageGone:
            # Under its own name the platform might take it for the one that is gone.
            await self._put(letter, number, text, name=f"{posted.name}.{uuid4().hex}")
        posted.shown[number] = text

    async def _post(self, letter: Letter, posted: Posted, number: int, text: Text) -> None:
        is_first = posted.try_first(number, text)
        await self._put(letter, number, text, name=posted.name_of(number))
        if is_first:
            posted.shown[number] = text
        elif self._platform.limits.edit_seconds is not None:
            # Under this name it may be there with what was tried before.
            await self._edit(letter, posted, number, text)

    async def _put(self, letter: Letter, number: int, text: Text, *, name: str) -> None:
        reply_to = letter.reply_to if number == 0 else None
        post = partial(self._platform.post, letter.place, reply_to=reply_to, id=name)
        message = await _in_some_form(post, text)
        self._progress.post(letter.answer, message, number=number)


async def _in_some_form(send: Callable[[Text], Awaitable[T]], text: Text) -> T:
    """Send it as it is to look, or plain where the platform refuses that."""
    try:
        return await send(text)
    except FormatRefused:
        if text.formatted is None:
            raise
        return await send(replace(text, formatted=None))
