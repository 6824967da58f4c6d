"""A summariser tried out on a conversation, offline: what it keeps, and what it loses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from nanoloop.context import build_messages
from nanoloop.events import Event, SummaryCommitted, SummaryFailed
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Provider
from nanoloop.session.entry import plain_text
from nanoloop.session.session import Session
from nanoloop.testing.coverage import Coverage, coverage_of
from nanoloop.testing.facts import Exchange, PlantedFacts
from nanoloop.testing.handed_over import Finished, HandedOver


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of it."""

    summary: str
    survival: float
    """The share of facts that can be read off the summary."""
    in_prompt: float
    """The share of facts that can be read off what the chat model would see next."""
    coverage: Coverage
    calls: tuple[Finished, ...]
    """What the summary model was handed, and what it said."""
    committed: int
    failed: int

    @property
    def is_lossless(self) -> bool:
        """Whether every message is in the window, pending or covered, the covered ones handed."""
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
    """Hold the conversation with a window of `limit` messages, and summarise what leaves it.

    `provider` is the summary model, real or scripted; further settings are the `Summarizer`'s.
    Each summary is waited for, `seconds` at most, so that the outcome is the same each time.
    """
    facts = facts or PlantedFacts()
    ledger, session, heard = HandedOver(provider), Session(), list[Event]()
    summarizer = Summarizer(ledger, announce=heard.append, **settings)  # type: ignore[arg-type]
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
