"""Keeping the memo: what a model is asked, and what of its answer counts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nanoloop.session.attachments import attachment_summaries, without_payloads
from nanoloop.session.entry import copied
from nanoloop.session.handler import Handler, called
from nanoloop.session.options import Options
from nanoloop.session.schema import Schema, fits

if TYPE_CHECKING:
    from nanoloop.protocols import Provider

LAST_RESIZE = "last_resize"
"""The key of a memo that no model sees."""
RESULT_LIMIT = 2000
"""Characters of a tool's result that a memo is made from."""
_FENCE = re.compile(r"^```\w*\s*\n(.*?)\n?```\s*$", re.DOTALL)


def visible(memo: Any) -> Any:
    """A copy of the memo as a model may see it."""
    if isinstance(memo, Mapping):
        return {key: copied(value) for key, value in memo.items() if key != LAST_RESIZE}
    return copied(memo)


def memo_request(
    memo: Any,
    messages: Sequence[Mapping[str, Any]],
    attachments: Sequence[Any],
    options: Options,
) -> list[dict[str, Any]]:
    """What the model is asked: the instructions, then memo, messages and attachments as JSON."""
    given = {
        "current_memo": visible(memo),
        "messages": [_serialised(message) for message in messages],
        "attachments": list(attachments),
    }
    text = json.dumps(given, ensure_ascii=False, default=str)
    return [
        {"role": "system", "content": options.instruct},
        {"role": "user", "content": text},
    ]


def _serialised(message: Mapping[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.get("role"), "content": _text(message)}
    if calls := message.get("tool_calls"):
        said["tool_calls"] = [_call(call) for call in calls]
    return said


def _text(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, Mapping):
        content = content.get("content")
    text = without_payloads(content)
    if message.get("role") == "tool" and isinstance(text, str) and len(text) > RESULT_LIMIT:
        return text[:RESULT_LIMIT] + "…"
    return text


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {"name": function.get("name"), "arguments": function.get("arguments")}


async def memo_from_model(
    provider: Provider, messages: Sequence[dict[str, Any]], model: str | None = None
) -> dict[str, Any] | None:
    """The memo in a model's answer, or None where it is no object; raises `ProviderError`."""
    reply = await provider.chat(messages=messages, tools=None, model=model)
    return unwrapped(_object_in(reply.text))


def unwrapped(said: Any) -> dict[str, Any] | None:
    """What stands under `memo`, if it is a dict; else the dict itself; else None."""
    if not isinstance(said, Mapping):
        return None
    inner = said.get("memo")
    return dict(inner) if isinstance(inner, Mapping) else dict(said)


def _object_in(text: str) -> Any:
    """The JSON value in a text, with or without a code fence and words around it."""
    fenced = _FENCE.match(text.strip())
    whole = fenced[1] if fenced else text.strip()
    for candidate in (whole, whole[whole.find("{") : whole.rfind("}") + 1]):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None


class MemoKeeper:
    """Brings a memo up to date: by a handler of the user's, else by a model."""

    def __init__(
        self,
        *,
        provider: Provider | None = None,
        handler: Handler | None = None,
        attachments: Handler | None = None,
        schema: Schema | None = None,
    ) -> None:
        self.provider = provider
        self.handler = handler
        """Gets memo, messages, attachments and settings; its dict is the new memo."""
        self.attachments = attachments
        """Gets one message; returns the summaries of what came with it."""
        self.schema = schema
        """What a new memo must fit; one that doesn't is not taken."""

    @property
    def is_able(self) -> bool:
        """Whether there is anyone to ask."""
        return self.handler is not None or self.provider is not None

    async def updated(self, memo: Any, messages: Sequence[dict[str, Any]], options: Options) -> Any:
        """The memo with these messages taken in; the same one where nothing usable came back."""
        if not (options.memo_enabled and isinstance(memo, dict) and messages and self.is_able):
            return memo
        attachments = [about for message in messages for about in await self._summaries(message)]
        said = await self._asked(memo, messages, attachments, options)
        return said if isinstance(said, dict) and fits(said, self.schema) else memo

    async def _summaries(self, message: dict[str, Any]) -> list[Any]:
        if self.attachments is None:
            return list(attachment_summaries(message))
        said = await called(self.attachments, message)
        if said is None:
            return []
        return list(said) if isinstance(said, (list, tuple)) else [said]

    async def _asked(
        self,
        memo: Any,
        messages: Sequence[dict[str, Any]],
        attachments: list[Any],
        options: Options,
    ) -> Any:
        if self.handler is not None:
            given = (visible(memo), copied(messages), attachments, options)
            return copied(await called(self.handler, *given))
        if self.provider is None:
            return None
        request = memo_request(memo, messages, attachments, options)
        return await memo_from_model(self.provider, request, options.get("session.memo.model"))
