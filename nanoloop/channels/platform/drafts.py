"""Answers that are shown as they grow: a message posted early, edited at the platform's pace."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.platform.connection import Connection
from nanoloop.channels.platform.enclosures import Fetch, enclosed, without
from nanoloop.channels.platform.platform import Place, Platform, Upload
from nanoloop.channels.platform.progress import Progress
from nanoloop.channels.platform.splitting import closed
from nanoloop.channels.platform.writer import Letter, Writer
from nanoloop.errors import SendLater
from nanoloop.events import TextStreamed
from nanoloop.messages import Outbound

FIRST_SECONDS = 0.2
"""How long the first words wait for more, so that a message doesn't begin with one word."""


class Draft:
    """One answer that is growing."""

    def __init__(self, letter: Letter) -> None:
        self.letter = letter
        self.text = ""
        self.is_over = False
        """Whether it is only to be finished now."""
        self.not_before = 0.0
        """When the platform wants to hear of it again."""
        self._rest = anyio.CancelScope()
        self._news = anyio.Event()
        self.ended = anyio.Event()

    def grow(self, text: str) -> None:
        """Take a piece in."""
        self.text += text
        self._news.set()

    async def rest(self, seconds: float) -> None:
        """Wait so long, and for something new; at most until it is over."""
        with anyio.CancelScope() as self._rest:
            if self.is_over:
                return
            await anyio.sleep(seconds)
            await self._news.wait()
            self._news = anyio.Event()

    async def end(self) -> None:
        """Show nothing more of it; returns when nothing of it is on its way."""
        self.is_over = True
        self._rest.cancel()
        await self.ended.wait()


class Drafts:
    """The answers of one channel, growing or whole."""

    def __init__(
        self,
        platform: Platform,
        *,
        connection: Connection,
        progress: Progress,
        fetch: Fetch | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._platform = platform
        self._connection = connection
        self._progress = progress
        self._writer = Writer(platform, progress)
        self._fetch = fetch
        self._clock = clock
        self._growing: dict[str, Draft] = {}
        self._shown_in: Counter[str] = Counter()
        """How many answers grow in each chat."""
        self._groups: set[str] = set()
        self._taken_back: deque[str] = deque(maxlen=100)

    def learn(self, chat: str, *, private: bool) -> None:
        """Whether several talk in this chat: the platform may want another pace there."""
        if private:
            self._groups.discard(chat)
        else:
            self._groups.add(chat)

    def grow(self, piece: TextStreamed, group: TaskGroup) -> None:
        """Show a piece of an answer soon; the task that does so lives in the group."""
        answer = _answer(piece.chat, piece.reply_to)
        draft = self._growing.get(answer)
        if answer in self._taken_back:
            return
        if draft is None:
            place = Place.of(piece.chat)
            letter = Letter(answer=answer, place=place, reply_to=piece.reply_to)
            draft = self._growing[answer] = Draft(letter)
            group.start_soon(self._show, draft, name=f"draft {answer}")
        draft.grow(piece.text)

    async def finish(self, item: Outbound) -> None:
        """Bring a whole text to its chat; a draft of it becomes it. Raises as platforms do."""
        if self._progress.has(item.id):
            return
        await self._connection.ready()
        answer = _answer(item.chat, item.reply_to)
        draft = self._growing.get(answer)
        if draft is not None:
            await self._settle(draft)
        if item.kind == "notice":
            if draft is not None:  # what was said until then stays, and is whole
                await self._whole(draft.letter, draft.text)
            answer = f"{answer} {item.text}"
        place = Place.of(item.chat)
        letter = Letter(answer=answer, place=place, reply_to=item.reply_to, name=item.id)
        if files := await self._files(item):
            beside = replace(letter, answer=f"{answer} files", name=f"{item.id}.files")
            await self._writer.enclose(beside, files)
        await self._whole(letter, without(item.text))
        self._progress.finish(f"{answer} files")

    async def _files(self, item: Outbound) -> list[Upload]:
        """The files that an answer names, as far as they are there and not too large."""
        if self._fetch is None or item.kind != "answer":
            return []
        found = [await self._fetch(name) for name in enclosed(item.text)]
        limit = self._platform.limits.file_bytes
        return [file for file in found if file is not None and len(file.data) <= limit]

    def close(self) -> None:
        """The tasks that showed drafts are gone: nothing waits for them."""
        for draft in self._growing.values():
            draft.is_over = True
            draft.ended.set()

    def begin_anew(self, chat: str, question: str) -> None:
        """What is asked has changed: what was answered so far counts no more."""
        draft = self._growing.get(_answer(chat, question))
        if draft is not None:
            draft.text = ""

    async def take_back(self, chat: str, question: str) -> None:
        """Nothing is asked any more: what was answered so far goes."""
        answer = _answer(chat, question)
        self._taken_back.append(answer)
        draft = self._growing.pop(answer, None)
        if draft is not None:
            await draft.end()
        if self._progress.begun(answer):
            with suppress(Exception):  # what can't be removed stays
                await self._writer.write(Letter(answer=answer, place=Place.of(chat)), "")
            self._progress.finish(answer)

    async def _settle(self, draft: Draft) -> None:
        await draft.end()
        if (seconds := draft.not_before - self._clock()) > 0:
            raise SendLater("rate limit", seconds=seconds)

    async def _whole(self, letter: Letter, text: str) -> None:
        try:
            await self._writer.write(letter, text)
        except (SendLater, TimeoutError):
            raise
        except Exception:  # it is never tried again
            self._forget(letter)
            raise
        self._forget(letter)

    def _forget(self, letter: Letter) -> None:
        self._growing.pop(letter.answer, None)
        self._progress.finish(letter.answer, name=letter.name)

    async def _show(self, draft: Draft) -> None:
        """Edit it again and again, until it is over or the platform wants none of it."""
        chat = draft.letter.place.chat
        self._shown_in[chat] += 1
        try:
            await draft.rest(FIRST_SECONDS)
            while not draft.is_over:
                await draft.rest(await self._shown(draft) or self._pace(chat))
        except Exception:  # noqa: BLE001 - the whole text follows, and its failure is told
            draft.is_over = True
        finally:
            self._shown_in[chat] -= 1
            self._shown_in += Counter()  # forgets where nothing grows any more
            draft.ended.set()

    def _pace(self, chat: str) -> float:
        """How long one of the answers that grow in a chat waits: they share what is allowed."""
        limits = self._platform.limits
        of_groups = limits.group_edit_seconds if chat in self._groups else None
        return (of_groups or limits.edit_seconds or 0) * self._shown_in[chat]

    async def _shown(self, draft: Draft) -> float | None:
        """How long the platform wants to be left alone now, if it says so."""
        text = closed(without(draft.text)).strip()
        if not text or not self._connection.is_up:
            return None
        try:
            await self._writer.write(draft.letter, text)
        except SendLater as later:
            seconds = later.seconds or 2 * (self._pace(draft.letter.place.chat) or 1)
            draft.not_before = self._clock() + (later.seconds or 0)
            return seconds
        return None


def _answer(chat: str, reply_to: str | None) -> str:
    """What an answer is known by before it is whole, also after a restart."""
    return f"{chat} {reply_to}"
