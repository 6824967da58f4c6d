"""Images of ours for a model: kept by reference, sent as data, left out where it takes none."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nanoloop.channels.attachments import SCHEME, Attachments
from nanoloop.errors import (
    ContextTooLong,
    NoConnection,
    OverQuota,
    ProviderError,
    ProviderTimeout,
    WrongKey,
)
from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolSpec, vendor_of

WithOptions = Callable[[Mapping[str, Any]], Provider]
UNSEEN = {"type": "text", "text": "[an image that can't be shown]"}
_NOT_ITS_FAULT = (ContextTooLong, NoConnection, OverQuota, ProviderTimeout, WrongKey)


class Pictures:
    """A provider that shows its model the images that came in chats."""

    def __init__(self, provider: Provider, attachments: Attachments) -> None:
        self._provider = provider
        self._attachments = attachments
        self._blind: set[str | None] = set()
        """Models that take no images."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer as the provider does; raises as it does."""
        ask = _Asking(self._provider, tools=tools, model=model, on_text=on_text)
        if not any(_has_ours(message) for message in messages):
            return await ask(messages)
        if model not in self._blind:
            try:
                return await ask([await self._shown(message) for message in messages])
            except _NOT_ITS_FAULT:
                raise
            except ProviderError:
                if ask.was_heard:
                    raise
        reply = await ask([_named(message) for message in messages])
        self._blind.add(model)  # it answers without them, and did not with them
        return reply

    def in_background(self) -> Provider:
        """The provider as work is done that can wait, where it tells the two apart."""
        apart = getattr(self._provider, "in_background", None)
        return self if apart is None else Pictures(apart(), self._attachments)

    @property
    def with_options(self) -> WithOptions | None:
        """Makes one whose requests have these options too; None where they can't be had."""
        apart: WithOptions | None = getattr(self._provider, "with_options", None)
        return None if apart is None else lambda options: self._around(apart(options))

    def _around(self, provider: Provider) -> Pictures:
        other = Pictures(provider, self._attachments)
        other._blind = self._blind  # what one learns, the other knows
        return other

    def vendor_of(self, model: str | None) -> str:
        """Whose reasoning the provider takes back for that model."""
        return vendor_of(self._provider, model)

    async def close(self) -> None:
        """Let go of the provider's connections."""
        await self._provider.close()

    async def _shown(self, message: ChatMessage) -> ChatMessage:
        """The message with our images as data."""
        if not _has_ours(message):
            return message
        parts = [
            await self._as_data(part) if _is_ours(part) else part for part in message["content"]
        ]
        return {**message, "content": parts}

    async def _as_data(self, part: Mapping[str, Any]) -> Mapping[str, Any]:
        attachment_id = part["image_url"]["url"].removeprefix(SCHEME)
        kept = await self._attachments.about(attachment_id)
        data = await self._attachments.data(attachment_id)
        if kept is None or data is None:
            return UNSEEN
        url = f"data:{kept.mime_type};base64,{base64.b64encode(data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}


class _Asking:
    """One question to the provider, asked once or twice."""

    def __init__(self, provider: Provider, *, on_text: OnText | None, **about: Any) -> None:
        self._provider = provider
        self._on_text = on_text
        self._about = about
        self.was_heard = False

    async def __call__(self, messages: Sequence[ChatMessage]) -> Reply:
        """Ask with these messages."""
        listening: dict[str, Any] = {} if self._on_text is None else {"on_text": self._hear}
        return await self._provider.chat(messages=messages, **self._about, **listening)

    def _hear(self, piece: str) -> None:
        self.was_heard = True
        if self._on_text is not None:
            self._on_text(piece)


def _has_ours(message: ChatMessage) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(_is_ours(part) for part in content)


def _is_ours(part: Any) -> bool:
    if not isinstance(part, Mapping) or part.get("type") != "image_url":
        return False
    url = (part.get("image_url") or {}).get("url")
    return isinstance(url, str) and url.startswith(SCHEME)


def _named(message: ChatMessage) -> ChatMessage:
    """The message with a word in the place of each image of ours."""
    if not _has_ours(message):
        return message
    parts = [UNSEEN if _is_ours(part) else part for part in message["content"]]
    return {**message, "content": parts}
