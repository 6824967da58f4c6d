"""A running model and the client that asks it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import aiohttp
import anyio
import anyio.to_thread

from nanoloop.errors import NoConnection, ProviderTimeout
from nanoloop.events import Announce, ModelLoaded, silent
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec
from nanoloop.providers.local.order import Order, Report
from nanoloop.providers.local.process import ModelProcess
from nanoloop.providers.openai import OpenAIProvider

OK = 200
HEALTH_SECONDS = 30
"""Between two batches of tokens it says how it is, so this is plenty."""


class ModelEnded(NoConnection):
    """The model's process is gone, and the answer with it."""


class ModelServer:
    """One process, and requests to it for as long as it lives."""

    def __init__(
        self,
        order: Order,
        *,
        start_timeout_seconds: float,
        client: Mapping[str, Any],
        announce: Announce = silent,
    ) -> None:
        """`client` is what the client is made with."""
        self._order = order
        self._start_timeout_seconds = start_timeout_seconds
        self._announce = announce
        self._started = time.monotonic()
        self.process = ModelProcess(order)
        self._make_client = partial(
            OpenAIProvider, model=order.model, api_key=order.key, max_retries=0, **client
        )
        self._client: OpenAIProvider | None = None
        self._is_loaded = False

    async def ready(self) -> Report:
        """What it can do, once it can be asked; raises `ProviderError` where it never will be."""
        with anyio.move_on_after(self._start_timeout_seconds):
            report = await self.process.ready()
            self._tell_loaded(report)
            return report
        await self.kill()
        raise ProviderTimeout(
            f"{self._order.model} was not loaded after {self._start_timeout_seconds:g} seconds: "
            "try again when the machine has less to do, or choose a smaller model"
        )

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        on_text: OnText | None,
    ) -> Reply:
        """Answer; raises `ModelEnded` where its process is gone."""
        report = await self.ready()
        if self._client is None:
            self._client = self._make_client(base_url=f"{report.address}/v1")
        may_call = tools if report.calls_tools else None
        # Always a stream, of its progress too: only where it writes does llama.cpp notice at once
        # that nobody waits for the answer any more.
        hear = on_text or _nobody
        try:
            if not self.process.has_ended:
                return await self._client.chat(messages=messages, tools=may_call, on_text=hear)
        except NoConnection:
            # It also leaves a connection now and then that was to be used again.
            if await self._answers(report, "/health"):
                raise
            await self.kill()
        except ProviderTimeout:
            if not await self._answers(report, "/slots"):
                await self.kill()
            raise
        raise ModelEnded(
            f"the process of {self._order.model} {self.process.end}: try again, it is started anew"
        )

    def _tell_loaded(self, report: Report) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            self._announce(
                ModelLoaded(
                    model=self._order.model,
                    context_tokens=report.context_tokens,
                    seconds=round(time.monotonic() - self._started, 3),
                )
            )

    async def kill(self) -> None:
        """End the process, if it has not ended by itself; returns when it is gone."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.process.end_now)
            if self._client is not None:
                await self._client.close()

    async def _answers(self, report: Report, path: str) -> bool:
        """Whether it says how it is: `/health` at once, `/slots` where its work goes on too."""
        # Directly, as no proxy reaches this machine; and what it says is not read.
        here = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {self._order.key}"},
            timeout=aiohttp.ClientTimeout(HEALTH_SECONDS),
            trust_env=False,
        )
        asked = here.get(f"{report.address}{path}", allow_redirects=False)
        try:
            async with here, asked as response:
                return response.status == OK
        except (aiohttp.ClientError, TimeoutError):
            return False


def _nobody(_: str) -> None:
    """Where nobody listens."""
