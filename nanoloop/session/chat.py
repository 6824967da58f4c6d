"""Entries to chat messages and back.

A message that came in as OpenAI `tool_calls` or as `tool_use` blocks becomes one entry per thing
said, called or returned; going back, entries that came as one message are one message again, in
the form they came in.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from nanoloop.session.entry import (
    MESSAGE,
    THINKING,
    TOOL_CALL,
    TOOL_RESULT,
    Entry,
    copied,
    plain_text,
)
from nanoloop.session.pairs import call_id_of, results_by_call

REASONING = "reasoning"
"""The key of a thought's metadata, and of a message for the same vendor, that holds `vendor` and
`blocks`: what that vendor wants back with the results of a step."""
_FORM = "form"
"""The metadata key that says a message came as blocks."""
_BLOCKS = "blocks"
_EXTRA = "extra"
"""The metadata key for keys of a message that have no place in an entry."""
_APART = "apart"
"""The metadata key of a call that begins a message though the assistant spoke just before it."""
_RAW = "arguments"
"""The metadata key for arguments as the model wrote them, where JSON would write them otherwise."""
MOST_PARTS = 10_000
"""Lists and objects in all; more take long to make, and hold up every chat."""
MOST_DEEP = 50
"""Lists and objects in each other; with more, what walks through them may not come back."""
_IN_CHAT = {MESSAGE, TOOL_CALL, TOOL_RESULT}
_KNOWN_KEYS = {"role", "content", "tool_calls", "tool_call_id"}


def entries_of(message: Mapping[str, Any]) -> list[Entry]:
    """The entries that a chat message stands for; at least one."""
    if not isinstance(message, Mapping):
        raise TypeError(
            f"a message is a mapping with role and content, not {type(message).__name__}"
        )
    role = str(message.get("role") or "user")
    if role == "tool":
        return [_result_entry(message)]
    content, blocks = _without_tool_use(message.get("content"))
    calls = [_call_entry(call) for call in message.get("tool_calls") or ()]
    calls += [_block_call_entry(block) for block in blocks]
    if calls and not plain_text(content) and not isinstance(content, list):
        return _with_extra(calls, message)
    metadata = {_FORM: _BLOCKS} if blocks else None
    return _with_extra([Entry.message(role, content, metadata=metadata), *calls], message)


def _without_tool_use(content: Any) -> tuple[Any, list[Mapping[str, Any]]]:
    if not isinstance(content, list):
        return content, []
    used = [part for part in content if _type_of(part) == "tool_use"]
    if not used:
        return content, []
    return [part for part in content if _type_of(part) != "tool_use"] or None, used


def _type_of(part: Any) -> Any:
    return part.get("type") if isinstance(part, Mapping) else None


def _with_extra(entries: list[Entry], message: Mapping[str, Any]) -> list[Entry]:
    extra = {key: copied(value) for key, value in message.items() if key not in _KNOWN_KEYS}
    if entries[0].type == TOOL_CALL and message.get("content") == "":
        extra["content"] = ""  # nothing said is written in two ways
    if extra:
        first = entries[0]
        entries[0] = _marked(first, **{_EXTRA: extra})
    return entries


def _marked(entry: Entry, **marks: Any) -> Entry:
    return replace(entry, metadata={**entry.metadata, **marks})


def begins_apart(entries: list[Entry], newest: Entry | None) -> list[Entry]:
    """Entries of one message, marked where they would seem to go on with the newest entry's."""
    goes_on = newest is not None and (newest.type == TOOL_CALL or newest.role == "assistant")
    if goes_on and entries[0].type == TOOL_CALL:
        return [_marked(entries[0], **{_APART: True}), *entries[1:]]
    return entries


def _call_entry(call: Mapping[str, Any]) -> Entry:
    function = call.get("function") or {}
    raw = function.get("arguments")
    parameters = decoded(raw)
    is_plain = not isinstance(raw, str) or raw in (parameters, _json(parameters))
    return Entry.tool_call(
        str(function.get("name") or ""),
        parameters,
        call_id=call.get("id"),
        metadata=None if is_plain else {_RAW: raw},
    )


def _block_call_entry(block: Mapping[str, Any]) -> Entry:
    return Entry.tool_call(
        str(block.get("name") or ""),
        block.get("input"),
        call_id=block.get("id"),
        metadata={_FORM: _BLOCKS},
    )


def decoded(arguments: Any) -> Any:
    """Arguments as the value their JSON means; text that is no JSON stays text."""
    if not isinstance(arguments, str):
        return arguments
    if arguments.count("[") + arguments.count("{") > MOST_PARTS:
        return arguments
    try:
        value = json.loads(arguments or "{}", parse_constant=_no_number, parse_float=_finite)
    except (ValueError, RecursionError):
        return arguments
    return arguments if _is_deep(value) else value


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that JSON has")


def _finite(text: str) -> float:
    return float(text) if math.isfinite(float(text)) else _no_number(text)


def _is_deep(value: Any) -> bool:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(MOST_DEEP):
        insides = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for inside in insides for part in inside if isinstance(part, (dict, list))]
    return bool(level)


def _result_entry(message: Mapping[str, Any]) -> Entry:
    content = message.get("content")
    name = str(message.get("name") or "")
    if isinstance(content, Mapping) and content.get("type") == "tool_result":
        return tool_result_of_block(content, name)
    result = Entry.tool_result(name, content, call_id=message.get("tool_call_id"))
    return _with_extra([result], message)[0]


def tool_result_of_block(block: Mapping[str, Any], tool: str = "") -> Entry:
    """The entry for a `tool_result` block."""
    return Entry.tool_result(
        tool,
        block.get("content"),
        call_id=block.get("tool_use_id"),
        metadata={_FORM: _BLOCKS},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The entries that came as one chat message; thoughts ride with the message after them."""

    message: dict[str, Any] | None
    """None for thoughts and unknown types at the end, which no message follows."""
    entries: Sequence[Entry]


def messages_of(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """The chat messages that these entries came as; thoughts and unknown types are left out."""
    return [span.message for span in spans_of(entries) if span.message is not None]


def spans_of(entries: Sequence[Entry]) -> list[Span]:
    """All entries, parted by the chat message they came as."""
    spans: list[Span] = []
    first = 0
    message: dict[str, Any] | None = None
    for index, entry in enumerate(entries):
        if entry.type not in _IN_CHAT:
            continue
        if message is not None and not _joins(entry, message):
            end = _behind_last(entries, first, index)
            spans.append(Span(message=message, entries=entries[first:end]))
            first, message = end, None
        message = _grown(message, entry)
    if message is not None:
        end = _behind_last(entries, first, len(entries))
        spans.append(Span(message=message, entries=entries[first:end]))
        first = end
    if first < len(entries):
        spans.append(Span(message=None, entries=entries[first:]))
    return spans


def _joins(entry: Entry, message: Mapping[str, Any]) -> bool:
    """Whether this entry is a call of that assistant's message."""
    alone = entry.metadata.get(_APART)
    return entry.type == TOOL_CALL and message["role"] == "assistant" and not alone


def _behind_last(entries: Sequence[Entry], first: int, end: int) -> int:
    """Behind the last entry before `end` that is in a chat message."""
    while end > first and entries[end - 1].type not in _IN_CHAT:
        end -= 1
    return end


def _grown(message: dict[str, Any] | None, entry: Entry) -> dict[str, Any]:
    """The message that this entry begins, or that it is one more call of."""
    if entry.type == MESSAGE:
        return _message(entry)
    if entry.type == TOOL_RESULT:
        return _tool_message(entry)
    message = {"role": "assistant", "content": None} if message is None else message
    _add_call(message, entry)
    return message


def _message(entry: Entry) -> dict[str, Any]:
    content = entry.content
    said = copied(content["parts"]) if "parts" in content else content.get("text", "")
    return {"role": content.get("role", "user"), "content": said, **_extra(entry)}


def _extra(entry: Entry) -> dict[str, Any]:
    extra = entry.metadata.get(_EXTRA)
    return dict(copied(extra)) if extra else {}


def _add_call(message: dict[str, Any], call: Entry) -> None:
    message.update(_extra(call))
    if call.metadata.get(_FORM) == _BLOCKS:
        message["content"] = [*_as_parts(message["content"]), _tool_use_block(call)]
    else:
        said = openai_call(call)
        said["function"]["arguments"] = call.metadata.get(_RAW, said["function"]["arguments"])
        message.setdefault("tool_calls", []).append(said)


def _as_parts(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if content else []


def _tool_use_block(call: Entry) -> dict[str, Any]:
    return {
        "type": "tool_use",
        "id": call_id_of(call),
        "name": call.content.get("tool", ""),
        "input": copied(call.content.get("parameters")),
    }


def openai_call(call: Entry) -> dict[str, Any]:
    """A call entry as one item of an assistant message's `tool_calls`."""
    parameters = call.content.get("parameters")
    arguments = parameters if isinstance(parameters, str) else _json(parameters)
    return {
        "id": call_id_of(call),
        "type": "function",
        "function": {"name": call.content.get("tool", ""), "arguments": arguments},
    }


def _tool_message(result: Entry) -> dict[str, Any]:
    if result.metadata.get(_FORM) == _BLOCKS:
        block = {
            "type": "tool_result",
            "tool_use_id": result.call_id,
            "content": copied(result.content.get("result")),
        }
        return {"role": "tool", "content": block}
    said: dict[str, Any] = {"role": "tool", "content": result_text(result), **_extra(result)}
    if result.call_id is not None:
        said["tool_call_id"] = result.call_id
    return said


def result_text(result: Entry) -> str:
    """What a model is told of a tool's result: its text, or its error."""
    content = result.content
    if not content.get("success", True):
        return f"Error: {content.get('error') or 'the tool failed'}"
    value = content.get("result")
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def model_messages(entries: Sequence[Entry], *, vendor: str = "") -> list[dict[str, Any]]:
    """The same in the one form every model server takes: each call followed by its result.

    A call without a result and a result without a call are left out. What a model of that vendor
    thought before its calls goes along, in the vendor's own form.
    """
    pairs = results_by_call(entries)
    messages: list[dict[str, Any]] = []
    index = 0
    while index < len(entries):
        entry = entries[index]
        if entry.type == MESSAGE:
            messages.append(_plain_message(entry))
        if entry.type == TOOL_CALL or (entry.role == "assistant" and _calls(entries, index + 1)):
            thought = _reasoning_before(entries, index, vendor)
            index = _add_exchange(messages, entries, index, pairs, thought)
        else:
            index += 1
    return messages


def _calls(entries: Sequence[Entry], index: int) -> bool:
    return index < len(entries) and entries[index].type == TOOL_CALL


def _plain_message(entry: Entry) -> dict[str, Any]:
    content = entry.content
    if not entry.metadata and "parts" not in content:  # as nearly all of them
        return {"role": content.get("role", "user"), "content": content.get("text", "")}
    message = _message(entry)
    if "name" not in message and set(message) == {"role", "content"}:
        return message
    return {key: message[key] for key in ("role", "content", "name") if key in message}


def _reasoning_before(entries: Sequence[Entry], index: int, vendor: str) -> dict[str, Any]:
    """The key for what was thought right before this entry, where that vendor wants it back."""
    if not vendor or index == 0 or entries[index - 1].type != THINKING:
        return {}
    own = entries[index - 1].metadata.get(REASONING)
    is_theirs = isinstance(own, Mapping) and own.get("vendor") == vendor
    return {REASONING: own} if is_theirs else {}


def _add_exchange(
    messages: list[dict[str, Any]],
    entries: Sequence[Entry],
    index: int,
    pairs: dict[int, int],
    thought: Mapping[str, Any],
) -> int:
    """Add the calls that follow an assistant's words, and their results; return what is next."""
    after = index + (entries[index].type == MESSAGE)
    calls = []
    while after < len(entries) and entries[after].type == TOOL_CALL:
        calls.append(after)
        after += 1
    answered = [call for call in calls if call in pairs]
    if answered:
        if entries[index].type == TOOL_CALL:
            messages.append({"role": "assistant", "content": None})
        messages[-1]["tool_calls"] = [openai_call(entries[call]) for call in answered]
        messages[-1].update(thought)
        for call in answered:
            said = result_text(entries[pairs[call]])
            call_id = call_id_of(entries[call])
            messages.append({"role": "tool", "tool_call_id": call_id, "content": said})
    return after
