"""Combines all models in one provider, which calls the vendor of each model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from copy import copy
from typing import TYPE_CHECKING, Any, cast

from nanoloop.errors import ProviderError, SettingsError
from nanoloop.protocols import (
    ChatMessage,
    OnText,
    Provider,
    Reply,
    ToolSpec,
    in_background,
    vendor_of,
)
from nanoloop.providers.vendors import VENDORS, split

if TYPE_CHECKING:  # an extra
    from nanoloop.providers.local.provider import LocalProvider

Make = Callable[[str, str], Provider]
"""Makes a provider from the vendor's word ("" for none) and the name of its first model."""
Around = Callable[[Provider], Provider]
WithOptions = Callable[[Mapping[str, Any]], Provider]

UNSEEN = {"type": "text", "text": "[an image that can't be shown]"}


class Models:
    """A provider for models from many vendors; each vendor's provider is created on first use."""

    def __init__(self, model: str, make: Make) -> None:
        """Create the provider; `model` is used for calls that name none.

        `make` may raise `SettingsError`.
        """
        self._model = model
        self._make = make
        self._arounds: tuple[Around, ...] = ()
        self._shelf = _LocalModels()

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer with the vendor's provider; raises only `ProviderError`."""
        word, name = split(model or self._model)
        if word in VENDORS and not VENDORS[word].quirks.sees_images:
            messages = [_without_images(message) for message in messages]
        provider = self._asked(model or self._model)
        return await provider.chat(messages=messages, tools=tools, model=name, on_text=on_text)

    def provider_of(self, model: str) -> Provider:
        """Return the provider for this model; raises `SettingsError` if it can't be created."""
        word, name = split(model)
        # A plugin or model file provides one model, but a server provides many.
        key = word if word in VENDORS and word != "local" else model
        return self._shelf.get(key if word else "", lambda: self._make(word, name))

    def vendor_of(self, model: str | None) -> str:
        """Return the vendor whose reasoning this model accepts, or "" if there is no provider."""
        try:
            return vendor_of(self.provider_of(model or self._model), model)
        except (ProviderError, SettingsError):  # the call itself reports the error
            return ""

    @property
    def with_options(self) -> WithOptions | None:
        """Return a copy with more request options; None if the default model supports none."""
        usual = getattr(self.provider_of(self._model), "with_options", None)
        return None if usual is None else lambda options: self._around(_optioned(options))

    def in_background(self) -> Models:
        """Return the same models for work that can wait, if their providers make a difference."""
        return self._around(in_background)

    async def load(self) -> None:
        """Load what the existing providers need; a failing provider reports its error when called.

        A local default model is loaded too, so that the first question need not wait.
        """
        for provider in self._shelf.made:
            if (load := getattr(provider, "load", None)) is not None:
                with suppress(Exception):  # a plugin may raise anything
                    await load()
        if split(self._model)[0] == "local":
            with suppress(Exception):  # as above: the first call reports it
                await cast("LocalProvider", self.provider_of(self._model)).ready()

    def load_ahead(self) -> None:
        """If the default model is local, start loading it for `Models` created later."""
        if split(self._model)[0] == "local":
            cast("LocalProvider", self.provider_of(self._model)).load_ahead()

    async def close(self) -> None:
        """Close all providers created so far; safe to call twice."""
        await self._shelf.close()

    def _around(self, around: Around) -> Models:
        other = copy(self)
        other._arounds = (*self._arounds, around)  # noqa: SLF001 - its own
        return other

    def _asked(self, model: str) -> Provider:
        try:
            provider = self.provider_of(model)
        except SettingsError as error:
            raise ProviderError(str(error)) from error
        for around in self._arounds:
            provider = around(provider)
        return provider


class _LocalModels:
    """The providers created so far; several threads may use this at once."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._made: dict[str, Provider] = {}
        self._is_closed = False

    def get(self, key: str, make: Callable[[], Provider]) -> Provider:
        with self._guard:
            if self._is_closed:
                raise ProviderError("this provider is closed: create a new one")
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]

    @property
    def made(self) -> list[Provider]:
        with self._guard:
            return list(self._made.values())

    async def close(self) -> None:
        self._is_closed = True
        with self._guard:
            made, self._made = self._made, {}
        async with AsyncExitStack() as stack:  # closes all, even if one fails
            for provider in made.values():
                stack.push_async_callback(provider.close)


def _optioned(options: Mapping[str, Any]) -> Around:
    def around(provider: Provider) -> Provider:
        fitted: WithOptions | None = getattr(provider, "with_options", None)
        return provider if fitted is None else fitted(options)

    return around


def _without_images(message: ChatMessage) -> ChatMessage:
    """Replace the images in a message for a model that does not accept them."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    parts = [UNSEEN if _is_image(part) else part for part in content]
    return {**message, "content": joined(parts)}


def joined(parts: list[Any]) -> Any:
    """Join the parts if all of them are text, as servers of text-only models require."""
    if all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        return "\n\n".join(str(part["text"]) for part in parts)
    return parts


def _is_image(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image_url"
