"""Keeping the memo: what a model is asked, and what of its answer counts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nanoloop.session.entry import copied
from nanoloop.session.options import Options
from nanoloop.session.sync import Handler, called

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
    said: dict[str, Any] = {"role": message.get("role"), "content": _said_text(message)}
    if calls := message.get("tool_calls"):
        said["tool_calls"] = [_call(call) for call in calls]
    return said


def _said_text(message: Mapping[str, Any]) -> Any:
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


_REFS = ("file", "url", "path", "id", "name")
_FACTS = ("name", "mime_type", "size", "width", "height", "duration")
_TEXT = {"text", "input_text", "output_text", "tool_use", "tool_result"}
REF_LIMIT = 500
"""Characters of a reference that are shown; what is longer is a payload in disguise."""


def attachment_summaries(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Type, reference and known facts of each part of a message that is no text."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [
        {"type": part["type"], "ref": _ref(part), "meta": _facts(part)}
        for part in parts
        if isinstance(part, Mapping) and part.get("type") and part["type"] not in _TEXT
    ]


def _ref(part: Mapping[str, Any]) -> Any:
    """The first reference there is: in the part itself, else in what it wraps."""
    wrapped = [value for value in part.values() if isinstance(value, Mapping)]
    for holder in (part, *wrapped):
        for name in _REFS:
            value = holder.get(name)
            if value and not isinstance(value, (Mapping, list)):
                return _shown_ref(value)
    plain = part.get(str(part["type"]))
    return _shown_ref(plain) if isinstance(plain, str) and plain else None


def _shown_ref(ref: Any) -> Any:
    if not isinstance(ref, str):
        return ref
    if ref.startswith("data:"):
        return ref.partition(",")[0][:REF_LIMIT]
    return ref if len(ref) <= REF_LIMIT else ref[:REF_LIMIT] + "…"


def _facts(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in _FACTS if part.get(name)}


def without_payloads(content: Any) -> Any:
    """A content with its attachments named instead of carried."""
    if not isinstance(content, list):
        return content
    return "\n".join(filter(None, (_in_words(part) for part in content)))


def _in_words(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if part.get("type") == "tool_use":
        return f"[calls {part.get('name', '')}]"
    named: Iterable[dict[str, Any]] = attachment_summaries({"content": [part]})
    return " ".join(f"[{about['type']}]" for about in named)


Schema = Callable[[Any], Any] | Mapping[str, Any]
"""A callable that says no by False or an exception, a pydantic model class, or a JSON schema."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "object": Mapping,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def fits(value: Any, schema: Schema | None) -> bool:
    """Whether the value passes; anything passes where there is no schema."""
    if schema is None:
        return True
    if isinstance(schema, Mapping):
        return _fits_json_schema(value, schema)
    check = getattr(schema, "model_validate", schema)
    try:
        return check(value) is not False
    except (ValueError, TypeError, KeyError, AssertionError):
        return False


def _fits_json_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """By type, enum, required, properties, additionalProperties and items; the rest is ignored."""
    if not _has_type(value, schema.get("type")):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if isinstance(value, Mapping):
        return _fits_object(value, schema)
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        return all(_fits_json_schema(item, items) for item in value)
    return True


def _has_type(value: Any, wanted: Any) -> bool:
    if wanted is None:
        return True
    names = [wanted] if isinstance(wanted, str) else wanted
    if isinstance(value, bool):
        return "boolean" in names
    return any(isinstance(value, _TYPES.get(name, object)) for name in names)


def _fits_object(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    properties = schema.get("properties") or {}
    if any(name not in value for name in schema.get("required") or ()):
        return False
    extra = [name for name in value if name not in properties]
    if extra and schema.get("additionalProperties") is False:
        return False
    known = (name for name in value if name in properties)
    return all(_fits_json_schema(value[name], properties[name]) for name in known)
