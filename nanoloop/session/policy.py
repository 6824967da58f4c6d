"""When to resize: one table of rules, and what a policy of the user's may say instead."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.session.options import Options
from nanoloop.session.size import total_chars

LITE, DEEP = "lite", "deep"
FORCED = 1000
"""The severity of a resize that was asked for."""

Decision = dict[str, Any]
"""`type`, and where they are known `reason`, `severity` and `meta`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What the rules look at; a limit of 0 is none."""

    chars: int
    chars_limit: int
    messages: int
    messages_limit: int
    turns: int
    """Since the last resize."""
    turns_limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One reason to resize, with its own comparison."""

    reason: str
    type: str
    severity: int
    is_due: Callable[[Standing], bool]


RULES = (
    Rule(
        reason="max_messages_text_length",
        type=DEEP,
        severity=100,
        is_due=lambda now: 0 < now.chars_limit <= now.chars,
    ),
    Rule(
        reason="max_keep_messages_count",
        type=LITE,
        severity=50,
        is_due=lambda now: 0 < now.messages_limit < now.messages,
    ),
    Rule(
        reason="every_n_turns",
        type=LITE,
        severity=10,
        is_due=lambda now: 0 < now.turns_limit <= now.turns,
    ),
)
"""The first that is due decides; the most severe stands first."""


def default_decision(
    messages: Sequence[Mapping[str, Any]], options: Options, *, turns: int
) -> Decision | None:
    """What the rules say of this window, so many turns after the last resize."""
    now = Standing(
        chars=total_chars(messages),
        chars_limit=options.chars,
        messages=len(messages),
        messages_limit=options.messages,
        turns=turns,
        turns_limit=options.every_n_turns,
    )
    for rule in RULES:
        if rule.is_due(now):
            return {"type": rule.type, "reason": rule.reason, "severity": rule.severity}
    return None


def forced_decision(force: object) -> Decision | None:
    """What `force` asks for: a type by name, deep by any other yes; None where it asks nothing."""
    if not force:
        return None
    return {
        "type": force if isinstance(force, str) else DEEP,
        "reason": "force",
        "severity": FORCED,
    }


def checked_decision(said: object) -> Decision | None:
    """What a policy said, as a decision; raises TypeError where it is none."""
    if said is None:
        return None
    if isinstance(said, str):
        return {"type": said}
    if isinstance(said, Mapping) and isinstance(said.get("type"), str):
        return dict(said)
    raise TypeError(
        f"a policy returns None, a type, or a dict with a type, not {type(said).__name__}: {said!r}"
    )
