"""What a message of Discord says to the kit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import discord

from nanoloop.channels.platform.platform import File, Heard, Place

_SPOKEN = (discord.MessageType.default, discord.MessageType.reply)
_EMOJI = re.compile(r"<a?(:\w+:)\d+>")
Kind = Literal["image", "audio", "video", "file"]
_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


def heard(message: discord.Message, me: discord.ClientUser) -> Heard | None:
    """The message, or None where nobody says anything in it."""
    if message.type not in _SPOKEN:
        return None
    place, mention = place_of(message.channel), _mention(message, me)
    answered = message.reference.resolved if message.reference else None
    is_ours = isinstance(answered, discord.Message) and answered.author.id == me.id
    return Heard(
        chat=place.chat,
        id=str(message.id),
        sender=str(message.author.id),
        name=message.author.display_name,
        roles=_roles(message),
        text=_text(message, me),
        private=message.guild is None,
        addressed=is_ours or bool(mention),
        mention=mention,
        thread=place.thread,
        reply_to=_answered(message),
        quote="\n\n".join(_quoted(message)),
        files=tuple(map(_file, message.attachments)),
        is_bot=message.author.bot or message.webhook_id is not None,
        time=message.created_at,
    )


def edited(message: discord.Message, me: discord.ClientUser) -> Heard | None:
    """An edit by its author; what Discord adds itself, such as pictures of links, is none."""
    found = heard(message, me)
    if found is None or message.edited_at is None:
        return None
    since = message.edited_at.timestamp()
    return replace(found, id=f"{found.id}.{since}", edits=found.id, files=())


def taken_back(message: discord.Message, me: discord.ClientUser) -> Heard | None:
    """A deletion."""
    found = heard(message, me)
    if found is None:
        return None
    return replace(found, id=f"{found.id}.deleted", deletes=found.id, text="", files=())


def place_of(channel: Any) -> Place:
    """Where it is: a thread is a channel too, within another."""
    if isinstance(channel, discord.Thread):
        return Place(str(channel.parent_id), str(channel.id))
    return Place(str(channel.id))


def _mention(message: discord.Message, me: discord.ClientUser) -> str:
    """The very words that name the bot, or the role that is its own."""
    own = message.guild.self_role if message.guild else None
    marks = [f"<@{me.id}>", f"<@!{me.id}>", *([own.mention] if own else [])]
    return next((mark for mark in marks if mark in message.content), "")


def _roles(message: discord.Message) -> tuple[str, ...]:
    roles = getattr(message.author, "roles", ())
    return tuple(str(role.id) for role in roles if not role.is_default())


def _text(message: discord.Message, me: discord.ClientUser) -> str:
    """As people see it, save for the bot's own name."""
    text = message.content
    for person in message.mentions:
        if person.id != me.id:
            for mark in (f"<@{person.id}>", f"<@!{person.id}>"):
                text = text.replace(mark, f"@{person.display_name}")
    for role in message.role_mentions:
        if not (message.guild and role == message.guild.self_role):
            text = text.replace(role.mention, f"@{role.name}")
    for channel in message.channel_mentions:
        text = text.replace(channel.mention, f"#{channel.name}")
    stickers = " ".join(f"[sticker: {sticker.name}]" for sticker in message.stickers)
    return "\n".join(filter(None, (_EMOJI.sub(r"\1", text), stickers)))


def _answered(message: discord.Message) -> str | None:
    reference = message.reference
    if reference is None or reference.type is not discord.MessageReferenceType.reply:
        return None
    return str(reference.message_id)


def _quoted(message: discord.Message) -> Iterator[str]:
    """The words that it answers, or passes on."""
    answered = message.reference.resolved if message.reference else None
    if isinstance(answered, discord.Message):
        yield answered.content
    for passed_on in message.message_snapshots:
        yield passed_on.content


def _file(attachment: discord.Attachment) -> File:
    mime_type = attachment.content_type or ""
    kind = _KINDS.get(mime_type.partition("/")[0], "file")
    return File(
        kind="audio" if attachment.is_voice_message() else kind,
        fetch=attachment.read,
        name=attachment.filename,
        mime_type=mime_type,
        size=attachment.size,
    )
