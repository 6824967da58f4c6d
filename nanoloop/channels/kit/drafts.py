"""Delivers each answer to its chat once: as a growing draft first, then as the complete text."""

from __future__ import annotations

import json
import re
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from secrets import token_bytes
from typing import Any, TypeVar
from uuid import uuid4

import anyio
from anyio.abc import TaskGroup

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
)
from nanoloop.channels.kit.uploads import FileSender
from nanoloop.errors import SendLater
from nanoloop.events import TextStreamed
from nanoloop.files import load_file, make_folder, opener, own_key, replace_file
from nanoloop.messages import Choice, Outbound
from nanoloop.session.entry import without_files

FIRST_SECONDS = 0.2
"""How long to collect the first words, so that a message does not start with a single word."""


class Draft:
    """An answer that is still being written."""

    def __init__(self, letter: Letter) -> None:
        self.letter = letter
        self.text = ""
        self.is_over = False
        """True once the draft is no longer updated."""
        self.not_before = 0.0
        """When the platform will accept the draft's next edit."""
        self._rest = anyio.CancelScope()
        self._news = anyio.Event()
        self.ended = anyio.Event()

    def grow(self, text: str) -> None:
        """Add a piece of text."""
        self.text += text
        self._news.set()

    async def rest(self, seconds: float) -> None:
        """Wait this long and then until more text arrives; return early if the draft ends."""
        with anyio.CancelScope() as self._rest:
            if self.is_over:
                return
            await anyio.sleep(seconds)
            await self._news.wait()
            self._news = anyio.Event()

    async def end(self) -> None:
        """Stop updating the draft; returns once all of its requests have ended."""
        self.is_over = True
        self._rest.cancel()
        await self.ended.wait()


class Drafts:
    """The answers sent through one channel, both drafts and complete texts."""

    def __init__(
        self,
        platform: Platform,
        *,
        connection: Connection,
        progress: Progress,
        files: FileSender,
        asked: Callable[[Place, Sequence[str], Sequence[Choice]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`asked` is told the place and messages of each question, before it counts as sent."""
        self.group: TaskGroup | None = None
        """The task group that updates drafts; without one, answers appear only when complete."""
        self._platform = platform
        self._connection = connection
        self._progress = progress
        self._writer = DraftWriter(platform, progress)
        self._files = files
        self._asked = asked
        self._clock = clock
        self._growing: dict[str, Draft] = {}
        self._shown_in: Counter[str] = Counter()
        """How many answers are being written in each chat."""
        self._groups: set[str] = set()
        self._taken_back: deque[str] = deque(maxlen=100)

    def load(self) -> None:
        """Reload the record of posted messages, because another process may have posted more."""
        self._progress.load()

    def learn(self, chat: str, *, private: bool) -> None:
        """Record whether the chat is private; a platform may allow fewer edits in groups."""
        if private:
            self._groups.discard(chat)
        else:
            self._groups.add(chat)

    def grow(self, piece: TextStreamed) -> None:
        """Add a piece to its answer's draft, and show it soon."""
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
        """Send a complete text, replacing any draft of the answer; raises the platform's errors."""
        if self._progress.has(item.id):
            return
        await self._connection.ready()
        answer = _answer(item.chat, item.reply_to)
        draft = self._growing.get(answer)
        if draft is not None:
            await self._settle(draft)
        if item.kind == "notice":
            if draft is not None:  # the text so far stays, so show all of it
                await self._whole(draft.letter, draft.text)
            answer = f"{answer} {item.text}"
        place = Place.of(item.chat)
        letter = Letter(
            answer=answer,
            place=place,
            reply_to=item.reply_to,
            name=item.id,
            choices=item.choices,
        )
        text = without_files(item.text)  # a notice may quote an answer
        if item.attachments:
            in_one = partial(self._in_one, letter)
            text = await self._files.send(item, answer=answer, in_one=in_one)
        await self._whole(letter, text)
        if item.attachments:
            self._files.forget(item, answer=answer)

    def _in_one(self, letter: Letter, markdown: str) -> Text | None:
        """Return the text if it fits in a message with files and none of it has been posted yet."""
        if self._progress.begun(letter.answer):
            return None
        limits = self._platform.limits
        texts = self._writer.texts(markdown, limits.text)
        is_fitting = len(texts) == 1 and limits.size(texts[0].best) <= limits.caption
        return texts[0] if is_fitting else None

    def close(self) -> None:
        """Mark all drafts as ended, because the tasks that updated them are gone."""
        for draft in self._growing.values():
            draft.is_over = True
            draft.ended.set()

    def begin_anew(self, chat: str, question: str) -> None:
        """Discard the draft so far, because the question was edited."""
        draft = self._growing.get(_answer(chat, question))
        if draft is not None:
            draft.text = ""

    async def take_back(self, chat: str, question: str) -> None:
        """Delete the draft, because the question was withdrawn."""
        answer = _answer(chat, question)
        self._taken_back.append(answer)
        draft = self._growing.pop(answer, None)
        if draft is not None:
            await draft.end()
        if self._progress.begun(answer):
            with suppress(Exception):  # a message that can't be deleted stays
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
        except Exception:  # the text won't be sent again
            self._forget(letter)
            raise
        if letter.choices:
            messages = self._progress.of(letter.answer, name=letter.name).messages
            self._asked(letter.place, messages, letter.choices)
        self._forget(letter)

    def _forget(self, letter: Letter) -> None:
        self._growing.pop(letter.answer, None)
        self._progress.finish(letter.answer, name=letter.name)

    async def _show(self, draft: Draft) -> None:
        """Keep updating the message until the draft ends or the platform refuses edits."""
        chat = draft.letter.place.chat
        self._shown_in[chat] += 1
        try:
            await draft.rest(FIRST_SECONDS)
            while not draft.is_over:
                await draft.rest(await self._shown(draft) or self._pace(chat))
        except Exception:  # noqa: BLE001 - the complete text reports its own failures
            draft.is_over = True
        finally:
            self._shown_in[chat] -= 1
            self._shown_in += Counter()  # drops the chats whose count is zero
            draft.ended.set()

    def _pace(self, chat: str) -> float:
        """Return how long to wait between edits; drafts in one chat share the platform's limit."""
        limits = self._platform.limits
        of_groups = limits.group_edit_seconds if chat in self._groups else None
        return (of_groups or limits.edit_seconds or 0) * self._shown_in[chat]

    async def _shown(self, draft: Draft) -> float | None:
        """Show the text so far; if the platform asks for a pause, return how long to wait."""
        text = closed(draft.text).strip()
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
    """Return a name for an unfinished answer; it stays the same after a restart."""
    return f"{chat} {reply_to}"


SHORTEST = 200
"""If a platform refuses even a message this short, splitting it further won't help."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """One answer on its way to its chat."""

    answer: str
    """The answer's name, the same for every attempt."""
    place: Place
    reply_to: str | None = None
    name: str | None = None
    """The name of the complete text, once there is one."""
    choices: tuple[Choice, ...] = ()
    """The answers to choose from, shown with the last message."""


class DraftWriter:
    """Posts, edits and deletes the messages that make up an answer, on one platform."""

    def __init__(self, platform: Platform, progress: Progress) -> None:
        self._platform = platform
        self._progress = progress

    async def write(self, letter: Letter, markdown: str) -> None:
        """Make the answer's messages say exactly this text, resuming after an earlier failure.

        Raises the platform's errors.
        """
        limit = self._platform.limits.text
        while True:
            try:
                posted = self._progress.of(letter.answer, name=letter.name)
                texts = self.texts(markdown, limit)
                texts[-1:] = [replace(text, choices=letter.choices) for text in texts[-1:]]
                await self._write(letter, posted, texts)
            except TooLong:
                if limit <= SHORTEST:
                    raise
                limit //= 2
            else:
                return

    def texts(self, markdown: str, limit: int) -> list[Text]:
        """Split a text into messages that fit the limit both as plain text and formatted."""
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
            # With the old id, the platform might mistake this for the deleted message.
            await self._put(letter, number, text, name=f"{posted.name}.{uuid4().hex}")
        posted.shown[number] = text

    async def _post(self, letter: Letter, posted: Posted, number: int, text: Text) -> None:
        is_first = posted.try_first(number, text)
        await self._put(letter, number, text, name=posted.name_of(number))
        if is_first:
            posted.shown[number] = text
        elif self._platform.limits.edit_seconds is not None:
            # An earlier attempt may have posted an older text under this id.
            await self._edit(letter, posted, number, text)

    async def _put(self, letter: Letter, number: int, text: Text, *, name: str) -> None:
        reply_to = letter.reply_to if number == 0 else None
        post = partial(self._platform.post, letter.place, reply_to=reply_to, id=name)
        message = await _in_some_form(post, text)
        self._progress.post(letter.answer, message, number=number)


async def _in_some_form(send: Callable[[Text], Awaitable[T]], text: Text) -> T:
    """Send formatted text, or plain text if the platform refuses the formatting."""
    try:
        return await send(text)
    except FormatRefused:
        if text.formatted is None:
            raise
        return await send(replace(text, formatted=None))


REMEMBERED = 2000
"""The maximum number of answers to remember: this many partly posted and as many complete."""
_LINES = 10 * REMEMBERED
NOTES = "channels"
"""The folder for progress files, within the data folder."""
_SUFFIX = ".jsonl"
_DIGEST_BYTES = 16
_DIGEST = re.compile(rf"[0-9a-f]{{{2 * _DIGEST_BYTES}}}")


@dataclass(slots=True, kw_only=True)
class Posted:
    """The messages posted so far for one answer."""

    name: str
    """The prefix of the messages' ids, the same for every attempt."""
    messages: list[str] = field(default_factory=list)
    """The messages' ids on the platform, in order."""
    shown: dict[int, Text] = field(default_factory=dict)
    """The text of each message, if known."""
    tried: dict[int, Text] = field(default_factory=dict)
    """The first text tried for each message; the platform may have accepted it without replying."""
    is_old: bool = False
    """True if an earlier process may have posted some of these messages."""
    cuts: int = 0
    """How many times the answer has become shorter."""

    def name_of(self, number: int) -> str:
        """Return the id for posting a message; after each cut it is a new one."""
        return f"{self.name}.{number}" if not self.cuts else f"{self.name}.{self.cuts}.{number}"

    def try_first(self, number: int, text: Text) -> bool:
        """Record the first text tried; return False if a different one may have been posted."""
        return self.tried.setdefault(number, text) == text and not self.is_old

    def says(self, number: int) -> Text | None:
        """Return the text of this message, or None if it is no longer known."""
        return self.shown.get(number)


class Progress:
    """Records which messages have been posted, in memory or in a file.

    The file holds ids and digests but no text; lines that can't be read are skipped.
    """

    def __init__(self, file: Path | None = None, *, data: Path | None = None) -> None:
        """Create the record; the key for digests is in the folder `data`, or beside the file."""
        self._file = file
        self._folder = file.parent if data is None and file is not None else data
        self._key: bytes | None = None
        self._open: BoundedDict[str, Posted] = BoundedDict(REMEMBERED)
        self._done: BoundedDict[str, None] = BoundedDict(REMEMBERED)
        self._lines = 0
        self.load()

    def load(self) -> None:
        """Reload the file, because another process may have changed it."""
        if self._file is None:
            return
        self._open.clear()
        self._done.clear()
        make_folder(self._file.parent)
        with suppress(FileNotFoundError):
            self._load(self._file)

    def of(self, answer: str, *, name: str | None = None) -> Posted:
        """Return the record of this answer's posted messages; if new, it gets this name."""
        return self._of(self._digest(answer), name)

    def _of(self, digest: str, name: str | None = None) -> Posted:
        if digest not in self._open:
            self._note(begun=digest, name=name or uuid4().hex)
        return self._open[digest]

    def begun(self, answer: str) -> bool:
        """Return whether part of this answer may have been posted already."""
        return self._digest(answer) in self._open

    def post(self, answer: str, message: str, *, number: int, count: int = 1) -> None:
        """Record the id of the answer's message `number`, which counts as `count` messages."""
        more = {"count": count} if count > 1 else {}
        self._note(posted=self._digest(answer), message=message, number=number, **more)

    def cut(self, answer: str, *, number: int) -> None:
        """Record that only the first `number` messages of the answer remain."""
        self._note(cut=self._digest(answer), number=number)

    def finish(self, answer: str, *, name: str | None = None) -> None:
        """Record that the answer is complete, and that the text with this name was posted."""
        self._note(done=self._digest(answer), name=name)

    def _digest(self, answer: str) -> str:
        """Return a digest to store instead of the name, which may contain a notice's text."""
        if self._key is None:
            try:
                self._key = token_bytes() if self._folder is None else own_key(self._folder)
            except OSError:  # a failing disk must not stop an answer
                self._key = token_bytes()
        said = answer.encode("utf-8", "surrogatepass")
        return blake2b(said, key=self._key, digest_size=_DIGEST_BYTES).hexdigest()

    def has(self, name: str | None) -> bool:
        """Return whether the text with this name is known to have been posted."""
        return name in self._done

    def _note(self, **fact: Any) -> None:
        self._learn(fact)
        if self._file is None:
            return
        self._lines += 1
        with suppress(OSError):  # a full disk must not stop an answer
            if self._lines > _LINES:
                self._rewrite(self._file)
            else:
                with open(self._file, "ab", opener=opener) as lines:
                    lines.write(_lines((fact,)))

    def _learn(self, fact: dict[str, Any]) -> None:
        match fact:
            case {"begun": answer, "name": name}:
                self._open[answer] = Posted(name=name)
            case {"posted": answer, "message": message, "number": number}:
                count = int(fact.get("count", 1))
                self._of(answer).messages[number : number + count] = [message] * count
            case {"cut": answer, "number": number}:
                posted = self._of(answer)
                del posted.messages[number:]
                posted.cuts += 1
                posted.shown = {n: text for n, text in posted.shown.items() if n < number}
                posted.tried = {n: text for n, text in posted.tried.items() if n < number}
            case {"done": answer, "name": name}:
                self._open.pop(answer, None)
                if name is not None:
                    self._done[name] = None

    def _load(self, file: Path) -> None:
        for line in load_file(file).decode("utf-8", "replace").splitlines():
            with suppress(ValueError, KeyError):  # cut off by a crash, or from an old version
                self._learn(self._without_text(json.loads(line)))
        for posted in self._open.values():
            posted.is_old = True
        self._rewrite(file)

    def _without_text(self, fact: dict[str, Any]) -> dict[str, Any]:
        """Convert a record from an earlier version, which stored names instead of digests."""
        for kind in ("begun", "posted", "cut", "done"):
            name = fact.get(kind)
            if isinstance(name, str) and not _DIGEST.fullmatch(name):
                return {**fact, kind: self._digest(name)}
        return fact

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


def notes_of(folder: Path, channel: str) -> Path:
    """Return the path of a channel's progress file in the data folder."""
    return folder / NOTES / f"{channel}{_SUFFIX}"


def rewrite_notes(folder: Path, *, of: Iterable[str] = ()) -> list[Path]:
    """Remove the text that earlier versions stored in the progress files of stopped channels.

    `of` names the running channels. Return the files that can't be read or written.
    """
    left = []
    for file in (folder / NOTES).glob(f"*{_SUFFIX}"):
        if file.name.removesuffix(_SUFFIX) not in of:
            try:
                Progress(file, data=folder)
            except OSError:  # the caller reports the file
                left.append(file)
    return left


def _lines(facts: Iterable[dict[str, Any]]) -> bytes:
    return "".join(f"{json.dumps(fact)}\n" for fact in facts).encode()
