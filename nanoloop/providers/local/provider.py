"""A provider for models on this machine, each in a process that puts turns before other work."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import anyio
import anyio.to_thread

from nanoloop import children, defaults
from nanoloop.errors import (
    NoConnection,
    ProviderError,
    ProviderTimeout,
    SettingsError,
    UnknownModel,
    how_to_install,
)
from nanoloop.events import ModelLoaded, ModelLost, announce
from nanoloop.fairness import RoundRobin, current_owner
from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolSpec
from nanoloop.providers.answer import AnswerLimits
from nanoloop.providers.local.launch import Launch, Report
from nanoloop.providers.openai import OpenAIProvider

Said = Sequence[ChatMessage]
Tools = Sequence[ToolSpec] | None

ENDS_IN_A_ROW = 3
"""After this many consecutive crashes without an answer, the model is paused for a while."""
REST_SECONDS = 60


class LocalProvider:
    """A local model whose process starts with the first call and restarts if it dies."""

    def __init__(
        self,
        path: Path | str,
        *,
        model: str = "",
        context_tokens: int = defaults.LOCAL_CONTEXT_TOKENS,
        answer_tokens: int = defaults.LOCAL_ANSWER_TOKENS,
        parallel: int = 2,
        threads: int | None = None,
        options: Mapping[str, Any] | None = None,
        start_timeout_seconds: float = 120,
        call_timeout_seconds: float = defaults.LOCAL_CALL_TIMEOUT_SECONDS,
    ) -> None:
        """Create the provider; `context_tokens` is for each of the `parallel` conversations.

        An answer is cut off at `answer_tokens`, or earlier if the model starts to repeat itself;
        otherwise, a small model would continue to the end of its context.
        """
        file = Path(path).expanduser().absolute()
        _check(file)
        self._model = model or file.stem
        self._order = Launch(
            path=str(file),
            model=self._model,
            context_tokens=context_tokens,
            parallel=parallel,
            threads=threads or half_of_the_processors(),
            key=secrets.token_hex(),
        )
        client = {
            "options": {"return_progress": True, "max_tokens": answer_tokens, **(options or {})},
            "first_token_timeout_seconds": call_timeout_seconds,
            "call_timeout_seconds": call_timeout_seconds,
            "limits": AnswerLimits(stops_repeats=True),
        }
        self._start = partial(
            ModelServer,
            self._order,
            start_timeout_seconds=start_timeout_seconds,
            client=client,
        )
        self._line = WaitingLine(parallel)
        self._guard = threading.Lock()
        self._server: ModelServer | None = None
        self._ends = 0
        self._rests_until = 0.0
        self._is_closed = False

    async def chat(
        self,
        *,
        messages: Said,
        tools: Tools = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer, streaming text to `on_text` if given; raises only `ProviderError`."""
        self._check_model(model)
        async with self._line.turn():
            return await self._ask(messages, tools, on_text)

    async def ready(self) -> Report:
        """Load the model before the first call; raise `ProviderError` if that fails."""
        return await self._running().ready()

    def load_ahead(self) -> None:
        """Start loading the model for the next provider that this program creates like this one.

        This provider need not be closed: an unused process ends with the program.
        """
        _ahead[self._order.path] = ModelProcess(self._order)

    def in_background(self) -> Provider:
        """Return a provider with the same model for work that can wait and never delays a turn."""
        return _Background(self)

    async def chat_in_gaps(
        self, *, messages: Said, tools: Tools = None, model: str | None = None
    ) -> Reply:
        """Like `chat`, but only while no turn runs; a turn interrupts and restarts the call."""
        self._check_model(model)
        return await self._line.in_gaps(lambda: self._ask(messages, tools, None))

    async def close(self) -> None:
        """End the model's process; safe to call twice."""
        self._is_closed = True
        with self._guard:
            server, self._server = self._server, None
        if server is not None:
            await server.kill()

    @property
    def pid(self) -> int | None:
        """The id of the model's process, or None if it is not running."""
        server = self._server
        return server.process.pid if server and not server.process.has_ended else None

    def _check_model(self, model: str | None) -> None:
        if model not in (None, self._model):
            raise UnknownModel(
                f"{model!r} is not loaded, only {self._model!r} is: omit the model's name"
            )

    async def _ask(self, messages: Said, tools: Tools, on_text: OnText | None) -> Reply:
        has_spoken = False

        def hear(piece: str) -> None:
            nonlocal has_spoken
            has_spoken = True
            if on_text is not None:
                on_text(piece)

        ask = partial(self._ask_once, messages, tools, hear if on_text else None)
        try:
            return await ask()
        except NoConnection:
            if has_spoken:
                raise
        return await ask()

    async def _ask_once(self, messages: Said, tools: Tools, on_text: OnText | None) -> Reply:
        server = self._running()
        try:
            reply = await server.chat(messages=messages, tools=tools, on_text=on_text)
        except ModelEnded:
            self._note_end(server)
            raise
        self._ends = 0
        return reply

    def _note_end(self, server: ModelServer) -> None:
        with self._guard:
            if self._server is server:  # only the first caller to notice reports it
                self._server = None
                self._ends += 1
                self._rests_until = time.monotonic() + REST_SECONDS
                announce(ModelLost(model=self._model, reason=server.process.end))

    def _running(self) -> ModelServer:
        with self._guard:
            if self._is_closed:
                raise ProviderError("this provider is closed: create a new one")
            if self._server is None or self._server.process.has_ended:
                self._check_rest()
                self._server = self._start()
            return self._server

    def _check_rest(self) -> None:
        if self._ends >= ENDS_IN_A_ROW and time.monotonic() < self._rests_until:
            raise ProviderError(
                f"the {self._model!r} process ended {self._ends} times in a row: try again in "
                f"{REST_SECONDS} seconds, or choose a smaller model or context"
            )


class _Background:
    """A local model for work that can wait."""

    def __init__(self, provider: LocalProvider) -> None:
        self._provider = provider

    async def chat(
        self,
        *,
        messages: Said,
        tools: Tools = None,
        model: str | None = None,
        on_text: OnText | None = None,  # noqa: ARG002 - text that may be interrupted is not shown
    ) -> Reply:
        return await self._provider.chat_in_gaps(messages=messages, tools=tools, model=model)

    async def close(self) -> None:
        """Do nothing: the provider is closed by its owner."""


def half_of_the_processors() -> int:
    """Return half the number of processors, which is usually fastest, as pairs share a core."""
    return max(1, (os.cpu_count() or 1) // 2)


def _check(file: Path) -> None:
    if find_spec("xllamacpp") is None:
        raise SettingsError(f"a local model needs xllamacpp: {how_to_install('local')}")
    if not file.is_file():
        raise SettingsError(
            f"there is no model file {file}: `nanoloop model list` shows what you can download"
        )


T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A caller that waits for a slot or holds one."""

    owner: str
    place: Future[None] = field(default_factory=Future)


class WaitingLine:
    """Limits how many turns run at once, and serves their owners in rotation.

    Background work gives way to a turn, and is restarted afterwards.
    """

    def __init__(self, width: int, *, patience_seconds: float = 60) -> None:
        """After waiting for `patience_seconds`, background work queues like a turn."""
        self._patience_seconds = patience_seconds
        self._guard = threading.Lock()
        # No slot is reserved, because answers take long and there are few slots.
        self._turns: RoundRobin[_Turn] = RoundRobin(width, reserved=0)
        self._others: deque[Future[None]] = deque()
        self._in_gap = False
        self._step_aside: Callable[[], object] | None = None
        """Interrupts the background work in progress."""

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for a slot and hold it while the block runs."""
        mine = _Turn(current_owner())
        with self._guard:
            self._turns.join(mine.owner, mine)
            self._advance()
            if self._step_aside is not None:
                self._step_aside()
        await _granted(mine.place, partial(self._leave, mine))
        try:
            yield
        finally:
            self._leave(mine)

    async def in_gaps(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` while no turn is running, restarting it whenever a turn interrupts it."""
        patience = anyio.current_time() + self._patience_seconds
        while (left := patience - anyio.current_time()) > 0:
            with anyio.move_on_after(left) as waiting:
                async with self._gap() as scope:
                    waiting.deadline = float("inf")
                    with scope:
                        return await work()
        async with self.turn():
            return await work()

    @asynccontextmanager
    async def _gap(self) -> AsyncIterator[anyio.CancelScope]:
        mine: Future[None] = Future()
        scope, loop = anyio.CancelScope(), asyncio.get_running_loop()
        with self._guard:
            self._others.append(mine)
            self._advance()
        await _granted(mine, self._leave_gap)
        try:
            with self._guard:
                self._step_aside = lambda: loop.call_soon_threadsafe(scope.cancel)
                if self._turns.is_busy:  # a turn began before this code ran
                    scope.cancel()
            yield scope
        finally:
            self._leave_gap()

    def _leave(self, turn: _Turn) -> None:
        with self._guard:
            self._turns.end(turn.owner)
            self._advance()

    def _leave_gap(self) -> None:
        with self._guard:
            self._step_aside = None
            self._in_gap = False
            self._advance()

    def _advance(self) -> None:
        while (turn := self._turns.draw()) is not None:
            if not _grant(turn.place):
                self._turns.end(turn.owner)
        while self._others and not self._in_gap and not self._turns.is_busy:
            self._in_gap = _grant(self._others.popleft())


def _grant(waiting: Future[None]) -> bool:
    """Let a caller continue; return False if the caller no longer waits."""
    if not waiting.set_running_or_notify_cancel():
        return False
    waiting.set_result(None)
    return True


async def _granted(mine: Future[None], give_back: Callable[[], None]) -> None:
    try:
        await asyncio.wrap_future(mine)
    except BaseException:
        if not mine.cancel():  # granted just before the cancellation
            give_back()
        raise


OK = 200
HEALTH_SECONDS = 30
"""A generous timeout, because the server reports its health only between batches of tokens."""


class ModelEnded(NoConnection):
    """The model's process has ended, and its answer is lost."""


class ModelServer:
    """A model's process, and the requests sent to it."""

    def __init__(
        self,
        order: Launch,
        *,
        start_timeout_seconds: float,
        client: Mapping[str, Any],
    ) -> None:
        """`client` contains additional arguments for `OpenAIProvider`."""
        self.process = _loaded_ahead(order) or ModelProcess(order)
        self._order = order = self.process.order
        self._start_timeout_seconds = start_timeout_seconds
        self._started = time.monotonic()
        self._make_client = partial(
            OpenAIProvider, model=order.model, api_key=order.key, max_retries=0, **client
        )
        self._client: OpenAIProvider | None = None
        self._is_loaded = False

    async def ready(self) -> Report:
        """Wait until the model is ready; return its abilities, or raise `ProviderError`."""
        with anyio.move_on_after(self._start_timeout_seconds):
            report = await self.process.ready()
            self._tell_loaded(report)
            return report
        await self.kill()
        raise ProviderTimeout(
            f"{self._order.model} was not loaded after {self._start_timeout_seconds:g} seconds: "
            "try again when the machine is less busy, or choose a smaller model"
        )

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        on_text: OnText | None,
    ) -> Reply:
        """Answer; raises `ModelEnded` if the process has ended."""
        report = await self.ready()
        if self._client is None:
            self._client = self._make_client(base_url=f"{report.address}/v1")
        may_call = tools if report.calls_tools else None
        # Always stream, with progress: llama.cpp only notices that the client is gone when it
        # writes.
        hear = on_text or _nobody
        try:
            if not self.process.has_ended:
                return await self._client.chat(messages=messages, tools=may_call, on_text=hear)
        except NoConnection:
            # llama.cpp sometimes closes an idle connection just as it is reused.
            if await self._answers(report, "/health"):
                raise
            await self.kill()
        except ProviderTimeout:
            if not await self._answers(report, "/slots"):
                await self.kill()
            raise
        raise ModelEnded(
            f"the {self._order.model} process {self.process.end}: try again; it will be restarted"
        )

    def _tell_loaded(self, report: Report) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            announce(
                ModelLoaded(
                    model=self._order.model,
                    context_tokens=report.context_tokens,
                    seconds=round(time.monotonic() - self._started, 3),
                )
            )

    async def kill(self) -> None:
        """End the process if it is still running, and return once it has ended."""
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.process.end_now)
            if self._client is not None:
                await self._client.close()

    async def _answers(self, report: Report, path: str) -> bool:
        """Return whether the server is alive (`/health`) and its work is progressing (`/slots`)."""
        # Connect without a proxy, which could not reach this machine, and ignore the body.
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
    """Discard the text, because nobody is listening."""


COMMAND = (sys.executable, "-P", "-m", "nanoloop.providers.local.child")
_KEEPS = (
    *("PYTHON*", "LD_LIBRARY_PATH", "DYLD_*", "XDG_*", "OMP_*", "GGML_*", "LLAMA_*"),
    *("CUDA_*", "NVIDIA_*", "HIP_*", "HSA_*", "ROC*", "GPU_*", "ONEAPI_*", "SYCL_*", "VK_*"),
)
"""The environment variables that configure Python, llama.cpp and graphics drivers."""
LAST_LINES = 8
"""How many lines of llama.cpp's output are kept while a model loads; later ones are dropped."""
SHOWN = 200


class ModelProcess:
    """A model's process from start to end; it can be awaited from any event loop."""

    def __init__(self, order: Launch) -> None:
        self.order = order
        """The order for the process, including the key that it accepts."""
        self._ready: Future[Report] = Future()
        self._ready.set_running_or_notify_cancel()  # a caller who gives up must not affect others
        self._last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unwanted = False
        self.end = ""
        """How the process ended; empty while it is running."""
        # The thread must live as long as the process, because Linux ends the child with the thread
        # that started it.
        self._keeper = threading.Thread(target=self._keep, name="local model", daemon=True)
        self._keeper.start()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended."""
        return not self._keeper.is_alive()

    @property
    def pid(self) -> int | None:
        """The process id, once the process has started."""
        return self._process.pid if self._process else None

    async def ready(self) -> Report:
        """Wait until the model is ready; raises `ProviderError` if it never will be."""
        report = await asyncio.wrap_future(self._ready)
        if report.problem:
            raise ProviderError(report.problem)
        return report

    def end_now(self) -> None:
        """Kill the process and block until it has ended; no data can be lost."""
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
        with children.start(
            COMMAND,
            keeps=_KEEPS,
            adds={"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that Ctrl-C does not end a running answer
        ) as self._process:
            if self._is_unwanted:
                self._process.kill()
            self._send_order(self._process)
            self._listen(self._process)
        return self._process.returncode

    def _send_order(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):  # the process has ended; its output says why
            process.stdin.write(self.order.line())
            process.stdin.flush()  # the pipe stays open; its end would end the child

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
        return f"{self.order.model} could not be started: its process {self.end}" + (
            f" ({words[:SHOWN]})" if words else ""
        )


_ahead: dict[str, ModelProcess] = {}
"""Processes that load a model before its provider is created, keyed by the file's path."""


def _loaded_ahead(order: Launch) -> ModelProcess | None:
    """Return the process started for this order; end one that was started for another order."""
    process = _ahead.pop(order.path, None)
    if process is None or replace(process.order, key=order.key) == order:
        return process
    process.end_now()  # there is rarely enough memory for two
    return None


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    name = signal.Signals(-code).name
    return f"was killed ({name})" + (
        ", most often because there was no memory left" if name == "SIGKILL" else ""
    )
