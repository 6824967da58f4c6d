"""The web as a channel: messages go on the bus, answers and events to whoever reads along."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp

from nanoloop.attachments import Attachments
from nanoloop.channels.web.access import Callers, Token, WebAccess
from nanoloop.channels.web.api import Backend, WebLimits, WebParts
from nanoloop.channels.web.dialogue import CHANNEL
from nanoloop.channels.web.feed import FeedWriter, OpenStreams
from nanoloop.channels.web.server import LOOPBACK_NAMES, WebServer, is_loopback, listening_socket
from nanoloop.channels.web.site import Guard, make_site
from nanoloop.errors import SettingsError
from nanoloop.events import Event, TextStreamed
from nanoloop.messages import Outbound
from nanoloop.protocols import Bus


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """Where the web is served, and under which names."""

    host: str = "127.0.0.1"
    port: int = 8765
    hosts: Collection[str] = ()
    """Further names that it is reached by, through a proxy."""
    origins: Collection[str] = ()
    """Other sites whose pages may call."""
    grace_seconds: float = 20
    """How long requests may take to finish at the end."""


class WebChannel:
    """Serves the page and the API on one address."""

    name = CHANNEL
    streams = True

    def __init__(
        self,
        parts: WebParts,
        *,
        attachments: Attachments,
        address: WebAddress | None = None,
        tokens: Iterable[Token] = (),
        limits: WebLimits | None = None,
    ) -> None:
        """Raises `SettingsError` for an open door."""
        self._address = address or WebAddress()
        limits = limits or WebLimits()
        callers = Callers(tokens)
        host = self._address.host
        if not is_loopback(host) and not callers.are_named:
            raise SettingsError(
                f"channels.web.host is {host!r}, which others can reach, and there is "
                "no token: add [channels.web.tokens.NAME] with a token, or serve on 127.0.0.1"
            )
        self._listener: socket.socket | None = None
        self._news = FeedWriter()
        self.backend = Backend(
            parts=parts,
            access=WebAccess(
                callers,
                cookie=f"nanoloop_{self._address.port}",
                origins=self._address.origins,
                requests_per_minute=limits.requests_per_minute,
            ),
            limits=limits,
            attachments=attachments,
            feeds=self._news.feeds,
            receipts=self._news.receipts,
            streams=OpenStreams(),
            is_serving=self._news.is_serving,
        )

    def bind(self) -> str:
        """Listen, and return the address; raises `SettingsError` where that can't be."""
        if self._listener is None:
            self._listener = listening_socket(self._address.host, self._address.port)
        port = self._listener.getsockname()[1]
        host = self._address.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def run(self, bus: Bus) -> None:  # noqa: ARG002 - the bus of the parts is the same
        """Serve until cancelled; open requests then get some time to end."""
        self.bind()
        server = WebServer(
            self.app(),
            header_seconds=self.backend.limits.header_seconds,
            grace_seconds=self._address.grace_seconds,
            at_end=self.backend.streams.end,
        )
        listener, self._listener = self._listener, None
        assert listener is not None  # noqa: S101 - `bind` has made it
        await server.serve(listener)

    def app(self) -> ASGIApp:
        """The ASGI application, with all that protects it."""
        return Guard(
            make_site(self.backend), hosts=self._hosts(), announce=self.backend.parts.announce
        )

    def _hosts(self) -> Collection[str] | None:
        """The names that requests may be for; None where only who has a token gets anything."""
        own = {*LOOPBACK_NAMES, self._address.host, *self._address.hosts}
        return own if is_loopback(self._address.host) or self._address.hosts else None

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Tell everyone who reads this session."""
        self._news.take(item)

    def hear(self, event: Event) -> None:
        """Tell what happened to everyone who reads its session."""
        self._news.hear(event)
