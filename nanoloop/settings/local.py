"""What a model on this machine needs otherwise than a hosted one, where the user left it open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanoloop.models.catalogue import known
from nanoloop.models.naming import file_of, is_local

if TYPE_CHECKING:
    from nanoloop.settings import Settings

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


def context_tokens(settings: Settings) -> int:
    """How much one conversation with the local model may take."""
    model = known(file_of(settings.model, settings.models).stem)
    suited = model.context_tokens if model else None
    return settings.local.context_tokens or suited or _CONTEXT_TOKENS


def suited(settings: Settings) -> Settings:
    """The settings as the model that answers needs them; what the user said stays."""
    if not is_local(settings.model):
        return settings
    tokens = context_tokens(settings)
    summary: dict[str, Any] = {
        "timeout_seconds": _SUMMARY_SECONDS,
        "batch_chars": min(settings.summary.batch_chars, tokens * _CHARS_A_TOKEN),
    }
    left_open = summary.keys() - settings.summary.model_fields_set
    update: dict[str, Any] = {
        "summary": settings.summary.model_copy(update={key: summary[key] for key in left_open})
    }
    if "call_timeout_seconds" not in settings.provider.model_fields_set:
        late = {"call_timeout_seconds": _CALL_SECONDS}
        update["provider"] = settings.provider.model_copy(update=late)
    if settings.context_tokens is None:
        update["context_tokens"] = int(tokens * _FOR_THE_CONVERSATION)
    return settings.model_copy(update=update)
