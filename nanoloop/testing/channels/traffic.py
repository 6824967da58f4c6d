"""Simulate a day of traffic with intermittent faults, and record the outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import anyio

from nanoloop.protocols import OnText, Reply
from nanoloop.testing.channels.stage import Bot, Stage, comes_to

UNANSWERED = 10
"""How many of a chat's messages may be unanswered before it stops sending more."""
_FAULT = 0.03
"""The probability that a message is followed by a fault."""
_SLOW, _SLOW_SECONDS = 0.1, 0.4
"""How often an answer is slow, so that people see it grow, and how long it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord:
    """What became of all messages."""

    said: int
    answered: int
    faults: int
    starts: int
    lost: tuple[str, ...]
    """Expected answers that never arrived."""
    doubled: tuple[str, ...]
    """Answers that arrived more than once."""
    disordered: tuple[str, ...]
    """Chats whose answers are not in the order of their messages."""
    odd: tuple[str, ...]
    """Texts that the bot sent unexpectedly, such as half an answer."""

    @property
    def is_clean(self) -> bool:
        """Whether each message has exactly one answer, in order, and the bot sent nothing else."""
        return not (self.lost or self.doubled or self.disordered or self.odd)


async def day(
    stage: Stage,
    folder: Path,
    *,
    seed: int = 0,
    messages: int = 1000,
    chats: int = 20,
    restarts: int = 3,
    seconds: float = 60,
    **bot: Any,
) -> TrafficRecord:
    """Let people talk to a bot that is restarted while the platform fails now and then.

    `seconds` is how long the last answers may take once the faults have ended; other arguments are
    passed to `Bot`.
    """
    talk = _Talk(stage, Random(seed), await stage.people(chats))  # noqa: S311 - not a secret
    for start in range(restarts + 1):
        provider = _Chatty(Random(seed + start))  # noqa: S311 - as above
        async with Bot(stage.platform(), folder, provider=provider, **bot):
            await talk.go_on(messages // (restarts + 1))
            if start == restarts:
                await talk.heal()
                await talk.settle(seconds)
    return await talk.ledger(starts=restarts + 1)


class _Talk:
    """The messages that people send, and the faults that happen meanwhile."""

    def __init__(self, stage: Stage, random: Random, people: Sequence[tuple[str, str]]) -> None:
        self._stage = stage
        self._random = random
        self._people = people
        self._said: Counter[str] = Counter()
        self._answered: Counter[str] = Counter()
        self._faults = 0

    async def go_on(self, messages: int) -> None:
        """Send this many more messages, each to a random chat."""
        for _ in range(messages):
            chat, sender = self._random.choice(self._people)
            if self._said[chat] - self._answered[chat] >= UNANSWERED:
                await comes_to(partial(self._has_room, chat), wanted=True)
            await self._stage.say(chat, _text(chat, self._said[chat]), sender=sender)
            self._said[chat] += 1
            if self._random.random() < _FAULT:
                await self._go_wrong()
            elif self._random.random() < _FAULT:
                await self.heal()

    async def _has_room(self, chat: str) -> bool:
        self._answered[chat] = len(set(await self._answers(chat)))
        return self._said[chat] - self._answered[chat] < UNANSWERED // 2

    async def _go_wrong(self) -> None:
        stage, some = self._stage, self._random.randint(1, 5)
        # Looked up by name only when chosen, because a stage may lack some methods.
        ways: dict[str, tuple[str, dict[str, Any]]] = {
            "cut": ("cut", {}),
            "repeat": ("repeat", {}),
            "lose": ("lose", {"calls": some, "taken": False}),
            "ids": ("lose", {"calls": some, "taken": True}),
            "limit": ("limit", {"calls": some, "seconds": 0.5}),
        }
        able = [way for skill, way in ways.items() if skill in stage.skills]
        if able:
            self._faults += 1
            name, given = self._random.choice(able)
            await getattr(stage, name)(**given)

    async def heal(self) -> None:
        """End the faults, so that posts and edits work again."""
        if "lose" in self._stage.skills:
            await self._stage.lose(0, taken=False)
            await self._stage.lose(0, taken=True)
        if "limit" in self._stage.skills:
            await self._stage.limit(0, seconds=0)

    async def settle(self, seconds: float) -> None:
        """Wait until every chat has all its answers, for at most `seconds` per chat."""
        with suppress(AssertionError):  # the record shows which are missing
            for chat, _ in self._people:
                wanted = {*self._wanted(chat)}
                await comes_to(
                    partial(self._answers, chat),
                    lambda found, all_=wanted: all_ <= {*found},
                    seconds=seconds,
                )

    async def ledger(self, *, starts: int) -> TrafficRecord:
        """Return a record of the outcome."""
        found = {chat: await self._answers(chat) for chat, _ in self._people}
        wanted = {chat: self._wanted(chat) for chat in found}
        counts = Counter(answer for answers in found.values() for answer in answers)
        all_wanted = [answer for answers in wanted.values() for answer in answers]
        return TrafficRecord(
            said=sum(self._said.values()),
            answered=sum(counts[answer] > 0 for answer in all_wanted),
            faults=self._faults,
            starts=starts,
            lost=tuple(answer for answer in all_wanted if not counts[answer]),
            doubled=tuple(answer for answer in all_wanted if counts[answer] > 1),
            disordered=tuple(chat for chat in found if not _in_order(found[chat], wanted[chat])),
            odd=tuple(counts.keys() - {*all_wanted}),
        )

    async def _answers(self, chat: str) -> list[str]:
        return [shown.text for shown in await self._stage.shown(chat) if shown.is_bots]

    def _wanted(self, chat: str) -> list[str]:
        return [f"You said: {_text(chat, number)}" for number in range(self._said[chat])]


class _Chatty:
    """A model that repeats the user's message, at once or in pieces."""

    def __init__(self, random: Random) -> None:
        self._random = random

    async def chat(
        self, *, messages: Sequence[Any], on_text: OnText | None = None, **_: Any
    ) -> Reply:
        """Answer, sometimes after a delay."""
        text = f"You said: {messages[-1]['content']}"
        if self._random.random() < _SLOW:
            if on_text is not None:
                on_text(text[: len(text) // 2])
            await anyio.sleep(self._random.random() * _SLOW_SECONDS)
        if on_text is not None:
            on_text(text)
        return Reply(text=text)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _text(chat: str, number: int) -> str:
    return f"{number} in {chat}"


def _in_order(found: Sequence[str], wanted: Sequence[str]) -> bool:
    numbers = {answer: number for number, answer in enumerate(wanted)}
    places = [numbers[answer] for answer in found if answer in numbers]
    return places == sorted(places)
