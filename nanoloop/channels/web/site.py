"""The application: all operations, the page, and what is around every request."""

from __future__ import annotations

import hashlib
import mimetypes
import time
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from nanoloop.channels.web import conversations, dialogue, health, login, memory, uploads
from nanoloop.channels.web.access import error_response, sentence_of
from nanoloop.channels.web.api import (
    DOCS_STYLE_HASH,
    TOLD,
    ApiCall,
    Backend,
    docs_page,
    document,
    path_of,
    serve,
)
from nanoloop.channels.web.openai import completions
from nanoloop.channels.web.openai.completions import HEADER, IGNORED
from nanoloop.events import Announce, RequestFailed, RequestServed
from nanoloop.sentences import incident_of

DOCS_POLICY = f"default-src 'none'; style-src 'sha256-{DOCS_STYLE_HASH}'; frame-ancestors 'none'"


@serve("GET", "/openapi.json", is_public=True)
async def openapi(_: ApiCall) -> Response:
    """This API as an OpenAPI document."""
    return JSONResponse(document(OPERATIONS))


@serve("GET", "/docs", produces="text/html", is_public=True)
async def docs(_: ApiCall) -> Response:
    """This API for people."""
    return HTMLResponse(docs_page(OPERATIONS), headers={"Content-Security-Policy": DOCS_POLICY})


OPERATIONS = (
    *login.OPERATIONS,
    *conversations.OPERATIONS,
    *dialogue.OPERATIONS,
    *memory.OPERATIONS,
    *uploads.OPERATIONS,
    *health.OPERATIONS,
    *completions.OPERATIONS,
    openapi,
    docs,
)


def make_site(backend: Backend) -> Starlette:
    """The application: the API, its description, the page."""
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
        allow_headers=["*"],  # OpenAI's own clients send some of theirs
        expose_headers=[HEADER, IGNORED, "Retry-After"],
    )


async def _refused_by_router(_: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is called for these only
    says = {404: "there is nothing here", 405: "that is not how to ask for it"}
    sentence = says.get(error.status_code, "that can't be served")
    return error_response(error.status_code, sentence, headers=error.headers)


async def _failed(backend: Backend, request: Request, error: Exception) -> Response:
    """A bug, which says nothing of itself to the client."""
    parts, path = backend.parts, path_of(request.scope)
    request.scope[TOLD] = True
    return error_response(500, sentence_of(error, parts.sentences, parts.announce, path=path))


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
        if self._hosts is None or _host_of(scope) in self._hosts:
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


def _host_of(scope: Scope) -> str:
    """The host without its port."""
    host = next((value for name, value in scope["headers"] if name == b"host"), b"")
    text = host.decode("latin-1").lower()
    return text.rpartition(":")[0] if not text.endswith("]") and ":" in text else text


STATIC = Path(__file__).parent / "static"


@dataclass(frozen=True, slots=True)
class _PageFile:
    """One of them, ready to be sent."""

    body: bytes
    mime_type: str
    etag: str

    @classmethod
    def at(cls, path: Path) -> _PageFile:
        """The file as it is now."""
        body = path.read_bytes()
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        return cls(body, kind, f'"{hashlib.sha256(body).hexdigest()[:16]}"')

    def response(self, request: Request) -> Response:
        """What a browser gets that asks for it: an update is seen at once."""
        headers = {"Cache-Control": "no-cache", "ETag": self.etag}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.mime_type, headers=headers)


def page_routes(folder: Path = STATIC) -> list[BaseRoute]:
    """The page, and what it is made of."""
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
