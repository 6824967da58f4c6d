"""A server of Anthropic's Messages API: real HTTP, told what to say, strict in what it takes.

Each request is held against the SDK's own types and against the rules that the API enforces. It
signs what it thinks, and keeps the prefixes that were marked, as the API's cache does.
"""

import asyncio
import hashlib
import hmac
import json
import re
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

from pydantic import ConfigDict, TypeAdapter, ValidationError

KEY = "sk-ant-planted-0123456789abcdef"
SECRET = b"the server's own"
LOOKBACK = 20
NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
ID = re.compile(r"[a-zA-Z0-9_-]+")
THOUGHTS = ("thinking", "redacted_thinking")
PIECE = 7
"""Characters of a text that come at once."""


@dataclass(frozen=True, kw_only=True)
class Say:
    """An answer. Blocks of thought, text and calls come in this order, unless `blocks` says."""

    text: str = "Hello."
    thinking: str = ""
    redacted: str = ""
    calls: tuple = ()
    """Id, name and input of each."""
    blocks: tuple = ()
    stop_reason: str | None = ""
    """Empty: what fits."""
    events: tuple | None = None
    """Sent in place of a stream."""
    broken: bool = False
    """Whether the stream ends in the middle."""


@dataclass(frozen=True, kw_only=True)
class Refuse:
    """An error in place of an answer."""

    status: int
    type: str
    message: str = "Bad."
    headers: tuple = ()


@dataclass
class Request:
    headers: dict
    body: bytes
    usage: dict = field(default_factory=dict)
    refused: str = ""

    @cached_property
    def json(self):
        return json.loads(self.body)

    @property
    def blocks(self):
        """What the cache goes by: each tool, system and message block in order, without marks."""
        return [form for form, _ in marked_blocks(self.json)]

    @property
    def marks(self):
        """How many blocks stand before the end of each marked prefix."""
        return [at + 1 for at, (_, mark) in enumerate(marked_blocks(self.json)) if mark]


def marked_blocks(form):
    """Each block as bytes, and whether a breakpoint stands at its end."""
    for where in ("tools", "system"):
        for block in form.get(where) or ():
            yield canonical(where, block), "cache_control" in block
    thinks = json.dumps(form.get("thinking")) + json.dumps(form.get("tool_choice"))
    for message in form["messages"]:
        for block in message["content"]:
            where = message["role"] + thinks  # a change of either begins the messages anew
            yield canonical(where, block), "cache_control" in block


def canonical(where, block):
    plain = {key: value for key, value in block.items() if key != "cache_control"}
    return f"{where} {json.dumps(plain, ensure_ascii=False)}".encode("utf-8", "replace")


def tokens(blocks):
    return sum(len(block) // 4 + 1 for block in blocks)


class AnthropicServer:
    """Says its answers in order, then `otherwise`; keeps all requests."""

    def __init__(self, *answers, otherwise=None, binds=True):
        self.answers = deque(answers)
        self.otherwise = otherwise or Say()
        self.binds = binds
        """Whether a thought is refused once anything before it has changed."""
        self.requests = []
        self.kept = set()
        self.thought_before = {}
        """By the id of a call: what was thought in its answer."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_):
        self._server.close()

    async def _serve(self, reader, writer):
        try:
            while True:
                await self._answer(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        pairs = (line.partition(":") for line in head[1:] if line)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        request = Request(headers=headers, body=body)
        self.requests.append(request)
        said = self._refusal(head[0], request) or self._next(request)
        if isinstance(said, Refuse):
            request.refused = said.message
            respond(writer, said.status, error(said), headers=said.headers)
        elif said.events is not None:
            respond_with_events(writer, said.events)
        else:
            self._say(writer, request, said)
        await writer.drain()
        if isinstance(said, Say) and said.broken:
            writer.transport.abort()

    def _next(self, request):
        said = self.answers.popleft() if self.answers else self.otherwise
        while callable(said):
            said = said(request)
        return Say(text=said) if isinstance(said, str) else said

    def _refusal(self, line, request):
        keys = (request.headers.get("x-api-key"), request.headers.get("authorization"))
        if not {KEY, f"Bearer {KEY}"} & set(keys):
            return Refuse(status=401, type="authentication_error", message="invalid x-api-key")
        if line != "POST /v1/messages HTTP/1.1":
            return Refuse(status=404, type="not_found_error", message="Not found")
        if "anthropic-version" not in request.headers:
            return Refuse(
                status=400, type="invalid_request_error", message="anthropic-version: required"
            )
        try:
            check(request.json)
            self._check_thoughts(request.json)
        except (AssertionError, ValidationError, KeyError, TypeError) as wrong:
            said = str(wrong) or type(wrong).__name__
            return Refuse(status=400, type="invalid_request_error", message=said)
        return None

    # What it says

    def _say(self, writer, request, said):
        request.usage = self._counted(request)
        blocks = said.blocks or self._blocks(request, said)
        signed = [self._signed(request.json, block) for block in blocks]
        thought = [block for block in signed if block["type"] in THOUGHTS]
        calls = [block for block in signed if block["type"] == "tool_use"]
        self.thought_before |= dict.fromkeys((call["id"] for call in calls), thought)
        reason = said.stop_reason
        if reason == "":
            reason = "tool_use" if calls else "end_turn"
        message = {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.json["model"],
            "content": signed,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": {**request.usage, "output_tokens": 5},
        }
        if request.json.get("stream"):
            events = list(events_of(message))
            respond_with_events(writer, events[: len(events) // 2] if said.broken else events)
        else:
            respond(writer, 200, message)

    def _blocks(self, request, said):
        thinks = request.json.get("thinking", {}).get("type") in ("enabled", "adaptive")
        if said.thinking and thinks:
            yield {"type": "thinking", "thinking": said.thinking}
        if said.redacted and thinks:
            yield {"type": "redacted_thinking", "data": said.redacted}
        if said.text:
            yield {"type": "text", "text": said.text}
        for call_id, name, given in said.calls:
            yield {"type": "tool_use", "id": call_id, "name": name, "input": given}

    def _signed(self, form, block):
        if block["type"] not in THOUGHTS:
            return block
        seal = self._seal(form, form["messages"], block.get("thinking") or block.get("data") or "")
        if block["type"] == "thinking":
            return block | {"signature": seal}
        return block | {"data": f"{block['data']}.{seal}"}

    def _seal(self, form, before, text):
        """Over the text, and over all that stood before it but for the thoughts and marks."""
        blocks = [canonical("", block) for block in form.get("tools", ())]
        blocks += [canonical("", block) for block in form.get("system", ())]
        blocks += [
            canonical(message["role"], block)
            for message in before
            for block in message["content"]
            if block["type"] not in THOUGHTS
        ]
        prefix = b"\n".join(blocks) if self.binds else b""
        return hmac.new(SECRET, prefix + text.encode(), hashlib.sha256).hexdigest()

    def _check_thoughts(self, form):
        messages = form["messages"]
        for index, message in enumerate(messages):
            for at, block in enumerate(message["content"]):
                if block["type"] in THOUGHTS:
                    wrong = f"Invalid `signature` in `{block['type']}` block"
                    assert self._is_ours(form, index, block), f"{index}.{at}: {wrong}"
        if form.get("thinking", {}).get("type") not in ("enabled", "adaptive"):
            return
        for message in messages[question(messages) + 1 :]:
            calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
            shown = [plain(block) for block in message["content"] if block["type"] in THOUGHTS]
            for call in calls:
                told = self.thought_before.get(call, [])
                is_free = form["thinking"]["type"] == "adaptive" and not shown
                assert shown == told or is_free, "`thinking` blocks cannot be modified"

    def _is_ours(self, form, index, block):
        text, seal = block.get("thinking"), block.get("signature")
        if block["type"] == "redacted_thinking":
            text, _, seal = block["data"].rpartition(".")
        said = self._seal(form, form["messages"][:index], text)
        return hmac.compare_digest(said, seal or "")

    # Its cache

    def _counted(self, request):
        blocks, marks = request.blocks, request.marks
        names = [request.json["model"]]
        for block in blocks:
            names.append(hashlib.sha256(names[-1].encode() + block).hexdigest())
        read = 0
        for mark in marks:
            reach = range(max(0, mark - LOOKBACK), mark + 1)
            read = max([read, *(at for at in reach if at and names[at] in self.kept)])
        self.kept |= {names[mark] for mark in marks}
        made = marks[-1] if marks else 0
        return {
            "input_tokens": tokens(blocks[max(read, made) :]),
            "cache_read_input_tokens": tokens(blocks[:read]),
            "cache_creation_input_tokens": tokens(blocks[read:made]),
        }


# What it takes


@lru_cache
def adapters():
    """The SDK's types, nothing else allowed in them."""
    from anthropic.types import ContentBlockParam, MessageCreateParams  # noqa: PLC0415 - slow

    strict = ConfigDict(extra="forbid")
    return TypeAdapter(MessageCreateParams, config=strict), TypeAdapter(
        ContentBlockParam, config=strict
    )


def read(value):
    """All of it: what is iterated over is looked at only then."""
    if isinstance(value, dict):
        return {key: read(item) for key, item in value.items()}
    is_plain = value is None or isinstance(value, (str, bytes, int, float))
    return value if is_plain else [read(item) for item in value]


def check(form):
    """Raise for what the API refuses."""
    whole, block_type = adapters()
    read(whole.validate_python({**form, "messages": []}))
    for message in form["messages"]:
        assert set(message) == {"role", "content"}, "messages: extra inputs"
        for block in message["content"]:
            # The type of messages takes blocks of answers too, and anything in them.
            read(block_type.validate_python(block))
    assert form["model"], "model: too short"
    assert form["max_tokens"] > 0, "max_tokens: has to be positive"
    check_marks(form)
    check_texts(form)
    check_roles(form["messages"])
    check_tools(form)
    check_calls(form["messages"])
    check_thinking(form)


def check_marks(form):
    marked = [block for where in blocks_of(form) for block in where if "cache_control" in block]
    assert len(marked) <= 4, f"a maximum of 4 blocks with cache_control: found {len(marked)}"
    assert not any(block.get("type") in THOUGHTS for block in marked), "no mark on a thought"


def blocks_of(form):
    yield form.get("tools", ())
    yield form.get("system", ())
    for message in form["messages"]:
        yield message["content"]


def check_texts(form):
    for where in blocks_of(form):
        for block in where:
            if block.get("type") == "text":
                assert block["text"].strip(), "text content blocks must contain words"


def check_roles(messages):
    roles = [message["role"] for message in messages]
    assert roles, "messages: at least one message is required"
    assert roles[0] == "user", "messages: first message must use the user role"
    assert roles[-1] == "user", "messages: prefill is not supported"
    assert all(a != b for a, b in pairwise(roles)), "roles must alternate"
    assert all(message["content"] for message in messages), "messages: content is empty"


def check_tools(form):
    names = [tool["name"] for tool in form.get("tools", ())]
    assert all(NAME.fullmatch(name) for name in names), "tools: name has odd characters"
    assert len(names) == len(set(names)), "tools: names must be unique"
    uses = [b for m in form["messages"] for b in m["content"] if b["type"].startswith("tool_")]
    assert names or not uses, "requests with tool_use blocks must define tools"
    assert names or "tool_choice" not in form, "tool_choice: there are no tools"


def check_calls(messages):
    seen = set()
    for message, after in zip(messages, [*messages[1:], None], strict=True):
        calls = [block for block in message["content"] if block["type"] == "tool_use"]
        ids = [call["id"] for call in calls]
        assert not calls or message["role"] == "assistant", "tool_use is the assistant's"
        assert all(ID.fullmatch(call) for call in ids), "tool_use.id: has odd characters"
        assert all(NAME.fullmatch(call["name"]) for call in calls), "tool_use.name: is odd"
        assert not seen & set(ids), "tool_use ids must be unique"
        assert len(ids) == len(set(ids)), "tool_use ids must be unique"
        seen |= set(ids)
        results = [b["type"] == "tool_result" for b in (after or {"content": ()})["content"]]
        told = (
            [b["tool_use_id"] for b in after["content"] if b["type"] == "tool_result"]
            if after
            else []
        )
        assert told == ids, f"tool_use without tool_result after it, or the other way: {ids} {told}"
        assert all(results[: len(ids)]), "tool_result blocks come first"
    first = messages[0]["content"]
    assert not any(block["type"] == "tool_result" for block in first), "a result without a call"


def check_thinking(form):
    thinking = form.get("thinking", {})
    if thinking.get("type") != "enabled":
        return
    assert 1024 <= thinking["budget_tokens"] < form["max_tokens"], "thinking.budget_tokens"
    choice = form.get("tool_choice", {"type": "auto"})["type"]
    assert choice in ("auto", "none"), "tool_choice forces tool use while thinking is on"
    messages = form["messages"]
    going_on = messages[question(messages) + 1 :]
    assert not going_on or going_on[0]["content"][0]["type"] in THOUGHTS, (
        "Expected `thinking` or `redacted_thinking`: when `thinking` is enabled, a final "
        "`assistant` message must start with a thinking block"
    )


def question(messages):
    """The newest message of the user's that begins with no result."""
    return max(
        index
        for index, message in enumerate(messages)
        if message["role"] == "user" and message["content"][0]["type"] != "tool_result"
    )


def plain(block):
    return {key: value for key, value in block.items() if key != "cache_control"}


# How it says it


def error(said):
    return {"type": "error", "error": {"type": said.type, "message": said.message}}


def events_of(message):
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    yield {"type": "message_start", "message": start}
    yield {"type": "ping"}
    for index, block in enumerate(message["content"]):
        begun, deltas = parted(block)
        yield {"type": "content_block_start", "index": index, "content_block": begun}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def parted(block):
    match block["type"]:
        case "text":
            told = [{"type": "text_delta", "text": part} for part in parts(block["text"])]
            return block | {"text": ""}, told
        case "thinking":
            told = [{"type": "thinking_delta", "thinking": x} for x in parts(block["thinking"])]
            sealed = {"type": "signature_delta", "signature": block["signature"]}
            return block | {"thinking": "", "signature": ""}, [*told, sealed]
        case "tool_use":
            given = json.dumps(block["input"]) if block["input"] else ""
            told = [{"type": "input_json_delta", "partial_json": x} for x in ["", *parts(given)]]
            return block | {"input": {}}, told
        case _:
            return block, []


def parts(text):
    return [text[at : at + PIECE] for at in range(0, len(text), PIECE)]


def respond(writer, status, body, headers=()):
    data = json.dumps(body).encode()
    told = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\n{told}"
    writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)


def respond_with_events(writer, events):
    head = (
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    writer.write(head.encode())
    for event in events:
        data = event if isinstance(event, bytes) else sse(event)
        writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    writer.write(b"0\r\n\r\n")


def sse(event):
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
