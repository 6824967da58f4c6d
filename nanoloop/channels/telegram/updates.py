"""What Telegram tells of, as the kit hears it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from telegram import Bot, Message, MessageEntity, Update, User

from nanoloop.channels.platform.platform import Heard
from nanoloop.channels.telegram.contents import files, words
from nanoloop.channels.telegram.moves import Moves

KINDS = ("message", "edited_message")
"""Telegram tells bots nothing of deleted messages."""
Read = Callable[[Any], Heard | None]
"""Reads an update, as it came; None where it is nothing to the bot."""
_NAMING: list[str | None] = [
    MessageEntity.MENTION,
    MessageEntity.TEXT_MENTION,
    MessageEntity.BOT_COMMAND,
]


class Reader:
    """Reads updates for one bot."""

    def __init__(self, bot: Bot, moves: Moves) -> None:
        self._bot = bot
        self._moves = moves

    def __call__(self, update: Any) -> Heard | None:
        """What it tells; it never raises, as an update that can't be read would come for ever."""
        try:
            known = Update.de_json(update, self._bot)
            message = known.message or known.edited_message
            return None if message is None else self._heard(known, message)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    def _heard(self, update: Update, message: Message) -> Heard | None:
        if self._has_moved(message):
            return None
        text, kept = words(message), tuple(files(message))
        naming = _Naming(message, self._bot.bot)
        if not (text or kept) or naming.is_for_another:
            return None
        chat, of = message.chat.id, message.reply_to_message
        if of is not None and of.forum_topic_created:  # every message of a topic answers that one
            of = None
        name = self._moves.message(chat, message.message_id)
        is_edit = update.edited_message is not None
        return Heard(
            chat=self._moves.first(chat),
            id=f"{name}-{update.update_id}" if is_edit else name,
            text=text,
            private=message.chat.type == "private",
            addressed=naming.is_named or (of is not None and of.from_user == self._bot.bot),
            mention=naming.mention,
            thread=str(message.message_thread_id) if message.is_topic_message else "",
            reply_to=None if of is None else self._moves.message(chat, of.message_id),
            quote=_quote(message, of),
            files=kept,
            edits=name if is_edit else None,
            burst_seconds=1.0 if message.media_group_id else 0.0,
            time=message.date,
            **_sender(message),
        )

    def _has_moved(self, message: Message) -> bool:
        """Whether it only tells that the group has become a supergroup."""
        if message.migrate_to_chat_id:
            self._moves.learn(message.chat.id, message.migrate_to_chat_id)
        elif message.migrate_from_chat_id:
            self._moves.learn(message.migrate_from_chat_id, message.chat.id)
        else:
            return False
        return True


class _Naming:
    """Whom a message names, or commands."""

    def __init__(self, message: Message, bot: User) -> None:
        self.mention = ""
        """The very words that name the bot."""
        self.is_named = False
        self.is_for_another = False
        """Whether it is a command for another bot."""
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
    """Who said it: a person, a bot, or a group or channel that someone speaks for."""
    if (chat := message.sender_chat) is not None:
        return {"sender": str(chat.id), "name": chat.effective_name or ""}
    user = message.from_user
    if user is None:
        return {"sender": ""}
    return {"sender": str(user.id), "name": user.full_name, "is_bot": user.is_bot}


def _quote(message: Message, of: Message | None) -> str:
    """The words that it answers: those that were picked, else all of them."""
    if message.quote is not None:
        return message.quote.text
    return "" if of is None else words(of)
