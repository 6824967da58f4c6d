"""One stay on Discord: what the gateway tells is heard in order, and gaps are caught up with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import anyio
import discord
from anyio.abc import TaskGroup

from nanoloop.channels.discord.failures import explained
from nanoloop.channels.discord.hearing import edited, heard, place_of, taken_back
from nanoloop.channels.platform.gaps import Gaps, Job
from nanoloop.channels.platform.platform import Hear, Heard, Place
from nanoloop.channels.platform.seen import Seen
from nanoloop.errors import Declined
from nanoloop.lanes import Lanes

WAITING = 200
"""Events of one chat that may wait."""
HISTORY = 1000
"""Messages of one chat that are caught up with."""
LIMIT_SECONDS = 30.0
"""A rate limit of so long or less is waited for by the library."""


class Client(discord.Client):
    """A client that hands over what it hears."""

    def __init__(self, *, seen: Seen, ready_seconds: float) -> None:
        """`ready_seconds` is how long Discord may pause while it tells of the servers."""
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
        """Hand over what is said until the connection is lost."""
        self._hear, self._connected = hear, connected
        failure: Exception | None = None
        async with self._lanes, anyio.create_task_group() as self._group:
            try:
                with explained():
                    await self.login(token)
                    # It resumes by itself where Discord lets it; the rest is the kit's to retry.
                    await self.connect(reconnect=False)
            except Exception as error:  # noqa: BLE001 - raised below, where no group wraps it
                failure = error
            self._group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def dispatch(self, event: str, /, *args: Any, **kwargs: Any) -> None:
        """Tell of an event; a task of the library that outlives the client has none to tell."""
        if not self.is_closed():
            super().dispatch(event, *args, **kwargs)

    async def on_connect(self) -> None:
        """A new session: what was said before it is asked for, before anything is heard."""
        if self._group is not None:
            await self._gaps.close(self._lanes.put, self._group)

    async def on_ready(self) -> None:
        """All is known that is needed to hear and post."""
        if self._connected is not None:
            self._connected()

    async def on_message(self, message: discord.Message) -> None:
        """Something was said."""
        if self.is_closed():
            return
        # At once: in a chat that is new, it would not be asked for after a crash.
        self._seen.begin(place_of(message.channel), str(message.id - 1))
        await self._put(message.channel, partial(self._take, message))

    async def on_raw_message_edit(self, payload: discord.RawMessageUpdateEvent) -> None:
        """A message was edited, or got a picture of its links."""
        message, before = payload.message, payload.cached_message
        if before is not None and before.content == message.content:
            return
        await self._put(message.channel, partial(self._pass_on, message, edited))

    async def on_raw_message_delete(self, payload: discord.RawMessageDeleteEvent) -> None:
        """A message was taken back; who said it is known of the newest ones only."""
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
        assert self.user is not None  # noqa: S101 - known before anything is heard
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
    """What the bot wants to be told; the content of messages has to be allowed in the portal."""
    return discord.Intents(guilds=True, messages=True, message_content=True)
