"""Receives Telegram's updates, by polling or by a webhook."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

import anyio
from anyio.to_thread import run_sync
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from telegram import Bot

from nanoloop.channels.kit.platform import Hear
from nanoloop.channels.server import LOOP_BYTES, WebServer
from nanoloop.channels.telegram.api import OTHER_WEBHOOK, POLL, explained
from nanoloop.channels.telegram.hearing import KINDS, Read
from nanoloop.errors import SendLater

POLL_SECONDS = 30
"""How long Telegram waits for an update before it returns an empty list."""
PATIENCE_SECONDS = 1.0
"""How long to wait for messages to be stored before requesting more."""


class Polling:
    """Receives updates by polling."""

    def __init__(self) -> None:
        self._offset = 0
        self._handed: dict[int, anyio.Event] = {}
        """Unconfirmed updates; each one's event is set once its message is stored."""
        self._has_begun = False

    async def listen(self, bot: Bot, read: Read, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on messages until the connection is lost."""
        self._handed.clear()  # unconfirmed updates are delivered again
        await self._begin(bot)
        seconds = 0
        async with anyio.create_task_group() as group:
            while True:
                updates = await self._updates(bot, seconds)
                connected()
                fresh = [update for update in updates if update["update_id"] not in self._handed]
                if fresh:
                    taken = anyio.Event()
                    self._handed |= {update["update_id"]: taken for update in fresh}
                    heard = [one for one in map(read, fresh) if one is not None]
                    group.start_soon(_hand_over, hear, heard, taken, name="telegram updates")
                await self._confirm()
                seconds = 0 if self._handed else POLL_SECONDS

    async def _begin(self, bot: Bot) -> None:
        if self._has_begun:
            return
        with explained():
            # Only once: Telegram sends nothing while a webhook is set, so an old one is removed. A
            # webhook that is set later belongs to another program, and the two would take the bot
            # from each other forever.
            await bot.delete_webhook()
        self._has_begun = True

    async def _updates(self, bot: Bot, seconds: int) -> Sequence[Any]:
        """Fetch all unconfirmed updates; if there are none, wait up to this long."""
        asked = {"offset": self._offset, "timeout": seconds, "allowed_updates": KINDS}
        with explained():
            # Not `get_updates`: if the library can't parse one update, it would discard all of
            # them.
            updates: Sequence[Any] = await bot.do_api_request(
                POLL.removeprefix("/"), api_kwargs=asked, read_timeout=1.5 * POLL_SECONDS
            )
        return updates

    async def _confirm(self) -> None:
        """Move the offset past stored updates; a slow message does not delay new ones."""
        with anyio.move_on_after(PATIENCE_SECONDS):
            for taken in [*self._handed.values()]:
                await taken.wait()
        for update, taken in [*self._handed.items()]:
            if not taken.is_set():
                break
            del self._handed[update]
            self._offset = update + 1


async def _hand_over(hear: Hear, heard: Sequence[Any], taken: anyio.Event) -> None:
    await hear(*heard)
    taken.set()


HEADER = "x-telegram-bot-api-secret-token"
LIMIT_BYTES = 2**20
ARRIVAL_SECONDS = 20.0
"""How long a request may take to arrive."""
CHECK_SECONDS = 60.0


class Webhook:
    """Receives updates by HTTP, behind a proxy with a certificate."""

    def __init__(
        self, url: str, *, host: str, port: int, check_seconds: float = CHECK_SECONDS
    ) -> None:
        self._url = url
        self._host = host
        self._port = port
        self._check_seconds = check_seconds
        self._secret = secrets.token_urlsafe(32)

    async def listen(self, bot: Bot, read: Read, hear: Hear, connected: Callable[[], None]) -> None:
        """Pass on messages until the webhook fails."""
        desk = _WebhookServer(self._secret, read, hear)
        server = WebServer(desk, header_seconds=ARRIVAL_SECONDS, grace_seconds=1, at_end=desk.close)
        listener = self._listener()
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, listener, name="telegram webhook")
            with explained():
                await bot.set_webhook(self._url, secret_token=self._secret, allowed_updates=KINDS)
            connected()
            await self._watch(bot)

    def _listener(self) -> socket.socket:
        try:
            return socket.create_server((self._host, self._port))
        except OSError as error:
            where = f"{self._host} port {self._port}"
            raise SendLater(
                f"can't listen on {where} ({error.strerror}): choose another port with "
                "channels.telegram.webhook_port"
            ) from None

    async def _watch(self, bot: Bot) -> None:
        """Ask Telegram regularly whether it can reach the webhook."""
        since = datetime.now(timezone.utc)
        while True:
            await anyio.sleep(self._check_seconds)
            with explained():
                said = await bot.get_webhook_info()
            if said.url != self._url:
                raise SendLater(OTHER_WEBHOOK)
            failed = said.last_error_date
            if said.pending_update_count and failed is not None and failed > since:
                raise SendLater(f"Telegram can't reach webhook_url: {said.last_error_message}")


class _WebhookServer:
    """An ASGI application that receives Telegram's requests."""

    def __init__(self, secret: str, read: Read, hear: Hear) -> None:
        self._secret = secret
        self._read = read
        self._hear = hear
        self._open: set[anyio.CancelScope] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; after an error, Telegram sends it again."""
        with suppress(ClientDisconnect):
            status = await self._taken(Request(scope, receive))
            await Response(status_code=status)(scope, receive, send)

    def close(self) -> None:
        """Drop updates that are not stored yet: Telegram will send them again."""
        for scope in self._open:
            scope.cancel()

    async def _taken(self, request: Request) -> int:
        given = request.headers.get(HEADER, "").encode()
        if request.method != "POST" or not secrets.compare_digest(given, self._secret.encode()):
            return 403
        body = await _body(request)
        if body is None:
            return 413
        try:
            is_large = len(body) > LOOP_BYTES
            update = await run_sync(json.loads, body) if is_large else json.loads(body)
        except (ValueError, RecursionError):
            return 400
        with anyio.CancelScope() as scope:
            self._open.add(scope)
            try:
                await self._hear(*filter(None, (self._read(update),)))
            finally:
                self._open.discard(scope)
        return 503 if scope.cancelled_caught else 200


async def _body(request: Request) -> bytes | None:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LIMIT_BYTES:
            return None
    return bytes(body)
