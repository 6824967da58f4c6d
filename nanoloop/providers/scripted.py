"""A provider with scripted answers, for tests, demos, and a first try without a key."""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import anyio

from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec

Line = str | Reply | Exception | Callable[..., Any]
"""The next answer: text, a whole reply, an error to raise, or a function that returns one of them.

The function is called with the messages, tools and model, and may be async.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """A recorded call, with its arguments as they were at the time."""

    messages: list[ChatMessage]
    tools: list[ToolSpec] | None
    model: str | None
    streamed: bool


def echo(messages: Sequence[ChatMessage], _tools: object, _model: object) -> str:
    """Repeat the user's last message."""
    said = (m.get("content") for m in reversed(messages) if m.get("role") == "user")
    return f"You said: {next(said, '')}"


class ScriptedProvider:
    """Returns its replies in order, then `otherwise` each time, and records its calls."""

    def __init__(
        self,
        replies: Iterable[Line] = (),
        *,
        otherwise: Line = echo,
        held: bool = False,
        delay_seconds: float = 0,
        word_delay_seconds: float = 0,
        keep_calls: int = 1000,
    ) -> None:
        """Create the provider; if `held`, every call waits for `release`.

        With `keep_calls=0`, no calls are recorded.
        """
        self._replies = deque(replies)
        self._otherwise = otherwise
        self._is_held = held
        self._delay_seconds = delay_seconds
        self._word_delay_seconds = word_delay_seconds
        self._waiting: deque[anyio.Event] = deque()
        self._passes = 0
        self._asked = anyio.Event()
        self.calls: deque[ScriptedCall] = deque(maxlen=keep_calls)
        """The latest calls, oldest first."""
        self.count = 0
        """The total number of calls."""
        self.closed = False

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Return the next answer, streaming it word by word to `on_text` if given."""
        # Taken before any wait, so that replies follow the order of the calls.
        line = self._replies.popleft() if self._replies else self._otherwise
        self._remember(messages, tools, model, streamed=on_text is not None)
        await self._pass_gate()
        await anyio.sleep(self._delay_seconds)
        reply = await _spoken(line, messages, tools, model)
        if on_text:
            await self._stream(reply.text, on_text)
        return reply

    async def _stream(self, text: str, on_text: OnText) -> None:
        for word in re.findall(r"\s*\S+|\s+", text):
            on_text(word)
            await anyio.sleep(self._word_delay_seconds)

    async def close(self) -> None:
        """Mark the provider as closed; safe to call twice."""
        self.closed = True

    def hold(self) -> None:
        """Make calls wait for `release` from now on."""
        self._is_held = True

    def release(self, count: int | None = None) -> None:
        """Let `count` waiting or future calls continue; without `count`, let all continue."""
        if count is None:
            self._is_held, self._passes = False, 0
            count = len(self._waiting)
        for _ in range(count):
            if self._waiting:
                self._waiting.popleft().set()
            else:
                self._passes += 1

    @property
    def waiting(self) -> int:
        """The number of calls waiting for `release`."""
        return len(self._waiting)

    async def asked(self, count: int = 1) -> None:
        """Wait until this many calls have been made, answered or not."""
        while self.count < count:
            await self._asked.wait()

    def _remember(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None,
        model: str | None,
        *,
        streamed: bool,
    ) -> None:
        self.count += 1
        if self.calls.maxlen:
            said = deepcopy(list(messages))
            given = None if tools is None else deepcopy(list(tools))
            self.calls.append(
                ScriptedCall(messages=said, tools=given, model=model, streamed=streamed)
            )
        self._asked.set()
        self._asked = anyio.Event()

    async def _pass_gate(self) -> None:
        if not self._is_held:
            return
        if self._passes:
            self._passes -= 1
            return
        gate = anyio.Event()
        self._waiting.append(gate)
        try:
            await gate.wait()
        finally:
            # A cancelled call must not use up a release.
            if gate in self._waiting:
                self._waiting.remove(gate)


async def _spoken(
    line: Line,
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec] | None,
    model: str | None,
) -> Reply:
    while not isinstance(line, (str, Reply, Exception)):
        said = line(messages, tools, model)
        line = await said if inspect.isawaitable(said) else said
    if isinstance(line, Exception):
        raise line
    return Reply(text=line, model=model or "scripted") if isinstance(line, str) else line
