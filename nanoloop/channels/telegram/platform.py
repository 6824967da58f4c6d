"""The Telegram platform: receives messages, and posts answers as HTML."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import anyio
from telegram import (
    Bot,
    InlineKeyboardButton,
    InlineKeyboardMarkup,
    InputMediaAudio,
    InputMediaDocument,
    InputMediaPhoto,
    LinkPreviewOptions,
    Message,
    ReplyParameters,
)
from telegram.error import ChatMigrated

from nanoloop.channels.kit.markdown import Markup, render, utf16
from nanoloop.channels.kit.platform import (
    Hear,
    Limits,
    MessageGone,
    Place,
    Text,
    Upload,
    is_choice,
)
from nanoloop.channels.telegram.api import UNCHANGED, TelegramRequest, answered, explained
from nanoloop.channels.telegram.hearing import Moves, Reader
from nanoloop.channels.telegram.receiving import Polling
from nanoloop.errors import Declined, SendLater
from nanoloop.plugins import Connected

if TYPE_CHECKING:
    from nanoloop.channels.telegram.receiving import Webhook


API = "https://api.telegram.org"
LIMITS = Limits(
    text=4096,
    size=utf16,
    edit_seconds=1.0,
    group_edit_seconds=4.0,  # 20 messages a minute are allowed; complete answers need some
    typing_seconds=5.0,
    file_bytes=20_000_000,
    caption=1024,
    album=10,
)
PHOTOS = ("image/jpeg", "image/png", "image/webp")
PHOTO_BYTES = 10_000_000
SONGS = ("audio/mpeg", "audio/mp4", "audio/x-m4a")
VOICES = ("audio/ogg", "audio/opus")
_NO_PREVIEW = LinkPreviewOptions(is_disabled=True)
"""A link preview would appear and disappear while an answer grows."""


class TelegramPlatform:
    """One bot on Telegram."""

    name = "telegram"

    def __init__(
        self,
        token: str,
        *,
        api: str = API,
        webhook: Webhook | None = None,
        moves: Moves | None = None,
    ) -> None:
        """Create the bot; without a webhook, it polls.

        `api` may be the URL of your own Bot API server.
        """
        self.limits = LIMITS
        self._moves = moves or Moves()
        request = TelegramRequest()
        self._bot = Bot(
            token,
            base_url=f"{api}/bot",
            base_file_url=f"{api}/file/bot",
            request=request,
            get_updates_request=request,
        )
        self._way: Polling | Webhook = webhook or Polling()

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on messages until the connection is lost."""
        try:
            with explained():
                await self._bot.initialize()
            self._moves.load()
            async with anyio.create_task_group() as group:

                def pressed(query: str) -> None:
                    group.start_soon(self._end_press, query, name="telegram press")

                reader = Reader(self._bot, self._moves, pressed=pressed)
                await self._way.listen(self._bot, reader, hear, connected)
        finally:
            with anyio.CancelScope(shield=True):
                await self._bot.shutdown()

    async def _end_press(self, query: str) -> None:
        """Stop the waiting sign on a pressed button."""
        with suppress(Exception), answered():  # only a courtesy, which may come too late
            await self._bot.answer_callback_query(query)

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - the seam's name; Telegram knows no such
        """Post a message."""
        send = partial(
            self._bot.send_message,
            text=text.best,
            parse_mode=_mode(text),
            link_preview_options=_NO_PREVIEW,
            reply_markup=_keyboard(text),
        )
        return await self._send(place, reply_to, send)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit one of the bot's messages."""
        number = self._moves.number(place.chat, message)
        if number is None:
            raise MessageGone
        try:
            with answered():
                await self._bot.edit_message_text(
                    text.best,
                    self._moves.now(place.chat),
                    number,
                    parse_mode=_mode(text),
                    link_preview_options=_NO_PREVIEW,
                    reply_markup=_keyboard(text),
                )
        except ChatMigrated as moved:
            self._moves.learn(int(place.chat), moved.new_chat_id)
            raise MessageGone from None
        except Declined as declined:
            if declined.reason != UNCHANGED:
                raise

    async def remove(self, place: Place, message: str) -> None:
        """Delete one of the bot's messages; Telegram refuses if it is more than two days old."""
        number = self._moves.number(place.chat, message)
        if number is None:
            return
        try:
            with answered():
                await self._bot.delete_message(self._moves.now(place.chat), number)
        except (Declined, ChatMigrated):
            return

    async def typing(self, place: Place) -> None:
        """Show that the bot is typing."""
        with answered():
            await self._bot.send_chat_action(
                self._moves.now(place.chat), "typing", message_thread_id=_thread(place)
            )

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - as above
        """Post a file; if Telegram can't show or play it, it is sent as a document."""
        about = {"filename": file.name or "file", **_caption(file)}
        if (kind := _kind(file)) != "document":
            try:
                post = getattr(self._bot, f"send_{kind}")
                return await self._send(
                    place, reply_to, partial(post, **{kind: file.data}, **about)
                )
            except Declined:
                pass
        send = partial(self._bot.send_document, document=file.data, **about)
        return await self._send(place, reply_to, send)

    async def album(
        self,
        place: Place,
        files: Sequence[Upload],
        *,
        reply_to: str | None,
        id: str,  # noqa: A002, ARG002 - as above
    ) -> str:
        """Post files of one kind together; raises `Declined` if each must be sent on its own."""
        kinds = {_kind(file) for file in files}
        if len(kinds) > 1 or not kinds <= _MEDIA.keys():
            raise Declined("they don't go together")
        media = [
            _MEDIA[kind](file.data, filename=file.name or "file", **_caption(file))
            for kind in kinds
            for file in files
        ]

        async def send(**where: Any) -> Message:
            return (await self._bot.send_media_group(media=media, **where))[0]

        return await self._send(place, reply_to, send)

    def rendered(self, markdown: str) -> str:
        """Convert Markdown to Telegram's HTML."""
        return rendered(markdown)

    async def _send(
        self, place: Place, reply_to: str | None, send: Callable[..., Awaitable[Message]]
    ) -> str:
        chat = self._moves.now(place.chat)
        try:
            with answered():
                message = await send(
                    chat_id=chat,
                    message_thread_id=_thread(place),
                    reply_parameters=self._reply(place.chat, reply_to),
                )
        except ChatMigrated as moved:
            self._moves.learn(int(place.chat), moved.new_chat_id)
            raise SendLater("the group has a new id", seconds=0) from None
        return self._moves.message(chat, message.message_id)

    def _reply(self, chat: str, message: str | None) -> ReplyParameters | None:
        number = None if message is None else self._moves.number(chat, message)
        if number is None:
            return None
        return ReplyParameters(number, allow_sending_without_reply=True)


_MEDIA: Mapping[str, Callable[..., Any]] = {
    "photo": InputMediaPhoto,
    "audio": InputMediaAudio,
    "document": InputMediaDocument,
}


def _kind(file: Upload) -> str:
    """Return the kind of message in which Telegram shows or plays a file."""
    if file.mime_type in PHOTOS and len(file.data) <= PHOTO_BYTES:
        return "photo"
    if file.mime_type in VOICES:
        return "voice"
    return "audio" if file.mime_type in SONGS else "document"


def _caption(file: Upload) -> dict[str, Any]:
    if file.caption is None:
        return {}
    return {"caption": file.caption.best, "parse_mode": _mode(file.caption)}


def _keyboard(text: Text) -> InlineKeyboardMarkup | None:
    """Return the buttons below a message, two in each row."""
    buttons = [
        InlineKeyboardButton(choice.label, callback_data=choice.text)
        for choice in text.choices
        if is_choice(choice.text)
    ]
    rows = [buttons[at : at + 2] for at in range(0, len(buttons), 2)]
    return InlineKeyboardMarkup(rows) if rows else None


def _thread(place: Place) -> int | None:
    return int(place.thread) if place.thread else None


def _mode(text: Text) -> str | None:
    return None if text.formatted is None else "HTML"


def rendered(markdown: str) -> str:
    """Convert Markdown to Telegram's HTML; text that looks like a tag is escaped."""
    return render(markdown, _FORM)


def _tag(name: str) -> Callable[[str], str]:
    return lambda text: f"<{name}>{text}</{name}>"


def _block(code: str, language: str) -> str:
    if not language:
        return f"<pre>{_escaped(code)}</pre>"
    return f'<pre><code class="language-{escape(language)}">{_escaped(code)}</code></pre>'


def _link(text: str, address: str) -> str:
    return f'<a href="{escape(address)}">{text}</a>'


def _quote(text: str) -> str:
    # Text and code are already escaped, so these can only be tags.
    flat = text.replace("<blockquote>", "").replace("</blockquote>", "")
    return f"<blockquote>{flat}</blockquote>"


def _escaped(text: str) -> str:
    return escape(text, quote=False)


_FORM = Markup(
    escape=_escaped,
    bold=_tag("b"),
    italic=_tag("i"),
    strike=_tag("s"),
    code=lambda code: f"<code>{_escaped(code)}</code>",
    block=_block,
    link=_link,
    quote=_quote,
)


async def connect(token: str, *, api: str = API) -> Connected:
    """Return the token and a link to its bot.

    Raise `Refused` if the token can't be used, or `SendLater` if Telegram can't be reached.
    """
    request = TelegramRequest()
    bot = Bot(token, base_url=f"{api}/bot", request=request, get_updates_request=request)
    try:
        with explained():
            await bot.initialize()
        me = bot.bot
    finally:
        with anyio.CancelScope(shield=True):
            await bot.shutdown()
    says = [f"The token belongs to @{me.username}: write to it at https://t.me/{me.username}"]
    if not me.can_read_all_group_messages:
        says.append(
            "In groups the bot sees only messages that mention it. To change that, ask @BotFather: "
            "/mybots, Bot Settings, "
            "Group Privacy"
        )
    return Connected(settings={"token": token}, says=says)
