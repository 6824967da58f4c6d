"""Measure how well summaries preserve facts that were planted in a conversation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from nanoloop.context import build_messages
from nanoloop.events import Event, SummaryCommitted, SummaryFailed, hearing
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, Store, ToolSpec
from nanoloop.session.entry import Entry, plain_text
from nanoloop.session.session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of a trial."""

    summary: str
    survival: float
    """The share of facts found in the summary."""
    in_prompt: float
    """The share of facts found in the next prompt for the chat model."""
    coverage: Coverage
    calls: tuple[Finished, ...]
    """The calls to the summary model, with their inputs and answers."""
    committed: int
    failed: int

    @property
    def is_lossless(self) -> bool:
        """Whether every message is in the window, pending, or both covered and summarised."""
        handed = "\n".join(call.text for call in self.calls)
        texts = (entry.content.get("text") for entry in self.coverage.covered)
        return not self.coverage.violations and all(str(text or "") in handed for text in texts)


async def trial(
    provider: Provider,
    *,
    conversation: Iterable[Exchange] | None = None,
    facts: PlantedFacts | None = None,
    system: str = "",
    limit: int = 20,
    keep: int = 6,
    seconds: float = 60,
    **settings: object,
) -> Trial:
    """Hold the conversation with a window of `limit` messages, summarising those that leave it.

    `provider` is the summary model, real or scripted; other settings are passed to `Summarizer`.
    Each summary is awaited for at most `seconds`, so that the outcome is always the same.
    """
    facts = facts or PlantedFacts()
    ledger, session, heard = HandedOver(provider), Session(), list[Event]()
    summarizer = Summarizer(ledger, **settings)  # type: ignore[arg-type]
    with hearing(heard.append):
        async with summarizer:
            for said, answered in facts.conversation() if conversation is None else conversation:
                session.add_message("user", said)
                session.trim_if_needed(limit, keep)
                summarizer.fire_and_forget(session)
                await summarizer.drain(seconds)
                session.add_message("assistant", answered)
    request = build_messages(system, session.window, summary=session.summary)
    prompt = "\n".join(plain_text(message["content"]) for message in request)
    return Trial(
        summary=session.summary,
        survival=facts.survival(session.summary),
        in_prompt=facts.survival(prompt),
        coverage=coverage_of(session),
        calls=tuple(ledger.finished),
        committed=sum(isinstance(event, SummaryCommitted) for event in heard),
        failed=sum(isinstance(event, SummaryFailed) for event in heard),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Where each entry of a session's history is, with any inconsistencies."""

    log: tuple[Entry, ...]
    """The whole history, oldest first."""
    window: tuple[Entry, ...]
    """The entries that the model sees verbatim."""
    pending: tuple[Entry, ...]
    """The entries that have left the window and await their summary."""
    covered: tuple[Entry, ...]
    """The entries that the summary covers."""
    left_out: tuple[Entry, ...]
    """Entries that a handler hides while older ones are shown; pending once those leave."""
    violations: tuple[str, ...]
    """The inconsistencies, described without any message text; empty if there are none."""

    def check(self) -> None:
        """Raise AssertionError with the violations, if there are any."""
        if self.violations:
            raise AssertionError("; ".join(self.violations))


async def coverage(store: Store, session_id: str) -> Coverage:
    """Return the coverage of a stored session, comparing all ways of reading the session."""
    whole, light = await store.get(session_id), await store.load(session_id)
    listed = await store.entries(session_id)
    report = coverage_of(whole)
    wrong = [*report.violations]
    if _ids(light.window) != _ids(whole.window):
        wrong.append("the window differs between get and load")
    if light.pending_seq != whole.pending_seq or light.covered_seq != whole.covered_seq:
        wrong.append("the pending entries differ between get and load")
    if _ids(listed) != _ids(report.log):
        wrong.append(f"`entries` returns {len(listed)} of {len(report.log)} entries")
    return replace(report, violations=tuple(wrong))


def coverage_of(session: Session) -> Coverage:
    """Return the coverage of a session in memory; raises `HistoryNotLoaded` without its history."""
    log = tuple(sorted(session.history(), key=lambda entry: entry.seq))
    shown = {entry.seq for entry in session.window}
    left = [entry for entry in log if entry.seq not in shown]
    covered = tuple(entry for entry in left if entry.seq <= session.covered_seq)
    pending = tuple(entry for entry in left if session.is_pending(entry))
    placed = {entry.seq for entry in (*covered, *pending)}
    report = Coverage(
        log=log,
        window=session.window,
        pending=pending,
        covered=covered,
        left_out=tuple(entry for entry in left if entry.seq not in placed),
        violations=(),
    )
    return replace(report, violations=tuple(_violations(session, report)))


def _violations(session: Session, report: Coverage) -> Iterable[str]:
    yield from _order(report)
    twice = _seqs(report.pending) & _seqs(report.covered)
    if twice:
        yield f"entries {sorted(twice)} are pending and covered"
    if _seqs(session.pending) != _seqs(report.pending):
        yield "the entries that the session gives its summariser are not the pending ones"
    if len(report.log) != session.entry_count:
        yield f"{len(report.log)} entries in the log, {session.entry_count} counted"
    oldest = min((entry.seq for entry in report.window if entry.seq), default=None)
    if oldest is not None and any(entry.seq < oldest for entry in report.left_out):
        yield "entries from before the window are neither pending nor covered"
    if report.log and not report.window:
        yield "the window is empty and the log is not"
    yield from pair_violations(build_messages("", report.window))


def _order(report: Coverage) -> Iterable[str]:
    seqs = [entry.seq for entry in report.log]
    if any(second <= first for first, second in pairwise(seqs)):
        yield "the log is out of order"
    if len(set(_ids(report.log))) != len(report.log):
        yield "an entry is in the log twice"
    known = [entry.seq for entry in report.window if entry.seq]
    if len(set(known)) != len(known):
        yield "an entry is in the window twice"
    if not set(known) <= set(seqs):
        yield "the window shows entries that are not in the log"


def pair_violations(messages: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield errors in the order of tool calls and results: each result must follow its call."""
    waiting: list[str] = []
    for number, message in enumerate(messages):
        if message.get("role") == "tool":
            if message.get("tool_call_id") not in waiting:
                yield f"message {number} is a tool's result without its call"
            else:
                waiting.remove(str(message["tool_call_id"]))
            continue
        if waiting:
            yield f"message {number} comes before the results of {len(waiting)} calls"
        waiting = [str(call["id"]) for call in message.get("tool_calls") or ()]
    if waiting:
        yield f"{len(waiting)} calls at the end have no result"


def _ids(entries: Iterable[Entry]) -> list[str]:
    return [entry.id for entry in entries]


def _seqs(entries: Iterable[Entry]) -> set[int]:
    return {entry.seq for entry in entries}


Exchange = tuple[str, str]
"""A user's message and the answer to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that the user mentions, with the words that must not get lost."""

    said: str
    signs: tuple[str, ...]
    """Words that must all occur in a text, ignoring case, for the fact to have survived."""

    def is_in(self, text: str) -> bool:
        """Return whether this text contains the fact."""
        folded = text.casefold()
        return all(sign.casefold() in folded for sign in self.signs)


SOME_FACTS = (
    Fact(said="By the way, my dog is called Biscuit.", signs=("Biscuit",)),
    Fact(said="I am allergic to hazelnuts, please remember.", signs=("hazelnut",)),
    Fact(said="The rent is 1,240 euros a month.", signs=("1,240",)),
    Fact(said="We fly to Lisbon on 14 May.", signs=("Lisbon", "14 May")),
    Fact(said="The report is in notes/q3-final.md.", signs=("notes/q3-final.md",)),
    Fact(said="Order number 77-A41 has not come yet.", signs=("77-A41",)),
    Fact(said="You promised to remind me of the dentist.", signs=("dentist",)),
    Fact(said="我妹妹叫小梅, 她住在成都。", signs=("小梅", "成都")),
)
SMALL_TALK = (
    ("What is the weather like?", "I can't look outside, but you can tell me."),
    ("Tell me something about tea.", "Green and black tea come from the same plant."),
    ("I am bored.", "Then let's play a word game."),
    ("How do I boil an egg?", "Seven minutes in boiling water, then cold water."),
)


class PlantedFacts:
    """Facts to plant in a conversation, and a score of how many survive."""

    def __init__(self, facts: Sequence[Fact] = SOME_FACTS) -> None:
        self.facts = tuple(facts)

    def conversation(self, exchanges: int = 40, *, within: float = 0.5) -> list[Exchange]:
        """Return this many exchanges of small talk, with the facts spread over the first part."""
        talk = [SMALL_TALK[number % len(SMALL_TALK)] for number in range(exchanges)]
        room = max(len(self.facts), int(exchanges * within))
        for number, fact in enumerate(self.facts):
            place = number * room // max(1, len(self.facts))
            talk.insert(min(place + number, len(talk)), (fact.said, "I have noted that."))
        return talk

    def surviving(self, text: str) -> tuple[Fact, ...]:
        """Return the facts found in this text."""
        return tuple(fact for fact in self.facts if fact.is_in(text))

    def survival(self, text: str) -> float:
        """Return the share of facts found in this text, from 0 to 1."""
        return len(self.surviving(text)) / len(self.facts) if self.facts else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A completed call: its input as text, and its reply."""

    begun: int
    """How many calls had started before this one."""
    text: str
    reply: Reply


class HandedOver:
    """Passes calls on to a provider, and records the calls that returned."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.begun = 0
        """The number of calls so far, including those that never return."""
        self.finished: list[Finished] = []
        """The calls that returned, in the order in which they did."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Ask the provider; raises the provider's errors, in which case nothing is recorded."""
        begun, self.begun = self.begun, self.begun + 1
        # Read before the call, because the list may change during the call.
        text = "\n".join(plain_text(message.get("content")) for message in messages)
        reply = await self._provider.chat(
            messages=messages, tools=tools, model=model, on_text=on_text
        )
        self.finished.append(Finished(begun=begun, text=text, reply=reply))
        return reply

    async def close(self) -> None:
        """Close the provider."""
        await self._provider.close()

    def has(self, text: str) -> bool:
        """Return whether any completed call contained this text."""
        return any(text in call.text for call in self.finished)
