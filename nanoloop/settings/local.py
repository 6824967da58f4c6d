"""What a model on this machine needs otherwise than a hosted one, where the user left it open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanoloop.models.catalogue import known
from nanoloop.models.naming import file_of, is_local

if TYPE_CHECKING:
    from nanoloop.settings import Settings, SummarySettings

_CONTEXT_TOKENS = 8192
"""What a conversation with a file gets that the catalogue does not know."""
_FOR_THE_CONVERSATION = 0.75
"""The part of the context that a request may take; the rest is for the answer."""
_CHARS_A_TOKEN = 2
"""Few, for all languages: a batch that is too long for the model is never summarised."""
_CALL_SECONDS = 900
"""It may have to wait for others first."""
_SUMMARY_SECONDS = 600
"""It reads as slowly as it writes, and gives way to each turn."""


def context_tokens(settings: Settings, model: str | None = None) -> int:
    """How much one conversation with that local model, the usual one by default, may take."""
    found = known(file_of(model or settings.model, settings.models).stem)
    suited = found.context_tokens if found else None
    return settings.local.context_tokens or suited or _CONTEXT_TOKENS


def call_timeout_seconds(settings: Settings) -> float:
    """How long an answer of a local model may take."""
    calls = settings.provider
    is_said = "call_timeout_seconds" in calls.model_fields_set
    return calls.call_timeout_seconds if is_said else _CALL_SECONDS


def suited(settings: Settings) -> Settings:
    """The settings as the local models among those they name need them; what was said stays."""
    update: dict[str, Any] = {"summary": _summary(settings)}
    if is_local(settings.model) and settings.context_tokens is None:
        update["context_tokens"] = int(context_tokens(settings) * _FOR_THE_CONVERSATION)
    return settings.model_copy(update=update)


def _summary(settings: Settings) -> SummarySettings:
    """What the summary needs, where a local model makes it or stands in for the one that does."""
    own = settings.summary
    models = (settings.summary_model or settings.model, own.fallback_model or "")
    tokens = [context_tokens(settings, model) for model in models if is_local(model)]
    if not tokens:
        return own
    suited: dict[str, Any] = {
        "timeout_seconds": _SUMMARY_SECONDS,
        "batch_chars": min(own.batch_chars, *(count * _CHARS_A_TOKEN for count in tokens)),
    }
    left_open = suited.keys() - own.model_fields_set
    return own.model_copy(update={key: suited[key] for key in left_open})
