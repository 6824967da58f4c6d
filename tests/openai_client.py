"""A provider joined to the tests' server, and short forms of what that server says."""

import json
from contextlib import asynccontextmanager

import pytest

from nanoloop.errors import ProviderError
from nanoloop.protocols import ToolSpec
from nanoloop.providers.openai import OpenAIProvider
from tests.openai_server import Answer, OpenAIServer

KEY = "sk-planted-0123456789abcdef"

HI = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}]

CLOCK = ToolSpec(
    name="clock", description="The time.", parameters={"type": "object", "properties": {}}
)


@asynccontextmanager
async def connected(*answers, otherwise="Hello.", **settings):
    settings = {"model": "test-model", "api_key": KEY, "max_retries": 0} | settings
    async with OpenAIServer(*answers, otherwise=otherwise) as server:
        provider = OpenAIProvider(**({"base_url": server.url} | settings))
        try:
            yield provider, server
        finally:
            await provider.close()


async def failing(answer, **settings):
    """The error that this answer leads to."""
    async with connected(answer, **settings) as (provider, _):
        with pytest.raises(ProviderError) as caught:
            await provider.chat(messages=HI)
    return caught.value


async def failing_stream(answer, **settings):
    pieces = []
    async with connected(answer, **settings) as (provider, server):
        with pytest.raises(ProviderError) as caught:
            await provider.chat(messages=HI, on_text=pieces.append)
    return caught.value, pieces, server


def error(status, message="Bad.", code=None, kind=None, **more):
    body = {"error": {"message": message, "type": kind, "code": code}}
    return Answer(status=status, body=json.dumps(body).encode(), **more)


def sse(*chunks):
    return tuple(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def choice(finish=None, **delta):
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
