"""Hostile in what is said: events, JSON, fields, tool calls, characters, finish reasons."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tests.hostile.mode import (
    BODY,
    CHUNKED,
    DONE,
    ERROR,
    FIELD,
    KEY,
    LAST,
    PATH,
    TOLD,
    Asked,
    call,
    chunk,
    delta,
    dumps,
    endless,
    endless_events,
    envelope,
    error_body,
    event,
    head,
    message,
    mode,
    plain,
    streamed,
    whole,
)

TEXT = f"A {TOLD} speaks."
LONG_TIME = 3600.0
MANY = 100_000
STREAM = "text/event-stream"
Said = Mapping[str, Any]


def said(text: str = TEXT) -> bytes:
    return streamed(delta(role="assistant", content=text), delta("stop"))


# Lines and events


DEAR = "aiohttp takes its time for each chunk, before anything of it is seen here"


@mode()
def endless_line(asked):
    return endless_events(b"x")


@mode()
def endless_data_line(asked):
    return endless_events(b"x", b"data: ")


@mode()
def endless_event(asked):
    """Of many lines, and no empty one."""
    return endless_events(b"data: {\n")


@mode()
def endless_event_of_other_fields(asked):
    return endless_events(b"id: 1\nretry: 1\nfoo: bar\n")


@mode()
def comments_without_end(asked):
    return endless_events(b": a\n")


@mode()
def keep_alives_without_end(asked):
    return endless_events(b": keep-alive\n\n")


@mode()
def keep_alives_now_and_then(asked):
    yield head(CHUNKED)
    while True:
        yield chunk(b": keep-alive\n\n")
        yield 0.05


@mode()
def empty_lines_without_end(asked):
    return endless_events(b"\n")


@mode()
def empty_data_without_end(asked):
    return endless_events(b"data:\n\n")


@mode()
def empty_chunks_without_end(asked):
    return endless_events(event(choices=[]))


@mode()
def empty_deltas_without_end(asked):
    return endless_events(delta(content=""))


@mode()
def bare_objects_without_end(asked):
    return endless_events(b"data: {}\n\n")


@mode(known=DEAR)
def one_byte_a_chunk(asked):
    """Each byte a piece of the transport: how dear is each?"""
    return endless(chunk(b"x"), head(CHUNKED), chunk(b"data: "))


@mode(says=TEXT, must=True)
def other_line_ends(asked):
    ends = (b"\r", b"\r\n", b"\n")
    end = ends[asked.count % len(ends)]
    events = (delta(content=TEXT), delta("stop"), b"data: [DONE]\n\n")
    body = b"".join(events).replace(b"\n", end)
    yield whole(body, kind=STREAM) if asked.is_streamed else plain(asked, TEXT)


@mode(says=TEXT, must=True)
def byte_order_mark(asked):
    body = delta(content=TEXT) + delta("stop") + b"data: [DONE]\n\n"
    yield whole(b"\xef\xbb\xbf" + body, kind=STREAM) if asked.is_streamed else plain(asked, TEXT)


@mode(says=TEXT, must=True)
def odd_but_right_events(asked):
    body = delta(content=TEXT) + delta("stop")
    odd = (
        body.replace(b"data: ", b"data:"),
        b"retry: 99999999999999\n\n" + body,
        b"id: \x00" + FIELD.encode() + b"\n" + body,
        b"event: message\n" + body,
        b"event:\n" + body,
        b": " + BODY.encode() * 100 + b"\n\n" + body,
        body,  # with no [DONE]
        body + b"data: [DONE]\n\ndata: [DONE]\n\n",
        body + b"data: [DONE]\n\n" + delta(content=BODY),
        body.replace(b"}\n\n", b"}\r\n\r\n"),
    )
    said = whole(odd[asked.count % len(odd)], kind=STREAM)
    yield said if asked.is_streamed else plain(asked, TEXT)


@mode(says=TEXT)
def text_behind_the_end(asked):
    """What comes behind [DONE] is not the answer's."""
    events = delta(content=TEXT) + delta("stop") + b"data: [DONE]\n\n"
    return endless_events(delta(content=BODY), events)


@mode(says=rf"{TEXT}a*")
def text_behind_the_finish_reason(asked):
    return endless_events(delta(content="a"), delta(content=TEXT), delta("stop"))


@mode(says=TEXT)
def usage_behind_the_finish_reason(asked):
    usage = event(choices=[], usage={"prompt_tokens": 10})
    return endless_events(usage, delta(content=TEXT), delta("stop"))


@mode()
def error_events(asked):
    odd = (
        b"event: error\ndata: " + error_body(ERROR) + b"\n\n",
        b"event: error\ndata: " + ERROR.encode() + b"\n\n",
        b'data: {"error": "' + ERROR.encode() + b'"}\n\n',
        b"data: " + error_body(ERROR) + b"\n\n",
        b'data: {"error": {"message": "' + ERROR.encode() + b'", "code": 429}}\n\n',
        b'data: {"error": {"message": "' + ERROR.encode() + b'", "code": 10e400}}\n\n',
        b'data: {"error": [], "code": "' + FIELD.encode() + b'"}\n\n',
    )
    begin = delta(content=TEXT) if asked.count % 2 else b""
    yield whole(begin + odd[asked.count // 2 % len(odd)], kind=STREAM)


@mode()
def error_in_place_of_an_answer(asked):
    """With status 200, as some gateways have it."""
    odd = (error_body(ERROR), dumps({"error": ERROR}), dumps({"detail": ERROR}), dumps([ERROR]))
    yield whole(odd[asked.count % len(odd)])


@mode()
def error_as_the_answer(asked):
    """As one popular gateway has it when its own upstream fails."""
    text = f"Error calling upstream: key {KEY} at http://{PATH}/, {ERROR}"
    reason = ("error", "abort", "cancelled")[asked.count // 2 % 3]
    if asked.count % 2:
        yield whole(message(reason, content=text))
    else:
        yield streamed(delta(reason, content=text))


@mode()
def error_behind_some_words(asked):
    """They may have been seen by then, but are no answer."""
    yield streamed(delta(content=TEXT), delta(("error", "abort", "cancelled")[asked.count % 3]))


# JSON


@mode()
def no_json(asked):
    odd = (b"{", b"<html>", b"undefined", b"'single'", b"\xff\xfe\x00", b'{"a": 1,}', b"\x00")
    said = odd[asked.count % len(odd)] + BODY.encode()
    yield whole(said) if asked.count % 2 else streamed(b"data: " + said + b"\n\n")


@mode()
def no_json_without_end(asked):
    return endless_events(b"data: {" + BODY.encode() + b"\n\n")


@mode(says=TEXT)
def deep_json(asked):
    deep = (b"[" * MANY, b'{"a":' * MANY, b"[" * MANY + b"]" * MANY)[asked.count // 2 % 3]
    if asked.count % 2:
        yield whole(deep)
    else:
        yield streamed(delta(content=TEXT), b"data: " + deep + b"\n\n", delta("stop"))


@mode(says=TEXT)
def many_empty_lists(asked):
    """Few bytes each, and each dear to make."""
    lists = b'{"choices": [' + b"[]," * 600_000 + b"[]]}"
    if asked.count % 2:
        yield whole(lists)
    else:
        yield streamed(delta(content=TEXT), b"data: " + lists[:990_000] + b"\n\n", delta("stop"))


@mode()
def empty_lists_without_end(asked):
    return endless_events(b"data: [" + b"[]," * 300_000 + b"[]]\n\n")


@mode(says=DONE)
def many_empty_lists_in_arguments(asked):
    return calling(asked, call(arguments='{"a": [' + "[]," * 80_000 + "[]]}"))


@mode()
def deep_json_without_end(asked):
    return endless_events(b"data: " + b"[" * 5000 + b"]" * 5000 + b"\n\n")


@mode(says=DONE)
def deep_json_in_arguments(asked):
    deep = ("[" * MANY, '{"a":' * MANY, "[" * MANY + "]" * MANY)[asked.count % 3]
    return calling(asked, call(arguments=deep))


@mode(says=TEXT)
def huge_numbers(asked):
    odd = (b"9" * MANY, b"-" + b"9" * MANY, b"1e99999", b"NaN", b"-Infinity", b"0." + b"9" * MANY)
    number = odd[asked.count % len(odd)]
    body = delta(content=TEXT) + event(choices=[], usage="MARK").replace(
        b'"MARK"', b'{"prompt_tokens": ' + number + b', "completion_tokens": ' + number + b"}"
    )
    yield whole(body.replace(b'"created": 1', b'"created": ' + number) + delta("stop"), kind=STREAM)


@mode(says=DONE)
def huge_numbers_in_arguments(asked):
    odd = ("9" * MANY, "1e99999", "NaN", "-0", "0." + "9" * MANY)
    return calling(asked, call(name="calculator", arguments=f'{{"a": {odd[asked.count % 5]}}}'))


@mode(says=TEXT)
def thousand_choices(asked):
    choices = [
        {"index": n, "delta": {"content": TEXT if n == 0 else BODY}, "finish_reason": None}
        for n in range(1000)
    ]
    if asked.count % 2:
        for choice in choices:
            choice["message"] = choice["delta"]
        yield whole(dumps(envelope(choices=choices)))
    else:
        yield streamed(event(choices=choices), delta("stop"))


@mode(says=TEXT)
def many_keys(asked):
    """A megabyte of fields that nobody asked for."""
    yield streamed(event(**{f"{FIELD}{n}": n for n in range(30_000)}), delta(content=TEXT), STOP)


@mode(says=TEXT)
def token_chances(asked):
    """Some servers send megabytes of them with each word."""
    chances = {"content": [{"token": FIELD, "logprob": -1.0}] * 10_000}
    one = {"index": 0, "delta": {"content": TEXT}, "logprobs": chances, "finish_reason": None}
    yield streamed(event(choices=[one]), delta("stop"))


# Wrong types

ODD: Sequence[Any] = (
    None, True, 0, -1.5, 10**25, "", "odd", [], [None], [[]], [0], ["odd"], {}, {"a": "odd"},
    [{}], [{"type": "text"}], [{"type": "text", "text": 5}], [{"type": "image_url"}],
)  # fmt: skip
STOP = delta("stop")


def wrong(put: Callable[[Any], Said]):
    """Each odd value in turn, in the middle of an answer and as a whole one."""

    def play(asked):
        body = put(ODD[asked.count // 2 % len(ODD)])
        if asked.count % 2:
            yield whole(dumps(body))
        else:
            yield streamed(b"data: " + dumps(body) + b"\n\n", delta(content=TEXT), STOP)

    return play


def in_choice(**fields: Any) -> Said:
    return envelope(choices=[{"index": 0, "finish_reason": None, **fields}])


def both(value: Any) -> Said:
    """This said in the form of a stream and in that of a whole answer."""
    return in_choice(delta=value, message=value)


def a_call(**fields: Any) -> Said:
    return both({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", **fields}]})


WRONG: Mapping[str, Callable[[Any], Said]] = {
    "top": lambda odd: odd,
    "choices": lambda odd: envelope(choices=odd),
    "choice": lambda odd: envelope(choices=[odd]),
    "index": lambda odd: envelope(choices=[{"index": odd, "delta": {"content": TEXT}}]),
    "delta": both,
    "role": lambda odd: both({"role": odd, "content": TEXT}),
    "content": lambda odd: both({"content": odd}),
    "thinking": lambda odd: both({"reasoning_content": odd, "reasoning": odd}),
    "refusal": lambda odd: both({"refusal": odd}),
    "finish-reason": lambda odd: in_choice(delta={}, message={}, finish_reason=odd),
    "tool-calls": lambda odd: both({"tool_calls": odd}),
    "call": lambda odd: both({"tool_calls": [odd]}),
    "call-index": lambda odd: a_call(index=odd, function={"name": "clock", "arguments": "{}"}),
    "call-id": lambda odd: a_call(id=odd, function={"name": "clock", "arguments": "{}"}),
    "function": lambda odd: a_call(function=odd),
    "name": lambda odd: a_call(function={"name": odd, "arguments": "{}"}),
    "arguments": lambda odd: a_call(function={"name": "clock", "arguments": odd}),
    "usage": lambda odd: envelope(choices=[], usage=odd),
    "counts": lambda odd: envelope(
        choices=[], usage={"prompt_tokens": odd, "completion_tokens": odd, "total_tokens": odd}
    ),
    "cached": lambda odd: envelope(
        choices=[], usage={"prompt_tokens_details": odd, "prompt_cache_hit_tokens": odd}
    ),
    "model": lambda odd: envelope(choices=[], model=odd, id=odd, created=odd, object=odd),
    "error": lambda odd: {**both({"content": TEXT}), "error": odd},
}
ANY_ODD = rf"(odd)?({TEXT})*|{DONE}"
"""A word that stands where text is due is the model's text."""

for field, puts in WRONG.items():
    says = ANY_ODD if field in {"content", "refusal", "delta"} else rf"({TEXT})*|{DONE}"
    mode(says, name=f"wrong-{field}")(wrong(puts))


@mode(says=TEXT)
def believed_usage(asked):
    """What is counted must stay sane, or sums and limits of the day are lost."""
    counts = (-(10**9), 10**25, 10**18, "1000000", 1e300, True, [5])
    count = counts[asked.count % len(counts)]
    usage = {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}
    yield streamed(delta(content=TEXT), STOP, event(choices=[], usage=usage))


# Tool calls


def calling(asked: Asked, *calls: Said, finish: Any = "tool_calls") -> Iterator[bytes]:
    """Call these tools; once they have run, answer."""
    if asked.has_results:
        yield plain(asked)
    elif asked.is_streamed:
        parts = [delta(tool_calls=[one]) for one in calls]
        yield streamed(*parts, delta(finish))
    else:
        yield whole(message(finish, tool_calls=list(calls)))


@mode(says=DONE)
def duplicate_call_ids(asked):
    return calling(asked, *[call(index=n) for n in range(5)])


@mode(says=DONE)
def gaps_in_call_indices(asked):
    return calling(asked, *[call(index=n, id=f"c{n}") for n in (0, 7, 10**6, 2**63, 10**30)])


@mode(says=DONE)
def odd_call_indices(asked):
    odd = (-1, -(10**30), 1.5, "0", None, True)
    return calling(asked, *[call(index=index, id=f"c{n}") for n, index in enumerate(odd)])


@mode(says=DONE)
def calls_without_index_or_id(asked):
    bare = {"function": {"name": "clock", "arguments": "{}"}}
    return calling(asked, bare, bare, {"index": 0, **bare}, {"id": "", **bare})


@mode(says=DONE)
def arguments_before_their_call(asked):
    return calling(
        asked,
        {"index": 3, "function": {"arguments": "{}"}},
        {"index": 3, "id": "c", "function": {"name": "clock"}},
        {"index": 3, "id": "c", "function": {"name": "odd"}},
    )


@mode(says=DONE)
def calls_that_are_no_json(asked):
    odd = ("{", "", "null", "[]", '"text"', "{}{}", '{"a": 1', "\x00", "\ud800", "True")
    return calling(asked, call(arguments=odd[asked.count % len(odd)]))


@mode(says=DONE)
def calls_of_no_tool(asked):
    odd = ("", "odd", "clock\n", "../../etc/passwd", "clock\x00", "\ud800", "x" * MANY, "clock ")
    return calling(asked, call(name=odd[asked.count % len(odd)]))


@mode(says=DONE)
def calls_with_long_ids(asked):
    odd = ("x" * MANY, "\x00", "\ud800", "a b", "'; DROP TABLE entry; --", "\u202e", "\n\n")
    return calling(asked, call(id=odd[asked.count % len(odd)]))


@mode(says=DONE)
def many_calls(asked):
    if asked.has_results:
        yield plain(asked)
        return
    yield from all_calls()


@lru_cache(maxsize=1)
def all_calls() -> Sequence[bytes]:
    each = [delta(tool_calls=[call(index=n, id=f"c{n}")]) for n in range(MANY)]
    parts = [chunk(b"".join(each[begin : begin + 500])) for begin in range(0, MANY, 500)]
    return head(CHUNKED), *parts, chunk(delta("tool_calls") + b"data: [DONE]\n\n") + LAST


@mode(says=DONE)
def many_calls_in_one_event(asked):
    return calling(asked, *[call(index=n, id=f"c{n}") for n in range(1000)])


@mode(says=DONE)
def many_calls_whole(asked):
    calls = [call(index=n, id=f"c{n}") for n in range(20_000)]
    yield plain(asked) if asked.has_results else whole(message("tool_calls", tool_calls=calls))


@mode(says=DONE)
def calls_without_end(asked):
    return endless_events(delta(tool_calls=[{"function": {"name": "clock"}, "id": ""}]))


@mode(says=DONE)
def arguments_without_end(asked):
    more = delta(tool_calls=[{"index": 0, "function": {"arguments": "a" * 1000}}])
    return endless_events(more, delta(tool_calls=[call(arguments='{"a": "')]))


@mode(says=DONE)
def names_without_end(asked):
    return endless_events(delta(tool_calls=[{"index": 0, "function": {"name": "clock"}}]))


@mode()
def calls_for_ever(asked):
    """The tools have run, and it calls for more: the same, something else, something made up."""
    number, kind = asked.count, asked.count // 30 % 3
    one = call(name="made up" if kind == 2 else "clock", id=f"c{number}")
    one["function"]["arguments"] = dumps({"a": number if kind == 1 else 0}).decode()
    if asked.is_streamed:
        yield streamed(delta(tool_calls=[one]), delta("tool_calls"))
    else:
        yield whole(message("tool_calls", tool_calls=[one]))


@mode(says=TEXT)
def cut_off_calls(asked):
    """The tokens ran out in the middle of the arguments."""
    return calling(asked, call(arguments='{"expression": "1+'), finish="length")


# Length


@mode(says=r"(ab ?)*a?")
def small_words_without_end(asked):
    return endless_events(delta(content="ab "))


@mode(says=r"(ab ?)*a?")
def large_words_without_end(asked):
    return endless_events(delta(content="ab " * 21_000))


@mode()
def thinking_without_end(asked):
    return endless_events(delta(reasoning_content="ab "))


@mode(says=TEXT)
def thinking_without_end_behind_a_word(asked):
    return endless_events(delta(reasoning="ab "), delta(content=TEXT))


@mode()
def roles_without_end(asked):
    return endless_events(delta(role="assistant"))


LONG = 10_000_000


@lru_cache(maxsize=4)
def long_answer(kind: str) -> bytes:
    text = "ab " * (LONG // 3)
    if kind == "arguments":
        return message("tool_calls", tool_calls=[call(arguments=dumps({"a": text}).decode())])
    return message(**{"content": TEXT, kind: text})


@mode(says=r"(ab ?)*a?")
def ten_megabytes_whole(asked):
    yield whole(long_answer("content"))


@mode(says=r"(ab ?)*a?")
def ten_megabytes_in_one_event(asked):
    yield streamed(b"data: " + long_answer("content").replace(b"message", b"delta", 1) + b"\n\n")


@mode(says=r"(ab ?)*a?")
def ten_megabytes_in_parts(asked):
    words = "ab " * 1000
    yield streamed(*[delta(content=words)] * (LONG // 3000), STOP)


@mode(says=TEXT)
def ten_megabytes_of_thought(asked):
    yield whole(long_answer("reasoning_content"))


@mode(says=DONE)
def ten_megabytes_of_arguments(asked):
    yield plain(asked) if asked.has_results else whole(long_answer("arguments"))


@mode(says=r"(ab ?)*a?")
def whole_without_end(asked):
    return endless(
        chunk(b"ab " * 20_000),
        head(CHUNKED, kind="application/json"),
        chunk(message(content="MARK").partition(b"MARK")[0]),
    )


@mode(says=r"a{1,500000}")
def half_a_megabyte_again_and_again(asked):
    """Sound but long answers, one after the other: what is sent along must not grow for ever."""
    yield plain(asked, "a" * 100_000)


# Characters


def characters(text: str, shown: str, *, must: bool = True, name: str) -> None:
    """An answer in pieces that part it anywhere, whole, and with its characters escaped."""

    def play(asked):
        if asked.count % 3 == 1 or not asked.is_streamed:
            yield whole(message(content=text))
        elif asked.count % 3 == 0:
            yield streamed(*[delta(content=sign) for sign in text], STOP)
        else:
            raw = json.dumps(envelope(choices=[{"delta": {"content": text}}]), ensure_ascii=False)
            yield streamed(b"data: " + raw.encode("utf-8", "surrogatepass") + b"\n\n", STOP)

    mode(shown, must=must, name=f"characters-{name}")(play)


ANYTHING = r"[^\x00\ud800-\udfff]*"
characters("a\x00b\x00c", r"a.?b.?c", must=False, name="nul")
characters("a\ud800b", r"a[^\x00\ud800-\udfff]?b", must=False, name="lone-high-surrogate")
characters("a\udc00b", r"a[^\x00\ud800-\udfff]?b", must=False, name="lone-low-surrogate")
characters("\udfff\ud800", ANYTHING, must=False, name="only-surrogates")
characters("a\u202eb\u2066c", r"a.?b.?c", name="bidi")
characters("a\x1b[31mb\x1b]0;t\x07\x9bc", r"a[^\x00\x1b\x07]*b[^\x00\x1b\x07]*c", name="ansi")
characters("a" + "\u0301" * 5000, r"a?\u0301*|á\u0301*", must=False, name="combining")
characters("\ufeffa\u200b\u2028\ufffe\uffff", ANYTHING, must=False, name="invisible")
characters("a\x85\x0b\x0c\x1c\x1e\u2028b", r"a[^\x00]*b", must=False, name="line-breaks")
characters("\U0001f600" * 100, "(\U0001f600)*", name="beyond-the-first-plane")


@mode(says=r"a?(\U0001f600|[^\x00\ud800-\udfff]{0,2})b?", must=True)
def pair_parted_over_two_events(asked):
    """Half of an emoji in each, as a server does that cuts UTF-16."""
    parts = (b'"a\\ud83d"', b'"\\ude00b"')
    events = [delta(content="MARK").replace(b'"MARK"', part) for part in parts]
    yield streamed(*events, STOP) if asked.is_streamed else plain(asked, "a\U0001f600b")


@mode(says=ANYTHING)
def bytes_that_are_no_utf8(asked):
    odd = (b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xe4\xb8")
    said = b"a" + odd[asked.count // 2 % len(odd)] + b"b"
    body = message(content="MARK").replace(b"MARK", said)
    streams = delta(content="MARK").replace(b"MARK", said)
    yield whole(body) if asked.count % 2 else streamed(streams, STOP)


@mode(says=ANYTHING)
def only_blanks(asked):
    odd = (" ", "\n\n", "\t", "\u3000", "\u200b", "\x00", "\ufeff")
    yield plain(asked, odd[asked.count % len(odd)] * 100)


@mode(says=r"(/|<|\$|\[|`)[^\x00]*", must=True)
def text_that_looks_like_orders(asked):
    odd = ("/new", "<script>alert(1)</script>", "$(reboot)", "[x](javascript:alert(1))", "```")
    yield plain(asked, odd[asked.count % len(odd)])


@mode(says=TEXT)
def other_roles(asked):
    """It speaks as somebody else."""
    role = ("system", "user", "tool", "developer", "odd")[asked.count % 5]
    yield streamed(delta(role=role, content=TEXT), STOP)


# Finish reasons

REASONS: Mapping[str, Any] = {
    "stop": "stop", "length": "length", "tool-calls": "tool_calls",
    "function-call": "function_call", "content-filter": "content_filter", "error": "error",
    "abort": "abort", "cancelled": "cancelled", "end-turn": "end_turn", "eos": "eos",
    "max-tokens": "max_tokens", "null": None, "number": 5, "unknown": FIELD, "empty": "",
    "capitals": "STOP",
}  # fmt: skip
FAILURES = {"error", "abort", "cancelled"}


def finishing(reason: Any, *, is_streamed: bool):
    """With text, with nothing, with a call, and with both in turn."""

    def play(asked):
        if asked.has_results:
            yield plain(asked)
            return
        content = (TEXT, "", None, TEXT)[asked.count % 4]
        calls = {"tool_calls": [call()]} if asked.count % 4 > 1 else {}
        if is_streamed:
            yield streamed(delta(content=content, **calls), delta(reason))
        else:
            yield whole(message(reason, content=content, **calls))

    return play


for named, reason in REASONS.items():
    for form in ("streamed", "whole"):
        says = "" if named in FAILURES else rf"({TEXT}\s*)?({DONE})?"
        mode(says, name=f"finish-{named}-{form}")(finishing(reason, is_streamed=form == "streamed"))
