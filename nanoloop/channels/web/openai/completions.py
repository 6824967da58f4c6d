"""Chat completions in OpenAI's format, in a session or for a conversation in the request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from nanoloop.agents import Agent
from nanoloop.channels.web.access import Caller
from nanoloop.channels.web.api import ApiCall, Backend, Operation, quoted, serve
from nanoloop.channels.web.dialogue import asked_by, lane_of
from nanoloop.channels.web.names import MessageName
from nanoloop.channels.web.openai.answer import (
    Completion,
    CompletionForm,
    CompletionResponse,
    CompletionStream,
    Question,
    SessionQuestion,
    SharedAnswer,
)
from nanoloop.channels.web.openai.request import (
    ChatRequest,
    ClientOperation,
    ClientRefusal,
    Message,
    check_images,
    checked_messages,
    client_tools,
    invalid_field,
    new_in,
    parted,
    refusal_of,
)
from nanoloop.context import Views
from nanoloop.errors import SessionNotFound
from nanoloop.protocols import OnText, Provider, ToolSpec, vendor_of
from nanoloop.providers.models import WithOptions
from nanoloop.sentences import Sentences
from nanoloop.session.chat import openai_call
from nanoloop.session.head import checked_id, id_for_key
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.turn import Keeping, Turn
from nanoloop.words import did_you_mean

PATH = "/v1/chat/completions"
HEADER = "X-Nanoloop-Session"
IGNORED = "X-Nanoloop-Ignored"
"""A response header that names the parts of a request that the model does not get."""
REPEATED = "Idempotent-Replayed"
"""A response header that marks the answer to an earlier, identical request."""
NAME_LIMIT = 500
Work = Callable[[Callable[[], Any]], Awaitable[Any]]


@serve(
    "POST",
    PATH,
    of=ClientOperation,
    produces=("application/json", "text/event-stream"),
    refuses=(400, 413, 422),
    takes_names=True,
)
async def complete(call: ApiCall, asked: ChatRequest) -> ASGIApp:
    """Return the next answer in a conversation, in OpenAI's format."""
    asked.check()
    session = session_name(call, asked)
    body = f"{session}\n{asked.model_dump_json()}"
    named = call.backend.names.of(call.request, call.who, body)
    is_repeated = named.lasting is not None
    if not is_repeated:
        work = partial(call.backend.work, size=len(body))
        answer = await _answer(call, asked, session, named, work)
        # Another request with the same name may have started in the meantime.
        named.answer = named.lasting or answer
    return (CompletionStream if asked.stream else CompletionResponse)(
        cast("SharedAnswer", named.answer),
        streams=call.backend.streams,
        owner=call.who.account,
        headers={REPEATED: "true"} if is_repeated else {},
    )


async def _answer(
    call: ApiCall, asked: ChatRequest, name: str | None, named: MessageName, work: Work
) -> SharedAnswer:
    """Prepare the answer without starting it; raises `Refusal`.

    `work` runs slow steps for a large body in a thread.
    """
    agent = agent_of(call, asked.model)
    form = CompletionForm(model=asked.model, with_usage=asked.wants_usage)
    messages = await work(partial(checked_messages, asked.messages))
    await check_images(call.backend, messages)
    provider = agent.provider or call.backend.parts.provider
    fitted: WithOptions | None = getattr(provider, "with_options", None)
    headers = {} if name is None and fitted is not None else _ignored(asked)
    question: Question
    if name is None:
        tools = client_tools(asked, agent.toolbox.specs)
        question = StatelessQuestion(
            await work(partial(ClientConversation.of, messages, name=form.id, tools=tools)),
            agent=agent,
            provider=_with_options(provider, fitted, asked),
            waits=call.backend.parts.turns.turn(call.who.account),
            sentences=call.backend.parts.sentences.speaking(agent.language),
        )
    else:
        question = await _in_session(call, asked, name, messages, named)
        headers[HEADER] = question.session_id
    return SharedAnswer(
        question,
        form,
        refuse=partial(refusal_of, backend=call.backend, path=PATH),
        headers=headers,
        grace_seconds=named.grace_seconds,
    )


def _ignored(asked: ChatRequest) -> dict[str, str]:
    """Return the header that names ignored options, if any."""
    names = asked.options().keys() - {"response_format"}
    return {IGNORED: ", ".join(sorted(names))} if names else {}


def _with_options(provider: Provider, fitted: WithOptions | None, asked: ChatRequest) -> Provider:
    """Return the provider with the request's options applied, if it supports options."""
    if fitted is None and asked.wants_form:
        raise invalid_field("response_format", "this model answers only with text")
    options = asked.options()
    return provider if fitted is None or not options else fitted(options)


async def _in_session(
    call: ApiCall, asked: ChatRequest, name: str, messages: Sequence[Message], named: MessageName
) -> SessionQuestion:
    if asked.tools:
        raise invalid_field("tools", "in a session, tools run on the server: remove them")
    if asked.wants_form:
        raise invalid_field("response_format", "in a session, answers are text: remove it")
    # First, so that an empty message creates no session.
    text, images = await new_in(call.backend, call.who.account, messages)
    session, key = await named_session(call, asked, name)
    call.check_ask(session, text)
    named.settle(session)
    message = asked_by(call, session, text, named.message_id, key=key, files=images)
    return SessionQuestion(call.backend, session, message)


def session_name(call: ApiCall, asked: ChatRequest) -> str | None:
    """Return the session's name in a request, or None; raise `Refusal` if it is too long.

    The header takes precedence: if it is empty, no session is used, whatever `user` says.
    """
    header = call.request.headers.get(HEADER)
    name = (asked.user if header is None else header) or ""
    if len(name) > NAME_LIMIT:
        raise invalid_field(HEADER, f"at most {NAME_LIMIT} characters")
    return name if name.strip() else None


async def named_session(call: ApiCall, asked: ChatRequest, name: str) -> tuple[Session, str]:
    """Return the session and the key of its lane, creating it if necessary; raises `Refusal`.

    Each caller's names are separate. The header may also contain a full id, which has a colon.
    """
    agent = asked.model if asked.model in call.backend.parts.agents else None
    if ":" in name and HEADER in call.request.headers:
        session, key = await _by_id(call.backend, call.who, name)
    else:
        session, key = await _by_name(call.backend, call.who, name, agent or call.agent_to_name)
    if agent is not None and session.agent != agent:
        session.agent = agent
    return session, key


async def _by_id(backend: Backend, caller: Caller, name: str) -> tuple[Session, str]:
    _check_sees(caller, checked_id(name))
    session = await backend.parts.sessions.open(name)
    return session, await lane_of(backend, session, caller.account)


async def _by_name(
    backend: Backend, caller: Caller, name: str, agent: str | None
) -> tuple[Session, str]:
    key = await _key_of(backend, caller, name)
    _check_sees(caller, key)
    session = await backend.parts.sessions.current(key, agent=agent)
    _check_sees(caller, session.id)
    return session, key


async def _key_of(backend: Backend, caller: Caller, name: str) -> str:
    """Return the key of the session with this name, hidden if the store is encrypted."""
    key, hidden = id_for_key(f"{caller.prefix}{name}"), backend.parts.hidden
    if hidden is None or await _is_there(backend.parts.sessions, key):  # created before encryption
        return key
    return id_for_key(f"{caller.prefix}{await hidden(name)}")


async def _is_there(sessions: Sessions, key: str) -> bool:
    if sessions.known(key) is not None or await sessions.store.bound(key) is not None:
        return True
    with suppress(SessionNotFound):
        await sessions.store.revision(key)
        return True
    return False


def _check_sees(caller: Caller, session_id: str) -> None:
    # The same response whether or not the session exists, so that nothing is revealed.
    if not caller.sees(session_id):
        raise ClientRefusal(
            403, "this token has no access to that session", code="session_not_yours"
        )


_SINCE = 0
"""The creation time reported for agents; it is unknown, but clients expect a number."""


@serve("GET", "/v1/models", of=ClientOperation)
async def list_models(call: ApiCall) -> Response:
    """List the agents in OpenAI's format."""
    models = [_shown_model(name) for name in call.agents]
    return JSONResponse({"object": "list", "data": models})


@serve("GET", "/v1/models/{model}", of=ClientOperation)
async def show_model(call: ApiCall) -> Response:
    """Return one agent in OpenAI's format."""
    agent = agent_of(call, call.request.path_params["model"])
    return JSONResponse(_shown_model(agent.name))


def agent_of(call: ApiCall, model: str) -> Agent:
    """Return the agent with this name, or the default one if this is its model's name.

    Raises `Refusal` if there is no such agent.
    """
    agents, known = call.backend.parts.agents, call.agents  # the error names no others
    if model in known:
        return agents[model]
    if model == call.backend.parts.model and call.agent is not None:
        return agents[call.agent]
    advice = did_you_mean(model, known, "/v1/models lists the agents", shown=str)
    raise ClientRefusal(
        404, f"there is no model {quoted(model)}: {advice}", code="model_not_found", param="model"
    )


def _shown_model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _SINCE, "owned_by": "nanoloop"}


OPERATIONS: Sequence[Operation] = (complete, list_models, show_model)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConversation:
    """The conversation that a client sends."""

    told: str
    """The text of the system messages at the beginning."""
    said: Session
    """The other messages, in a session that is not stored."""
    tools: Sequence[ToolSpec] = ()
    """The client's own tools."""

    @classmethod
    def of(
        cls, messages: Sequence[Message], *, name: str, tools: Sequence[ToolSpec]
    ) -> ClientConversation:
        """Build a conversation from these messages, with this id."""
        told, said = parted(messages)
        return cls(told=told, said=Session(id=name).add_chat_history(said), tools=tools)


class StatelessQuestion:
    """A turn in a session that is not stored; no message is ever left out of the prompt."""

    def __init__(
        self,
        asked: ClientConversation,
        *,
        agent: Agent,
        provider: Provider,
        waits: AbstractAsyncContextManager[None],
        sentences: Sentences,
    ) -> None:
        """Create the turn; it runs within `waits`, which serves owners in rotation."""
        self._asked = asked
        self._agent = agent
        self._provider = provider
        self._waits = waits
        self._sentences = sentences

    async def ask(self, hear: OnText) -> Completion:
        """Run the turn and return its answer."""
        turn = self._turn(hear)
        async with self._waits:
            with turn.about():
                answer = await turn.run()
        return Completion(
            text=answer.text,
            tool_calls=[openai_call(call) for call in answer.calls],
            finish_reason=answer.finish_reason,
            usage=answer.usage,
        )

    def give_up(self) -> None:
        """Do nothing, because no other part of the program knows about the question."""

    def _turn(self, hear: OnText) -> Turn:
        session, agent, provider = self._asked.said, self._agent, self._provider
        view = Views().of(
            session,
            prompt="\n\n".join(filter(None, (agent.prompt, self._asked.told))),
            vendor=vendor_of(provider, agent.model),
        )
        return Turn(
            session,
            agent=agent,
            provider=provider,
            view=view,
            keeping=Keeping(),
            cutting=None,
            theirs=self._asked.tools,
            on_text=hear,
            sentences=self._sentences,
        )
