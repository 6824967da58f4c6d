"""How much of each request the one before it had too, and what the model did not know meanwhile.

    python -m tests.bench.prefix [--short]

One chat through the real loop, with a summary that takes some turns; once as it is by default and
once with handover. The provider's prefix cache serves what two requests in a row begin with.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from os.path import commonprefix
from typing import Any

import anyio
import anyio.lowlevel

from nanoloop import Agent
from nanoloop.channels.direct import DirectChannel
from nanoloop.protocols import Reply, ToolSpec
from nanoloop.settings import PROMPT
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.tools.ready import calculator, clock
from tests.bench.living import ANSWERED, SAID, running
from tests.bench.report import Report

TURNS, SHORT_TURNS = 400, 120
SUMMARY_TURNS = (0, 3, 8)
"""Turns that go by while a summary is made."""
GOAL, HANDOVER_GOAL = 91.0, 94.0
FEW_SWAPS = 0.5
"""What the short form is off by: it begins with an empty window and sees few swaps."""
FACT_EVERY = 4
FACT = re.compile(r"fact-\d+")
WORDS = f"{SAID} {ANSWERED}".split()
RULE = "Be kind and brief, never guess, and say so when you do not know what was asked."
PROMPTS = {"one sentence": PROMPT, "a page": " ".join([PROMPT, *[RULE] * 25])}
JUDGED = ("a page", 3)


@dataclass(slots=True)
class Chat:
    """What was asked in one chat."""

    requests: list[str] = field(default_factory=list)
    planted: list[str] = field(default_factory=list)
    unknown: list[int] = field(default_factory=list)
    """Facts that a request had nowhere, for each turn."""

    @property
    def shared(self) -> float:
        """The share of all requests that the one before had too, in percent."""
        same = sum(len(commonprefix(pair)) for pair in pairwise(self.requests))  # noqa: RUF071 - no paths
        return 100 * same / sum(map(len, self.requests[1:]))

    @property
    def blind(self) -> float:
        """The share of turns in which a fact said earlier is nowhere, in percent."""
        return 100 * sum(map(bool, self.unknown)) / len(self.unknown)


class Model:
    """Answers at once; a summary keeps every fact, and takes so many turns."""

    def __init__(self, chat: Chat, summary_turns: int) -> None:
        self._chat = chat
        self._summary_turns = summary_turns
        self._turn = anyio.Event()
        self._random = random.Random(7)

    async def chat(
        self,
        *,
        messages: Sequence[Any],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: Any = None,
    ) -> Reply:
        if tools is None:
            return await self._summary(json.dumps(messages))
        told = [[tool.name, tool.description, dict(tool.parameters)] for tool in tools]
        request = json.dumps([told, list(messages)])
        known = set(FACT.findall(request))
        self._chat.requests.append(request)
        self._chat.unknown.append(len(set(self._chat.planted) - known))
        return Reply(text=said(self._random, 20, 120))

    async def _summary(self, asked: str) -> Reply:
        for _ in range(self._summary_turns):
            await self._turn.wait()
        facts = sorted(set(FACT.findall(asked)))
        return Reply(text="They talked about the morning. Facts: " + ", ".join(facts))

    def turn_over(self) -> None:
        """One turn has gone by."""
        over, self._turn = self._turn, anyio.Event()
        over.set()

    async def close(self) -> None:
        """Nothing to let go of."""


async def settled() -> None:
    """Let a summary that may go on be committed."""
    for _ in range(50):
        await anyio.lowlevel.checkpoint()


def said(source: random.Random, least: int, most: int) -> str:
    """Some words."""
    return " ".join(source.choices(WORDS, k=source.randint(least, most)))


async def talk(turns: int, summary_turns: int, prompt: str, *, handover: bool) -> Chat:
    """One chat of so many turns."""
    chat = Chat()
    model = Model(chat, summary_turns)
    words = random.Random(3)
    agent = Agent(prompt=prompt, tools=[clock, calculator])
    async with running(
        model, InMemoryStore(), agent=agent, handover=handover, shutdown_summaries_seconds=0
    ) as loop:
        direct = DirectChannel(loop.bus)
        for number in range(turns):
            text = said(words, 8, 60)
            if number % FACT_EVERY == 0:
                chat.planted.append(f"fact-{number}")
                text += f" fact-{number}"
            await direct.ask(text)
            model.turn_over()
            await settled()
    return chat


def both_ways(turns: int, summary_turns: int, prompt: str) -> tuple[Chat, Chat]:
    """The same chat without handover and with it."""
    one = partial(talk, turns, summary_turns, prompt)
    return anyio.run(partial(one, handover=False)), anyio.run(partial(one, handover=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true")
    is_short = parser.parse_args().short
    turns = SHORT_TURNS if is_short else TURNS
    report = Report(f"Requests in a row, {turns} turns")
    chats = {
        (name, summary_turns): both_ways(turns, summary_turns, prompt)
        for name, prompt in PROMPTS.items()
        for summary_turns in SUMMARY_TURNS
    }
    report.table(
        "Bytes that the request before had too, and turns in which a fact is nowhere, in percent",
        ("system prompt", "summary takes", "shared", "handover", "nowhere", "handover"),
        [
            [
                name,
                f"{summary_turns} turns",
                *(f"{chat.shared:.1f}" for chat in both),
                *(f"{chat.blind:.1f}" for chat in both),
            ]
            for (name, summary_turns), both in chats.items()
        ],
    )
    default, handover = chats[JUDGED]
    report.goal("not shared", 100 - default.shared, 100 - GOAL, " %")
    goal = HANDOVER_GOAL - (FEW_SWAPS if is_short else 0)
    report.goal("not shared, with handover", 100 - handover.shared, 100 - goal, " %")
    report.goal("a fact is nowhere, with handover", handover.blind, 0, " %")
    report.end()


if __name__ == "__main__":
    main()
