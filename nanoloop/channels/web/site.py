"""The one table of operations, and the application made of it."""

from __future__ import annotations

from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from nanoloop.channels.web import (
    access,
    conversations,
    events,
    health,
    history,
    memory,
    talking,
    uploads,
)
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.openai import completions, models
from nanoloop.channels.web.openai.naming import HEADER, IGNORED
from nanoloop.channels.web.openapi import describing
from nanoloop.channels.web.operation import TOLD, path_of
from nanoloop.channels.web.page import page_routes
from nanoloop.channels.web.refusal import error_response, sentence_of

PARTS = (
    *(access, conversations, history, talking, memory, uploads, events, health),
    *(completions, models),
)
OPERATIONS = tuple(operation for part in PARTS for operation in part.OPERATIONS)


def make_site(desk: Desk) -> Starlette:
    """The application: the API, its description, the page."""
    operations = (*OPERATIONS, *describing(OPERATIONS))
    routes: list[BaseRoute] = [operation.route(desk) for operation in operations]
    routes += page_routes()
    return Starlette(
        routes=routes,
        middleware=[_cors(desk)] if desk.origins else [],
        exception_handlers={HTTPException: _refused, Exception: partial(_failed, desk)},
    )


def _cors(desk: Desk) -> Middleware:
    return Middleware(
        CORSMiddleware,
        allow_origins=sorted(desk.origins),
        allow_methods=["GET", "POST", "PUT", "PATCH", "DELETE"],
        allow_headers=["*"],  # OpenAI's own clients send some of theirs
        expose_headers=[HEADER, IGNORED, "Retry-After"],
    )


async def _refused(_: Request, error: Exception) -> Response:
    """What the router itself refuses."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is called for these only
    says = {404: "there is nothing here", 405: "that is not how to ask for it"}
    sentence = says.get(error.status_code, "that can't be served")
    return error_response(error.status_code, sentence, headers=error.headers)


async def _failed(desk: Desk, request: Request, error: Exception) -> Response:
    """A bug, which says nothing of itself to the client."""
    shop, path = desk.shop, path_of(request.scope)
    request.scope[TOLD] = True
    return error_response(500, sentence_of(error, shop.sentences, shop.announce, path=path))
