"""Who writes a summary: the model, or the fallback where that fails; in one call or more.

Every answer is paid for, also one that is not taken; each counts towards the day's budget.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import anyio

from nanoloop.errors import (
    AnswerRefused,
    ContextTooLong,
    ModelResting,
    ProviderError,
    ProviderTimeout,
)
from nanoloop.events import Announce, silent
from nanoloop.memory.answer import accepted, clipped
from nanoloop.memory.breaker import Breaker, BreakerState
from nanoloop.memory.budget import Budget
from nanoloop.memory.prefix import Prefix
from nanoloop.memory.transcript import calls_of, summary_request
from nanoloop.protocols import Provider, Reply, ToolSpec, Usage
from nanoloop.session.entry import Entry
from nanoloop.session.size import rough_tokens

LEAST_CHARS = 1000
"""No call is made smaller than this, however short the model's context seems to be."""
_ABOUT_THE_TEXT = (AnswerRefused, ContextTooLong)
"""Failures that say nothing of the model's health."""

Said = Iterable[Entry | Mapping[str, Any]]


@dataclass(slots=True, kw_only=True)
class Written:
    """A summary, and what it took to get it."""

    text: str = ""
    model: str = ""
    tries: int = 0
    usage: Usage = field(default_factory=Usage)


class Writer:
    """Asks for summaries; raises `ProviderError` where none is to be had."""

    def __init__(
        self,
        provider: Provider,
        models: Sequence[str | None],
        *,
        max_words: int,
        timeout_seconds: float,
        chars: int,
        breaker_seconds: float,
        budget: Budget,
        announce: Announce = silent,
        clock: Callable[[], float],
    ) -> None:
        self._provider = provider
        self._max_words = max_words
        self._timeout_seconds = timeout_seconds
        self._budget = budget
        self.chars = chars
        """Characters of talk that go into one call; less once the model said it was too much."""
        rest = {"rest_seconds": breaker_seconds, "announce": announce, "clock": clock}
        self._breakers = {model: Breaker(model or "", **rest) for model in models}  # type: ignore[arg-type]

    @property
    def models(self) -> dict[str, BreakerState]:
        """How the breaker of each model stands; "" is the provider's own model."""
        return {breaker.model: breaker.state for breaker in self._breakers.values()}

    @property
    def rests_until(self) -> float | None:
        """When the next call may be made, where every model is left alone now; else None."""
        if any(breaker.state != "open" for breaker in self._breakers.values()):
            return None
        return min(breaker.admits_at for breaker in self._breakers.values())

    async def write(
        self, said: Said, previous: str, *, focus: str = "", prefix: Prefix | None = None
    ) -> Written:
        """The summary of all of this and of the previous one.

        With a `prefix` that the first model was asked too, it is asked so first of all.
        """
        said = list(said)
        written = Written()
        if prefix is not None and prefix.model == next(iter(self._breakers)):
            # Whatever goes wrong with it, the plain form is the one to judge the model by.
            with suppress(ProviderError):
                written.text = await self._asked_as_before(prefix, focus, written)
                return written
        chars = self.chars
        while True:
            try:
                written.text = await self._folded(said, previous, focus, written, chars)
            except ContextTooLong:
                if chars <= LEAST_CHARS:
                    raise
                chars = max(LEAST_CHARS, chars // 2)
            else:
                self.chars = min(self.chars, chars)  # learnt only where less did help
                return written

    async def _folded(
        self, said: Said, previous: str, focus: str, written: Written, chars: int
    ) -> str:
        text = previous
        for lines in filter(None, calls_of(said, chars=chars)):  # erased ones say nothing
            request = summary_request(lines, text, max_words=self._max_words, focus=focus)
            text = await self._asked(request, written)
        return text

    async def _asked_as_before(self, prefix: Prefix, focus: str, written: Written) -> str:
        breaker = self._breakers[prefix.model]
        if breaker.state != "closed":
            raise ModelResting(breaker.model)
        request = prefix.request(max_words=self._max_words, focus=focus)
        return await self._answer(prefix.model, request, written, tools=prefix.tools)

    async def _asked(self, request: list[dict[str, Any]], written: Written) -> str:
        """The answer of the first model that gives one."""
        failure: ProviderError | None = None
        for model, breaker in self._breakers.items():
            if not breaker.admit():
                continue
            try:
                text = await self._answer(model, request, written)
            except _ABOUT_THE_TEXT as error:
                breaker.succeeded()
                failure = error
            except ProviderError as error:
                breaker.failed()
                failure = error
            except Exception:
                breaker.failed()
                raise
            else:
                breaker.succeeded()
                return text
        raise failure or ModelResting(next(iter(self._breakers)) or "the summary model")

    async def _answer(
        self,
        model: str | None,
        request: list[dict[str, Any]],
        written: Written,
        *,
        tools: Sequence[ToolSpec] | None = None,
    ) -> str:
        written.tries += 1
        try:
            with anyio.fail_after(self._timeout_seconds):
                reply = await self._provider.chat(messages=request, tools=tools, model=model)
        except TimeoutError as late:
            raise ProviderTimeout(f"no summary within {self._timeout_seconds:g} s") from late
        written.usage += reply.usage
        written.model = reply.model or model or ""
        self._budget.add(_usage(reply, request))
        return clipped(accepted(reply), max_words=self._max_words)


def _usage(reply: Reply, request: list[dict[str, Any]]) -> Usage:
    """What the provider counted; where it doesn't say, a rough count, so that a budget holds."""
    if reply.usage.tokens_in or reply.usage.tokens_out:
        return reply.usage
    asked = json.dumps(request, ensure_ascii=False)
    return Usage(tokens_in=rough_tokens(len(asked)), tokens_out=rough_tokens(len(reply.text)))
