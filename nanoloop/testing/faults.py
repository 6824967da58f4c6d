"""A provider that goes wrong as models do, by a script or by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Literal, get_args

import anyio

from nanoloop.errors import NoConnection, ProviderTimeout
from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolCall, ToolSpec
from nanoloop.testing.gate import Gate

Fault = Literal[
    "fine", "raises", "times_out", "bug", "empty", "tool_call", "cut_off", "too_long", "slow",
    "hangs",
]  # fmt: skip
"""How a call goes; `slow` waits for the gate, `hangs` for ever, `bug` raises no `ProviderError`."""

FAULTS: tuple[Fault, ...] = get_args(Fault)


def seeded(seed: int, *, share: float = 0.3, kinds: Sequence[Fault] = FAULTS) -> Iterator[Fault]:
    """Faults without end, the same ones for the same seed; `share` of the calls go wrong."""
    chance = random.Random(seed)  # noqa: S311 - it has to be the same each time
    faults = [kind for kind in kinds if kind != "fine"]
    while True:
        yield chance.choice(faults) if faults and chance.random() < share else "fine"


class Faulty:
    """Asks a provider, and lets each call go as the plan has it; after the plan all go well."""

    def __init__(
        self, provider: Provider, plan: Iterable[Fault] = (), *, gate: Gate | None = None
    ) -> None:
        self._provider = provider
        self._plan = iter(plan)
        self.gate = gate or Gate()
        """Where slow calls wait."""
        self.calls: list[Fault] = []
        """How each call so far went."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer, or go wrong."""
        fault: Fault = next(self._plan, "fine")
        self.calls.append(fault)
        await self._before(fault)
        reply = await self._provider.chat(
            messages=messages, tools=tools, model=model, on_text=on_text
        )
        return _spoiled(reply, fault, messages)

    async def _before(self, fault: Fault) -> None:
        if fault == "raises":
            raise NoConnection("nothing answers: this fault was injected by a test")
        if fault == "times_out":
            raise ProviderTimeout("no answer in time: this fault was injected by a test")
        if fault == "bug":
            raise RuntimeError("this bug was injected by a test")
        if fault == "slow":
            await self.gate.passes()
        if fault == "hangs":
            await anyio.sleep_forever()

    async def close(self) -> None:
        """Close the provider."""
        await self._provider.close()


def _spoiled(reply: Reply, fault: Fault, messages: Sequence[ChatMessage]) -> Reply:
    if fault == "empty":
        return replace(reply, text="")
    if fault == "cut_off":
        return replace(reply, text=reply.text[: len(reply.text) // 2], finish_reason="length")
    if fault == "tool_call":
        call = ToolCall(id="injected", name="injected", arguments="{}")
        return replace(reply, tool_calls=(call,), finish_reason="tool_calls")
    if fault == "too_long":
        size = sum(len(str(message.get("content"))) for message in messages)
        return replace(reply, text=f"{reply.text} {'and so on ' * (size // 5 + 100)}")
    return reply
