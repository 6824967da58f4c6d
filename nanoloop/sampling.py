"""Sampling: tool servers ask the model something, each within a daily budget; off by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from nanoloop.errors import ProviderError, ToolError
from nanoloop.events import Event, announce
from nanoloop.memory.schedule import Budget
from nanoloop.protocols import ChatMessage, Provider, Reply, Usage, in_background
from nanoloop.session.chat import rough_tokens, total_chars

LONGEST_PROMPT = 50_000
"""How many characters a server may ask with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingAnswered(Event):
    """The model answered a tool server's request; `tokens` counts the request and the answer."""

    server: str
    tokens: int


class Sampling:
    """Asks the model for tool servers. The model gets the server's messages and nothing else."""

    def __init__(
        self, provider: Provider, *, folder: Path, daily_tokens: Callable[[str], int]
    ) -> None:
        """Create the sampling; `daily_tokens` returns a server's budget, which may change."""
        self._provider = in_background(provider)
        self._folder = folder
        self._daily_tokens = daily_tokens
        self._budgets: dict[tuple[str, int], Budget] = {}
        self._turns: dict[str, anyio.Lock] = {}

    async def __call__(self, server: str, messages: Sequence[ChatMessage]) -> Reply:
        """Return the model's answer; raise `ToolError` if there is none, or no budget for it."""
        if total_chars(messages) > LONGEST_PROMPT:
            raise ToolError(f"it asks the model with more than {LONGEST_PROMPT} characters")
        # One at a time, so that each one's tokens count before the next is asked.
        async with self._turns.setdefault(server, anyio.Lock()):
            budget = self._budget_of(server)
            if not await run_sync(lambda: budget.has_room):
                raise ToolError("it has used up its tokens of the model for today")
            try:
                reply = await self._provider.chat(messages=messages)
            except ProviderError as error:
                raise ToolError("the model could not answer it") from error
            usage = _usage_of(reply, messages)
            await run_sync(partial(budget.add, usage))
        announce(SamplingAnswered(server=server, tokens=usage.tokens_in + usage.tokens_out))
        return reply

    def _budget_of(self, server: str) -> Budget:
        tokens = self._daily_tokens(server)
        if tokens <= 0:
            raise ToolError("it may not ask the model: its sampling_tokens are 0")
        if (server, tokens) not in self._budgets:
            file = self._folder / f"sampling-{server}.json"
            self._budgets[server, tokens] = Budget(tokens, kept_in=file)
        return self._budgets[server, tokens]


def _usage_of(reply: Reply, messages: Sequence[Mapping[str, object]]) -> Usage:
    """Return the tokens used, estimated if the model's server does not count them."""
    if reply.usage.tokens_in or reply.usage.tokens_out:
        return reply.usage
    return Usage(
        tokens_in=rough_tokens(total_chars(messages)), tokens_out=rough_tokens(len(reply.text))
    )
