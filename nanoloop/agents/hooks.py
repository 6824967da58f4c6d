"""What a user put before and after an agent's requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolSpec, Usage
from nanoloop.session.handler import Handler, called, fitting
from nanoloop.turn import Answer

if TYPE_CHECKING:
    from nanoloop.agents.agent import Agent


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a question came to."""

    given: Any
    """What was asked, as it was given."""
    answer: Answer | None = None
    error: BaseException | None = None
    """Why there is no answer."""

    @property
    def text(self) -> str:
        """The answer, or ""."""
        return self.answer.text if self.answer else ""

    @property
    def usage(self) -> Usage:
        """What the answer took."""
        return self.answer.usage if self.answer else Usage()


class Hooks:
    """Callables of a user's, sync or async, called in their order."""

    def __init__(
        self, request_prefixes: Iterable[Handler] = (), afterwards: Iterable[Handler] = ()
    ) -> None:
        self.request_prefixes = list(request_prefixes)
        """Before each request: (messages, agent) to the messages to send instead, or None."""
        self.afterwards = list(afterwards)
        """After each question, answered or not: (outcome, agent)."""

    def before(self, provider: Provider, agent: Agent) -> Provider:
        """The provider, with the prefixes run before it is asked."""
        return _Prefixed(provider, self, agent) if self.request_prefixes else provider

    async def prefixed(
        self, messages: Sequence[ChatMessage], agent: Agent
    ) -> Sequence[ChatMessage]:
        """The messages as the prefixes leave them."""
        for hook in self.request_prefixes:
            said = await called(hook, *fitting(hook, messages, agent))
            messages = messages if said is None else said
        return messages

    async def after(self, outcome: Outcome, agent: Agent) -> None:
        """Tell those who want to know; the first that raises ends it."""
        for hook in self.afterwards:
            await called(hook, *fitting(hook, outcome, agent))


class _Prefixed:
    """A provider that is asked what the prefixes made of the request."""

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
