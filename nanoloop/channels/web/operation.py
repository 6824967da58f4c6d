"""One operation of the API: where it is, what it takes, and how a request comes to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from nanoloop.channels.web.admission import admitted
from nanoloop.channels.web.body import read_body
from nanoloop.channels.web.callers import EVERYONE, Caller
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.malformed import problem_of, quoted
from nanoloop.channels.web.refusal import Refusal, sentence_of, try_later
from nanoloop.errors import (
    BusFull,
    IndexUnusable,
    InvalidSessionId,
    NotPossible,
    SessionError,
    SessionNotFound,
    StoreConflict,
    StoreError,
)
from nanoloop.session.ids import checked_id

ROUTE = "nanoloop.route"
"""Where the scope of a request says which operation it came to."""
MESSAGE_BYTES = 256_000
"""How long a message may be."""
TOLD = "nanoloop.told"
"""Where it says that its failure has been logged."""


def path_of(scope: Scope) -> str:
    """Which operation it is; a path that is none may say anything, and is not told."""
    return str(scope.get(ROUTE, "-"))


class Taken(BaseModel):
    """What a request says, checked."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request that was let in."""

    request: Request
    desk: Desk
    caller: Caller | None
    """Who calls; None where one need not be known and is not."""
    query: Any
    body: Any

    @property
    def who(self) -> Caller:
        """Who calls, where one has to be known."""
        return self.caller or EVERYONE

    @property
    def session_id(self) -> str:
        """The session in the path; one that is not the caller's is none."""
        session_id = checked_id(self.request.path_params["session"])
        if not self.who.sees(session_id):
            raise SessionNotFound(session_id)
        return session_id


Run = Callable[[Call], Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A line of the table that routes, checks and documents."""

    method: str
    path: str
    says: str
    """What it does, in a sentence."""
    run: Run
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    uploads: bool = False
    """Whether the body is a file."""
    status: int = 200
    produces: str = "application/json"
    is_public: bool = False
    """Whether one need not be known."""
    is_counted: bool = True
    """Whether it counts among what one may ask in a minute."""

    def route(self, desk: Desk) -> Route:
        """Where requests come to it."""

        async def served(request: Request) -> Any:
            request.scope[ROUTE] = self.path
            try:
                return await self.run(await self._call(request, desk))
            except Refusal as refusal:
                return refusal.response()
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - what is none of ours is raised again
                return self._refusal_of(error, desk, request.path_params).response()

        return Route(self.path, served, methods=[self.method])

    def _refusal_of(self, error: Exception, desk: Desk, asked: Mapping[str, Any]) -> Refusal:
        """The refusal that an error of ours is; any other goes on as it is."""
        shop = desk.shop
        tell = partial(sentence_of, error, shop.sentences, shop.announce, path=self.path)
        match error:
            case SessionNotFound() | InvalidSessionId():
                return Refusal(404, f"there is no session {quoted(asked.get('session', ''))}")
            case NotPossible():
                return Refusal(409, str(error))
            case SessionError() | StoreConflict():
                return Refusal(409, tell())
            case BusFull():
                return try_later(503, shop.sentences.text("full"), seconds=2)
            case StoreError() | IndexUnusable():
                return try_later(503, tell(), seconds=5)
        raise error

    async def _call(self, request: Request, desk: Desk) -> Call:
        caller = admitted(request, desk, is_public=self.is_public, is_counted=self.is_counted)
        query = _checked(self.query, dict(request.query_params)) if self.query else None
        body: Any = None
        if self.uploads:
            body = await read_body(request, desk.limits.upload_bytes, desk.limits.body_seconds)
        elif self.body is not None:
            body = await self._json(request, desk, self.body)
        return Call(request=request, desk=desk, caller=caller, query=query, body=body)

    async def _json(self, request: Request, desk: Desk, body: type[BaseModel]) -> BaseModel:
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in {"application/json", ""}:
            raise Refusal(415, f"the body is {kind[:100]}: send application/json")
        data = await read_body(request, MESSAGE_BYTES, desk.limits.body_seconds)
        return _checked(body, data or b"{}")


def _checked(model: type[BaseModel], said: bytes | dict[str, str]) -> BaseModel:
    try:
        if isinstance(said, bytes):
            return model.model_validate_json(said)
        return model.model_validate(said)
    except ValidationError as error:
        raise Refusal(422, problem_of(error, model)[1]) from None
