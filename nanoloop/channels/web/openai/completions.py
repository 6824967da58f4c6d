"""Chat completions as clients of OpenAI's API ask for them: in a session, or all sent along."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from uuid import uuid4

from starlette.types import ASGIApp

from nanoloop.agents import Agent
from nanoloop.channels.web.openai.answering import Answering, Streaming
from nanoloop.channels.web.openai.form import Form
from nanoloop.channels.web.openai.in_session import InSession
from nanoloop.channels.web.openai.messages import Message, checked_messages
from nanoloop.channels.web.openai.models import agent_of
from nanoloop.channels.web.openai.naming import HEADER, IGNORED, named_session, session_name
from nanoloop.channels.web.openai.operation import ClientOperation
from nanoloop.channels.web.openai.question import Question
from nanoloop.channels.web.openai.refusing import refusal_of, unfit
from nanoloop.channels.web.openai.request import ChatRequest
from nanoloop.channels.web.openai.said import new_in
from nanoloop.channels.web.openai.stateless import Asked, Stateless
from nanoloop.channels.web.openai.tools import client_tools
from nanoloop.channels.web.operation import Call, Operation
from nanoloop.channels.web.talking import inbound
from nanoloop.protocols import Provider
from nanoloop.providers.models import WithOptions

PATH = "/v1/chat/completions"


async def complete(call: Call) -> ASGIApp:
    """The next answer of a conversation, whole or in chunks."""
    asked: ChatRequest = call.body
    asked.check()
    agent = agent_of(call.desk, asked.model)
    form = Form(model=asked.model, with_usage=asked.wants_usage)
    messages = checked_messages(asked.messages)
    name, headers = session_name(call), _ignored(call, agent)
    question: Question
    if name is None:
        question = _sent_along(call, agent, messages, form.id)
    else:
        question = await _in_session(call, name, messages)
        headers[HEADER] = question.session_id
    return (Streaming if asked.stream else Answering)(
        question,
        form,
        streams=call.desk.streams,
        refuse=partial(refusal_of, desk=call.desk, path=PATH),
        headers=headers,
    )


def _ignored(call: Call, agent: Agent) -> dict[str, str]:
    """The header that names the options which nobody hears of, where there are some."""
    is_heeded = session_name(call) is None and _fitted(call, agent) is not None
    names = [] if is_heeded else call.body.options().keys() - {"response_format"}
    return {IGNORED: ", ".join(sorted(names))} if names else {}


async def _in_session(call: Call, name: str, messages: Sequence[Message]) -> InSession:
    asked: ChatRequest = call.body
    if asked.tools:
        raise unfit("tools", "in a session they run on the server: leave them out")
    if asked.wants_form:
        raise unfit("response_format", "in a session answers are text")
    # Before the session: nothing is begun for what says nothing.
    text, images = await new_in(call.desk, call.who.prefix, messages)
    session, key = await named_session(call, name)
    message = inbound(session, text, uuid4().hex, key=key, files=images)
    return InSession(call.desk, session, message)


def _sent_along(call: Call, agent: Agent, messages: Sequence[Message], answer_id: str) -> Stateless:
    tools = client_tools(call.body, agent.toolbox.specs)
    return Stateless(
        Asked(id=answer_id, messages=messages, tools=tools),
        agent=agent,
        provider=_provider(call, agent),
        announce=call.desk.shop.announce,
    )


def _provider(call: Call, agent: Agent) -> Provider:
    """Who is asked, with the request's options where options are taken."""
    asked: ChatRequest = call.body
    provider = agent.provider or call.desk.shop.provider
    fitted = _fitted(call, agent)
    if fitted is None and asked.wants_form:
        raise unfit("response_format", "the model here answers with text only")
    options = asked.options()
    return provider if fitted is None or not options else fitted(options)


def _fitted(call: Call, agent: Agent) -> WithOptions | None:
    """What makes a provider with further options of the agent's, if it takes any."""
    provider = agent.provider or call.desk.shop.provider
    fitted: WithOptions | None = getattr(provider, "with_options", None)
    return fitted


OPERATIONS: Sequence[Operation] = (
    ClientOperation(
        method="POST",
        path=PATH,
        says="The next answer of a conversation, as OpenAI's API has it",
        run=complete,
        body=ChatRequest,
    ),
)
