"""The Discord platform: connects, receives messages, and posts answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import aiohttp
import anyio
import discord
from anyio.abc import TaskGroup

from nanoloop.channels.kit.backlog import Gaps, Job, SeenMessages
from nanoloop.channels.kit.markdown import Markup, render, utf16
from nanoloop.channels.kit.platform import (
    File,
    Hear,
    Heard,
    Limits,
    MessageGone,
    Place,
    Refused,
    Text,
    TooLong,
    Upload,
)
from nanoloop.errors import Declined, NanoloopError, SendLater
from nanoloop.lanes import Lanes
from nanoloop.messages import Quote, Speaker
from nanoloop.plugins import Connected

LIMITS = Limits(
    text=2000,
    size=utf16,
    edit_seconds=1.2,
    typing_seconds=10.0,
    file_bytes=10_000_000,
    caption=2000,
    album=10,
)
"""Discord allows five edits in five seconds per channel, and posts count too."""
READY_SECONDS = 1.0


class DiscordPlatform:
    """One bot on Discord."""

    name = "discord"

    def __init__(
        self, token: str, *, folder: Path | None = None, ready_seconds: float = READY_SECONDS
    ) -> None:
        """Create the bot; given the data folder, it reads messages missed during a restart."""
        self.limits = LIMITS
        self._token = token
        self._ready_seconds = ready_seconds
        self._seen = SeenMessages(folder and folder / "channels" / "discord.seen.sqlite")
        self._client: Client | None = None

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on messages until the connection is lost."""
        self._client = Client(seen=self._seen, ready_seconds=self._ready_seconds)
        try:
            await self._client.serve(self._token, hear, connected)
        finally:
            client, self._client = self._client, None
            self._seen.close()
            with anyio.CancelScope(shield=True):
                await client.close()

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - the seam's name
        """Post a message; Discord recognises a repeated post for a few minutes."""
        with explained():
            message = await self._channel(place).send(
                text.best,
                nonce=_nonce(id),
                suppress_embeds=True,
                **_answering(place, reply_to),
            )
        return str(message.id)

    async def edit(self, place: Place, message: str, text: Text) -> None:
        """Edit one of the bot's messages."""
        with explained():
            await self._channel(place).get_partial_message(int(message)).edit(content=text.best)

    async def remove(self, place: Place, message: str) -> None:
        """Delete one of the bot's messages."""
        try:
            with explained():
                await self._channel(place).get_partial_message(int(message)).delete()
        except (MessageGone, Declined):
            return

    async def typing(self, place: Place) -> None:
        """Show that the bot is typing."""
        with explained():
            await self._channel(place).typing()

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - as above
        """Post a file."""
        return await self.album(place, [file], reply_to=reply_to, id=id)

    async def album(
        self,
        place: Place,
        files: Sequence[Upload],
        *,
        reply_to: str | None,
        id: str,  # noqa: A002 - as above
    ) -> str:
        """Post files in one message."""
        caption = files[0].caption
        with explained():
            message = await self._channel(place).send(
                None if caption is None else caption.best,
                files=[discord.File(BytesIO(file.data), filename=file.name) for file in files],
                nonce=_nonce(id),
                suppress_embeds=caption is not None,
                **_answering(place, reply_to),
            )
        return str(message.id)

    def rendered(self, markdown: str) -> str:
        """Convert Markdown to the subset that Discord displays."""
        return written(markdown)

    def _channel(self, place: Place) -> discord.PartialMessageable:
        if self._client is None or self._client.is_closed():
            raise SendLater("not connected")
        return self._client.get_partial_messageable(int(place.thread or place.chat))


def _nonce(name: str) -> str:
    """Return a nonce of at most 25 characters, always the same for the same name."""
    return blake2b(name.encode(), digest_size=12).hexdigest()


def _answering(place: Place, message: str | None) -> dict[str, Any]:
    """Return the arguments that make a message a reply, even if the original has been deleted."""
    if message is None:
        return {}
    reference = discord.MessageReference(
        message_id=int(message),
        channel_id=int(place.thread or place.chat),
        fail_if_not_exists=False,
    )
    return {"reference": reference}


_HEADINGS = 3
"""The deepest heading level that Discord supports."""


def written(markdown: str) -> str:
    """Convert Markdown to Discord's own dialect."""
    return render(markdown, _FORM)


def _escaped(text: str) -> str:
    return discord.utils.escape_markdown(text, as_needed=True)


def _code(code: str) -> str:
    return f"`` {code} ``" if "`" in code else f"`{code}`"


def _block(code: str, language: str) -> str:
    whole = code.replace("```", "\u200b".join("```"))
    return f"```{language}\n{whole}\n```"


def _heading(text: str, level: int) -> str:
    return f"{'#' * level} {text}" if level <= _HEADINGS else f"**{text}**"


def _quote(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def _link(text: str, address: str) -> str:
    """Put the address in angle brackets, so that Discord shows no link preview."""
    return f"<{address}>" if text == address else f"[{text}](<{address}>)"


_FORM = Markup(
    escape=_escaped,
    bold=lambda text: f"**{text}**",
    italic=lambda text: f"*{text}*",
    strike=lambda text: f"~~{text}~~",
    code=_code,
    block=_block,
    link=_link,
    quote=_quote,
    heading=_heading,
    bullet="- ",
)


WAITING = 200
"""How many events from one chat may be queued."""
HISTORY = 1000
"""How many missed messages are read per chat."""
LIMIT_SECONDS = 30.0
"""The longest rate-limit delay that the library itself waits out."""


class Client(discord.Client):
    """A client that passes on the messages it receives."""

    def __init__(self, *, seen: SeenMessages, ready_seconds: float) -> None:
        """Create the client; Discord may pause for `ready_seconds` while it lists servers."""
        super().__init__(
            intents=intents(),
            allowed_mentions=discord.AllowedMentions.none(),
            chunk_guilds_at_startup=False,
            member_cache_flags=discord.MemberCacheFlags.none(),
            max_ratelimit_timeout=LIMIT_SECONDS,
            guild_ready_timeout=ready_seconds,
        )
        self._seen = seen
        self._gaps = Gaps(seen, since=self._since, take=self._take)
        self._lanes: Lanes[str, Job] = Lanes(self._do, limit=WAITING, name="discord")
        self._group: TaskGroup | None = None
        self._connected: Callable[[], None] | None = None
        self._hear: Hear | None = None

    async def serve(self, token: str, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on messages until the connection is lost."""
        self._hear, self._connected = hear, connected
        failure: Exception | None = None
        async with self._lanes, anyio.create_task_group() as self._group:
            try:
                with explained():
                    await self.login(token)
                    # The library resumes the session if Discord allows it; otherwise, the kit
                    # reconnects.
                    await self.connect(reconnect=False)
            except Exception as error:  # noqa: BLE001 - raised below, outside the task group
                failure = error
            self._group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Pass on an event, unless it comes from a library task that has outlived the client."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    async def on_connect(self) -> None:
        """Handle a new session: request missed messages before passing on any new ones."""
        if self._group is not None:
            await self._gaps.close(self._lanes.put, self._group)

    async def on_ready(self) -> None:
        """Report that the bot can now receive and post."""
        if self._connected is not None:
            self._connected()

    async def on_message(self, message: discord.Message) -> None:
        """Pass on a new message."""
        if self.is_closed():
            return
        # Recorded at once, because a new chat would otherwise not be checked after a crash.
        self._seen.begin(place_of(message.channel), str(message.id - 1))
        await self._put(message.channel, partial(self._take, message))

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        """Pass on an edit, but ignore an added link preview."""
        message, before = payload.message, payload.cached_message
        if before is not None and before.content == message.content:
            return
        await self._put(message.channel, partial(self._pass_on, message, edited))

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        """Pass on a deletion; the author is known only if the message is recent."""
        if (message := payload.cached_message) is not None:
            await self._put(message.channel, partial(self._pass_on, message, taken_back))
            return
        place = place_of(self.get_channel(payload.channel_id) or discord.Object(payload.channel_id))
        gone = Heard(
            chat=place.chat,
            thread=place.thread,
            id=f"{payload.message_id}.deleted",
            deletes=str(payload.message_id),
            sender="",
            private=payload.guild_id is None,
        )
        await self._lanes.put(place.chat, partial(self._tell, gone))

    async def _put(self, channel: Any, job: Job) -> None:
        await self._lanes.put(place_of(channel).chat, job)

    async def _do(self, _: str, job: Job) -> None:
        await job()

    async def _take(self, message: discord.Message) -> None:
        with self._gaps.taking():
            await self._pass_on(message, heard)
        self._gaps.note(place_of(message.channel), str(message.id))

    async def _pass_on(
        self,
        message: discord.Message,
        read: Callable[[discord.Message, discord.ClientUser], Heard | None],
    ) -> None:
        assert self.user is not None  # noqa: S101 - known before any message arrives
        if (found := read(message, self.user)) is not None:
            await self._tell(found)

    async def _tell(self, found: Heard) -> None:
        assert self._hear is not None  # noqa: S101 - as above
        await self._hear(found)

    async def _since(self, place: Place, message: str) -> Sequence[discord.Message]:
        await self.wait_until_ready()
        try:
            with explained():
                channel = await self._channel(int(place.thread or place.chat))
                after = discord.Object(int(message))
                history = channel.history(after=after, limit=HISTORY, oldest_first=True)
                return [said async for said in history]
        except discord.DiscordException as error:
            raise Declined(type(error).__name__) from None

    async def _channel(self, number: int) -> Any:
        return self.get_channel(number) or await self.fetch_channel(number)


def intents() -> discord.Intents:
    """Return the events to subscribe to; message content must be enabled in the portal."""
    return discord.Intents(guilds=True, messages=True, message_content=True)


_SPOKEN = (discord.MessageType.default, discord.MessageType.reply)
_EMOJI = re.compile(r"<a?(:\w+:)\d+>")
Kind = Literal["image", "audio", "video", "file"]
_KINDS: dict[str, Kind] = {"image": "image", "audio": "audio", "video": "video"}


def heard(message: discord.Message, me: discord.ClientUser) -> Heard | None:
    """Convert a message to the kit's format; return None if no user wrote it."""
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
        quotes=tuple(_quoted(message, me)),
        files=tuple(map(_file, message.attachments)),
        is_bot=message.author.bot or message.webhook_id is not None,
        time=message.created_at,
    )


def edited(message: discord.Message, me: discord.ClientUser) -> Heard | None:
    """Convert an edit by the author; ignore Discord's own changes, such as link previews."""
    found = heard(message, me)
    if found is None or message.edited_at is None:
        return None
    since = message.edited_at.timestamp()
    return replace(found, id=f"{found.id}.{since}", edits=found.id, files=())


def taken_back(message: discord.Message, me: discord.ClientUser) -> Heard | None:
    """Convert a deletion to the kit's format."""
    found = heard(message, me)
    if found is None:
        return None
    return replace(found, id=f"{found.id}.deleted", deletes=found.id, text="", files=())


def place_of(channel: Any) -> Place:
    """Return a channel's `Place`; on Discord, a thread is a channel within another channel."""
    if isinstance(channel, discord.Thread):
        return Place(str(channel.parent_id), str(channel.id))
    return Place(str(channel.id))


def _mention(message: discord.Message, me: discord.ClientUser) -> str:
    """Return the exact words that mention the bot or its own role."""
    own = message.guild.self_role if message.guild else None
    marks = [f"<@{me.id}>", f"<@!{me.id}>", *([own.mention] if own else [])]
    return next((mark for mark in marks if mark in message.content), "")


def _roles(message: discord.Message) -> tuple[str, ...]:
    roles = getattr(message.author, "roles", ())
    return tuple(str(role.id) for role in roles if not role.is_default())


def _text(message: discord.Message, me: discord.ClientUser) -> str:
    """Return the text as people see it, keeping mentions of the bot itself."""
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


def _quoted(message: discord.Message, me: discord.ClientUser) -> Iterator[Quote]:
    """Yield text that was replied to or forwarded; Discord hides who wrote forwarded text."""
    answered = message.reference.resolved if message.reference else None
    if isinstance(answered, discord.Message):
        who = answered.author
        by = Speaker(id=str(who.id), name=who.display_name, is_me=who.id == me.id)
        yield Quote(text=answered.content, speaker=by)
    for passed_on in message.message_snapshots:
        yield Quote(kind="forward", text=passed_on.content)


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


UNKNOWN_BOT = (
    "Discord rejects channels.discord.token: reset the token under Bot at "
    "discord.com/developers/applications, and set NANOLOOP_CHANNELS__DISCORD__TOKEN"
)
NO_CONTENT = (
    "Discord does not let the bot read messages: turn on Message Content Intent under Bot at "
    "discord.com/developers/applications"
)
_BAD_TOKEN, _BAD_INTENTS = 4004, (4013, 4014)
_GONE = {10008, 30046, 50005}
"""Error codes: unknown message, too many edits to an old message, someone else's message."""
_UNAUTHORIZED, _LIMITED = 401, 429
_RESTS = 40062


@contextmanager
def explained() -> Iterator[None]:
    """Convert the library's errors to the kit's."""
    try:
        yield
    except discord.LoginFailure:
        raise Refused(UNKNOWN_BOT) from None
    except discord.PrivilegedIntentsRequired:
        raise Refused(NO_CONTENT) from None
    except discord.ConnectionClosed as error:
        raise _closed(error) from None
    except discord.RateLimited as error:
        raise SendLater("rate limit", seconds=error.retry_after) from None
    except discord.HTTPException as error:
        raise _refusal(error) from None
    except (aiohttp.ClientError, OSError, discord.GatewayNotFound) as error:
        raise SendLater(f"the network failed ({type(error).__name__})") from None


def _closed(error: discord.ConnectionClosed) -> Refused | SendLater:
    if error.code == _BAD_TOKEN:
        return Refused(UNKNOWN_BOT)
    if error.code in _BAD_INTENTS:
        return Refused(NO_CONTENT)
    return SendLater(f"the connection was closed ({error.code})")


def _refusal(error: discord.HTTPException) -> NanoloopError:
    if isinstance(error, discord.DiscordServerError) or error.code == _RESTS:
        return SendLater("Discord failed")
    if error.status == _LIMITED:
        return SendLater("rate limit")
    if error.status == _UNAUTHORIZED:
        return SendLater("the token was refused")
    if error.code in _GONE:
        return MessageGone()
    if "or fewer in length" in error.text:
        return TooLong()
    return Declined(f"Discord returned {error.status}, code {error.code}")


_RIGHTS = discord.Permissions(
    view_channel=True,
    send_messages=True,
    send_messages_in_threads=True,
    attach_files=True,
    read_message_history=True,
)


async def connect(token: str) -> Connected:
    """Return the token's bot and an invitation link.

    Raise `Refused` if the token can't be used, or `SendLater` if Discord can't be reached.
    """
    client = discord.Client(intents=discord.Intents.none())
    try:
        with explained():
            await client.login(token)
            about = await client.application_info()
        name = client.user
    finally:
        with anyio.CancelScope(shield=True):
            await client.close()
    if not (about.flags.gateway_message_content or about.flags.gateway_message_content_limited):
        raise Refused(NO_CONTENT)
    link = discord.utils.oauth_url(about.id, permissions=_RIGHTS, scopes=("bot",))
    says = [f"The token belongs to {name}. To add it to one of your servers, open {link}"]
    return Connected(settings={"token": token}, says=says)
