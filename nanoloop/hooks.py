"""Hooks: a user's functions that change each request or receive the outcome of each question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolSpec, Usage
from nanoloop.session.sync import Handler, called, fitting

if TYPE_CHECKING:
    from nanoloop.agents import Agent
    from nanoloop.turn import Answer


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutcome:
    """The outcome of a question, for hooks."""

    given: Any
    """The question as it was given."""
    answer: Answer | None = None
    error: BaseException | None = None
    """The reason why there is no answer."""

    @property
    def text(self) -> str:
        """The answer's text, or ""."""
        return self.answer.text if self.answer else ""

    @property
    def usage(self) -> Usage:
        """The tokens used for the answer."""
        return self.answer.usage if self.answer else Usage()


class Hooks:
    """A user's callables, sync or async, which are called in order."""

    def __init__(
        self, request_prefixes: Iterable[Handler] = (), afterwards: Iterable[Handler] = ()
    ) -> None:
        self.request_prefixes = list(request_prefixes)
        """Called before each request with (messages, agent); return new messages, or None."""
        self.afterwards = list(afterwards)
        """Called with (outcome, agent) after each question, even without an answer."""

    def before(self, provider: Provider, agent: Agent) -> Provider:
        """Return a provider that runs the prefixes before each request."""
        return _Prefixed(provider, self, agent) if self.request_prefixes else provider

    async def prefixed(
        self, messages: Sequence[ChatMessage], agent: Agent
    ) -> Sequence[ChatMessage]:
        """Return the messages as changed by the prefixes."""
        for hook in self.request_prefixes:
            said = await called(hook, *fitting(hook, messages, agent))
            messages = messages if said is None else said
        return messages

    async def after(self, outcome: RequestOutcome, agent: Agent) -> None:
        """Call each handler with the outcome; the first error stops the rest."""
        for hook in self.afterwards:
            await called(hook, *fitting(hook, outcome, agent))


class _Prefixed:
    """A provider that passes each request through the prefixes first."""

    def __init__(self, provider: Provider, hooks: Hooks, agent: Agent) -> None:
        self._provider = provider
        self._hooks = hooks
        self._agent = agent

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        messages = await self._hooks.prefixed(messages, self._agent)
        return await self._provider.chat(
            messages=messages, tools=tools, model=model, on_text=on_text
        )

    async def close(self) -> None:
        await self._provider.close()
