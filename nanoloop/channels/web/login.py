"""Logging a page in and out, and who it is then."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

from pydantic import Field
from starlette.responses import JSONResponse, Response

from nanoloop.channels.web.access import COOKIE_SECONDS
from nanoloop.channels.web.api import ApiCall, Operation, RequestBody, serve


class Login(RequestBody):
    """A token."""

    token: Annotated[str, Field(min_length=1, max_length=500)]


@serve("POST", "/login", status=204, is_public=True)
async def login(call: ApiCall, shown: Login) -> Response:
    """Change a token for a cookie."""
    access = call.backend.access
    cookie = access.callers.cookie_for(shown.token.strip())
    if cookie is None and access.callers.are_named:
        access.refuse_token(call.request)
    response = Response(status_code=204)
    if cookie is not None:
        _set(call, response, cookie, COOKIE_SECONDS)
    return response


@serve("POST", "/logout", status=204, is_public=True)
async def logout(call: ApiCall) -> Response:
    """Take the cookie away."""
    response = Response(status_code=204)
    _set(call, response, "", 0)
    return response


def _set(call: ApiCall, response: Response, value: str, seconds: int) -> None:
    # The page's own word: behind a proxy the request itself comes without encryption.
    origin = call.request.headers.get("origin", "")
    response.set_cookie(
        call.backend.access.cookie,
        value,
        max_age=seconds,
        httponly=True,
        samesite="strict",
        secure=origin.startswith("https://"),
    )


@serve("GET", "/api/me", is_public=True)
async def me(call: ApiCall) -> Response:
    """Who the caller is, and whom one can talk to."""
    if call.caller is None:
        return JSONResponse({"login": True})
    parts = call.backend.parts
    agents = [
        {"name": name, "model": agent.model or parts.model} for name, agent in parts.agents.items()
    ]
    about = {
        "login": call.backend.access.callers.are_named,
        "name": call.caller.name,
        "scope": list(call.caller.patterns),
        "agents": agents,
        "agent": parts.agents.default.name,
        "model": parts.model,
        "version": version("nanoloop"),
        "upload_bytes": call.backend.limits.upload_bytes,
    }
    return JSONResponse(about)


OPERATIONS: Sequence[Operation] = (login, logout, me)
