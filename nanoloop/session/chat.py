"""Convert entries to chat messages and back, and group the entries that belong together.

A message with OpenAI `tool_calls` or with `tool_use` blocks becomes one entry per text, call or
result. On the way back, these entries become one message again, in its original form.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
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

REASONING = "reasoning"
"""The metadata key for a vendor's reasoning, with the keys `vendor` and `blocks`.

The vendor expects the blocks back with the results of a step.
"""
_FORM = "form"
"""The metadata key that marks a message received as blocks."""
_BLOCKS = "blocks"
_EXTRA = "extra"
"""The metadata key for those keys of a message for which entries have no field."""
_APART = "apart"
"""The metadata key of a call that starts a new message, although the assistant has just spoken."""
_RAW = "arguments"
"""The metadata key for a call's arguments as the model wrote them, if JSON encodes them
differently.
"""
WAITS_FOR = "waits_for"
"""The metadata key of a call that stays open; the value briefly says what the call waits for."""
MOST_PARTS = 10_000
"""The maximum number of lists and objects in one value; more would hold up all chats."""
MOST_DEEP = 50
"""The maximum nesting of lists and objects; deeper nesting may exceed the recursion limit."""
_IN_CHAT = {MESSAGE, TOOL_CALL, TOOL_RESULT}
_KNOWN_KEYS = {"role", "content", "tool_calls", "tool_call_id"}


def entries_of(message: Mapping[str, Any]) -> list[Entry]:
    """Convert a chat message to its entries, at least one."""
    if not isinstance(message, Mapping):
        raise TypeError(
            f"a message must be a mapping with role and content, not {type(message).__name__}"
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
        extra["content"] = ""  # an empty content can be "" or None
    if extra:
        first = entries[0]
        entries[0] = _marked(first, **{_EXTRA: extra})
    return entries


def _marked(entry: Entry, **marks: Any) -> Entry:
    return replace(entry, metadata={**entry.metadata, **marks})


def begins_apart(entries: list[Entry], newest: Entry | None) -> list[Entry]:
    """Return a message's entries, marked if they would seem to continue the newest entry."""
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
    """Decode arguments from JSON; text that is not valid JSON is returned unchanged."""
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
    raise ValueError(f"{text} is not a finite number")


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
    """Convert a `tool_result` block to its entry."""
    return Entry.tool_result(
        tool,
        block.get("content"),
        call_id=block.get("tool_use_id"),
        metadata={_FORM: _BLOCKS},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpan:
    """The entries of one chat message; reasoning belongs to the message that follows it."""

    message: dict[str, Any] | None
    """None if reasoning or unknown entries at the end are not followed by a message."""
    entries: Sequence[Entry]


def messages_of(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the chat messages for these entries, without reasoning and unknown types."""
    return [span.message for span in spans_of(entries) if span.message is not None]


def spans_of(entries: Sequence[Entry]) -> list[MessageSpan]:
    """Group all entries by the chat message to which they belong."""
    spans: list[MessageSpan] = []
    first = 0
    message: dict[str, Any] | None = None
    for index, entry in enumerate(entries):
        if entry.type not in _IN_CHAT:
            continue
        if message is not None and not _joins(entry, message):
            end = _behind_last(entries, first, index)
            spans.append(MessageSpan(message=message, entries=entries[first:end]))
            first, message = end, None
        message = _grown(message, entry)
    if message is not None:
        end = _behind_last(entries, first, len(entries))
        spans.append(MessageSpan(message=message, entries=entries[first:end]))
        first = end
    if first < len(entries):
        spans.append(MessageSpan(message=None, entries=entries[first:]))
    return spans


def _joins(entry: Entry, message: Mapping[str, Any]) -> bool:
    """Return True if this entry is a call that belongs to the assistant's message."""
    alone = entry.metadata.get(_APART)
    return entry.type == TOOL_CALL and message["role"] == "assistant" and not alone


def _behind_last(entries: Sequence[Entry], first: int, end: int) -> int:
    """Return the index after the last entry before `end` that is part of a chat message."""
    while end > first and entries[end - 1].type not in _IN_CHAT:
        end -= 1
    return end


def _grown(message: dict[str, Any] | None, entry: Entry) -> dict[str, Any]:
    """Return the message that this entry starts, or the given message with its call added."""
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
    """Convert a call's entry to an item of an assistant message's `tool_calls`."""
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
    """Return a tool's result or error as text for the model."""
    content = result.content
    if not content.get("success", True):
        return f"Error: {content.get('error') or 'the tool failed'}"
    value = content.get("result")
    return value if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def model_messages(entries: Sequence[Entry], *, vendor: str = "") -> list[dict[str, Any]]:
    """Return messages in the form that every model server accepts, with results right after calls.

    Results are in the order of their message's calls. A placeholder replaces a missing or late
    result, so that messages that the model has already read stay the same. Late results and results
    without a call are left out. Reasoning from before a call is included if a model of this vendor
    wrote it.
    """
    if TOOL_CALL not in [entry.type for entry in entries]:  # the usual case
        return [_plain_message(entry) for entry in entries if entry.type == MESSAGE]
    pairs = results_in_time(entries)
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
    if _EXTRA not in entry.metadata and "parts" not in content:  # the usual case
        return {"role": content.get("role", "user"), "content": content.get("text", "")}
    message = _message(entry)
    return {key: message[key] for key in ("role", "content", "name") if key in message}


def _reasoning_before(entries: Sequence[Entry], index: int, vendor: str) -> dict[str, Any]:
    """Return the reasoning before this entry in a message's form, if the vendor expects it."""
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
    """Add an assistant's calls and their results; return the index of the next entry."""
    after = index + (entries[index].type == MESSAGE)
    calls = []
    while after < len(entries) and entries[after].type == TOOL_CALL:
        calls.append(after)
        after += 1
    if entries[index].type == TOOL_CALL:
        messages.append({"role": "assistant", "content": None})
    messages[-1]["tool_calls"] = [openai_call(entries[call]) for call in calls]
    messages[-1].update(thought)
    for call in calls:
        is_open = call not in pairs
        said = _open_text(entries[call], entries) if is_open else result_text(entries[pairs[call]])
        call_id = call_id_of(entries[call])
        messages.append({"role": "tool", "tool_call_id": call_id, "content": said})
    return after


def _open_text(call: Entry, entries: Sequence[Entry]) -> str:
    """Return the text that replaces a missing result."""
    waits_for = call.metadata.get(WAITS_FOR)
    if not waits_for and any(entry.content.get("wants") == call.id for entry in entries):
        waits_for = "the user's answer to a question"
    if waits_for:
        return f"No result yet: it waits for {waits_for}. The result will follow when it arrives."
    return "No result is known: the call may be running still, or may have taken effect."


def results_by_call(entries: Sequence[Entry]) -> dict[int, int]:
    """Map the index of each call that has a result to the index of the result.

    They are matched by call id. A result answers the newest call with its id, because some servers
    restart their numbering in each turn; a result without an id answers its tool's oldest open
    call.
    """
    open_calls: dict[int, Entry] = {}
    pairs: dict[int, int] = {}
    for index, entry in enumerate(entries):
        if entry.type == TOOL_CALL:
            open_calls[index] = entry
        elif entry.type == TOOL_RESULT:
            call = _call_of(entry, open_calls)
            if call is not None:
                del open_calls[call]
                pairs[call] = index
    return pairs


def results_in_time(entries: Sequence[Entry]) -> dict[int, int]:
    """Return the pairs whose result arrived before the assistant said or called anything else."""
    pairs = results_by_call(entries)
    if not pairs:
        return pairs
    steps = _steps(entries)
    return {call: result for call, result in pairs.items() if steps[call] == steps[result]}


def _steps(entries: Sequence[Entry]) -> list[int]:
    """Return for each entry the number of the assistant message that it belongs to or follows."""
    steps: list[int] = []
    for index, entry in enumerate(entries):
        before = entries[index - 1] if index else None
        goes_on = before is not None and (before.type == TOOL_CALL or before.role == "assistant")
        begins = entry.role == "assistant" or (entry.type == TOOL_CALL and not goes_on)
        steps.append((steps[-1] if steps else 0) + begins)
    return steps


def late_results(entries: Sequence[Entry]) -> dict[int, Entry | None]:
    """Map the index of each late result to its call, or to None if these entries lack the call."""
    if TOOL_RESULT not in [entry.type for entry in entries]:
        return {}
    calls = {result: entries[call] for call, result in results_by_call(entries).items()}
    in_time = set(results_in_time(entries).values())
    return {
        index: calls.get(index)
        for index, entry in enumerate(entries)
        if entry.type == TOOL_RESULT and index not in in_time
    }


def call_before(entries: Sequence[Entry], result: Entry) -> Entry | None:
    """Return the call, among these earlier entries, to which the result belongs."""
    calls = {i: call for i, call in enumerate(entries) if call.type == TOOL_CALL}
    for call in results_by_call(entries):
        del calls[call]
    found = _call_of(result, calls)
    return None if found is None else entries[found]


def _call_of(result: Entry, open_calls: dict[int, Entry]) -> int | None:
    if result.call_id is not None:
        same_id = (i for i, call in open_calls.items() if call.call_id == result.call_id)
        return max(same_id, default=None)
    tool = result.content.get("tool")
    same_tool = (
        index
        for index, call in open_calls.items()
        if call.call_id is None and call.content.get("tool") == tool
    )
    return next(same_tool, None)


def open_calls(entries: Sequence[Entry]) -> list[Entry]:
    """Return the calls without a result, oldest first."""
    pairs = results_by_call(entries)
    return [e for i, e in enumerate(entries) if e.type == TOOL_CALL and i not in pairs]


def orphan_results(entries: Sequence[Entry]) -> set[int]:
    """Return the indexes of the results whose call is not among these entries."""
    answered = set(results_by_call(entries).values())
    return {i for i, e in enumerate(entries) if e.type == TOOL_RESULT and i not in answered}


def call_id_of(call: Entry) -> str:
    """Return the call's id for the model, made from the entry's id if the call has none."""
    return call.call_id or f"call_{call.id[:24]}"


class HandedMessages:
    """Converts entries to chat messages for a handler, and its changes back to entries."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._spans = [span for span in spans_of(entries) if span.message is not None]
        self.messages: list[dict[str, Any]] = [copied(span.message) for span in self._spans]
        """Copies, so that a handler can't change the entries."""
        self._index = {id(message): index for index, message in enumerate(self.messages)}

    def shown(self, entries: Sequence[Entry]) -> list[dict[str, Any]]:
        """Return these entries' messages; unchanged ones are the same objects as in `messages`."""
        by_first = {_span_name(span): index for index, span in enumerate(self._spans)}
        shown = []
        for span in spans_of(entries):
            if span.message is not None:
                index = by_first.get(_span_name(span))
                same = index is not None and self._spans[index].message == span.message
                shown.append(self.messages[index] if index is not None and same else span.message)
        return shown

    def is_same(self, messages: Sequence[Mapping[str, Any]]) -> bool:
        """Return True if these messages are exactly as they were handed out."""
        return list(messages) == [span.message for span in self._spans]

    def resolved(
        self, full: Sequence[Mapping[str, Any]], current: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Entry], list[Entry]]:
        """Return the entries of two message lists; a message in both lists has the same entries."""
        groups = self.entries_for(full)
        by_object = {id(m): group for m, group in zip(full, groups, strict=True)}
        taken = {id(message) for message in current}
        rest = [g for m, g in zip(full, groups, strict=True) if id(m) not in taken]
        missing = [message for message in current if id(message) not in by_object]
        found = iter(HandedMessages(_flat(rest)).entries_for(missing))
        shown = [by_object.get(id(message)) or next(found) for message in current]
        return _flat(groups), _flat(shown)

    def all_entries_for(self, messages: Iterable[Mapping[str, Any]]) -> list[Entry]:
        """Return the entries of all these messages, in order."""
        return _flat(self.entries_for(messages))

    def entries_for(self, messages: Iterable[Mapping[str, Any]]) -> list[list[Entry]]:
        """Return each message's original entries, or new entries for new messages."""
        unused = dict(enumerate(self._spans))
        found = [self._take_same(message, unused) for message in messages]
        # From the newest, because if one of two equal messages was removed, it was the older one.
        for index in range(len(found) - 1, -1, -1):
            if isinstance(found[index], Mapping):
                found[index] = self._take_equal(found[index], unused)
        return [list(span) for span in found]

    def _take_same(self, message: Mapping[str, Any], unused: dict[int, MessageSpan]) -> Any:
        """Return the entries of this very object if it is unchanged, otherwise the message."""
        index = self._index.get(id(message))
        if index is None or index not in unused or self._spans[index].message != message:
            return message
        return unused.pop(index).entries

    def _take_equal(
        self, message: Mapping[str, Any], unused: dict[int, MessageSpan]
    ) -> Sequence[Entry]:
        for index in reversed(unused):
            if unused[index].message == message:
                return unused.pop(index).entries
        return entries_of(message)


def _flat(groups: Iterable[Sequence[Entry]]) -> list[Entry]:
    return [entry for group in groups for entry in group]


def _span_name(span: MessageSpan) -> int | str:
    """Return a span's key: its number if it has one, because its id might not be unique."""
    return span.entries[0].seq or span.entries[0].id


def char_size(message: Mapping[str, Any]) -> int:
    """Return the length of role and content in characters, plus one for a separator."""
    return len(str(message.get("role") or "")) + 1 + content_size(message.get("content"))


def content_size(content: Any) -> int:
    """Return a content's length in characters; anything but text is measured as JSON."""
    if content is None:
        return 0
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(_part_size(part) for part in content)
    if isinstance(content, Mapping):
        return _part_size(content)
    return len(str(content))


def _part_size(part: Any) -> int:
    if isinstance(part, str):
        return len(part)
    if isinstance(part, Mapping):
        text = part.get("text")
        return len(text) if isinstance(text, str) else len(_as_json(part))
    return len(str(part))


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def total_chars(messages: Iterable[Mapping[str, Any]]) -> int:
    """Return the total length of the messages in characters."""
    return sum(char_size(message) for message in messages)


def entry_text(entry: Entry) -> str:
    """Return all of an entry's text for counting, including a tool's name, arguments and result."""
    if entry.type == MESSAGE:
        return words_of(entry)
    values = (value for key, value in entry.content.items() if key != "success")
    return "".join(value if isinstance(value, str) else _value_text(value) for value in values)


def words_of(message: Entry) -> str:
    """Return the text of a message, with nothing added between its parts."""
    parts = message.content.get("parts")
    if isinstance(parts, list):
        return plain_text(parts, between="")
    return str(message.content.get("text") or "")


def _value_text(value: Any) -> str:
    return "" if value is None else _as_json(value)


def rough_tokens(characters: int) -> int:
    """Estimate tokens by the rule of thumb of four characters per token."""
    return characters // 4
