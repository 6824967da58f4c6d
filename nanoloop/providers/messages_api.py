"""The format of Anthropic's Messages API: builds requests and parses answers, without I/O."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanoloop.errors import ProviderError
from nanoloop.protocols import ChatMessage, Reasoning, ToolSpec, Usage
from nanoloop.providers.answer import PartialAnswer, clean, count
from nanoloop.session.chat import REASONING

VENDOR = "anthropic"
MAX_TOKENS = 16_000
"""The token limit for an answer if the options set none; the thinking budget is added."""
LOOKBACK = 20
"""How many blocks before a breakpoint the API searches for a cached prefix."""

_IMAGES = {"image/jpeg", "image/png", "image/gif", "image/webp"}
_DATA = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]+)")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS = 128
_OWN_PARTS = {"image", "document"}
"""Parts that are already in this API's format and are sent unchanged."""
_THOUGHTS = {"thinking", "redacted_thinking"}
_FAILED = "Error: "
"""The prefix of a failed tool's text (see `result_text`)."""

_UNSHOWN = "[an image that can't be shown]"
_EMPTY = "[an empty message]"
_EARLIER = "[the conversation began earlier]"
"""Inserted at the start of conversations that don't begin with a user message."""

Block = dict[str, Any]


# The request


def request_bytes(
    *,
    model: str,
    options: Mapping[str, Any],
    tools: Sequence[ToolSpec],
    messages: Sequence[ChatMessage],
    stream: bool,
    with_thoughts: bool = True,
) -> bytes:
    """Return the body of a request; equal input gives equal bytes.

    Without `with_thoughts`, the model's thinking in the current turn is left out.
    """
    system, said = _translated(messages, with_thoughts=with_thoughts)
    form = {"model": model, **({"stream": True} if stream else {}), **_fitting(options)}
    if not _may_think(form, said):
        del form["thinking"]
    if declared := [_tool_form(tool) for tool in tools]:
        form["tools"] = _marked(declared)
    else:
        form.pop("tool_choice", None)
        # The API requires a definition of each tool that was called earlier in the conversation.
        if named := _tools_named_in(said):
            form |= {"tools": _marked(named), "tool_choice": {"type": "none"}}
    if system:
        form["system"] = _marked(system)
    # Last, so that each request extends the previous one, apart from its two breakpoints.
    form["messages"] = _with_breakpoints(said)
    return _json(form).encode("utf-8", "replace")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be converted to JSON")


def _fitting(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the options to this API's names, and set the limit that it requires."""
    form = {key: value for key, value in options.items() if value is not None}
    if limit := form.pop("max_completion_tokens", None):
        form.setdefault("max_tokens", limit)
    if stop := form.pop("stop", None):
        form["stop_sequences"] = [stop] if isinstance(stop, str) else stop
    if output := _output(form.pop("response_format", None), form.pop("reasoning_effort", None)):
        form["output_config"] = {**output, **_mapping(form.get("output_config"))}
    if choice := _choice(form.pop("tool_choice", None), form.pop("parallel_tool_calls", True)):
        form["tool_choice"] = choice
    if "max_tokens" not in form:
        budget = _mapping(form.get("thinking")).get("budget_tokens")
        form["max_tokens"] = MAX_TOKENS + (budget if isinstance(budget, int) else 0)
    return form


def _output(form: Any, effort: Any) -> dict[str, Any]:
    output = {} if effort is None else {"effort": effort}
    match form:
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            output["format"] = {"type": "json_schema", "schema": schema}
        case {"type": "json_object"}:
            raise ProviderError("Claude answers in JSON only with a schema: use json_schema")
    return output


def _choice(choice: Any, parallel: Any) -> dict[str, Any]:
    match choice:
        case "auto" | "none":
            form = {"type": choice}
        case "required":
            form = {"type": "any"}
        case {"type": "function", "function": {"name": name}}:
            form = {"type": "tool", "name": name}
        case Mapping():
            form = dict(choice)
        case _:
            form = {}
    if parallel is False:
        return {"type": "auto", **form, "disable_parallel_tool_use": True}
    return form


def _may_think(form: Mapping[str, Any], said: Sequence[Block]) -> bool:
    """Return whether thinking can be enabled: a turn that began without it has to end without it.

    A turn has no thinking if another vendor's model began it, or if the API refused its thinking.
    """
    if _mapping(form.get("thinking")).get("type") != "enabled":
        return True
    first = _question(said) + 1
    return first >= len(said) or said[first]["content"][0]["type"] in _THOUGHTS


def _tool_form(tool: ToolSpec) -> Block:
    return {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}


def _tools_named_in(said: Sequence[Block]) -> list[Block]:
    blocks = (block for message in said for block in message["content"])
    names = dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use")
    return [{"name": name, "input_schema": {"type": "object"}} for name in names]


# Its messages


def _translated(
    messages: Sequence[ChatMessage], *, with_thoughts: bool
) -> tuple[list[Block], list[Block]]:
    """Return the system prompt's blocks, and messages that alternate, starting with the user."""
    opening = 0
    while opening < len(messages) and _is_system(messages[opening]):
        opening += 1
    system = [block for message in messages[:opening] for block in _words(message)]
    rest = messages[opening:]
    thinks_from = _turn_begins(rest) if with_thoughts else len(rest)
    ids = _CallIds()
    said: list[Block] = []
    for index, message in enumerate(rest):
        role, blocks = _blocks(message, ids, with_thoughts=index >= thinks_from)
        if not said and role == "assistant":
            said.append({"role": "user", "content": _text(_EARLIER)})
        if said and said[-1]["role"] == role:
            said[-1]["content"] += blocks
        elif blocks:
            said.append({"role": role, "content": blocks})
    return system, said or [{"role": "user", "content": _text(_EMPTY)}]


def _is_system(message: ChatMessage) -> bool:
    return message.get("role") in ("system", "developer")


def _turn_begins(messages: Sequence[ChatMessage]) -> int:
    """Return the index of the question that is being answered.

    Thinking from before it is left out: the API binds thinking to everything before it, including
    the system prompt, and refuses it once the window moves or the summary changes.
    """
    begins, follows_result = 0, False
    for index, message in enumerate(messages):
        role = message.get("role")
        # Messages added during a turn come after the results of its tools.
        if role == "user" and not follows_result:
            begins = index
        follows_result = role == "tool" or (follows_result and role != "assistant")
    return begins


def _blocks(message: ChatMessage, ids: _CallIds, *, with_thoughts: bool) -> tuple[str, list[Block]]:
    match message.get("role"):
        case "assistant":
            return "assistant", _said_and_called(message, ids, with_thoughts=with_thoughts)
        case "tool":
            return "user", [_result(message, ids)]
        case "system" | "developer":
            said = "\n".join(block["text"] for block in _words(message))
            return "user", _text(f"<system>\n{said}\n</system>")
        case _:
            return "user", list(_parts(message.get("content"))) or _text(_EMPTY)


def _said_and_called(message: ChatMessage, ids: _CallIds, *, with_thoughts: bool) -> list[Block]:
    """Return the model's text and calls, with its thinking in place."""
    content = message.get("content")
    text = content if isinstance(content, str) else _joined(_words(message))
    calls = iter([_tool_use(call, ids) for call in message.get("tool_calls") or ()])
    own = message.get(REASONING) if with_thoughts else None
    is_theirs = isinstance(own, Mapping) and own.get("vendor") == VENDOR
    layout = own["blocks"] if own and is_theirs else ()
    blocks: list[Block] = []
    at = 0
    for piece in layout:
        match piece["type"]:
            case "text":
                blocks += _text(text[at : at + piece["chars"]])
                at += piece["chars"]
            case "tool_use":
                blocks += [call for call in [next(calls, None)] if call]
            case _:
                blocks.append(dict(piece))
    return [*blocks, *_text(text[at:]), *calls]


def _tool_use(call: Mapping[str, Any], ids: _CallIds) -> Block:
    function = call.get("function") or {}
    return {
        "type": "tool_use",
        "id": ids.of_call(str(call.get("id"))),
        "name": _clean(str(function.get("name") or ""))[:_NAME_CHARS] or "unknown",
        "input": _input(function.get("arguments")),
    }


def _input(arguments: Any) -> dict[str, Any]:
    """Parse the arguments into the object that the API requires; wrap any other value in one."""
    try:
        said = json.loads(arguments or "{}")
        json.dumps(said, allow_nan=False)  # raises for numbers that JSON lacks
    except (TypeError, ValueError, RecursionError):
        said = str(arguments)
    return said if isinstance(said, dict) else {"arguments": said}


def _result(message: ChatMessage, ids: _CallIds) -> Block:
    content = message.get("content")
    block: Block = {
        "type": "tool_result",
        "tool_use_id": ids.of_result(str(message.get("tool_call_id"))),
    }
    if isinstance(content, str):
        said: Any = content if content.strip() else ""
        failed = content.startswith(_FAILED)
    else:
        said, failed = list(_parts(content)), False
    return block | ({"content": said} if said else {}) | ({"is_error": True} if failed else {})


class _CallIds:
    """Converts ids to valid, unique ones; a result gets the same id as its call."""

    def __init__(self) -> None:
        self._open: dict[str, list[str]] = {}
        self._count: dict[str, int] = {}

    def of_call(self, call_id: str) -> str:
        """Return a unique id, even if a server numbers its calls from the start in each turn."""
        clean = _clean(call_id) or "call"
        self._count[clean] = number = self._count.get(clean, 0) + 1
        given = clean if number == 1 else f"{clean}__{number}"
        self._open.setdefault(call_id, []).append(given)
        return given

    def of_result(self, call_id: str) -> str:
        """Return the id of the call that this result belongs to."""
        called = self._open.get(call_id)
        return called.pop(0) if called else _clean(call_id)


def _clean(name: str) -> str:
    return _NOT_IN_A_NAME.sub("_", name)


def _parts(content: Any) -> Iterator[Block]:
    """Yield a message's text and images as blocks, skipping empty ones."""
    if isinstance(content, str):
        yield from _text(content)
    for part in content if isinstance(content, list) else ():
        yield from _part(part)


def _part(part: Any) -> Iterable[Block]:
    match part:
        case str():
            return _text(part)
        case {"type": "image_url", "image_url": {"url": str(url)}}:
            return [_image(url)]
        case {"type": str(kind), "source": Mapping()} if kind in _OWN_PARTS:
            return [{key: value for key, value in part.items() if key != "cache_control"}]
        case {"text": str(text)}:
            return _text(text)
        case {"type": str(kind)}:
            return _text(f"[a part of type {kind!r} that can't be shown]")
    return []


def _text(text: str) -> list[Block]:
    return [{"type": "text", "text": text}] if text.strip() else []


def _words(message: ChatMessage) -> list[Block]:
    return [block for block in _parts(message.get("content")) if block["type"] == "text"]


def _joined(blocks: Iterable[Block]) -> str:
    return "".join(block["text"] for block in blocks)


def _image(url: str) -> Block:
    if url.startswith("https://"):
        return {"type": "image", "source": {"type": "url", "url": url}}
    found = _DATA.fullmatch(url)
    if found is None or found[1] not in _IMAGES:
        return {"type": "text", "text": _UNSHOWN}
    source = {"type": "base64", "media_type": found[1], "data": found[2]}
    return {"type": "image", "source": source}


# Breakpoints for the cache


def _with_breakpoints(said: list[Block]) -> list[Block]:
    """Add cache breakpoints after the window's stable part and after the last message.

    The last breakpoint caches this request for the next one. The other must find a prefix that an
    earlier request cached, because the API looks only `LOOKBACK` blocks back from a breakpoint:

    - Within a turn, it is the end of the previous request, just before the model's last message: a
      step with many calls is longer than the API looks back.
    - At a question, it is the last answer before the question. Text after that may occur only in
      this request, and the thinking of that turn is gone now, so the end of the previous request
      may not be cached; the answer before it is within reach. If that turn was too long, the
      previous answer is marked instead, as it was when the turn began.
    """
    steady = _steady_end(said)
    marked = {len(said) - 1} | ({steady} if steady >= 0 else set())
    return [
        {**message, "content": _marked(message["content"])} if index in marked else message
        for index, message in enumerate(said)
    ]


def _steady_end(said: Sequence[Block]) -> int:
    """Return the index of the last message in the stable part, or -1 if there is none."""
    question = _question(said)
    if question < len(said) - 1:
        spoke = max(i for i, message in enumerate(said) if message["role"] == "assistant")
        return spoke - 1
    answer, before = question - 1, _question(said[:question]) - 1
    is_near = sum(len(message["content"]) for message in said[before + 1 : question]) < LOOKBACK
    return answer if is_near or before < 0 else before


def _question(said: Sequence[Block]) -> int:
    """Return the index of the newest user message that is not a tool result; 0 if there is none."""
    for index in range(len(said) - 1, 0, -1):
        is_result = said[index]["content"][0]["type"] == "tool_result"
        if said[index]["role"] == "user" and not is_result:
            return index
    return 0


def _marked(blocks: Sequence[Block]) -> list[Block]:
    """Add a breakpoint to the last block; the breakpoint itself is not cached."""
    return [*blocks[:-1], {**blocks[-1], "cache_control": {"type": "ephemeral"}}]


# Answers

SEAL_CHARS = 256_000
"""The limit on the total size of an answer's signatures."""
MOST_BLOCKS = 1000
_COUNTED = (
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "output_tokens",
)
_REASONS = {
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
"""Finish reasons that need a different name for `PartialAnswer`."""


@dataclass(slots=True)
class _Piece:
    """A block from the answer, to be sent back with the results of its calls."""

    type: str
    words: list[str] = field(default_factory=list)
    seal: list[str] = field(default_factory=list)
    """The signature of visible thinking, or the data of hidden thinking."""
    chars: int = 0

    def form(self) -> Block | None:
        """Return the block to send back (a placeholder for text and calls), or None if invalid."""
        if self.type == "text":
            return {"type": "text", "chars": self.chars}
        if self.type == "tool_use":
            return {"type": "tool_use"}
        words, seal = "".join(self.words), "".join(self.seal)
        # The API refuses a block after the slightest change.
        if not seal or clean(words) != words or clean(seal) != seal:
            return None
        if self.type == "thinking":
            return {"type": "thinking", "thinking": words, "signature": seal}
        return {"type": "redacted_thinking", "data": seal}


class Taking:
    """Adds the events of an answer, or a whole answer, to a draft."""

    def __init__(self) -> None:
        self._draft: PartialAnswer | None = None
        self._pieces: dict[Any, _Piece] = {}
        self._counted: dict[str, int] = {}
        self._room = SEAL_CHARS

    def __call__(self, draft: PartialAnswer, data: Mapping[str, Any]) -> str:
        """Add an event or a whole answer; return the new text."""
        if draft is not self._draft:  # a new attempt
            self._draft, self._pieces, self._counted = draft, {}, {}
            self._room = SEAL_CHARS
        match data.get("type"):
            case "message_start":
                return self._message(draft, _mapping(data.get("message")))
            case "content_block_start":
                return self._block(draft, data.get("index"), _mapping(data.get("content_block")))
            case "content_block_delta":
                return self._delta(draft, data.get("index"), _mapping(data.get("delta")))
            case "message_delta":
                self._count(draft, data.get("usage"))
                _end(draft, _mapping(data.get("delta")).get("stop_reason"))
            case "message_stop":
                draft.is_done = True
            case "message":
                return self._message(draft, data)
        return ""

    @property
    def reasoning(self) -> Reasoning | None:
        """The reasoning to send back; None if there is none or part of it can't be sent."""
        pieces = [] if self._draft is None or self._draft.is_full else [*self._pieces.values()]
        while pieces and pieces[-1].type not in _THOUGHTS:
            pieces.pop()
        forms = [piece.form() for piece in pieces]
        blocks = [form for form in forms if form is not None]
        if not blocks or len(blocks) < len(forms):
            return None
        return Reasoning(vendor=VENDOR, blocks=tuple(blocks))

    def _message(self, draft: PartialAnswer, message: Mapping[str, Any]) -> str:
        content = message.get("content")
        draft.has_begun = draft.has_begun or isinstance(content, list)
        draft.model = draft.model or _string(message.get("model"))
        self._count(draft, message.get("usage"))
        said = ""
        for index, block in enumerate(content if isinstance(content, list) else ()):
            said += self._block(draft, index, _mapping(block))
            if draft.is_full:
                break
        _end(draft, message.get("stop_reason"))
        return said

    def _block(self, draft: PartialAnswer, index: Any, block: Mapping[str, Any]) -> str:
        kind = _string(block.get("type"))
        if kind not in ("text", "tool_use", *_THOUGHTS) or not isinstance(index, int):
            return ""
        draft.has_begun = True
        if len(self._pieces) >= MOST_BLOCKS:
            draft.cut()
        piece = self._pieces[index] = _Piece(kind)
        if kind == "tool_use":
            given = block.get("input")
            arguments = _json(given) if isinstance(given, dict) and given else ""
            draft.call(index, _string(block.get("id")), _string(block.get("name")), arguments)
            return ""
        self._seal(draft, piece, _string(block.get("signature")) or _string(block.get("data")))
        if kind == "text":
            return self._say(draft, piece, _string(block.get("text")))
        self._think(draft, piece, _string(block.get("thinking")))
        return ""

    def _delta(self, draft: PartialAnswer, index: Any, delta: Mapping[str, Any]) -> str:
        piece = self._pieces.get(index) if isinstance(index, int) else None
        if piece is None:
            return ""
        match piece.type, delta.get("type"):
            case "text", "text_delta":
                return self._say(draft, piece, _string(delta.get("text")))
            case "thinking", "thinking_delta":
                self._think(draft, piece, _string(delta.get("thinking")))
            case "thinking", "signature_delta":
                self._seal(draft, piece, _string(delta.get("signature")))
            case "tool_use", "input_json_delta":
                draft.call(index, "", "", _string(delta.get("partial_json")))
        return ""

    def _say(self, draft: PartialAnswer, piece: _Piece, text: str) -> str:
        said = draft.say(text)
        piece.chars += len(said)
        return said

    def _think(self, draft: PartialAnswer, piece: _Piece, words: str) -> None:
        piece.words.append(words)
        draft.think(words)

    def _seal(self, draft: PartialAnswer, piece: _Piece, words: str) -> None:
        self._room -= len(words)
        if self._room < 0:
            draft.cut()
        else:
            piece.seal.append(words)

    def _count(self, draft: PartialAnswer, usage: object) -> None:
        """Record the usage so far; the latest count of each kind replaces earlier ones."""
        said = _mapping(usage)
        self._counted |= {
            kind: count(said[kind]) for kind in _COUNTED if said.get(kind) is not None
        }
        new, cached, made, answered = (self._counted.get(kind, 0) for kind in _COUNTED)
        draft.usage = Usage(
            tokens_in=new + cached + made, tokens_out=answered, tokens_cached=cached
        )


def _end(draft: PartialAnswer, reason: object) -> None:
    said = _string(reason)
    draft.finish_reason = _REASONS.get(said, said) or draft.finish_reason


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
