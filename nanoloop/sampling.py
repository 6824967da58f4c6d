"""Sampling: tool servers ask the model something, each within a daily budget; off by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.to_thread import run_sync

from nanoloop.errors import (
    ModelResting,
    NoConnection,
    OverQuota,
    ProviderError,
    ToolError,
    UnknownModel,
    WrongKey,
)
from nanoloop.events import Event, announce
from nanoloop.memory.schedule import Budget
from nanoloop.protocols import ChatMessage, Provider, Reply, Usage, in_background
from nanoloop.session.chat import rough_tokens, total_chars

LONGEST_PROMPT = 50_000
"""How many characters a server may ask with."""
ANSWER_TOKENS = 1_000
"""How many tokens an answer counts that never came, for example because the server cancelled."""
_UNUSED = (ModelResting, NoConnection, OverQuota, UnknownModel, WrongKey)
"""Failures that use no tokens."""


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
        budget = self._budget_of(server)
        taken = Usage(tokens_in=rough_tokens(total_chars(messages)), tokens_out=ANSWER_TOKENS)
        # One at a time, so that each one's tokens count before the next is asked.
        async with self._turns.setdefault(server, anyio.Lock()):
            # Before the model is asked, because the server can cancel its request at any time.
            if not await run_sync(budget.take, taken):
                raise ToolError("it has used up its tokens of the model for today")
            reply, used = await self._asked(messages, taken)
            with anyio.CancelScope(shield=True):
                await run_sync(budget.correct, taken, used)
        if reply is None:
            raise ToolError("the model could not answer it")
        announce(SamplingAnswered(server=server, tokens=used.tokens_in + used.tokens_out))
        return reply

    async def _asked(
        self, messages: Sequence[ChatMessage], taken: Usage
    ) -> tuple[Reply | None, Usage]:
        """Ask the model; return its answer, or None if it fails, and the tokens used."""
        try:
            reply = await self._provider.chat(messages=messages)
        except _UNUSED:
            return None, Usage()
        except ProviderError:  # it may have worked for a while
            return None, taken
        return reply, _usage_of(reply, messages)

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
