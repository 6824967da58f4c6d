"""Prepares incoming messages for the bus: downloads files, transcribes speech, shows typing."""

from __future__ import annotations

import hashlib
import inspect
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Self

import anyio
from anyio.abc import TaskGroup

from nanoloop.attachments import Attachments, mime_type_of
from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.access import AccessControl, command
from nanoloop.channels.kit.drafts import Drafts
from nanoloop.channels.kit.platform import File, Heard, Place, Platform
from nanoloop.channels.kit.questions import Questions
from nanoloop.documents import SHOWN_CHARS
from nanoloop.errors import BusFull, Declined, PictureRefused, place_of, reason_of
from nanoloop.events import FileLeftOut, HearingFailed, MessageRepeated, announce
from nanoloop.lanes import Lanes
from nanoloop.messages import Attachment, Inbound, Outbound, Quote, Speaker
from nanoloop.protocols import Bus
from nanoloop.session.entry import SCHEME
from nanoloop.session.speech import display_name
from nanoloop.tools.threads import Threads

WAITING = 200
"""How many messages from one chat may wait to be accepted before the platform has to wait."""
REMEMBERED = 10_000
"""The number of messages whose text is remembered, to ignore edits that change nothing."""
QUOTE_CHARS = 1000
"""How many characters of a quoted or forwarded message are kept."""


@dataclass(frozen=True, slots=True)
class _Item:
    heard: Heard
    taken: anyio.Event = field(default_factory=anyio.Event)


class Intake:
    """Receives messages from one platform and passes them to the bus."""

    def __init__(
        self,
        name: str,
        *,
        bus: Bus,
        access: AccessControl,
        drafts: Drafts,
        questions: Questions,
        files: Files,
        typist: Typist,
    ) -> None:
        self._name = name
        self._bus = bus
        self._access = access
        self._drafts = drafts
        self._questions = questions
        self._files = files
        self._typist = typist
        self._overheard = Overheard()
        self._is_deaf = False
        self._recent: BoundedDict[tuple[str, str], str] = BoundedDict(REMEMBERED)
        self._lanes: Lanes[str, _Item] = Lanes(self._take, limit=WAITING, name="heard")

    async def __aenter__(self) -> Self:
        await self._lanes.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> bool | None:
        return await self._lanes.__aexit__(*exc)

    def take_no_more(self) -> None:
        """Stop acknowledging messages; the platform delivers them again after a restart."""
        self._is_deaf = True

    async def hear(self, *heard: Heard) -> None:
        """Return once every message has been stored or refused."""
        items = [_Item(one) for one in heard if not one.is_bot]
        for item in items:
            await self._lanes.put(item.heard.chat, item)
        for item in items:
            await item.taken.wait()

    async def _take(self, _: str, item: _Item) -> None:
        try:
            await self._receive(item.heard)
        except Exception as error:  # noqa: BLE001 - one message's bug must not end the channel
            about = f"{type(error).__name__} at {place_of(error)}"
            announce(HearingFailed(channel=self._name, chat=item.heard.chat, error=about))
        item.taken.set()

    async def _receive(self, heard: Heard) -> None:
        heard = replace(heard, text=_without_mention(heard))
        if heard.edits or heard.deletes:
            await self._amend(heard)
            return
        heard = self._questions.answered(heard, self._access.say)
        if not (heard.text.strip() or heard.files or _forwarded(heard)):
            return  # a service message, such as someone joining
        if not self._access.may_talk(heard):
            if heard.private or heard.addressed:
                await self._tell(heard, self._access.refusal(heard))
        elif self._is_asked(heard):
            await self._ask(heard)
        elif self._access.rules.overheard == "keep":
            self._overheard.keep(_place(heard), heard)

    def _is_asked(self, heard: Heard) -> bool:
        """Return whether the message asks for an answer."""
        rule = self._access.rules.groups
        return heard.private or rule == "always" or (rule == "mention" and heard.addressed)

    async def _ask(self, heard: Heard) -> None:
        self._drafts.learn(heard.chat, private=heard.private)
        is_known = self._is_known(heard)
        is_command = command(heard.text) is not None
        if is_known and is_command:  # the session recognises repeated messages, but not commands
            announce(MessageRepeated(key=self._key(heard), message_id=heard.id))
            return
        early = 0.0
        if not is_known:
            is_too_much, words = self._access.excess(heard)
            if is_too_much:
                await self._tell(heard, words)
                return
            early = self._access.early_seconds(heard)
        if self._access.is_forbidden(heard):
            if not early:
                await self._tell(heard, self._access.say("operators_only"))
        elif command(heard.text) == "pair":
            await self._pair(heard)
        else:
            message = await self._inbound(heard, is_command=is_command)
            if early:
                moment = datetime.now(timezone.utc) + timedelta(seconds=early)
                message = replace(message, not_before=moment)
            await self._hand_in(message)

    async def _hand_in(self, message: Inbound) -> None:
        if self._is_deaf:
            await anyio.sleep_forever()
        question, is_owed = (message.chat, message.message_id or ""), False
        is_asked = command(message.text) is None and not (message.edits or message.deletes)
        if is_asked:
            self._typist.start(*question)
        with suppress(BusFull):  # the chat has already been told
            is_owed = await self._bus.hand_in(message) != "repeated"
        if is_asked and not is_owed:
            self._typist.drop(*question)

    async def _inbound(self, heard: Heard, *, is_command: bool) -> Inbound:
        rules = self._access.rules
        return Inbound(
            channel=self._name,
            chat=_place(heard),
            text=heard.text,
            sender=display_name(heard.name or heard.sender),
            speaker=self._speaker(heard),
            quotes=() if is_command else self._quotes(heard),
            message_id=heard.id,
            attachments=tuple(await self._attachments(heard)),
            reply_to=heard.reply_to,
            group=not heard.private,
            key=self._key(heard),
            account=self._account(heard),
            agent=rules.first_agent,
            agents=None if self._access.is_operator(heard) else rules.agents_of_all,
            rank="operator" if self._access.is_operator(heard) else "user",
            language=rules.language,
            burst_seconds=max(rules.burst_seconds, heard.burst_seconds),
            steers=rules.steers,
            time=heard.time,
        )

    async def _attachments(self, heard: Heard) -> list[Attachment]:
        owner = self._key(heard)
        return [await self._files.attachment(file, owner=owner) for file in heard.files]

    def _quotes(self, heard: Heard) -> tuple[Quote, ...]:
        """Return the quotes and other people's messages that the model needs for context."""
        quotes: list[Quote] = []
        for said in self._overheard.take(_place(heard)):
            text, kinds = _short(said.text.strip(), CHARS), tuple(file.kind for file in said.files)
            by = self._speaker(said)
            quotes.append(
                Quote(kind="overheard", text=text, speaker=by, files=kinds, time=said.time)
            )
            forwarded = (quote for quote in _quoted(said) if quote.kind == "forward")
            quotes += (replace(quote, time=said.time) for quote in forwarded)
        return (*quotes, *_quoted(heard))

    def _speaker(self, heard: Heard) -> Speaker:
        return Speaker(id=heard.sender, name=heard.name, platform=self._name)

    async def _amend(self, heard: Heard) -> None:
        """Handle an edit or deletion of an earlier message."""
        place = _place(heard)
        earlier = heard.edits or heard.deletes or ""
        if self._overheard.forget(place, earlier) is not None:
            if heard.edits:
                await self._receive(replace(heard, id=earlier, edits=None))
            return
        if not self._access.may_talk(heard) or (heard.edits and self._says(heard, earlier)):
            return
        message = await self._inbound(heard, is_command=True)
        await self._hand_in(
            replace(message, edits=heard.edits, deletes=heard.deletes, burst_seconds=0)
        )
        # Do this last: until now, pieces of the old answer may still arrive.
        if heard.edits:
            self._drafts.begin_anew(place, earlier)
        else:
            await self._drafts.take_back(place, earlier)

    def _is_known(self, heard: Heard) -> bool:
        """Return whether this message was received before, and remember it."""
        known = (heard.chat, heard.id) in self._recent
        self._recent[heard.chat, heard.id] = heard.text
        return known

    def _says(self, heard: Heard, message: str) -> bool:
        """Return whether the message already has this text; not every edit changes the text."""
        said = self._recent.get((heard.chat, message))
        self._recent[heard.chat, message] = heard.text
        return said == heard.text

    async def _pair(self, heard: Heard) -> None:
        _, _, code = heard.text.partition(" ")
        person, say = self._access.approve(code), self._access.say
        if person is None:
            await self._tell(heard, say("code_unknown"))
            return
        await self._tell(heard, say("paired", name=person.name or person.id))
        await self._say(person.chat, say("welcome"))

    async def _tell(self, heard: Heard, words: str | None) -> None:
        if words is not None:
            await self._say(_place(heard), words, reply_to=heard.id)

    async def _say(self, chat: str, words: str, *, reply_to: str | None = None) -> None:
        said = Outbound(channel=self._name, chat=chat, text=words, kind="notice", reply_to=reply_to)
        await self._bus.publish(said)

    def _key(self, heard: Heard) -> str:
        """Return the session's key: the thread's, or the chat's if threads share one."""
        chat = heard.chat if self._access.rules.threads == "shared" else _place(heard)
        return f"{self._name}:{chat}"

    def _account(self, heard: Heard) -> str:
        """Return who is charged for the turn: in private the sender, elsewhere the group."""
        return f"{self._name}:{heard.sender if heard.private else heard.chat}"


def _place(heard: Heard) -> str:
    return str(Place(heard.chat, heard.thread))


def _without_mention(heard: Heard) -> str:
    if not heard.mention:
        return heard.text
    text = heard.text.replace(heard.mention, "", 1).strip()
    # A message that consists only of the bot's name is a question too.
    return text.removeprefix(":").removeprefix(",").strip() or heard.text


def _forwarded(heard: Heard) -> bool:
    return any(quote.kind == "forward" and quote.text.strip() for quote in heard.quotes)


def _quoted(heard: Heard) -> Iterator[Quote]:
    unnamed = (Quote(text=heard.quote),) if heard.quote else ()
    for quote in (*unnamed, *heard.quotes):
        if text := quote.text.strip():
            yield replace(quote, text=_short(text, QUOTE_CHARS))


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[:chars]}…"


MESSAGES = 20
"""How many messages per place are kept."""
CHARS = 500
"""How many characters of each message are kept."""
CHATS = 1000


class Overheard:
    """Keeps the latest messages in each place that were not addressed to the bot."""

    def __init__(self) -> None:
        self._said: BoundedDict[str, deque[Heard]] = BoundedDict(CHATS)

    def keep(self, place: str, heard: Heard) -> None:
        """Remember this message."""
        self.forget(place, heard.id)  # the message may have been delivered twice
        self._said[place] = said = self._said.get(place, deque(maxlen=MESSAGES))
        said.append(heard)

    def forget(self, place: str, message: str) -> Heard | None:
        """Forget an edited or deleted message; return it, or None if it is unknown."""
        said = self._said.get(place, deque())
        found = next((heard for heard in said if heard.id == message), None)
        if found is not None:
            said.remove(found)
        return found

    def take(self, place: str) -> Sequence[Heard]:
        """Return and forget the place's messages, oldest first."""
        return tuple(self._said.pop(place, ()))


FETCH_SECONDS = 60.0
NOT_KEPT = "(it could not be stored)"
NOT_SHOWN = "(a picture in an unsupported format)"
NOT_READ = "(this voice message could not be read)"


class Files:
    """Turns files into attachments; if a file fails, its message is still delivered."""

    def __init__(
        self,
        *,
        channel: str,
        limit_bytes: int,
        attachments: Attachments | None = None,
        transcriber: Transcriber | None = None,
    ) -> None:
        """Create the object; with `attachments`, files are stored for the model to see and read."""
        self._channel = channel
        self._limit_bytes = limit_bytes
        self._attachments = attachments
        self._transcriber = transcriber

    async def attachment(self, file: File, *, owner: str) -> Attachment:
        """Return the attachment for this file, storing the file for `owner` if possible."""
        known = Attachment(
            kind=file.kind,
            ref=f"unkept:{file.kind}",
            name=file.name or None,
            mime_type=file.mime_type or None,
            size=file.size,
        )
        if self._attachments is None and self._transcriber is None:
            return known
        try:
            data = await self._fetched(file)
        except Exception as error:  # noqa: BLE001 - the message matters more than its file
            return replace(known, text=self._left_out(error, NOT_KEPT))
        kept = await self._kept(file, data, known, owner)
        if file.kind != "audio" or self._transcriber is None:
            return kept
        return replace(kept, text=await self._words(self._transcriber, file, data))

    async def _fetched(self, file: File) -> bytes:
        if file.size is not None and file.size > self._limit_bytes:
            raise Declined("too large")
        with anyio.fail_after(FETCH_SECONDS):
            data = await file.fetch()
        if len(data) > self._limit_bytes:
            raise Declined("too large")
        return data

    async def _kept(self, file: File, data: bytes, known: Attachment, owner: str) -> Attachment:
        try:
            if self._attachments is None:
                return known
            return await self._keep(self._attachments, file, data, owner)
        except PictureRefused as refused:
            return replace(known, text=self._left_out(refused, f"({refused})"))
        except Exception as error:  # noqa: BLE001 - as above
            return replace(known, text=self._left_out(error, NOT_KEPT))

    async def _keep(
        self, attachments: Attachments, file: File, data: bytes, owner: str
    ) -> Attachment:
        """Store the file durably and return its attachment."""
        known = mime_type_of(data)
        name = file.name or file.kind
        mime_type = known or file.mime_type or "application/octet-stream"
        kept = await attachments.keep(data, owner=owner, name=name, mime_type=mime_type)
        about = Attachment(
            kind="file" if file.kind == "image" and kept.kind != "image" else file.kind,
            ref=f"{SCHEME}{kept.id}",
            name=name,
            mime_type=kept.mime_type,
            size=kept.size,
        )
        if known is None and mime_type.startswith("image/"):
            return replace(about, text=NOT_SHOWN)
        if about.kind != "file":
            return about
        found = await attachments.document(kept, data)
        if found.problem:
            announce(FileLeftOut(channel=self._channel, reason=found.problem))
        return replace(about, text=found.shown(about.ref), chars=found.chars)

    async def _words(self, transcriber: Transcriber, file: File, data: bytes) -> str:
        try:
            return (await transcriber.words(file, data))[:SHOWN_CHARS]
        except Exception as error:  # noqa: BLE001 - as above
            return self._left_out(error, NOT_READ)

    def _left_out(self, error: Exception, words: str) -> str:
        """Log why the file is left out, and return the text that the model reads instead."""
        reason = reason_of(error)
        announce(FileLeftOut(channel=self._channel, reason=reason))
        return words


SECONDS = 60.0
SIDE_BY_SIDE = 4
"""How many calls to a blocking function run at once, each in its own thread."""
TRANSCRIPTS_REMEMBERED = 100
"""How many transcripts are remembered, to avoid requesting the same one twice."""

Transcribe = Callable[[File, bytes], Awaitable[str | None] | str | None]
"""A user's function that takes a voice message and its bytes and returns the transcript."""


class Transcriber:
    """Transcribes voice messages with a sync or async function."""

    def __init__(self, function: Transcribe, *, seconds: float = SECONDS) -> None:
        self._function = function
        self._seconds = seconds
        self._threads = Threads(SIDE_BY_SIDE)
        self._told: BoundedDict[bytes, str] = BoundedDict(TRANSCRIPTS_REMEMBERED)

    async def words(self, file: File, data: bytes) -> str:
        """Return the transcript; raises the function's errors, and `TimeoutError`."""
        # Platforms redeliver a message if this takes long, and each call may cost money.
        name = hashlib.sha256(data).digest()
        if name not in self._told:
            self._told[name] = await self._ask(file, data)
        return self._told[name]

    async def _ask(self, file: File, data: bytes) -> str:
        with anyio.fail_after(self._seconds):
            # In the thread, an async function only returns an awaitable, which is awaited here.
            found = await self._threads.run(partial(self._function, file, data))
            said = await found if inspect.isawaitable(found) else found
        if not (isinstance(said, str) and said.strip()):
            raise ValueError("no words")
        return said


TYPING_SECONDS = 600.0
_RENEWED_AT = 0.8
"""Typing is shown again after this fraction of its duration."""


class Typist:
    """Shows that the bot is typing in each chat that waits for an answer."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self.group: TaskGroup | None = None
        """The task group that shows typing; without one, typing is never shown."""
        self._waiting: dict[str, list[str]] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    def start(self, chat: str, question: str) -> None:
        """Show typing until this question has been answered."""
        seconds = self._platform.limits.typing_seconds
        if seconds is None or self.group is None:
            return
        self._waiting.setdefault(chat, []).append(question)
        if chat not in self._scopes:
            self._scopes[chat] = scope = anyio.CancelScope()
            self.group.start_soon(self._type, chat, scope, seconds, name=f"typist {chat}")

    def stop(self, chat: str, question: str | None) -> None:
        """Record that this question and all earlier ones have been answered."""
        waiting = self._waiting.get(chat, [])
        if question in waiting:
            del waiting[: waiting.index(question) + 1]
        self._end(chat)

    def drop(self, chat: str, question: str) -> None:
        """Record that this question gets no answer; an earlier copy may still get one."""
        waiting = self._waiting.get(chat, [])
        if question in waiting:
            del waiting[~waiting[::-1].index(question)]
        self._end(chat)

    def _end(self, chat: str) -> None:
        if not self._waiting.get(chat) and (scope := self._scopes.get(chat)):
            scope.cancel()

    async def _type(self, chat: str, scope: anyio.CancelScope, seconds: float) -> None:
        try:
            with scope, anyio.move_on_after(TYPING_SECONDS):
                while self._waiting.get(chat):
                    with suppress(Exception):  # typing is only a courtesy
                        await self._platform.typing(Place.of(chat))
                    await anyio.sleep(seconds * _RENEWED_AT)
        finally:
            self._scopes.pop(chat, None)
            self._waiting.pop(chat, None)
