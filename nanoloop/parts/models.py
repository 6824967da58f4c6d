"""The model that the settings name, hosted or on this machine."""

from __future__ import annotations

from nanoloop.channels.pictures import Pictures
from nanoloop.events import Announce, silent
from nanoloop.models.naming import file_of, is_local
from nanoloop.parts.storage import make_attachments
from nanoloop.protocols import Provider
from nanoloop.settings import Settings
from nanoloop.settings.local import context_tokens


def make_provider(settings: Settings, announce: Announce = silent) -> Provider:
    """The provider that these settings name."""
    if is_local(settings.model):
        return make_local_provider(settings, announce)
    from nanoloop.providers.openai import OpenAIProvider  # noqa: PLC0415 - with an HTTP client

    key = settings.api_key
    return OpenAIProvider(
        model=settings.model,
        api_key=key.get_secret_value() if key else None,
        base_url=settings.base_url,
        connect_timeout_seconds=settings.provider.connect_timeout_seconds,
        first_token_timeout_seconds=settings.provider.first_token_timeout_seconds,
        call_timeout_seconds=settings.provider.call_timeout_seconds,
        max_retries=settings.provider.max_retries,
        options=settings.provider.options,
    )


def make_local_provider(settings: Settings, announce: Announce) -> Provider:
    """A model file that runs on this machine."""
    from nanoloop.providers.local.provider import LocalProvider  # noqa: PLC0415 - an extra

    return LocalProvider(
        file_of(settings.model, settings.models),
        model=settings.model,
        context_tokens=context_tokens(settings),
        answer_tokens=settings.local.answer_tokens,
        parallel=settings.local.parallel,
        threads=settings.local.threads,
        options=settings.provider.options,
        call_timeout_seconds=settings.provider.call_timeout_seconds,
        announce=announce,
    )


def with_pictures(settings: Settings, provider: Provider) -> Provider:
    """The provider, shown the images that were uploaded to the web, wherever a chat goes on."""
    return Pictures(provider, make_attachments(settings))


def in_background(provider: Provider) -> Provider:
    """The provider as work is done that can wait, where it tells the two apart."""
    apart = getattr(provider, "in_background", None)
    return provider if apart is None else apart()
