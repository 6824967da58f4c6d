"""How the summariser stands, for people: what runs, what waits and why, which models rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nanoloop.memory.agenda import Why
from nanoloop.memory.breaker import BreakerState
from nanoloop.memory.budget import Spent

WAITS: Mapping[Why, str] = {
    "failure": "for another try",
    "breaker": "for a model",
    "budget": "for tomorrow's tokens",
    "small": "for more to be said",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SummarizerState:
    """A look at it, as of now."""

    running: int
    waiting: Mapping[Why, int]
    """Sessions that wait, by the reason."""
    models: Mapping[str, BreakerState]
    """The breaker of each model; "" is the provider's own model."""
    spent_today: Spent


def state_text(state: SummarizerState) -> str:
    """The state in one line."""
    parts = [f"{state.running} running"]
    parts += [f"{count} waiting {WAITS[why]}" for why, count in state.waiting.items()]
    parts += [
        f"model {model or 'as for answers'} {how}"
        for model, how in state.models.items()
        if how != "closed"
    ]
    spent = state.spent_today
    parts.append(f"today {spent.calls} calls, {spent.tokens} tokens")
    return "; ".join(parts)
