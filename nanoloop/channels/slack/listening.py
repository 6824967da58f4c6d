"""One stay on Slack: connected, caught up with what was said before, and hearing what is said."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import aiohttp
import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.platform.errors import Refused
from nanoloop.channels.platform.gaps import Gaps
from nanoloop.channels.platform.platform import Hear, Place
from nanoloop.channels.platform.seen import Seen
from nanoloop.channels.slack.envelopes import Envelopes, Event
from nanoloop.channels.slack.hearing import Hearing
from nanoloop.channels.slack.history import since
from nanoloop.channels.slack.web import Web
from nanoloop.errors import Declined, SendLater

PING_SECONDS = 20.0


class Listening:
    """Hears everything from one start of the connection to its end."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        web: Web,
        app: Web,
        hearing: Hearing,
        hear: Hear,
        seen: Seen,
    ) -> None:
        """`app` is the Web API with the app's own token."""
        self._session = session
        self._app = app
        self._hearing = hearing
        self._hear = hear
        self._gaps = Gaps(seen, since=partial(since, web), take=self._take)
        self._envelopes = Envelopes(self._take)

    async def run(self, connected: Callable[[], None]) -> None:
        """Hand over what is said until the connection is lost: a `SendLater`, or `Refused`."""
        async with self._envelopes.lanes, anyio.create_task_group() as group:
            # Caught within the group, which would wrap it.
            failure = await self._failure(connected, group)
            group.cancel_scope.cancel()
        raise failure

    async def _failure(self, connected: Callable[[], None], group: TaskGroup) -> Exception:
        try:
            await self._receive(partial(self._catch_up, connected, group))
            while True:
                await self._receive(_nothing)
        except (SendLater, Refused) as known:
            return known
        except Declined as refusal:
            return SendLater(f"Slack says {refusal}")
        except (aiohttp.ClientError, OSError) as error:
            return SendLater(f"the network failed ({type(error).__name__})")

    async def _receive(self, greeted: Callable[[], Awaitable[None]]) -> None:
        """Until Slack wants a new connection to be made: it delivers there what is open."""
        answer = await self._app.call("apps.connections.open")
        async with self._session.ws_connect(str(answer["url"]), heartbeat=PING_SECONDS) as socket:
            await self._envelopes.receive(socket, greeted)

    async def _catch_up(self, connected: Callable[[], None], group: TaskGroup) -> None:
        await self._gaps.close(self._envelopes.lanes.put, group)
        connected()

    async def _take(self, event: Event) -> None:
        with self._gaps.taking():
            heard = await self._hearing.heard(event)
            if heard is None:
                return
            await self._hear(heard)
        if not (heard.edits or heard.deletes):
            self._gaps.note(Place(heard.chat, heard.thread), heard.id)


async def _nothing() -> None:
    """A new connection of the same stay has nothing to catch up with."""
