"""A model's process, and the server inside it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import aiohttp
import anyio
import anyio.to_thread

from nanoloop.errors import NoConnection, ProviderError, ProviderTimeout
from nanoloop.events import Announce, ModelLoaded, silent
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec
from nanoloop.providers.local.launch import Launch, Report
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
        order: Launch,
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


COMMAND = (sys.executable, "-P", "-m", "nanoloop.providers.local.child")
LAST_LINES = 8
"""What of llama.cpp's own words is kept while it loads; afterwards nothing is."""
SHOWN = 200


class ModelProcess:
    """One process from its start to its end. It belongs to no event loop, and any may wait."""

    def __init__(self, order: Launch) -> None:
        self._order = order
        self._ready: Future[Report] = Future()
        self._ready.set_running_or_notify_cancel()  # who gives up waiting ends nobody else's
        self._last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unwanted = False
        self.end = ""
        """How it ended, once it has."""
        # A thread of its own, for as long as it runs: Linux ends a child with the thread, not
        # with the process, that started it.
        self._keeper = threading.Thread(target=self._keep, name="local model", daemon=True)
        self._keeper.start()

    @property
    def has_ended(self) -> bool:
        """Whether there is no such process any more."""
        return not self._keeper.is_alive()

    @property
    def pid(self) -> int | None:
        """Its number, once it has one."""
        return self._process.pid if self._process else None

    async def ready(self) -> Report:
        """Wait until the model can be asked; raises `ProviderError` where it never will be."""
        report = await asyncio.wrap_future(self._ready)
        if report.problem:
            raise ProviderError(report.problem)
        return report

    def end_now(self) -> None:
        """Kill it, and block until it is gone; it keeps nothing that could be lost."""
        self._is_unwanted = True
        if self._process is not None:
            self._process.kill()
        self._keeper.join()

    def _keep(self) -> None:
        try:
            self.end = _how(self._run())
        except OSError as error:
            self.end = f"can't be started ({error.strerror})"
        finally:
            if not self._ready.done():
                self._ready.set_result(Report(problem=self._why_not_ready()))

    def _run(self) -> int:
        with subprocess.Popen(  # noqa: S603 - this package's own module
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            start_new_session=True,  # Ctrl-C is for us: the answer going on may be finished
        ) as self._process:
            if self._is_unwanted:
                self._process.kill()
            self._send_order(self._process)
            self._listen(self._process)
        return self._process.returncode

    def _send_order(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):  # it has ended, and what it said tells why
            process.stdin.write(self._order.line())
            process.stdin.flush()  # and it stays open: its end is the child's

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            if self._ready.done():
                continue
            report = Report.read(line)
            if report is not None:
                self._ready.set_result(report)
            elif line.strip():
                self._last_lines.append(line)

    def _why_not_ready(self) -> str:
        words = self._last_lines[-1].decode("utf-8", "replace").strip() if self._last_lines else ""
        return f"{self._order.model} could not be started, its process {self.end}" + (
            f" ({words[:SHOWN]})" if words else ""
        )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    name = signal.Signals(-code).name
    return f"was killed ({name})" + (", most often for want of memory" if name == "SIGKILL" else "")
