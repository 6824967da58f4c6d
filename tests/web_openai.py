"""The official openai client against the web as it is served, over a real socket."""

from contextlib import asynccontextmanager

import anyio
import openai

from nanoloop.protocols import Reply, ToolCall, Usage
from tests.web_server import TOKEN, serving

MODEL = "assistant"
NOBODY = "no token is needed"
PLAIN = {"extra_headers": {"x-stainless-retry-count": openai.Omit()}}
"""Makes a request one of a client that does not say how often it has sent it."""


def user(text):
    return {"role": "user", "content": text}


def said(role, content):
    return {"role": role, "content": content}


def calling(name, arguments, *, text="", call_id="call_1", usage=None):
    """A reply that asks for one tool."""
    call = ToolCall(id=call_id, name=name, arguments=arguments)
    return Reply(text=text, tool_calls=(call,), finish_reason="tool_calls", usage=usage or Usage())


def client_of(web, *, key=NOBODY, kind=openai.AsyncOpenAI, **more):
    address = f"{web.client.base_url}/v1"
    return kind(api_key=key, base_url=address, max_retries=0, timeout=20, **more)


@asynccontextmanager
async def asking(folder, *, key=NOBODY, **more):
    """A server, and the client of it as `web.openai`."""
    async with serving(folder, **more) as web, client_of(web, key=key) as client:
        web.openai = client
        yield web


async def ask(client, *messages, model=MODEL, **more):
    """The answer's text."""
    messages = [user(m) if isinstance(m, str) else m for m in messages]
    answer = await client.chat.completions.create(model=model, messages=messages, **more)
    return answer.choices[0].message.content


async def stream(client, *messages, model=MODEL, **more):
    """All chunks of an answer."""
    messages = [user(m) if isinstance(m, str) else m for m in messages]
    chunks = await client.chat.completions.create(
        model=model, messages=messages, stream=True, **more
    )
    return [chunk async for chunk in chunks]


def text_of(chunks):
    return "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)


def shown(web):
    """What the model was shown last, behind its prompt."""
    return [(m["role"], m["content"]) for m in web.provider.calls[-1].messages[1:]]


def in_session(name):
    return {"extra_headers": {"X-Nanoloop-Session": name}}


async def raw(web, **more):
    """A request as nobody's client makes it."""
    headers = {"Authorization": f"Bearer {TOKEN}", **more.pop("headers", {})}
    return await web.client.post("/v1/chat/completions", headers=headers, **more)


async def until(is_true):
    """Wait for a state that only the server knows."""
    with anyio.fail_after(10):
        while not is_true():
            await anyio.lowlevel.checkpoint()
