"""The web channel: its ASGI application, and the checks around every request."""

from __future__ import annotations

import hashlib
import ipaddress
import mimetypes
import re
import socket
import time
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, unquote

import anyio
from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoloop import __version__
from nanoloop.attachments import Attachments, mime_type_of
from nanoloop.channels.logins import Logins, known_token, token_in
from nanoloop.channels.server import WebServer
from nanoloop.channels.web import conversations, dialogue
from nanoloop.channels.web.access import (
    COOKIE_SECONDS,
    EVERYONE,
    METRICS,
    Callers,
    Refusal,
    Token,
    TrustedProxies,
    WebAccess,
    error_response,
    sentence_of,
)
from nanoloop.channels.web.api import (
    DOCS_STYLE_HASH,
    TOLD,
    ApiCall,
    Backend,
    RequestBody,
    WebLimits,
    WebParts,
    docs_page,
    document,
    path_of,
    quoted,
    serve,
)
from nanoloop.channels.web.dialogue import CHANNEL
from nanoloop.channels.web.feed import FeedWriter, OpenStreams, shown_attachment
from nanoloop.channels.web.names import MessageNames
from nanoloop.channels.web.openai import completions
from nanoloop.channels.web.openai.completions import HEADER, IGNORED, REPEATED
from nanoloop.channels.web.watch import SessionWatch
from nanoloop.errors import AttachmentsFull, PictureRefused, SettingsError
from nanoloop.events import (
    Event,
    RequestFailed,
    RequestServed,
    TextStreamed,
    WebTokenMade,
    announce,
)
from nanoloop.messages import Outbound
from nanoloop.protocols import Bus
from nanoloop.sentences import Incidents
from nanoloop.session.entry import SCHEME


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAddress:
    """The web channel's address and host names."""

    host: str = "127.0.0.1"
    port: int = 8765
    hosts: Collection[str] = ()
    """Additional host names, for example behind a proxy."""
    origins: Collection[str] = ()
    """Other sites whose pages may call the API."""
    trusted_proxies: Collection[str] = ()
    """Addresses and networks of proxies that are trusted to report a client's address."""
    grace_seconds: float = 20
    """How long running requests may take to finish at shutdown."""


class WebChannel:
    """Serves the page and the API at one address."""

    name = CHANNEL
    streams = True

    def __init__(
        self,
        parts: WebParts,
        *,
        attachments: Attachments,
        address: WebAddress | None = None,
        tokens: Sequence[Token] = (),
        token_file: Path | None = None,
        limits: WebLimits | None = None,
    ) -> None:
        """Create the channel; without `tokens`, it generates one at startup, in `token_file`.

        Without either, everyone has access. Raise `SettingsError` for public access without a
        token.
        """
        self._address = address or WebAddress()
        limits = limits or WebLimits()
        self._token_file = None if tokens else token_file
        self._token, self._is_new, self._url = "", False, ""
        callers = Callers(tokens, is_open=not tokens and token_file is None)
        host = self._address.host
        if not is_loopback(host) and not tokens:
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
                logins=Logins(parts.sessions),
                cookie=f"nanoloop_{self._address.port}",
                origins=self._address.origins,
                requests_per_minute=limits.requests_per_minute,
                proxies=TrustedProxies(self._address.trusted_proxies),
            ),
            limits=limits,
            attachments=attachments,
            feeds=self._news.feeds,
            watch=SessionWatch(self._news.feeds, sessions=parts.sessions, nodes=parts.nodes),
            receipts=self._news.receipts,
            streams=OpenStreams(),
            names=MessageNames(parts.secret),
        )

    def bind(self) -> str:
        """Start listening and return the address; raises `SettingsError` if that fails."""
        if self._listener is None:
            self._listener = listening_socket(self._address.host, self._address.port)
        port = self._listener.getsockname()[1]
        host = self._address.host
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        return self._url

    def link(self) -> str:
        """Return the page's URL for a person, including the generated token if there is one.

        The token follows a #, which browsers never send, so it reaches neither logs nor other
        sites.
        """
        try:
            self._take_token()
        except SettingsError:
            self.unbind()
            raise
        return f"{self._url}/#token={self._token}" if self._token else self._url

    @property
    def token_file(self) -> Path | None:
        """The file with this machine's token, if the settings contain none."""
        return self._token_file

    def callers_text(self) -> str:
        """Describe who has access, for `nanoloop doctor`; raises `SettingsError` like `link`."""
        if self._token_file is not None:
            known_token(self._token_file)
        if self.backend.access.callers.is_open:
            return "everyone on this machine is let in"
        where = f" (the one in {self._token_file})" if self._token_file else ""
        return f"a token is needed{where}"

    def _take_token(self) -> None:
        """Read or generate this machine's token; raise `SettingsError` if that fails."""
        if self._token_file is None or self._token:
            return
        self._token, self._is_new = token_in(self._token_file)
        callers = self.backend.access.callers
        where = f"the file {self._token_file.name} in the data folder has one"
        callers.add(Token(caller=EVERYONE, secret=self._token), where=where)

    def unbind(self) -> None:
        """Stop listening, for callers that only check whether the port is free."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def run(self, bus: Bus) -> None:  # noqa: ARG002 - the bus of the parts is the same
        """Serve until cancelled; open requests then get some time to finish."""
        self.bind()
        self._take_token()
        if self._is_new:
            announce(WebTokenMade(file=str(self._token_file), advice=MADE_ADVICE))
        server = WebServer(
            self.app(),
            header_seconds=self.backend.limits.header_seconds,
            grace_seconds=self._address.grace_seconds,
            at_end=self.backend.streams.end,
        )
        listener, self._listener = self._listener, None
        assert listener is not None  # noqa: S101 - `bind` has made it
        async with anyio.create_task_group() as group:
            group.start_soon(self.backend.watch.run, name="watch of what is read")
            valid_of = self.backend.access.valid_of
            group.start_soon(self.backend.streams.end_logged_out, valid_of, name="watch of logins")
            await server.serve(listener)
            group.cancel_scope.cancel()

    def app(self) -> ASGIApp:
        """Return the ASGI application, including the checks that protect it."""
        return Guard(
            make_site(self.backend),
            hosts=self._hosts(),
            incidents=self.backend.parts.sentences.incidents,
        )

    def _hosts(self) -> Collection[str] | None:
        """Return the host names that requests may use, or None if everyone needs a token."""
        own = {*LOOPBACK_NAMES, self._address.host, *self._address.hosts}
        return own if is_loopback(self._address.host) or self._address.hosts else None

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Send an item to every reader of its session."""
        self._news.take(item)

    def hear(self, event: Event) -> None:
        """Report an event to every reader of its session."""
        self._news.hear(event)


MADE_ADVICE = (
    "the page and the API need a token, even on this machine: log in with the one in this file, "
    "send it as the API key, or set channels.web.open_on_loopback = true to let in everyone who "
    "uses this machine"
)
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
BACKLOG = 2048


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach this host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listening_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address; raises `SettingsError` if it can't."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise SettingsError(
            f"can't listen on {host} port {port}: {error.strerror or error}; choose another "
            "with --host and --port, or channels.web.host and channels.web.port"
        ) from error


STORE_SECONDS = 3
"""How long the store may take to respond."""
PROBE = "web:readyz"
"""A session key that is used only to check the store."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@serve("GET", "/healthz", is_public=True, is_admitted=True)
async def alive(_: ApiCall) -> Response:
    """Check that the process is alive."""
    return JSONResponse({"status": "ok"})


@serve("GET", "/readyz", is_public=True, is_admitted=True)
async def ready(call: ApiCall) -> Response:
    """Check that messages can be answered."""
    checks = {
        "loop": call.backend.parts.runner.is_serving,
        "store": await _reaches_store(call.backend),
    }
    status = 200 if all(checks.values()) else 503
    return JSONResponse({"status": "ok" if status == 200 else "not ready", **checks}, status)  # noqa: PLR2004 - HTTP's own


async def _reaches_store(backend: Backend) -> bool:
    try:
        with anyio.fail_after(STORE_SECONDS):
            await backend.parts.sessions.store.bound(PROBE)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not ready
        return False
    return True


@serve("GET", "/metrics", produces=("text/plain",))
async def metrics(call: ApiCall) -> Response:
    """Return the counters, summed over all chats, for Prometheus."""
    if not call.who.is_operator and METRICS not in call.who.rights:
        raise Refusal(403, 'this token may not read the metrics: add "metrics" to its may_use')
    counted = call.backend.parts.snapshot()
    own = {"open_streams": len(call.backend.streams), "feeds": len(call.backend.feeds)}
    text = "\n".join([*_lines(counted, own), ""])
    return PlainTextResponse(text, media_type=_METRICS)


def _lines(counted: Mapping[str, Mapping[str, float]], own: Mapping[str, float]) -> Iterator[str]:
    yield "# HELP nanoloop_events_total How often each event happened."
    yield "# TYPE nanoloop_events_total counter"
    for name, value in sorted(counted["counts"].items()):
        yield f'nanoloop_events_total{{event="{name}"}} {value}'
    yield "# HELP nanoloop_event_sum_total The sum of a numeric field of an event."
    yield "# TYPE nanoloop_event_sum_total counter"
    yield from _numbered("nanoloop_event_sum_total", counted["sums"])
    yield "# HELP nanoloop_event_latest The latest value of a numeric field of an event."
    yield "# TYPE nanoloop_event_latest gauge"
    yield from _numbered("nanoloop_event_latest", counted["latest"])
    for name, value in own.items():
        yield f"# TYPE nanoloop_web_{name} gauge"
        yield f"nanoloop_web_{name} {value}"


def _numbered(metric: str, values: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(values.items()):
        event, _, number = name.partition(".")
        if re.fullmatch(r"\w+", event) and re.fullmatch(r"\w+", number):
            yield f'{metric}{{event="{event}",number="{number}"}} {value}'


class Login(RequestBody):
    """A token to log in with."""

    token: Annotated[str, Field(min_length=1, max_length=500)]


@serve("POST", "/login", status=204, is_public=True, is_counted=False)
async def login(call: ApiCall, shown: Login) -> Response:
    """Exchange a token for a cookie."""
    access, secret = call.backend.access, shown.token.strip()
    caller = access.log_in(call.request, secret)
    response = Response(status_code=204)
    if caller is not None and (cookie := access.callers.cookie_for(secret)) is not None:
        await access.logins.begin(cookie, name=caller.name, seconds=COOKIE_SECONDS)
        _set(call, response, cookie, COOKIE_SECONDS)
    return response


@serve("POST", "/logout", status=204, is_public=True)
async def logout(call: ApiCall) -> Response:
    """End this cookie's login, in every browser that has the cookie."""
    access, response = call.backend.access, Response(status_code=204)
    cookie = call.request.cookies.get(access.cookie, "")
    if access.callers.of_cookie(cookie) is not None:
        await access.logins.end(cookie)
        call.backend.streams.end_login(cookie)
    _set(call, response, "", 0)
    return response


def _set(call: ApiCall, response: Response, value: str, seconds: int) -> None:
    # Judged by the page's origin, because a proxy may forward requests without encryption.
    origin = call.request.headers.get("origin", "")
    response.set_cookie(
        call.backend.access.cookie,
        value,
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=origin.startswith("https://"),
    )


@serve("GET", "/api/me", is_public=True, is_counted=False)
async def me(call: ApiCall) -> Response:
    """Return the caller's name and the available agents."""
    if call.caller is None:
        return JSONResponse({"login": True})
    parts = call.backend.parts
    agents = [
        {"name": name, "model": parts.agents[name].model or parts.model} for name in call.agents
    ]
    about = {
        "login": not call.backend.access.callers.is_open,
        "name": call.caller.name,
        "scope": list(call.caller.patterns),
        "agents": agents,
        "agent": call.agent,
        "model": parts.model,
        "version": __version__,
        "upload_bytes": call.backend.limits.upload_bytes,
    }
    return JSONResponse(about)


_NOT_TAKEN = (
    "send an image (png, jpeg, gif, webp), a PDF, a Word document (docx), a spreadsheet (xlsx, "
    "csv) or a text file"
)
NAME_LIMIT = 120
_GIVEN_OUT = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, max-age=31536000, immutable",
}


@serve("POST", "/api/attachments", status=201, refuses=(413, 415, 422))
async def upload(call: ApiCall, data: bytes) -> Response:
    """Upload an image or a document; its name goes in the header X-Name, percent-encoded."""
    mime_type = mime_type_of(data) if data else None
    if mime_type is None:
        raise Refusal(415, _NOT_TAKEN)
    name = _safe_name(unquote(call.request.headers.get("x-name", "")))
    try:
        kept = await call.backend.attachments.keep(
            data, owner=call.who.account, name=name, mime_type=mime_type
        )
    except AttachmentsFull:
        raise Refusal(413, call.backend.parts.sentences.text("files_full")) from None
    except PictureRefused as refused:
        raise Refusal(422, str(refused)) from None
    about: dict[str, Any] = {"ref": f"{SCHEME}{kept.id}", "kind": kept.kind, "name": kept.name}
    about |= {"mime_type": kept.mime_type, "size": kept.size}
    return JSONResponse({"id": kept.id, **shown_attachment(about)}, status_code=201)


def _safe_name(name: str) -> str:
    """Return the last part of a path, with visible characters only."""
    last = name.replace("\\", "/").rpartition("/")[2]
    shown = "".join(sign if sign.isprintable() else " " for sign in last).strip()
    return shown[:NAME_LIMIT] or "file"


@serve("GET", "/api/attachments/{attachment}", produces=("*/*",))
async def download(call: ApiCall) -> Response:
    """Download an uploaded file."""
    attachment_id = str(call.request.path_params["attachment"])
    kept = await call.backend.attachments.about(attachment_id)
    may = kept is not None and call.who.may_use(kept.owner, kept.sessions)
    data = await call.backend.attachments.data(attachment_id) if may else None
    if kept is None or data is None:
        raise _no_file(attachment_id)
    how = "inline" if kept.kind == "image" else "attachment"
    name = quote(kept.name, safe="")
    return Response(
        data,
        media_type=kept.mime_type,
        headers={**_GIVEN_OUT, "Content-Disposition": f"{how}; filename*=UTF-8''{name}"},
    )


def _no_file(attachment_id: str) -> Refusal:
    return Refusal(404, f"there is no file {quoted(attachment_id)}")


@serve("DELETE", "/api/attachments/{attachment}", status=204)
async def remove(call: ApiCall) -> Response:
    """Delete a file that you uploaded, for good; messages that included it keep its name."""
    attachment_id = str(call.request.path_params["attachment"])
    kept = await call.backend.attachments.about(attachment_id)
    if kept is None or not call.who.owns(kept.owner):
        raise _no_file(attachment_id)
    await call.backend.attachments.remove(attachment_id)
    return Response(status_code=204)


DOCS_POLICY = f"default-src 'none'; style-src 'sha256-{DOCS_STYLE_HASH}'; frame-ancestors 'none'"


@serve("GET", "/openapi.json", is_public=True)
async def openapi(call: ApiCall) -> Response:
    """Return this API as an OpenAPI document."""
    is_open = call.backend.access.callers.is_open
    return JSONResponse(document(OPERATIONS, is_open=is_open))


@serve("GET", "/docs", produces=("text/html",), is_public=True)
async def docs(_: ApiCall) -> Response:
    """Return the API documentation as a page."""
    return HTMLResponse(docs_page(OPERATIONS), headers={"Content-Security-Policy": DOCS_POLICY})


OPERATIONS = (
    login,
    logout,
    me,
    *conversations.OPERATIONS,
    *dialogue.OPERATIONS,
    upload,
    download,
    remove,
    alive,
    ready,
    metrics,
    *completions.OPERATIONS,
    openapi,
    docs,
)
_OPEN = frozenset(operation.path for operation in OPERATIONS if operation.is_admitted)


def make_site(backend: Backend) -> Starlette:
    """Return the application: the API, its documentation, and the page."""
    routes: list[BaseRoute] = [operation.route(backend) for operation in OPERATIONS]
    routes += page_routes()
    return Starlette(
        routes=routes,
        middleware=[_cors(backend)] if backend.access.origins else [],
        exception_handlers={
            HTTPException: _refused_by_router,
            Exception: partial(_failed, backend),
        },
    )


def _cors(backend: Backend) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=sorted(backend.access.origins),
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],  # OpenAI's clients send headers of their own
        expose_headers=[HEADER, IGNORED, REPEATED, "Retry-After"],
    )


async def _refused_by_router(_: Request, error: Exception) -> Response:
    """Return the response to an error that the router itself raised."""
    assert isinstance(error, HTTPException)  # noqa: S101 - only called for these
    says = {404: "there is nothing here", 405: "this method is not allowed here"}
    sentence = says.get(error.status_code, "this request can't be served")
    return error_response(error.status_code, sentence, headers=error.headers)


async def _failed(backend: Backend, request: Request, error: Exception) -> Response:
    """Return the response to a bug, which reveals no details to the client."""
    parts, path = backend.parts, path_of(request.scope)
    request.scope[TOLD] = True
    return error_response(500, sentence_of(error, parts.sentences, path=path))


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


class Guard:
    """Rejects requests for other hosts, and logs every request without its content.

    Health checks are served under any host name, because they reveal nothing.
    """

    def __init__(self, app: ASGIApp, *, hosts: Container[str] | None, incidents: Incidents) -> None:
        """Create the application; without `hosts`, it accepts every host name."""
        self._app = app
        self._hosts = hosts
        self._incidents = incidents

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
                path = path_of(scope)
                facts = self._incidents.of(error, place=path).facts
                announce(RequestFailed(path=path, **facts))
        finally:
            announce(
                RequestServed(
                    method=scope["method"],
                    path=path_of(scope),
                    status=served.status,
                    seconds=round(time.monotonic() - started, 3),
                )
            )

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        host = _host_of(scope)
        is_ours = host is not None if self._hosts is None else host in self._hosts
        if is_ours or scope["path"] in _OPEN:
            await self._app(scope, receive, send)
        else:
            # Otherwise, a page on a host name that points here could read everything.
            sentence = "not a host name of this server: add it to channels.web.hosts"
            await error_response(421, sentence)(scope, receive, send)


class _Served:
    """Adds the security headers to every response."""

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


_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@\[\]]*)(?::[0-9]{1,5})?")


def _host_of(scope: Scope) -> str | None:
    """Return the host name without its port, or None if it is malformed."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    found = _HOST.fullmatch(host.decode("latin-1").lower())
    return None if found is None else found[1]


STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class _PageFile:
    """One of the page's files, ready to be sent."""

    body: bytes
    mime_type: str
    etag: str

    @classmethod
    def at(cls, path: Path) -> _PageFile:
        """Read the file from this path."""
        body = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return cls(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')

    def response(self, request: Request) -> Response:
        """Return the response, which browsers revalidate so that an update is visible at once."""
        headers = {"Cache-Control": "no-cache", "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.mime_type, headers=headers)


def page_routes(folder: Path = STATIC) -> list[BaseRoute]:
    """Return the routes for the page and its files."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): _PageFile.at(path) for path in paths}

    async def page(request: Request) -> Response:
        return files["index.html"].response(request)

    async def part(request: Request) -> Response:
        file = files.get(request.path_params["name"])
        if file is None:
            return error_response(404, "there is nothing here")
        return file.response(request)

    return [Route("/", page), Route("/static/{name:path}", part)]
