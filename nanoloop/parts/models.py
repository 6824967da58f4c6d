"""The models that the settings name, each at its vendor or on this machine."""

from __future__ import annotations

from functools import partial
from typing import Any

from nanoloop.channels.pictures import Pictures
from nanoloop.errors import SettingsError
from nanoloop.events import Announce, silent
from nanoloop.models.naming import file_of
from nanoloop.parts.storage import make_attachments
from nanoloop.protocols import Provider
from nanoloop.providers import plugins
from nanoloop.providers.models import Models
from nanoloop.providers.vendors import VENDORS
from nanoloop.settings import Settings
from nanoloop.settings.local import call_timeout_seconds, context_tokens
from nanoloop.settings.problems import Refused
from nanoloop.settings.vendors import (
    Server,
    models_of,
    no_model,
    own_of,
    server_of,
    unaskable,
)


def make_provider(settings: Settings, announce: Announce = silent) -> Models:
    """The provider of all models that these settings name.

    Raises `SettingsError` where one of them can't be asked: before anything is said to it.
    """
    check_models(settings)
    models = make_models(settings, announce)
    problems = []
    for key, model in models_of(settings):
        try:
            models.provider_of(model)
        except SettingsError as error:
            problems.append(no_model(settings, key, model, str(error)))
    if problems:
        raise Refused(problems)
    return models


def check_models(settings: Settings) -> None:
    """Raise `SettingsError` where a model is named that lacks a key or an address."""
    if problems := unaskable(settings):
        raise Refused(problems)


def make_models(settings: Settings, announce: Announce = silent) -> Models:
    """The same, each made when it is first asked, and not before."""
    return Models(settings.model, partial(_made, settings, announce))


def with_pictures(settings: Settings, provider: Provider, announce: Announce) -> Provider:
    """The provider, shown the images that came in chats, wherever a chat goes on."""
    return Pictures(provider, make_attachments(settings), announce=announce)


def _made(settings: Settings, announce: Announce, word: str, model: str) -> Provider:
    if word == "local":
        return _local(settings, announce, model)
    if word and word not in VENDORS:
        return plugins.load(word).make(own_of(settings, word), model)
    server = server_of(settings, word)
    if word and server.lacks:
        raise SettingsError(server.lacks)
    if server.vendor.speaks == "anthropic":
        from nanoloop.providers.anthropic import (  # noqa: PLC0415 - if it is used
            NOT_KNOWN,
            AnthropicProvider,
        )

        asked = _asked(settings, server, model)
        general = {k: v for k, v in settings.provider.options.items() if k not in NOT_KNOWN}
        asked["options"] = {**general, **own_of(settings, word).options}
        return AnthropicProvider(**asked)
    from nanoloop.providers.openai import OpenAIProvider  # noqa: PLC0415 - if it is used

    return OpenAIProvider(
        quirks=server.vendor.quirks,
        key_name=server.key_name,
        **_asked(settings, server, model),
    )


def _asked(settings: Settings, server: Server, model: str) -> dict[str, Any]:
    """How a server is asked, whoever's it is."""
    return {
        "model": model,
        "api_key": server.key,
        "base_url": server.url,
        "connect_timeout_seconds": settings.provider.connect_timeout_seconds,
        "first_token_timeout_seconds": settings.provider.first_token_timeout_seconds,
        "call_timeout_seconds": settings.provider.call_timeout_seconds,
        "max_retries": settings.provider.max_retries,
        "options": server.options,
    }


def _local(settings: Settings, announce: Announce, model: str) -> Provider:
    from nanoloop.providers.local.provider import LocalProvider  # noqa: PLC0415 - an extra

    return LocalProvider(
        file_of(model, settings.models),
        model=model,
        context_tokens=context_tokens(settings, model),
        answer_tokens=settings.local.answer_tokens,
        parallel=settings.local.parallel,
        threads=settings.local.threads,
        options=settings.provider.options,
        call_timeout_seconds=call_timeout_seconds(settings),
        announce=announce,
    )
