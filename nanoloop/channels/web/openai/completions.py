"""Chat completions as clients of OpenAI's API ask for them: in a session, or all sent along."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from nanoloop.agents import Agent
from nanoloop.channels.web.access import Caller
from nanoloop.channels.web.api import (
    ROUTE,
    ApiCall,
    Backend,
    Operation,
    admitted,
    problem_of,
    quoted,
    read_body,
)
from nanoloop.channels.web.dialogue import inbound, lane_of
from nanoloop.channels.web.openai.answer import (
    CompletionForm,
    CompletionResponse,
    CompletionStream,
    Question,
    SessionQuestion,
)
from nanoloop.channels.web.openai.request import (
    ChatRequest,
    ClientRefusal,
    Message,
    checked_messages,
    client_error_response,
    client_tools,
    invalid_field,
    new_in,
    refusal_of,
)
from nanoloop.channels.web.openai.stateless import ClientConversation, StatelessQuestion
from nanoloop.protocols import Provider
from nanoloop.providers.models import WithOptions
from nanoloop.session.ids import checked_id, id_for_key
from nanoloop.session.session import Session

PATH = "/v1/chat/completions"


async def complete(call: ApiCall) -> ASGIApp:
    """The next answer of a conversation, whole or in chunks."""
    asked: ChatRequest = call.body
    asked.check()
    agent = agent_of(call.backend, asked.model)
    form = CompletionForm(model=asked.model, with_usage=asked.wants_usage)
    messages = checked_messages(asked.messages)
    name, headers = session_name(call), _ignored(call, agent)
    question: Question
    if name is None:
        question = _sent_along(call, agent, messages, form.id)
    else:
        question = await _in_session(call, name, messages)
        headers[HEADER] = question.session_id
    return (CompletionStream if asked.stream else CompletionResponse)(
        question,
        form,
        streams=call.backend.streams,
        refuse=partial(refusal_of, backend=call.backend, path=PATH),
        headers=headers,
    )


def _ignored(call: ApiCall, agent: Agent) -> dict[str, str]:
    """The header that names the options which nobody hears of, where there are some."""
    is_heeded = session_name(call) is None and _fitted(call, agent) is not None
    names = [] if is_heeded else call.body.options().keys() - {"response_format"}
    return {IGNORED: ", ".join(sorted(names))} if names else {}


async def _in_session(call: ApiCall, name: str, messages: Sequence[Message]) -> SessionQuestion:
    asked: ChatRequest = call.body
    if asked.tools:
        raise invalid_field("tools", "in a session they run on the server: leave them out")
    if asked.wants_form:
        raise invalid_field("response_format", "in a session answers are text")
    # Before the session: nothing is begun for what says nothing.
    text, images = await new_in(call.backend, call.who.prefix, messages)
    session, key = await named_session(call, name)
    message = inbound(session, text, uuid4().hex, key=key, files=images)
    return SessionQuestion(call.backend, session, message)


def _sent_along(
    call: ApiCall, agent: Agent, messages: Sequence[Message], answer_id: str
) -> StatelessQuestion:
    tools = client_tools(call.body, agent.toolbox.specs)
    return StatelessQuestion(
        ClientConversation(id=answer_id, messages=messages, tools=tools),
        agent=agent,
        provider=_provider(call, agent),
        announce=call.backend.parts.announce,
    )


def _provider(call: ApiCall, agent: Agent) -> Provider:
    """Who is asked, with the request's options where options are taken."""
    asked: ChatRequest = call.body
    provider = agent.provider or call.backend.parts.provider
    fitted = _fitted(call, agent)
    if fitted is None and asked.wants_form:
        raise invalid_field("response_format", "the model here answers with text only")
    options = asked.options()
    return provider if fitted is None or not options else fitted(options)


def _fitted(call: ApiCall, agent: Agent) -> WithOptions | None:
    """What makes a provider with further options of the agent's, if it takes any."""
    provider = agent.provider or call.backend.parts.provider
    fitted: WithOptions | None = getattr(provider, "with_options", None)
    return fitted


HEADER = "X-Nanoloop-Session"
IGNORED = "X-Nanoloop-Ignored"
"""Names what a request says of the model that the model does not hear of."""
NAME_LIMIT = 500


def session_name(call: ApiCall) -> str | None:
    """What a request calls its session, or None where it names none; raises a refusal.

    The header counts first; left empty, it says that there is none whatever `user` says.
    """
    asked: ChatRequest = call.body
    header = call.request.headers.get(HEADER)
    name = (asked.user if header is None else header) or ""
    if len(name) > NAME_LIMIT:
        raise invalid_field(HEADER, f"at most {NAME_LIMIT} characters")
    return name if name.strip() else None


async def named_session(call: ApiCall, name: str) -> tuple[Session, str]:
    """The session and the key of its lane, begun where it is new; raises a refusal.

    A name is the caller's own, and nobody else's. In the header a whole id may stand too, which
    has a colon.
    """
    asked: ChatRequest = call.body
    agent = asked.model if asked.model in call.backend.parts.agents else None
    if ":" in name and HEADER in call.request.headers:
        session, key = await _by_id(call.backend, call.who, name)
    else:
        session, key = await _by_name(call.backend, call.who, name, agent)
    if agent is not None and session.agent != agent:
        session.agent = agent
    return session, key


async def _by_id(backend: Backend, caller: Caller, name: str) -> tuple[Session, str]:
    _check_sees(caller, checked_id(name))
    session = await backend.parts.sessions.open(name)
    return session, await lane_of(backend, session)


async def _by_name(
    backend: Backend, caller: Caller, name: str, agent: str | None
) -> tuple[Session, str]:
    key = id_for_key(f"{caller.prefix}{name}")
    _check_sees(caller, key)
    session = await backend.parts.sessions.current(key, agent=agent)
    _check_sees(caller, session.id)
    return session, key


def _check_sees(caller: Caller, session_id: str) -> None:
    # Told alike whether it is there or not: nobody learns what others have.
    if not caller.sees(session_id):
        raise ClientRefusal(
            403, "that session is not one of this token's", code="session_not_yours"
        )


_SINCE = 0
"""When agents came to be: nobody knows, and clients want a number."""


async def list_models(call: ApiCall) -> Response:
    """All agents."""
    return JSONResponse(
        {"object": "list", "data": [_shown_model(n) for n in call.backend.parts.agents]}
    )


async def show_model(call: ApiCall) -> Response:
    """One agent."""
    return JSONResponse(
        _shown_model(agent_of(call.backend, call.request.path_params["model"]).name)
    )


def agent_of(backend: Backend, model: str) -> Agent:
    """The agent of that name; the default one for the model it asks. Raises a refusal."""
    agents = backend.parts.agents
    if model in agents:
        return agents[model]
    if model == backend.parts.model:
        return agents.default
    near = agents.nearest(model)
    advice = f"did you mean {near}?" if near else "/v1/models lists the agents"
    raise ClientRefusal(
        404, f"there is no model {quoted(model)}: {advice}", code="model_not_found", param="model"
    )


def _shown_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _SINCE, "owned_by": "nanoloop"}


NESTED = 200_000
"""Lists and objects that a body may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOperation(Operation):
    """Takes bodies as large as an upload may be: images stand in them."""

    def route(self, backend: Backend) -> Route:
        """Where requests come to it."""

        async def served(request: Request) -> Any:
            request.scope[ROUTE] = self.path
            try:
                return await self.run(await self._let_in(request, backend))
            except ClientDisconnect:
                return Response(status_code=400)
            except Exception as error:  # noqa: BLE001 - the client is told, and a bug is logged
                return client_error_response(refusal_of(error, backend, path=self.path))

        return Route(self.path, served, methods=[self.method])

    async def _let_in(self, request: Request, backend: Backend) -> ApiCall:
        caller = admitted(request, backend)
        body: Any = None
        if self.body is not None:
            data = await read_body(
                request, backend.limits.upload_bytes, backend.limits.body_seconds
            )
            body = _checked_body(self.body, data)
        return ApiCall(request=request, backend=backend, caller=caller, query=None, body=body)


def _checked_body(body: type[BaseModel], data: bytes) -> BaseModel:
    if data.count(b"[") + data.count(b"{") > NESTED:  # reading them would hold up everyone
        raise ClientRefusal(413, f"that is more than {NESTED} lists and objects: send less")
    try:
        return body.model_validate_json(data)
    except ValidationError as error:
        where, sentence = problem_of(error, body)
    raise ClientRefusal(400, sentence, param=where or None, code="invalid_value")


OPERATIONS: Sequence[Operation] = (
    ClientOperation(
        method="POST",
        path=PATH,
        says="The next answer of a conversation, as OpenAI's API has it",
        run=complete,
        body=ChatRequest,
    ),
    ClientOperation(
        method="GET", path="/v1/models", says="The agents, as OpenAI's API has it", run=list_models
    ),
    ClientOperation(
        method="GET",
        path="/v1/models/{model}",
        says="One agent, as OpenAI's API has it",
        run=show_model,
    ),
)
