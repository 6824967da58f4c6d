"""Reads incoming messages from Telegram."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from telegram import (
    Bot,
    CallbackQuery,
    Chat,
    Message,
    MessageEntity,
    MessageOrigin,
    MessageOriginChannel,
    MessageOriginChat,
    MessageOriginUser,
    Update,
    User,
)

from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.platform import File, Heard, is_choice
from nanoloop.channels.telegram.api import answered
from nanoloop.files import load_file, save_json
from nanoloop.messages import Quote, Speaker

KINDS = ("message", "edited_message", "callback_query")
"""The kinds of updates to request; Telegram does not report deleted messages to bots."""
Read = Callable[[Any], Heard | None]
"""Reads an update; returns None if it is not for the bot."""
_PRESS = "!"
"""Between a message's id and the id of a query, in the id of a pressed button."""
_NAMING: list[str | None] = [
    MessageEntity.MENTION,
    MessageEntity.TEXT_MENTION,
    MessageEntity.BOT_COMMAND,
]


DOUBLE_SECONDS = 2.0
"""A second press of the same button by the same person within this time is ignored."""
PRESSES = 1000


class Reader:
    """Reads updates for one bot."""

    def __init__(
        self,
        bot: Bot,
        moves: Moves,
        *,
        pressed: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`pressed` is called with the id of each pressed button's query."""
        self._bot = bot
        self._moves = moves
        self._pressed = pressed
        self._clock = clock
        self._presses: BoundedDict[tuple[Any, ...], tuple[str, float]] = BoundedDict(PRESSES)

    def __call__(self, update: Any) -> Heard | None:
        """Read an update; never raises, because Telegram would resend an unreadable one forever."""
        try:
            known = Update.de_json(update, self._bot)
            if known.callback_query is not None:
                self._pressed(known.callback_query.id)
                return self._chosen(known.callback_query)
            message = known.message or known.edited_message
            return None if message is None else self._heard(known, message)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def _heard(self, update: Update, message: Message) -> Heard | None:
        if self._has_moved(message):
            return None
        text, kept = words(message), tuple(files(message))
        naming = _Naming(message, self._bot.bot)
        is_forwarded = message.forward_origin is not None  # a forwarded message is never a command
        if not (text or kept) or (naming.is_for_another and not is_forwarded):
            return None
        chat, of = message.chat.id, message.reply_to_message
        if of is not None and of.forum_topic_created:  # every message in a topic replies to it
            of = None
        name = self._moves.message(chat, message.message_id)
        is_edit = update.edited_message is not None
        return Heard(
            chat=self._moves.first(chat),
            id=f"{name}-{update.update_id}" if is_edit else name,
            text="" if is_forwarded else text,
            private=message.chat.type == "private",
            addressed=naming.is_named or (of is not None and of.from_user == self._bot.bot),
            mention=naming.mention,
            thread=str(message.message_thread_id) if message.is_topic_message else "",
            reply_to=None if of is None else self._moves.message(chat, of.message_id),
            quotes=tuple(self._quotes(message, of)),
            files=kept,
            edits=name if is_edit else None,
            burst_seconds=1.0 if message.media_group_id else 0.0,
            time=message.date,
            **_sender(message),
        )

    def _chosen(self, query: CallbackQuery) -> Heard | None:
        """Read a pressed button as a message from the person who pressed it."""
        message, data = query.message, query.data
        if message is None or not is_choice(data):
            return None
        chat = message.chat.id
        if self._is_double(query, chat, message.message_id):
            return None
        name = self._moves.message(chat, message.message_id)
        thread = ""
        if isinstance(message, Message) and message.is_topic_message:  # an old one doesn't say
            thread = str(message.message_thread_id)
        return Heard(
            chat=self._moves.first(chat),
            id=f"{name}{_PRESS}{query.id}",
            sender=str(query.from_user.id),
            name=query.from_user.full_name,
            text=str(data),
            private=message.chat.type == "private",
            addressed=True,
            thread=thread,
            reply_to=name,
            is_bot=query.from_user.is_bot,
        )

    def _is_double(self, query: CallbackQuery, *button: Any) -> bool:
        """Return whether this is the second press of a double click; a redelivery is not."""
        button = (*button, query.from_user.id, query.data)
        first, pressed_at = self._presses.get(button, ("", -DOUBLE_SECONDS))
        if query.id == first:
            return False
        if (now := self._clock()) - pressed_at < DOUBLE_SECONDS:
            return True
        self._presses[button] = (query.id, now)
        return False

    def _quotes(self, message: Message, of: Message | None) -> Iterator[Quote]:
        """Yield the message itself if it is forwarded, and the text that it replies to."""
        if message.forward_origin is not None:
            by = self._origin(message.forward_origin)
            yield Quote(kind="forward", text=words(message), speaker=by)
        if message.quote is not None or of is not None:
            selected = message.quote.text if message.quote else ""
            elsewhere = message.external_reply
            whose = self._speaker(of) if of is not None else None
            if elsewhere is not None:
                whose = self._origin(elsewhere.origin)
            yield Quote(text=selected or (words(of) if of else ""), speaker=whose)

    def _origin(self, origin: MessageOrigin) -> Speaker:
        """Return the author of a forwarded message; some people reveal only their name."""
        if isinstance(origin, MessageOriginUser):
            return self._of_user(origin.sender_user)
        if isinstance(origin, MessageOriginChat):
            return _of_chat(origin.sender_chat)
        if isinstance(origin, MessageOriginChannel):
            return _of_chat(origin.chat)
        return Speaker(name=str(getattr(origin, "sender_user_name", "")))

    def _speaker(self, message: Message) -> Speaker | None:
        if message.sender_chat is not None:
            return _of_chat(message.sender_chat)
        return self._of_user(message.from_user) if message.from_user else None

    def _of_user(self, user: User) -> Speaker:
        return Speaker(id=str(user.id), name=user.full_name, is_me=user.id == self._bot.bot.id)

    def _has_moved(self, message: Message) -> bool:
        """Return whether the message only reports that a group became a supergroup."""
        if message.migrate_to_chat_id:
            self._moves.learn(message.chat.id, message.migrate_to_chat_id)
        elif message.migrate_from_chat_id:
            self._moves.learn(message.migrate_from_chat_id, message.chat.id)
        else:
            return False
        return True


class _Naming:
    """The bots that a message mentions or commands."""

    def __init__(self, message: Message, bot: User) -> None:
        self.mention = ""
        """The exact text that mentions the bot."""
        self.is_named = False
        self.is_for_another = False
        """True if the message is a command for another bot."""
        own = f"@{bot.username}".lower()
        for entity, text in _entities(message):
            command, at, of = text.partition("@")
            if entity.type == MessageEntity.BOT_COMMAND and entity.offset > 0:
                continue
            if entity.type == MessageEntity.TEXT_MENTION:
                is_own = entity.user is not None and entity.user.id == bot.id
            else:
                is_own = not at or f"@{of}".lower() == own
            if is_own:
                self.is_named = True
                self.mention = self.mention or (f"{at}{of}" if command.startswith("/") else text)
            elif command:
                self.is_for_another = entity.type == MessageEntity.BOT_COMMAND


def _entities(message: Message) -> Iterator[tuple[MessageEntity, str]]:
    if message.text:
        yield from message.parse_entities(_NAMING).items()
    elif message.caption:
        yield from message.parse_caption_entities(_NAMING).items()


def _sender(message: Message) -> dict[str, Any]:
    """Describe the sender: a person, a bot, or a group or channel that someone speaks for."""
    if (chat := message.sender_chat) is not None:
        return {"sender": str(chat.id), "name": chat.effective_name or ""}
    user = message.from_user
    if user is None:
        return {"sender": ""}
    return {"sender": str(user.id), "name": user.full_name, "is_bot": user.is_bot}


def _of_chat(chat: Chat) -> Speaker:
    return Speaker(id=str(chat.id), name=chat.effective_name or "")


Kind = Literal["image", "audio", "video", "file"]


def words(message: Message) -> str:
    """Return a message's text or caption, or else a short description."""
    if text := message.text or message.caption:
        return text
    if message.sticker:
        return message.sticker.emoji or "[sticker]"
    if place := message.location:
        name = f"{message.venue.title}, {message.venue.address}: " if message.venue else ""
        return f"[place: {name}{place.latitude}, {place.longitude}]"
    if who := message.contact:
        return f"[contact: {who.first_name} {who.last_name or ''} {who.phone_number}]"
    if poll := message.poll:
        return f"[poll: {poll.question} {' / '.join(option.text for option in poll.options)}]"
    return ""


def files(message: Message) -> Iterator[File]:
    """Yield a message's photo, voice note, video, music or document."""
    if message.photo:
        yield _file(message.photo[-1], "image", "image/jpeg")  # the largest comes last
    if found := message.voice or message.audio:
        yield _file(found, "audio", "audio/ogg")
    if seen := message.video or message.video_note or message.animation:
        yield _file(seen, "video", "video/mp4")
    elif message.document:  # an animation is sent as a document too
        kind = (message.document.mime_type or "").partition("/")[0]
        yield _file(message.document, _KINDS.get(kind, "file"), "")


_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


def _file(found: Any, kind: Kind, usual: str) -> File:
    async def fetch() -> bytes:
        with answered():
            whole = await found.get_file()
            return bytes(await whole.download_as_bytearray())

    return File(
        kind=kind,
        fetch=fetch,
        name=getattr(found, "file_name", None) or "",
        mime_type=getattr(found, "mime_type", None) or usual,
        size=found.file_size,
    )


class Moves:
    """Maps the old and new ids of groups, in a file if one is given.

    A supergroup numbers its messages from 1 again, so the message ids used here include the chat's
    id, which tells new messages apart from older ones.
    """

    def __init__(self, file: Path | None = None) -> None:
        self._file = file
        self._new: dict[int, int] = {}
        self.load()

    def load(self) -> None:
        """Reload the file, because another process may have changed it."""
        if self._file is not None and self._file.exists():
            said = json.loads(load_file(self._file))
            self._new = {int(old): new for old, new in said.items()}
        self._old = {new: old for old, new in self._new.items()}

    def learn(self, old: int, new: int) -> None:
        """Record a group's new id; durable when this returns."""
        if self._new.get(old) == new:
            return
        self._new[old], self._old[new] = new, old
        if self._file is not None:
            save_json(self._file, self._new)

    def first(self, chat: int) -> str:
        """Return the id by which nanoloop knows a chat: its first one."""
        return str(self._old.get(chat, chat))

    def now(self, chat: str) -> int:
        """Return the id by which Telegram knows a chat: its latest one."""
        return self._new.get(int(chat), int(chat))

    def message(self, chat: int, number: int) -> str:
        """Return nanoloop's id for the message with this number."""
        return f"{chat}.{number}" if chat in self._old else str(number)

    def number(self, chat: str, message: str) -> int | None:
        """Return the number of a message in its chat, or None if the chat has moved since."""
        of, _, number = message.partition(_PRESS)[0].rpartition(".")
        is_there = int(of) == self.now(chat) if of else int(chat) not in self._new
        return int(number) if is_there else None
