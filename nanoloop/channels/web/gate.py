"""Around all requests: the right host, the headers that keep browsers safe, one event for each."""

from __future__ import annotations

import time
from collections.abc import Container

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoloop.channels.web.operation import TOLD, path_of
from nanoloop.channels.web.refusal import error_response
from nanoloop.events import Announce, RequestFailed, RequestServed
from nanoloop.sentences import incident_of

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; manifest-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
_SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"content-security-policy", POLICY.encode()),
    (b"cache-control", b"no-store"),
)


class Gate:
    """Lets requests for this host through, and tells of each without what was said."""

    def __init__(self, app: ASGIApp, *, hosts: Container[str] | None, announce: Announce) -> None:
        """Without `hosts` any name is the right one."""
        self._app = app
        self._hosts = hosts
        self._announce = announce

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        served = _Served(send)
        started = time.monotonic()
        try:
            await self._serve(scope, receive, served)
        except Exception as error:  # noqa: BLE001 - a bug in one request must not stop the others
            if not scope.get(TOLD):
                self._announce(RequestFailed(path=path_of(scope), **incident_of(error).facts))
        finally:
            self._announce(
                RequestServed(
                    method=scope["method"],
                    path=path_of(scope),
                    status=served.status,
                    seconds=round(time.monotonic() - started, 3),
                )
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._hosts is None or _host(scope) in self._hosts:
            await self._app(scope, receive, send)
        else:
            # A name that was made to point here would let its pages read everything.
            sentence = "not a name of this server: channels.web.hosts lists them"
            await error_response(421, sentence)(scope, receive, send)


class _Served:
    """Sends, with the headers that every response has."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            given += [(name, value) for name, value in _SAFE if name not in names]
            message = {**message, "headers": given}
        await self._send(message)


def _host(scope: Scope) -> str:
    """The host without its port."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    text = host.decode("latin-1").lower()
    return text.rpartition(":")[0] if not text.endswith("]") and ":" in text else text
