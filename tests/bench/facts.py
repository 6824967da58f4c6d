"""What a local model still knows of a long talk: by the summary, the whole history, or the end.

    python -m tests.bench.facts [MODEL]

A made-up talk of 70 messages goes through the loop, with 30 in the window at most and 10 kept, so
that it is summarised twice while it goes on. What the assistant says in it is given; the summaries
and the answers to the questions at the end are the model's. No tools: recall would find more.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import anyio

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.events import Event, SummaryCommitted, SummaryFailed, WindowTrimmed, hearing
from nanoloop.memory.summarizer import Summarizer
from nanoloop.memory.writer import SMALL_PROMPT
from nanoloop.providers.local.provider import LocalProvider
from nanoloop.providers.scripted import ScriptedProvider
from tests.bench.report import Report, say
from tests.stages.local_model import USEFUL, model_file

LIMIT, KEPT = 30, 10
LAST = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    said: str
    question: str
    signs: tuple[str, ...]
    """Answered is, what holds one of these in any case."""


FACTS = (
    Fact(said="I'm Henrike, by the way.", question="What is my name?", signs=("henrike",)),
    Fact(
        said="I live in Flensburg, near the harbour.",
        question="Which town do I live in?",
        signs=("flensburg",),
    ),
    Fact(said="My dog is called Biscuit.", question="What is my dog's name?", signs=("biscuit",)),
    Fact(
        said="I can't eat hazelnuts, I'm allergic to them.",
        question="What am I allergic to?",
        signs=("hazelnut",),
    ),
    Fact(
        said="I pay 840 euros of rent a month.",
        question="How much rent do I pay a month?",
        signs=("840",),
    ),
    Fact(
        said="My sister Ruth works as a vet.",
        question="What is my sister's profession?",
        signs=("vet",),
    ),
    Fact(
        said="We fly to Lisbon on the 14th of May.",
        question="Where do we fly to in May?",
        signs=("lisbon",),
    ),
    Fact(
        said="My bicycle is a green one from 1987.",
        question="What colour is my bicycle?",
        signs=("green",),
    ),
    Fact(
        said="The order that never came has the number 77-A41.",
        question="What is the number of the order that never came?",
        signs=("77-a41",),
    ),
    Fact(
        said="On Thursdays I sing in a choir.",
        question="On which day do I sing in a choir?",
        signs=("thursday",),
    ),
    Fact(
        said="I'm learning to play the cello.",
        question="Which instrument am I learning?",
        signs=("cello",),
    ),
    Fact(
        said="Our landlord, Mr Petersen, wants to sell the house.",
        question="What is our landlord's name?",
        signs=("petersen",),
    ),
)
SMALL_TALK = (
    (
        "Why is tea sometimes bitter?",
        "It was left in the water too long, or the water was too hot.",
    ),
    ("How long does an egg take?", "Seven minutes in boiling water, then cold water."),
    ("Is a tomato a fruit?", "For a botanist it is, for a cook it is not."),
    ("What rhymes with orange?", "Nothing does, really; poets get around it with two words."),
    ("How do I get wax out of a cloth?", "Put paper over it and iron it; the paper takes the wax."),
    ("What makes bread rise?", "Yeast makes gas in the dough, and the dough holds it."),
    (
        "Tell me something about whales.",
        "Some of them sing, and their songs change over the years.",
    ),
    ("I slept badly.", "A short walk in the morning light can help."),
    ("Which is further north, Oslo or Helsinki?", "Helsinki, by about a quarter of a degree."),
    ("What is a good soup for winter?", "Lentils with carrots, and some vinegar at the end."),
    ("How do bees find home?", "By the sun, and by landmarks they have learnt."),
    ("Why is the sea salty?", "Rivers bring salts from the rocks, and only water evaporates."),
    ("I am bored.", "Then sort a drawer: it takes ten minutes and feels like much more."),
    ("What is a palindrome?", "A word that reads the same both ways, such as level."),
    ("How far away is the moon?", "About 384,000 kilometres on average."),
    ("Can one freeze cheese?", "Hard cheese yes, though it crumbles afterwards."),
    ("What should I read next?", "A short novel: they are finished before one grows tired."),
    ("Why do cats purr?", "Mostly when they are content, sometimes to calm themselves."),
    ("How do I keep basil alive?", "Water it from below, and give it much light."),
    ("What is the oldest tree?", "A bristlecone pine in California, nearly 5,000 years old."),
    ("Is it better to read or to listen?", "Whatever you go on with for longer."),
    ("How do I fold a fitted sheet?", "Tuck the corners into each other, then fold it in three."),
    ("What is the weather like?", "I can't see it from here, but you can tell me."),
)
NOTED = "Good to know, I'll keep that in mind."


def talk() -> list[tuple[str, str]]:
    """35 exchanges: the facts in the first 20, so that all of them leave the window."""
    facts = iter(FACTS)
    exchanges = []
    for number, small in enumerate(SMALL_TALK):
        exchanges.append(small)
        exchanges.extend((fact.said, NOTED) for fact in islice(facts, 1 + number % 2))
    return exchanges


class Talk:
    """What was said in the talk is given; summaries come from the model."""

    def __init__(self, provider: LocalProvider) -> None:
        self._model = provider
        self.script = ScriptedProvider([answer for _, answer in talk()])
        self.events: list[Event] = []

    def count(self, kind: type[Event]) -> int:
        return sum(isinstance(event, kind) for event in self.events)

    async def run(self) -> list[dict[str, Any]]:
        """The last request of the talk, as the loop makes it."""
        beside = self._model.in_background()
        summarizer = Summarizer(beside, timeout_seconds=900, prompt=SMALL_PROMPT)
        loop = AgentLoop(
            provider=self.script,
            summarizer=summarizer,
            message_buffer_limit=LIMIT,
            message_buffer_min=KEPT,
        )
        direct = DirectChannel(loop.bus)
        with hearing(self.events.append):
            async with anyio.create_task_group() as group:
                await group.start(loop.run)
                for text, _ in talk():
                    await direct.ask(text)
                    await self._summarised(loop)
                loop.bus.close()
        return [dict(message) for message in self.script.calls[-1].messages]

    async def _summarised(self, loop: AgentLoop) -> None:
        """Wait as a person does who thinks before the next message."""
        while loop.summarizer.running:  # noqa: ASYNC110 - nobody else waits for it
            await anyio.sleep(0.1)


def whole() -> list[dict[str, Any]]:
    """The talk from its beginning, without the last answer."""
    pairs = (
        [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        for said, answer in talk()
    )
    return [message for pair in pairs for message in pair][:-1]


async def answered(
    provider: LocalProvider, request: Sequence[dict[str, Any]]
) -> tuple[list[str], float]:
    """What was asked and answered rightly, the last message replaced by each question."""
    known, started = [], time.monotonic()
    for fact in FACTS:
        question = {"role": "user", "content": fact.question}
        reply = await provider.chat(messages=[*request[:-1], question])
        is_known = any(sign in reply.text.casefold() for sign in fact.signs)
        say(f"  {'yes' if is_known else 'NO '}  {fact.question}  {' '.join(reply.text.split())}")
        if is_known:
            known.append(fact.question)
    return known, time.monotonic() - started


async def main(model: str) -> None:
    """Talk, ask, and print how much is known."""
    report = Report(f"facts: {len(FACTS)} facts in a talk of {2 * len(talk())} messages, {model}")
    options = {"temperature": 0, "max_tokens": 400}
    provider = LocalProvider(model_file(model), options=options)
    try:
        talking = Talk(provider)
        started = time.monotonic()
        request = await talking.run()
        summaries, trims = talking.count(SummaryCommitted), talking.count(WindowTrimmed)
        failed, seconds = talking.count(SummaryFailed), time.monotonic() - started
        system = request[0]
        say(f"\n{system['content']}\n")
        history = whole()
        rows = []
        for name, shown in (
            (f"summary and {len(request) - 1} messages", request),
            (f"the whole history, {len(history)} messages", [system_of(request), *history]),
            (f"the last {LAST} messages", [system_of(request), *history[-LAST:]]),
        ):
            say(name)
            known, took = await answered(provider, shown)
            rows.append([name, f"{len(known)} of {len(FACTS)}", f"{took:.0f}"])
        report.table("what the model is shown", ("", "answered", "seconds"), rows)
        say(
            f"\n{trims} cuts of the window, {summaries} summaries ({failed} failed) in "
            f"{seconds:.0f} seconds"
        )
    finally:
        await provider.close()
    report.end()


def system_of(request: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The system prompt without what was summarised."""
    content = str(request[0]["content"])
    return {"role": "system", "content": content.partition("\n")[0]}


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else USEFUL
    model_file(name)
    anyio.run(main, name)
