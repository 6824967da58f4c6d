"""The API's operations: their parameters, access checks and documentation."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any, TypeVar, get_type_hints

import anyio
from anyio.to_thread import run_sync
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Scope

from nanoloop import __version__
from nanoloop.addresses import AddressCheck
from nanoloop.channels.server import LOOP_BYTES
from nanoloop.channels.web.access import (
    COMMANDS,
    Caller,
    Refusal,
    WebAccess,
    number_in,
    sentence_of,
    try_later,
)
from nanoloop.channels.web.feed import Feeds, OpenStreams, Receipts
from nanoloop.channels.web.names import KEY, KEY_CHARS, MessageNames
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
from nanoloop.fairness import FairLimiter
from nanoloop.messages import Language
from nanoloop.protocols import Bus, Provider
from nanoloop.sentences import Sentences
from nanoloop.session.head import checked_id
from nanoloop.session.queue import is_command_text
from nanoloop.sessions import Sessions
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from nanoloop.agents import Agents
    from nanoloop.attachments import Attachments
    from nanoloop.channels.web.watch import SessionWatch
    from nanoloop.commands import Runner
    from nanoloop.memory.recall import Recall
    from nanoloop.memory.summarizer import Summarizer
    from nanoloop.nodes import Nodes
    from nanoloop.session.session import Session


T = TypeVar("T")
ROUTE = "nanoloop.route"
"""The key for the operation's path in a request's scope."""
TOLD = "nanoloop.told"
"""The key in a request's scope that marks its failure as logged."""


def path_of(scope: Scope) -> str:
    """Return the path of a request's operation; unknown paths may hold text and are not logged."""
    return str(scope.get(ROUTE, "-"))


MESSAGE_BYTES = 256_000
"""The size above which a body counts as large."""
REQUESTS = 16
"""How many requests are handled at once, except those being read or answered in pieces."""
LARGE_BODIES = 8
"""How many requests may have bodies of large or unknown size, counted from the first byte."""
PARSERS = 2
"""How many large bodies are parsed at once, each in a thread."""


class RequestBody(BaseModel):
    """The validated body of a request."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall:
    """A request that has been granted access."""

    request: Request
    backend: Backend
    caller: Caller | None
    """The caller; None if the operation is public and the caller is unknown."""

    @property
    def who(self) -> Caller:
        """The caller of an operation that requires one."""
        assert self.caller is not None  # noqa: S101 - all others were refused
        return self.caller

    @property
    def session_id(self) -> str:
        """The session in the path; raises `SessionNotFound` if the caller may not see it."""
        session_id = checked_id(self.request.path_params["session"])
        if not self.who.sees(session_id):
            raise SessionNotFound(session_id)
        return session_id

    @property
    def agents(self) -> list[str]:
        """The agents that the caller may use."""
        agents, wanted = self.backend.parts.agents, self.who.agents
        if wanted is None:
            return agents.among(None if self.who.is_operator else ())
        return [name for name in wanted if name in agents]

    @property
    def agent(self) -> str | None:
        """The agent for the caller's new sessions: the default agent if allowed, else the first."""
        default, agents = self.backend.parts.agents.default.name, self.agents
        return default if default in agents else next(iter(agents), None)

    @property
    def agent_to_name(self) -> str | None:
        """The agent to store in a new session; None for the default agent."""
        agent = self.agent
        return None if agent == self.backend.parts.agents.default.name else agent

    def check_ask(self, session: Session, text: str = "") -> None:
        """Raise `Refusal` unless the caller may send this text in this session."""
        self.check_agent(self.backend.parts.agents.of(session).name)
        if not is_command_text(text) or self.backend.access.is_page_of(self.request):
            return
        if COMMANDS not in self.who.rights:
            raise Refusal(
                403,
                'this token may not send commands: add "commands" to its may_use, or put a '
                "space before the / if it is not a command",
            )

    def check_agent(self, name: str | None) -> None:
        """Raise `Refusal` unless the caller may use this agent."""
        if name not in self.agents:
            which = "any agent" if name is None else f"the agent {quoted(name)}"
            raise Refusal(403, f"this token may not use {which}: see its `agents` setting")


Run = Callable[..., Awaitable[ASGIApp]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A function that serves requests, with its route, checks and documentation."""

    run: Run
    """Called with the `ApiCall`, and with the validated parameters if there are any."""
    method: str
    path: str
    takes: type[BaseModel | bytes] | None
    """The type of the query for GET, otherwise of the body; `bytes` means a file."""
    status: int = 200
    produces: tuple[str, ...] = ("application/json",)
    """The media types of the response."""
    refuses: tuple[int, ...] = ()
    """Status codes for well-formed requests that are refused because of their content."""
    is_public: bool = False
    """Whether anyone may call the operation."""
    takes_names: bool = False
    """Whether a request may carry a name by which a repeated request is recognised."""
    is_counted: bool = True
    """Whether requests count towards the limit per minute."""
    is_admitted: bool = False
    """Whether requests skip all access checks and limits."""

    @property
    def says(self) -> str:
        """A one-sentence description: the first line of the function's docstring."""
        return (self.run.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def query(self) -> type[BaseModel] | None:
        """The model of the parameters, if they are in the query."""
        return self._model if self.method == "GET" else None

    @property
    def body(self) -> type[BaseModel] | None:
        """The model of the parameters, if they are in a JSON body."""
        return self._model if self.method != "GET" else None

    @property
    def _model(self) -> type[BaseModel] | None:
        return self.takes if self.takes is not None and issubclass(self.takes, BaseModel) else None

    def route(self, backend: Backend) -> Route:
        """Return the route that serves this operation."""

        async def served(request: Request) -> Any:
            request.scope[ROUTE] = self.path
            try:
                return await self._answer(request, backend)
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - errors of other kinds are raised again
                return self.refused(error, request, backend)

        return Route(self.path, served, methods=[self.method])

    async def _answer(self, request: Request, backend: Backend) -> ASGIApp:
        if self.is_admitted:
            return await self.run(ApiCall(request=request, backend=backend, caller=None))
        if not self.is_counted and self.takes is None:
            return await self.run(await self._admitted(request, backend))
        owner = backend.access.owner_of(request)
        async with backend.requests.turn(owner):
            call = await self._admitted(request, backend)
        if self.takes is None:
            async with backend.requests.turn(owner):
                return await self.run(call)
        if self._may_be_large(request):
            # Held until the end: large bodies stay in memory, and must not delay small ones.
            async with backend.bodies.turn(owner):
                return await self.run(call, await self.given(request, backend))
        given = await self.given(request, backend)
        async with backend.requests.turn(owner):
            return await self.run(call, given)

    async def _admitted(self, request: Request, backend: Backend) -> ApiCall:
        admit = backend.access.admit
        caller = await admit(request, is_public=self.is_public, is_counted=self.is_counted)
        return ApiCall(request=request, backend=backend, caller=caller)

    def _may_be_large(self, request: Request) -> bool:
        length = number_in(request.headers.get("content-length", ""))
        return self.method != "GET" and (length is None or length > MESSAGE_BYTES)

    async def given(self, request: Request, backend: Backend) -> BaseModel | bytes:
        """Read the parameters of a request; raise `Refusal` if they can't be accepted."""
        limits = backend.limits
        if self.query is not None:
            return _checked(self.query, dict(request.query_params))
        if self.body is None:
            return await read_body(request, limits.upload_bytes, limits.body_seconds)
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind not in {"application/json", ""}:
            raise Refusal(415, f"the body is {kind[:100]}: send application/json")
        data = await read_body(request, MESSAGE_BYTES, limits.body_seconds)
        return await backend.work(partial(_checked, self.body, data or b"{}"), size=len(data))

    def refused(self, error: Exception, request: Request, backend: Backend) -> Response:
        """Return the response to one of nanoloop's errors; re-raises any other error."""
        parts = backend.parts
        tell = partial(sentence_of, error, parts.sentences, path=self.path)
        match error:
            case Refusal():
                refusal = error
            case SessionNotFound() | InvalidSessionId():
                asked = quoted(request.path_params.get("session", ""))
                refusal = Refusal(404, f"there is no session {asked}")
            case NotPossible():
                refusal = Refusal(409, str(error))
            case SessionError() | StoreConflict():
                refusal = Refusal(409, tell())
            case BusFull():
                refusal = try_later(503, parts.sentences.text("full"), seconds=2)
            case StoreError() | IndexUnusable():
                refusal = try_later(503, tell(), seconds=5)
            case _:
                raise error
        return refusal.response()


def serve(
    method: str, path: str, *, of: type[Operation] = Operation, **more: Any
) -> Callable[[Run], Operation]:
    """Turn a function into an operation, using its docstring and parameter types.

    `more` sets additional fields of `Operation`.
    """

    def made(run: Run) -> Operation:
        hints = [hint for name, hint in get_type_hints(run).items() if name != "return"]
        takes = hints[1] if len(hints) > 1 else None
        return of(run=run, method=method, path=path, takes=takes, **more)

    return made


def _checked(model: type[BaseModel], said: bytes | dict[str, str]) -> BaseModel:
    try:
        if isinstance(said, bytes):
            return model.model_validate_json(said)
        return model.model_validate(said)
    except ValidationError as error:
        raise Refusal(422, problem_of(error, model)[1]) from None


Snapshot = Callable[[], Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebLimits:
    """Limits on requests."""

    requests_per_minute: int = 600
    upload_bytes: int = 10_000_000
    body_seconds: float = 30
    """How long a request may take to arrive."""
    header_seconds: float = 10
    """How long a connection may stay open without a complete request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebParts:
    """The loop's parts that the web channel uses."""

    bus: Bus
    sessions: Sessions
    agents: Agents
    summarizer: Summarizer
    runner: Runner
    nodes: Nodes
    """The other processes on the same store."""
    recall: Recall | None
    keep: int
    """How many messages are always kept verbatim."""
    model: str
    """The model used by agents that don't name one."""
    snapshot: Snapshot
    """Returns the telemetry counters."""
    sentences: Sentences
    """The sentences that explain failures to clients."""
    language: Language | None
    """The language of messages to clients, unless the agent sets one."""
    provider: Provider
    """The provider for clients that send the whole conversation."""
    turns: FairLimiter
    """Limits how many turns run at once, including those for clients without a session."""
    secret: Callable[[], bytes]
    """Returns the key for digests of message bodies, which are stored as ids."""
    hidden: Callable[[str], Awaitable[str]] | None = None
    """Hides a session name given by a client; None if the store is not encrypted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Everything that operations need."""

    parts: WebParts
    access: WebAccess
    limits: WebLimits
    attachments: Attachments
    feeds: Feeds
    watch: SessionWatch
    streams: OpenStreams
    names: MessageNames
    receipts: Receipts
    addresses: AddressCheck = field(default_factory=AddressCheck)
    requests: FairLimiter = field(default_factory=partial(FairLimiter, REQUESTS))
    bodies: FairLimiter = field(default_factory=partial(FairLimiter, LARGE_BODIES))
    parsers: anyio.CapacityLimiter = field(default_factory=partial(anyio.CapacityLimiter, PARSERS))

    async def work(self, does: Callable[[], T], *, size: int) -> T:
        """Call a function that handles `size` bytes, in a thread if that is a lot."""
        return does() if size <= LOOP_BYTES else await run_sync(does, limiter=self.parsers)


async def read_body(request: Request, limit: int, seconds: float) -> bytes:
    """Read the whole body; raises `Refusal` if it is too large or too slow."""
    told = request.headers.get("content-length", "")
    length = number_in(told)
    if (length is None and told) or (length and length > limit):
        raise _too_large(limit)
    try:
        with anyio.fail_after(seconds):
            return await _read(request, limit)
    except TimeoutError:
        closing = {"Connection": "close"}
        raise Refusal(408, "the request took too long to arrive", headers=closing) from None


async def _read(request: Request, limit: int) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


def _too_large(limit: int) -> Refusal:
    # Keep the connection open and discard the rest, so that the client reads this response.
    return Refusal(413, f"the body has more than {limit} bytes: send less")


SHOWN = 60
"""How many characters of a value are quoted."""
_SECRET = re.compile(r"token|key|secret|passw", re.IGNORECASE)
_WRONG = {
    "bool": "not true or false",
    "dict": "not an object",
    "int": "not a whole number",
    "list": "not a list",
    "model": "not an object",
    "string": "not a string",
}
"""Maps the first word of an error's type to the reason why a value is invalid."""
_BOUNDS = {
    "greater_than_equal": "is {value}, less than {ge}",
    "less_than_equal": "is {value}, more than {le}",
    "literal_error": "is {value}, not {expected}",
    "string_pattern_mismatch": "is {value}, which does not match {pattern}",
    "string_too_long": "is too long: at most {max_length} characters are allowed",
    "string_too_short": "is too short: the minimum length is {min_length}",
    "too_long": "has too many items: at most {max_length} are allowed",
    "too_short": "has too few items: at least {min_length} are needed",
}


def quoted(text: object) -> str:
    """Return a value in quotes, shortened to fit in a sentence."""
    return repr(str(text)[:SHOWN])


def problem_of(error: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """Return the invalid field, "" for the whole body, and a sentence that begins with it."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return where, f"{where or 'the body'} {_wrong(first, where, model)}"


def _wrong(first: ErrorDetails, where: str, model: type[BaseModel]) -> str:
    kind, facts = first["type"], first.get("ctx", {})
    value = _shown(first["input"], where)
    if kind == "extra_forbidden":
        return _unknown(where, model)
    if kind == "missing":
        return "is missing"
    if kind == "json_invalid":
        return f"is not JSON: {facts['error']}"
    if kind in _BOUNDS:
        return _BOUNDS[kind].format_map({**facts, "value": value})
    wrong = _WRONG.get(kind.partition("_")[0])
    return f"is {value}, {wrong}" if wrong else f"is invalid: {first['msg']}"


def _unknown(where: str, model: type[BaseModel]) -> str:
    known: Mapping[str, Any] = model.model_fields
    advice = did_you_mean(where, known, f"use {', '.join(known)}", shown=str)
    return f"is unknown: {advice}"


def _shown(value: Any, where: str) -> str:
    """Format a value for a sentence: shorten it, hide secrets, name only nested values' types."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    said = json.dumps(value, default=str)
    is_long = len(said) > SHOWN
    return "(not shown)" if _SECRET.search(where) else f"{said[:SHOWN]}…" if is_long else said


_ERROR = {
    "description": "What went wrong, in a sentence",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"}},
        }
    },
}
_DOCS_STYLE = """
:root { color-scheme: light dark; }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; }
dt { margin-top: 1rem; } dd { margin: 0 0 0 1.5rem; opacity: .8; }
"""
DOCS_STYLE_HASH = base64.b64encode(hashlib.sha256(_DOCS_STYLE.encode()).digest()).decode()


def document(operations: Iterable[Operation], *, is_open: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document for these operations; with `is_open`, no token is needed."""
    paths: dict[str, dict[str, Any]] = {}
    schemas: dict[str, Any] = {"Error": _ERROR_SCHEMA}
    for operation in operations:
        described = _described(operation, schemas)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    return {
        "openapi": "3.1.0",
        "info": {"title": "nanoloop", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [] if is_open else [{"token": []}],
    }


def _described(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "summary": operation.says,
        "operationId": operation.run.__name__,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query)]
        + [_NAME] * operation.takes_names,
        "responses": {
            str(operation.status): _response(operation),
            **{str(code): _ERROR for code in operation.refuses},
            "default": _ERROR,
        },
    }
    if operation.is_public:
        told["security"] = []
    if operation.takes is bytes:
        binary = {"schema": {"type": "string", "format": "binary"}}
        told["requestBody"] = {"required": True, "content": {"application/octet-stream": binary}}
    elif operation.body is not None:
        name = operation.body.__name__
        schemas[name] = operation.body.model_json_schema()
        schema = {"schema": {"$ref": f"#/components/schemas/{name}"}}
        is_required = any(field.is_required() for field in operation.body.model_fields.values())
        told["requestBody"] = {"required": is_required, "content": {"application/json": schema}}
    return told


def _response(operation: Operation) -> dict[str, Any]:
    if operation.status == 204:  # noqa: PLR2004 - HTTP's own
        return {"description": "Done"}
    return {"description": operation.says, "content": {kind: {} for kind in operation.produces}}


_NAME = {
    "name": KEY,
    "in": "header",
    "description": "Requests with the same key count as one message",
    "schema": {"type": "string", "maxLength": KEY_CHARS},
}


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(query: type[BaseModel] | None) -> list[dict[str, Any]]:
    if query is None:
        return []
    properties: Mapping[str, Any] = query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "schema": of} for name, of in properties.items()]


def docs_page(operations: Iterable[Operation]) -> str:
    """Return the API documentation as an HTML page without scripts."""
    rows = "\n".join(map(_docs_row, operations))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>nanoloop API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_DOCS_STYLE}</style></head><body><h1>nanoloop API</h1>"
        "<p>Requests and responses are JSON. Send a token as <code>Authorization: Bearer …</code>; "
        "changes without one need the header <code>X-Nanoloop: 1</code>. An error is "
        '<code>{"error": {"message", "type"}}</code>. For programs: '
        f'<a href="/openapi.json">openapi.json</a>.</p><dl>{rows}</dl></body></html>'
    )


def _docs_row(operation: Operation) -> str:
    takes = [*_docs_fields("?", operation.query), *_docs_fields("", operation.body)]
    more = f" Parameters: {', '.join(takes)}." if takes else ""
    return (
        f"<dt><code>{operation.method} {escape(operation.path)}</code></dt>"
        f"<dd>{escape(operation.says)}.{more}</dd>"
    )


def _docs_fields(sign: str, model: type[BaseModel] | None) -> list[str]:
    names = model.model_fields if model is not None else ()
    return [f"<code>{sign}{name}</code>" for name in names]
