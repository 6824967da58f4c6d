"""Send the images in chats to models that accept images."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from nanoloop.addresses import check_address
from nanoloop.attachments import Attachments
from nanoloop.bounded import BoundedDict
from nanoloop.errors import AddressRefused, BadImage, ImagesRefused
from nanoloop.events import PictureLeftOut, announce
from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolSpec, vendor_of
from nanoloop.providers.models import UNSEEN, WithOptions, joined
from nanoloop.session.entry import SCHEME
from nanoloop.tools.toolbox import here

UNREAD = {"type": "text", "text": "[an image that could not be read]"}
NOT_FETCHED = {"type": "text", "text": "[an image at an address that may not be fetched]"}
RETRY_SECONDS = 3600.0
"""How long a model's refusal of images is remembered, since servers change their models."""
REMEMBERED = 5000
"""How many pictures are remembered as readable or unreadable."""


class Pictures:
    """A provider that sends the images in chats to its model."""

    def __init__(
        self,
        provider: Provider,
        attachments: Attachments,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._provider = provider
        self._attachments = attachments
        self._known = _Known(clock)

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer like the wrapped provider, and raise the same errors."""
        ask = _Asking(self._provider, tools=tools, model=model, on_text=on_text)
        messages = list(map(_without_private, messages))
        ours = list(dict.fromkeys(_ids_in(messages)))
        if not ours:
            return await ask(messages)
        shown = self._known.to_be_shown(model, ours)
        left_out: Sequence[str] = ()
        while True:
            try:
                reply = await ask(await self._shown(messages, shown, model, left_out))
            except (BadImage, ImagesRefused) as refused:
                if ask.was_heard or not shown:
                    raise
                if isinstance(refused, ImagesRefused) and self._is_of_all(model, refused, shown):
                    shown = self._fewer(model, shown, refused.most)
                else:
                    left_out = self._known.suspects(model, shown)
                    shown = [picture for picture in shown if picture not in left_out]
            else:
                self._learn(model, shown, left_out)
                return reply

    def in_background(self) -> Provider:
        """Return the variant of the provider for work that can wait, or this one."""
        apart = getattr(self._provider, "in_background", None)
        return self if apart is None else self._around(apart())

    @property
    def with_options(self) -> WithOptions | None:
        """Return a provider whose requests include more options; None if that is impossible."""
        apart: WithOptions | None = getattr(self._provider, "with_options", None)
        return None if apart is None else lambda options: self._around(apart(options))

    def _around(self, provider: Provider) -> Pictures:
        other = Pictures(provider, self._attachments)
        other._known = self._known  # shared, so that both learn
        return other

    def vendor_of(self, model: str | None) -> str:
        """Return the vendor that gets the model's reasoning back."""
        return vendor_of(self._provider, model)

    async def close(self) -> None:
        """Close the provider's connections."""
        await self._provider.close()

    def _is_of_all(self, model: str | None, refused: ImagesRefused, shown: Sequence[str]) -> bool:
        """Return True if the model refused the number of pictures, rather than one of them.

        If the model has just accepted as many, the cause is one picture; the others stay visible.
        """
        most = self._known.seen_at_once(model)
        return len(shown) > most if refused.most is None else bool(refused.most or not most)

    def _fewer(self, model: str | None, shown: Sequence[str], most: int | None) -> list[str]:
        """Return as many of the newest pictures as the model accepts."""
        most = max(len(shown) // 2, self._known.seen_at_once(model)) if most is None else most
        self._known.takes(model, most)
        kept = min(most, len(shown) - 1)
        self._tell(model, "refused", len(shown) - kept)
        return list(shown[len(shown) - kept :])

    def _learn(self, model: str | None, shown: Sequence[str], left_out: Sequence[str]) -> None:
        """Remember that the pictures shown are readable, and that a single omitted one isn't."""
        self._known.read(model, shown)
        if len(left_out) == 1:
            self._known.unreadable(model, left_out[0])
            self._tell(model, "unreadable", 1)

    def _tell(self, model: str | None, reason: Any, count: int) -> None:
        announce(PictureLeftOut(model=model or "", reason=reason, count=count))

    async def _shown(
        self,
        messages: Sequence[ChatMessage],
        shown: Collection[str],
        model: str | None,
        left_out: Collection[str],
    ) -> list[ChatMessage]:
        """Return the messages with the `shown` pictures as data and a note for the others."""

        async def part_of(part: Any) -> Any:
            picture = _id_of(part)
            if picture is None:
                return part
            if picture in shown:
                return await self._as_data(picture)
            return UNREAD if self._known.is_bad(model, picture) or picture in left_out else UNSEEN

        return [
            {**message, "content": joined([await part_of(part) for part in message["content"]])}
            if any(_ids_in([message]))
            else message
            for message in messages
        ]

    async def _as_data(self, attachment_id: str) -> Mapping[str, Any]:
        # A message may contain any id, so only pictures sent to this session are shown.
        session = here.get(None)
        if session is None:
            return UNSEEN
        kept = await self._attachments.held(session.id, attachment_id)
        data = None if kept is None else await self._attachments.data(attachment_id)
        if kept is None or data is None:
            return UNSEEN
        url = f"data:{kept.mime_type};base64,{base64.b64encode(data).decode()}"
        return {"type": "image_url", "image_url": {"url": url}}


class _Known:
    """What was learnt about models: how many pictures each accepts, and which it could read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._most: dict[str | None, tuple[int, float]] = {}
        """How many pictures each model accepts at a time, and until when this is assumed."""
        self._seen: dict[str | None, tuple[int, float, float]] = {}
        """The most pictures in an answered request, its time, and that of the latest such one."""
        self._is_readable: BoundedDict[tuple[str | None, str], bool] = BoundedDict(REMEMBERED)

    def to_be_shown(self, model: str | None, pictures: Sequence[str]) -> list[str]:
        """Return the newest pictures that the model accepts, skipping unreadable ones."""
        readable = [picture for picture in pictures if not self.is_bad(model, picture)]
        most, until = self._most.get(model, (None, 0.0))
        if most is None or len(readable) <= most:
            return readable
        if self._clock() >= until:
            self.takes(model, most)  # other requests wait for this one's result
            return readable
        return readable[len(readable) - most :]

    def takes(self, model: str | None, most: int) -> None:
        """Record how many pictures the model accepts at a time."""
        self._most[model] = (most, self._clock() + RETRY_SECONDS)

    def suspects(self, model: str | None, shown: Sequence[str]) -> Sequence[str]:
        """Return the newer half of the pictures not known to be readable, or else of all."""
        new = [one for one in shown if (model, one) not in self._is_readable] or shown
        return new[len(new) // 2 :]

    def seen_at_once(self, model: str | None) -> int:
        """Return the most pictures that the model has recently accepted at once."""
        count, at, last = self._seen.get(model, (0, 0.0, 0.0))
        now = self._clock()
        if count == 0 or now - last >= RETRY_SECONDS:
            return 0
        return count if now - at < RETRY_SECONDS else 1

    def is_bad(self, model: str | None, picture: str) -> bool:
        """Return True if the model could not read the picture."""
        return self._is_readable.get((model, picture)) is False

    def read(self, model: str | None, pictures: Sequence[str]) -> None:
        """Record that the model answered a request with these pictures."""
        if len(pictures) > self._most.get(model, (len(pictures), 0))[0]:
            del self._most[model]
        if pictures:
            now, most = self._clock(), self.seen_at_once(model)
            is_more = len(pictures) >= most
            at = now if is_more else self._seen[model][1]
            self._seen[model] = (max(len(pictures), most), at, now)
        for picture in pictures:
            self._is_readable[model, picture] = True

    def unreadable(self, model: str | None, picture: str) -> None:
        """Record that the model answers without this picture, but not with it."""
        self._is_readable[model, picture] = False


class _Asking:
    """A request to the provider, which may be sent several times."""

    def __init__(
        self,
        provider: Provider,
        *,
        tools: Sequence[ToolSpec] | None,
        model: str | None,
        on_text: OnText | None,
    ) -> None:
        self._provider = provider
        self._on_text = on_text
        self._about: dict[str, Any] = {"tools": tools, "model": model}
        self.was_heard = False

    async def __call__(self, messages: Sequence[ChatMessage]) -> Reply:
        """Send the request with these messages."""
        listening: dict[str, Any] = {} if self._on_text is None else {"on_text": self._hear}
        return await self._provider.chat(messages=messages, **self._about, **listening)

    def _hear(self, piece: str) -> None:
        self.was_heard = True
        if self._on_text is not None:
            self._on_text(piece)


def _ids_in(messages: Sequence[ChatMessage]) -> list[str]:
    """Return the ids of the chat images in these messages, oldest first."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, list) for part in content)
    return [picture for part in parts if (picture := _id_of(part)) is not None]


def _without_private(message: ChatMessage) -> ChatMessage:
    """Return the message without images whose address is on a private network."""
    content = message.get("content")
    if not isinstance(content, list) or all(map(_may_be_shown, content)):
        return message
    parts = [part if _may_be_shown(part) else NOT_FETCHED for part in content]
    return {**message, "content": joined(parts)}


def _may_be_shown(part: Any) -> bool:
    url = _image_url(part)
    if url is None or url.startswith((SCHEME, "data:")):
        return True
    try:
        check_address(url)
    except AddressRefused:
        return False
    return True


def _image_url(part: Any) -> str | None:
    """Return an image's address, or None for any other part."""
    if not isinstance(part, Mapping) or part.get("type") != "image_url":
        return None
    image = part.get("image_url")
    return str(image.get("url") if isinstance(image, Mapping) else image)


def _id_of(part: Any) -> str | None:
    """Return the id of a chat image, or None for any other part."""
    url = _image_url(part)
    return url.removeprefix(SCHEME) if url is not None and url.startswith(SCHEME) else None
