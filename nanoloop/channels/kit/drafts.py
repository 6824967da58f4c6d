"""Answers on their way to a chat: growing while they are written, whole at the end, each once."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

from nanoloop.attachments import SCHEME, Attachments
from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.connection import Connection
from nanoloop.channels.kit.markdown import closed, split
from nanoloop.channels.kit.platform import (
    FormatRefused,
    MessageGone,
    Place,
    Platform,
    Text,
    TooLong,
    Upload,
)
from nanoloop.errors import SendLater
from nanoloop.events import TextStreamed
from nanoloop.files import make_folder, replace_file
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
        attachments: Attachments | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.group: TaskGroup | None = None
        """Where its tasks live; without one, nothing is shown before it is whole."""
        self._platform = platform
        self._connection = connection
        self._progress = progress
        self._writer = DraftWriter(platform, progress)
        self._attachments = attachments
        self._clock = clock
        self._growing: dict[str, Draft] = {}
        self._shown_in: Counter[str] = Counter()
        """How many answers grow in each chat."""
        self._groups: set[str] = set()
        self._taken_back: deque[str] = deque(maxlen=100)

    def load(self) -> None:
        """Know what is posted by now: another process may have gone on with it."""
        self._progress.load()

    def learn(self, chat: str, *, private: bool) -> None:
        """Whether several talk in this chat: the platform may want another pace there."""
        if private:
            self._groups.discard(chat)
        else:
            self._groups.add(chat)

    def grow(self, piece: TextStreamed) -> None:
        """Show a piece of an answer soon."""
        answer = _answer(piece.chat, piece.reply_to)
        draft = self._growing.get(answer)
        if answer in self._taken_back or self.group is None:
            return
        if draft is None:
            place = Place.of(piece.chat)
            letter = Letter(answer=answer, place=place, reply_to=piece.reply_to)
            draft = self._growing[answer] = Draft(letter)
            self.group.start_soon(self._show, draft, name=f"draft {answer}")
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
        """Those that an answer names, and that are there and not too large for the platform."""
        if self._attachments is None or item.kind != "answer":
            return []
        found = [await _upload(self._attachments, name) for name in enclosed(item.text)]
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


class DraftWriter:
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


REMEMBERED = 2000
"""Answers that are remembered as half posted, and as posted, each."""
_LINES = 10 * REMEMBERED


@dataclass(slots=True, kw_only=True)
class Posted:
    """The messages of one answer."""

    name: str
    """What ids of its messages are made of, the same at each try."""
    messages: list[str] = field(default_factory=list)
    """Their ids on the platform, in order."""
    shown: dict[int, Text] = field(default_factory=dict)
    """What each of them says, as far as that is known."""
    tried: dict[int, Text] = field(default_factory=dict)
    """What was tried first as each of them: the platform may have taken it without a word."""
    is_old: bool = False
    """Whether an earlier process may have tried something."""
    cuts: int = 0
    """How often it became shorter."""

    def name_of(self, number: int) -> str:
        """The name of this message; another one after a cut, as that one is gone for good."""
        return f"{self.name}.{number}" if not self.cuts else f"{self.name}.{self.cuts}.{number}"

    def try_first(self, number: int, text: Text) -> bool:
        """Whether nothing else can have been posted as this message so far."""
        return self.tried.setdefault(number, text) == text and not self.is_old

    def says(self, number: int) -> Text | None:
        """What this message says; None where that is not known any more."""
        return self.shown.get(number)


class Progress:
    """Keeps it in a file, where one is given; a file that can't be read is begun anew."""

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._open: BoundedDict[str, Posted] = BoundedDict(REMEMBERED)
        self._done: BoundedDict[str, None] = BoundedDict(REMEMBERED)
        self._lines = 0
        self.load()

    def load(self) -> None:
        """Know what the file says by now: another process may have gone on with it."""
        if self._file is None:
            return
        self._open.clear()
        self._done.clear()
        make_folder(self._file.parent)
        if self._file.exists():
            self._load(self._file)

    def of(self, answer: str, *, name: str | None = None) -> Posted:
        """What of this answer is posted; begun with this name where it is new."""
        if answer not in self._open:
            self._note(begun=answer, name=name or uuid4().hex)
        return self._open[answer]

    def begun(self, answer: str) -> bool:
        """Whether something of it may be posted."""
        return answer in self._open

    def post(self, answer: str, message: str, *, number: int) -> None:
        """Note that this is the answer's message of that number."""
        self._note(posted=answer, message=message, number=number)

    def cut(self, answer: str, *, number: int) -> None:
        """Note that only so many of its messages are left."""
        self._note(cut=answer, number=number)

    def finish(self, answer: str, *, name: str | None = None) -> None:
        """Note that all of it is there, and so is the text of that name."""
        self._note(done=answer, name=name)

    def has(self, name: str | None) -> bool:
        """Whether the text of that name is known to be there."""
        return name in self._done

    def _note(self, **fact: Any) -> None:
        self._learn(fact)
        if self._file is None:
            return
        self._lines += 1
        with suppress(OSError):  # a full disk stops no answer
            if self._lines > _LINES:
                self._rewrite(self._file)
            else:
                with self._file.open("ab") as lines:
                    lines.write(_lines((fact,)))

    def _learn(self, fact: dict[str, Any]) -> None:
        match fact:
            case {"begun": answer, "name": name}:
                self._open[answer] = Posted(name=name)
            case {"posted": answer, "message": message, "number": number}:
                self.of(answer).messages[number : number + 1] = [message]
            case {"cut": answer, "number": number}:
                posted = self.of(answer)
                del posted.messages[number:]
                posted.cuts += 1
                posted.shown = {n: text for n, text in posted.shown.items() if n < number}
                posted.tried = {n: text for n, text in posted.tried.items() if n < number}
            case {"done": answer, "name": name}:
                self._open.pop(answer, None)
                if name is not None:
                    self._done[name] = None

    def _load(self, file: Path) -> None:
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError, KeyError):  # torn by a kill, or older than what is known
                self._learn(json.loads(line))
        for posted in self._open.values():
            posted.is_old = True
        self._rewrite(file)

    def _rewrite(self, file: Path) -> None:
        facts = [*self._facts()]
        replace_file(file, _lines(facts), durable=False)
        self._lines = len(facts)

    def _facts(self) -> Iterable[dict[str, Any]]:
        for name in self._done:
            yield {"done": None, "name": name}
        for answer, posted in self._open.items():
            yield {"begun": answer, "name": posted.name}
            for _ in range(posted.cuts):
                yield {"cut": answer, "number": 0}
            for number, message in enumerate(posted.messages):
                yield {"posted": answer, "message": message, "number": number}


def _lines(facts: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(fact)}\n" for fact in facts).encode()


_ENCLOSED = re.compile(rf"!?\[[^\]\n]*\]\({SCHEME}(?P<id>[0-9a-f]{{40}})\)")


def enclosed(text: str) -> list[str]:
    """The ids of the files that a text names, each once, in order."""
    return list(dict.fromkeys(match["id"] for match in _ENCLOSED.finditer(text)))


def without(text: str) -> str:
    """The text without them."""
    return _ENCLOSED.sub("", text).strip() if SCHEME in text else text


async def _upload(attachments: Attachments, attachment_id: str) -> Upload | None:
    kept, data = await attachments.about(attachment_id), await attachments.data(attachment_id)
    if kept is None or data is None:
        return None
    return Upload(name=kept.name, mime_type=kept.mime_type, data=data)
