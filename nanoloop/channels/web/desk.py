"""What the operations of the web have to work with: the bus, the sessions, and who reads along."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanoloop.agents import Agents
from nanoloop.attachments import Attachments
from nanoloop.channels.web.callers import Callers
from nanoloop.channels.web.feed import Feeds
from nanoloop.channels.web.rates import Rates
from nanoloop.channels.web.receipts import Receipts
from nanoloop.channels.web.stream import Streams
from nanoloop.commands import Runner
from nanoloop.events import Announce
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Bus, Provider
from nanoloop.sentences import Sentences
from nanoloop.sessions import Sessions

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

Snapshot = Callable[[], Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much is taken of one request, and of all."""

    requests_per_minute: int = 600
    upload_bytes: int = 10_000_000
    body_seconds: float = 30
    """How long a request may take to arrive."""
    header_seconds: float = 10
    """How long a connection may stay open without a whole request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """The parts of the loop that the web works with."""

    bus: Bus
    sessions: Sessions
    agents: Agents
    summarizer: Summarizer
    runner: Runner
    recall: Recall | None
    keep: int
    """Messages that always stay word for word."""
    model: str
    """The model that answers where an agent names none."""
    snapshot: Snapshot
    """What telemetry has counted."""
    announce: Announce
    sentences: Sentences
    """What is told of a failure."""
    provider: Provider
    """Who is asked where a client sends the whole conversation along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Everything that an operation may use."""

    shop: Shop
    callers: Callers
    limits: Limits
    attachments: Attachments
    feeds: Feeds
    streams: Streams
    receipts: Receipts
    rates: Rates
    failures: Rates
    """Wrong tokens, by address."""
    origins: frozenset[str]
    """Other sites whose pages may call."""
    cookie: str
    """What the cookie of this server is called."""
    is_serving: Callable[[], bool]
    """Whether the loop takes messages."""
