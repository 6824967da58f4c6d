"""Model files for tests, and a provider with the tiny one.

Fetched once and kept in a folder of their own; where one can't be had, its tests are skipped by
name, or fail under CI. `TEST_MODELS` names a folder where the files are perhaps already.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import anyio
import httpx2
import pytest

from nanoloop.errors import ModelError
from nanoloop.models.download import fetch
from nanoloop.providers.local.provider import LocalProvider

TINY, USEFUL = "smollm2-135m", "qwen2.5-coder-1.5b"
FOLDER = Path(os.environ.get("TEST_MODELS") or "~/.cache/nanoloop-tests").expanduser()
SHORT = {"max_tokens": 8, "temperature": 0}
LONG = {"max_tokens": 1500, "temperature": 0, "logit_bias": [[0, False], [2, False]]}
"""An answer that does not end by itself: the tokens that end one are barred."""
FETCHING_SECONDS = 300
"""The first test may have to wait for the model."""


@cache
def model_file(name: str = TINY) -> Path:
    """Where this model's file is; skips the test where it can't be had, and fails it under CI."""
    try:
        return anyio.run(fetch, name, FOLDER)
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the model {name} can't be had: {error}")


def local(**options):
    given = {"options": SHORT, "context_tokens": 2048, "threads": 1}
    return LocalProvider(model_file(), model="tiny", **given | options)


@asynccontextmanager
async def opened(**options):
    provider = local(**options)
    try:
        yield provider
    finally:
        await provider.close()


def said(text):
    return [{"role": "user", "content": text}]


async def until(condition):
    with anyio.fail_after(20):
        while not condition():  # noqa: ASYNC110 - another process tells nobody
            await anyio.sleep(0.01)


async def until_busy(provider, count):
    with anyio.fail_after(20):
        while await busy_slots(provider) != count:  # noqa: ASYNC110 - as above
            await anyio.sleep(0.01)


async def posted(provider, path, body=None):
    """What the server itself says; without a body it is only asked."""
    report, order = await provider.ready(), provider._server._order
    headers = {"Authorization": f"Bearer {order.key}"}
    method = "GET" if body is None else "POST"
    async with httpx2.AsyncClient(base_url=report.address, headers=headers) as client:
        return (await client.request(method, path, json=body)).json()


async def busy_slots(provider):
    return sum(slot["is_processing"] for slot in await posted(provider, "/slots"))
