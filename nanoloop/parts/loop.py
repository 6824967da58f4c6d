"""The loop as the settings want it: its bus, its summariser, its recall, its agents."""

from __future__ import annotations

from nanoloop.bus.in_process import InProcessBus
from nanoloop.events import Event
from nanoloop.loop import AgentLoop
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.memory.summarizer import Summarizer
from nanoloop.parts.agents import make_agents
from nanoloop.parts.storage import recall_file, spent_file
from nanoloop.protocols import Provider, Store
from nanoloop.providers.models import in_background
from nanoloop.sentences import Sentences
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry


def make_loop(
    settings: Settings, provider: Provider, store: Store, telemetry: Telemetry
) -> AgentLoop:
    """The loop with its bus, its summariser, its recall and its agents."""
    recall = make_recall(settings, store, telemetry)
    sentences = Sentences(settings.sentences.model_dump())

    def announce(event: Event) -> None:
        telemetry(event)
        if recall is not None:
            recall.hear(event)

    return AgentLoop(
        provider=provider,
        agents=make_agents(settings, recall),
        store=store,
        sentences=sentences,
        bus=InProcessBus(
            inbound_limit=settings.bus.inbound_limit,
            outbound_limit=settings.bus.outbound_limit,
            send_timeout_seconds=settings.bus.send_timeout_seconds,
            busy=sentences.text("full"),
            announce=telemetry,
        ),
        summarizer=make_summarizer(settings, in_background(provider), store, telemetry),
        recall=recall,
        message_buffer_limit=settings.message_buffer_limit,
        message_buffer_min=settings.message_buffer_min,
        context_tokens=settings.context_tokens,
        context_limit=settings.context_limit,
        handover=settings.handover,
        handover_limit=settings.handover_limit,
        max_concurrent_turns=settings.loop.max_concurrent_turns,
        lane_limit=settings.loop.lane_limit,
        open_sessions=settings.loop.open_sessions,
        with_time=settings.include_time,
        answer_unanswered=settings.loop.on_unanswered == "answer",
        shutdown_turns_seconds=settings.loop.shutdown_turns_seconds,
        shutdown_summaries_seconds=settings.loop.shutdown_summaries_seconds,
        announce=announce,
    )


def make_summarizer(
    settings: Settings, provider: Provider, store: Store, telemetry: Telemetry
) -> Summarizer:
    """The summariser that these settings describe."""
    return Summarizer(
        provider,
        settings.summary_model,
        store=store,
        max_words=settings.summary.max_words,
        timeout_seconds=settings.summary.timeout_seconds,
        batch_chars=settings.summary.batch_chars,
        retry_seconds=settings.summary.retry_seconds,
        retry_limit_seconds=settings.summary.retry_limit_seconds,
        fallback_model=settings.summary.fallback_model,
        breaker_seconds=settings.summary.breaker_seconds,
        daily_tokens=settings.summary.daily_tokens,
        spent_file=spent_file(settings),
        idle_seconds=settings.summary.idle_seconds,
        ledger_items=settings.summary.ledger_items,
        ledger_chars=settings.summary.ledger_chars,
        reuse_prefix=settings.summary.reuse_prefix,
        announce=telemetry,
    )


def make_recall(settings: Settings, store: Store, telemetry: Telemetry) -> Recall | None:
    """What finds again what was said, where these settings want it."""
    if not settings.recall.enabled:
        return None
    # Sealed files say nothing without their key, and an index of all words would say it for them.
    is_kept = settings.store.url != "memory:" and settings.store.encryption_key is None
    index = Index(recall_file(settings) if is_kept else None)
    return Recall(store, index, announce=telemetry)
