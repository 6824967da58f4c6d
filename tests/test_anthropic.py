"""Claude against a strict stand-in of its API: what is sent, what is understood, what is cached."""

import json
from contextlib import asynccontextmanager
from itertools import pairwise

import anthropic  # noqa: F401 - loaded here, it counts in the time of no test
import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoloop import Agent, Entry, Session, Summarizer, tool
from nanoloop.attachments import Attachments
from nanoloop.context import Views, build_messages
from nanoloop.errors import (
    AnswerRefused,
    BadAnswer,
    BrokenOff,
    ContextTooLong,
    NoConnection,
    OverQuota,
    ProviderError,
    ServerFailed,
    SettingsError,
    UnknownModel,
    WrongKey,
)
from nanoloop.messages import Attachment, Inbound
from nanoloop.parts import make_provider
from nanoloop.pictures import Pictures
from nanoloop.protocols import ToolSpec, Usage
from nanoloop.providers.anthropic import AnthropicProvider
from nanoloop.providers.messages_api import LOOKBACK, request_bytes
from nanoloop.providers.models import UNSEEN, Models
from nanoloop.providers.openai import OpenAIProvider
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.chat import REASONING
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.turn import Keeping, Turn
from tests.openai_server import OpenAIServer
from tests.raw_server import RawServer
from tests.servers.anthropic_server import KEY, AnthropicServer, Refuse, Request, Say, check, tokens
from tests.test_holds import running

PIXEL = "data:image/png;base64,iVBORw0KGgo="
CLOCK = ToolSpec(
    name="clock", description="The time.", parameters={"type": "object", "properties": {}}
)
HI = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}]
THINKING = {"thinking": {"type": "adaptive"}}
MANUAL = {"thinking": {"type": "enabled", "budget_tokens": 2000}}


@asynccontextmanager
async def connected(*answers, binds=True, otherwise=None, **given):
    given = {"model": "claude-test", "api_key": KEY, "max_retries": 0} | given
    async with AnthropicServer(*answers, otherwise=otherwise, binds=binds) as server:
        provider = AnthropicProvider(**({"base_url": server.url} | given))
        try:
            yield provider, server
        finally:
            await provider.close()


def user(text):
    return {"role": "user", "content": text}


def assistant(text, *calls, **more):
    said = {"role": "assistant", "content": text, **more}
    return said | ({"tool_calls": [call(*each) for each in calls]} if calls else {})


def call(call_id, name="clock", arguments="{}"):
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def result(call_id, text="12:00"):
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def form_of(*messages, tools=(CLOCK,), options=None):
    """A request as JSON, held against the API's rules, without its breakpoints."""
    body = request_bytes(
        model="m", options=options or {}, tools=tools, messages=messages, stream=False
    )
    form = json.loads(body)
    check(form)
    return json.loads(body, object_hook=without_mark)


def without_mark(item):
    return {key: value for key, value in item.items() if key != "cache_control"}


def said(*messages, **given):
    return [(each["role"], each["content"]) for each in form_of(*messages, **given)["messages"]]


def text(words):
    return {"type": "text", "text": words}


@tool
async def double(number: int) -> int:
    """Twice the number."""
    return number * 2


KEEPING = Keeping()


class Talk:
    """A conversation in a session object."""

    def __init__(self, words="hi", vendor="anthropic"):
        self.session = Session()
        self.session.add_message("user", words)
        self.vendor = vendor

    def view(self):
        return Views().of(self.session, prompt="P", vendor=self.vendor)

    def turn(self, provider, keeping):
        agent = Agent(provider=provider, tools=[double])
        return Turn(
            self.session,
            agent=agent,
            provider=provider,
            view=self.view(),
            keeping=keeping,
            cutting=None,
        )


def doubles(*numbers, **more):
    calls = tuple((f"toolu_{number}", "double", {"number": number}) for number in numbers)
    return Say(**({"text": "", "calls": calls} | more))


async def ran(talk, provider, keeping=KEEPING):
    return (await talk.turn(provider, keeping).run()).text


# A request


@pytest.mark.slow
def test_the_system_prompt_the_tools_and_the_limit_stand_beside_the_messages():
    form = form_of(*HI)
    assert form["system"] == [text("Be kind.")]
    assert form["messages"] == [{"role": "user", "content": [text("Hi there")]}]
    assert form["tools"] == [
        {"name": "clock", "description": "The time.", "input_schema": CLOCK.parameters}
    ]
    assert form["max_tokens"] == 16_000


def test_the_results_of_a_step_are_one_message_in_the_order_of_the_calls():
    step = assistant("Let me see.", ("a", "clock", '{"zone": 1}'), ("b",))
    _, (role, blocks), (after, results) = said(
        user("?"), step, result("a"), result("b", "Error: x")
    )
    assert (role, after) == ("assistant", "user")
    assert blocks == [
        text("Let me see."),
        {"type": "tool_use", "id": "a", "name": "clock", "input": {"zone": 1}},
        {"type": "tool_use", "id": "b", "name": "clock", "input": {}},
    ]
    assert results == [
        {"type": "tool_result", "tool_use_id": "a", "content": "12:00"},
        {"type": "tool_result", "tool_use_id": "b", "content": "Error: x", "is_error": True},
    ]


def test_messages_of_one_role_are_one_message_and_the_user_begins():
    told = said(assistant("a"), assistant("b"), user("c"), user("  "), user("d"))
    assert told == [
        ("user", [text("[the conversation began earlier]")]),
        ("assistant", [text("a"), text("b")]),
        ("user", [text("c"), text("[an empty message]"), text("d")]),
    ]


def test_what_the_system_says_later_is_marked_as_such():
    later = {"role": "system", "content": "Be brief."}
    assert said(*HI, later) == [
        ("user", [text("Hi there"), text("<system>\nBe brief.\n</system>")])
    ]


@pytest.mark.parametrize(
    ("url", "block"),
    [
        (PIXEL, {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}),
        ("https://example.org/a.png", {"type": "url", "url": "https://example.org/a.png"}),
        ("data:image/bmp;base64,Qk0=", None),
        ("http://example.org/a.png", None),
    ],
)
def test_images_are_shown_where_the_api_takes_them(url, block):
    parts = [{"type": "image_url", "image_url": {"url": url}}, text("What is it?")]
    shown = UNSEEN if block is None else {"type": "image", "source": block}
    assert said(user(parts)) == [("user", [shown, text("What is it?")])]


def test_odd_ids_names_and_arguments_of_other_servers_are_made_to_fit():
    first = assistant(None, ("f:0", "a b", "[1]"), ("f.0", "", '{"n": NaN}'))
    again = assistant(None, ("f:0", "x" * 200, "{broken"))
    told = said(
        user("?"),
        first,
        result("f:0", "1"),
        result("f.0", ""),
        again,
        result("f:0", "3"),
        user("!"),
    )
    calls = [block for _, blocks in told for block in blocks if block["type"] == "tool_use"]
    assert [each["id"] for each in calls] == ["f_0", "f_0__2", "f_0__3"]
    assert [each["name"] for each in calls] == ["a_b", "unknown", "x" * 128]
    assert [each["input"] for each in calls] == [
        {"arguments": [1]},
        {"arguments": '{"n": NaN}'},
        {"arguments": "{broken"},
    ]
    results = [block for _, blocks in told for block in blocks if block["type"] == "tool_result"]
    assert [(each["tool_use_id"], each.get("content")) for each in results] == [
        ("f_0", "1"),
        ("f_0__2", None),
        ("f_0__3", "3"),
    ]


def test_calls_of_tools_that_are_gone_are_declared_and_not_offered():
    form = form_of(user("?"), assistant(None, ("a",)), result("a"), tools=())
    assert form["tools"] == [{"name": "clock", "input_schema": {"type": "object"}}]
    assert form["tool_choice"] == {"type": "none"}
    assert "tool_choice" not in form_of(*HI, tools=(), options={"tool_choice": "auto"})


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({"max_tokens": 5, "service_tier": "auto"}, {"max_tokens": 5, "service_tier": "auto"}),
        ({"max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"stop": "END", "metadata": None}, {"stop_sequences": ["END"]}),
        ({"tool_choice": "required"}, {"tool_choice": {"type": "any"}}),
        (
            {"parallel_tool_calls": False},
            {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
        ),
        (MANUAL, MANUAL | {"max_tokens": 18_000}),
        ({"reasoning_effort": "low"}, {"output_config": {"effort": "low"}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": 1}}}},
            {"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}},
        ),
    ],
)
def test_options_go_along_also_in_openais_words(options, sent):
    form = form_of(*HI, options=options)
    rest = {"messages", "model", "system", "tools"} | ({"max_tokens"} - set(sent))
    assert {key: value for key, value in form.items() if key not in rest} == sent


def test_no_option_says_what_the_provider_says():
    with pytest.raises(SettingsError, match="system"):
        AnthropicProvider(model="m", options={"system": "Be rude."})


WORDS = st.sampled_from(["", " ", "a", "Error: no", "\ud800", "x\n\n"])
ODD = st.sampled_from(["a", "a.b", "a:b", "", "toolu_1", "ä" * 9])
STEP = st.lists(
    st.tuples(ODD, ODD, st.sampled_from(["{}", "", "[", '{"a":1}', "null"])), max_size=3
)


@settings(max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), WORDS, STEP)))
def test_whatever_was_said_makes_a_request_that_the_api_takes(told):
    session = Session()
    for role, words, calls in told:
        session.add_message(role, words)
        for call_id, name, given_ in calls if role == "assistant" else ():
            session.add_entry(Entry.tool_call(name, given_, call_id=call_id or None))
        for call_id, name, given_ in calls if role == "assistant" else ():
            session.add_entry(Entry.tool_result(name, given_, call_id=call_id or None))
    messages = [*build_messages("P", session.window, vendor="anthropic"), user("Go on.")]
    form_of(*messages)


SPOKEN = st.lists(st.tuples(st.sampled_from([user, assistant]), st.text()), min_size=1)


@given(SPOKEN, SPOKEN)
def test_a_request_repeats_the_one_before_it_but_for_its_marks(before, new):
    def blocks(told):
        body = request_bytes(
            model="m",
            options={},
            tools=[CLOCK],
            messages=[HI[0], user("Hi."), *(role(words) for role, words in told)],
            stream=False,
        )
        return Request(headers={}, body=body).blocks

    assert blocks(before + new)[: len(blocks(before))] == blocks(before)


# Breakpoints


def marks(*messages, tools=(CLOCK,)):
    """The number of the block at whose end each breakpoint stands, from the first message's."""
    body = request_bytes(model="m", options={}, tools=tools, messages=messages, stream=False)
    blocks = [block for message in json.loads(body)["messages"] for block in message["content"]]
    return [at for at, block in enumerate(blocks) if "cache_control" in block]


def test_breakpoints_stand_at_the_steady_end_and_at_the_end():
    asked = [user("1"), assistant("2"), user("3")]
    step = [assistant(None, ("a",)), result("a")]
    assert marks(*asked) == [1, 2]
    assert marks(*asked, *step) == [2, 4]
    assert marks(*asked, *step, assistant(None, ("b",)), result("b")) == [4, 6]
    assert marks(user("1")) == [0]


def test_behind_a_long_turn_the_answer_before_it_is_marked():
    ids = [f"c{number}" for number in range(LOOKBACK)]
    long = [assistant(None, *((each,) for each in ids)), *map(result, ids), assistant("done")]
    talk = [user("1"), assistant("2"), user("3"), *long, user("4")]
    assert marks(*talk) == [1, len(ids) * 2 + 4]


async def test_a_step_of_many_calls_finds_all_that_was_sent_before():
    async with connected(doubles(*range(15)), doubles(*range(20, 35)), "Done.") as (
        provider,
        server,
    ):
        assert await ran(Talk(), provider) == "Done."
    for before, after in pairwise(server.requests):
        assert after.blocks[: len(before.blocks)] == before.blocks
        assert after.usage["cache_read_input_tokens"] == tokens(before.blocks)


# An answer


@pytest.mark.parametrize("streamed", [False, True])
async def test_text_calls_thinking_and_usage_are_understood(streamed):
    answer = Say(text="See: ä€😀.", thinking="Well…", calls=(("t1", "clock", {"a": [1]}),))
    pieces = []
    listening = {"on_text": pieces.append} if streamed else {}
    async with connected(answer, answer, options=THINKING) as (provider, server):
        await provider.chat(messages=HI, tools=[CLOCK])
        reply = await provider.chat(messages=HI, tools=[CLOCK], **listening)
        whole = tokens(server.requests[0].blocks)
    assert (reply.text, reply.thinking, reply.model) == ("See: ä€😀.", "Well…", "claude-test")
    assert [(c.id, c.name, json.loads(c.arguments)) for c in reply.tool_calls] == [
        ("t1", "clock", {"a": [1]})
    ]
    assert reply.usage == Usage(tokens_in=whole, tokens_out=5, tokens_cached=whole)
    assert "".join(pieces) == ("See: ä€😀." if streamed else "")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("said_", "understood"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
        ("never_heard_of", "stop"),
        (None, "stop"),
    ],
)
async def test_an_answer_ends_for_a_reason_we_know(said_, understood, streamed):
    listening = {"on_text": lambda _: None} if streamed else {}
    async with connected(Say(stop_reason=said_)) as (provider, _):
        reply = await provider.chat(messages=HI, **listening)
    assert (reply.text, reply.finish_reason) == ("Hello.", understood)


@pytest.mark.parametrize(
    ("reason", "error"), [("refusal", AnswerRefused), ("pause_turn", BadAnswer), ("odd", BadAnswer)]
)
async def test_an_odd_end_without_a_word_is_an_error(reason, error):
    async with connected(Say(text="", stop_reason=reason)) as (provider, _):
        with pytest.raises(error):
            await provider.chat(messages=HI)


async def test_a_stream_that_ends_in_the_middle_is_asked_for_again_until_it_was_heard():
    broken = Say(text="Hello, you there.", broken=True)
    begun = Say(events=({"type": "message_start", "message": {"content": []}},))
    async with connected(begun, "Hi.", broken, max_retries=1) as (provider, server):
        assert (await provider.chat(messages=HI, on_text=lambda _: None)).text == "Hi."
        with pytest.raises(BrokenOff):
            await provider.chat(messages=HI, on_text=lambda _: None)
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    "events",
    [
        ({"type": "content_block_start", "index": 0}, {"type": "content_block_delta"}),
        ({"type": "content_block_start", "index": [], "content_block": {"type": "text"}},),
        ({"type": "content_block_delta", "index": 7, "delta": {"type": "text_delta"}},),
        ({"type": "message_delta", "delta": 3, "usage": {"input_tokens": -1, "x": "y"}},),
        ({"type": 7}, {"type": "message_start", "message": []}),
    ],
)
async def test_events_that_make_no_sense_are_no_answer(events):
    said_ = Say(events=(*events, {"type": "message_stop"}))
    async with connected(said_) as (provider, _):
        with pytest.raises(BadAnswer):
            await provider.chat(messages=HI, on_text=lambda _: None)


@pytest.mark.parametrize("kind", ["signature_delta", "thinking_delta"])
async def test_endless_thinking_ends_as_cut_off_and_goes_back_to_nobody(kind):
    thought = {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking"}}
    delta = {"type": kind, kind.removesuffix("_delta"): "x" * 50_000}
    more = [{"type": "content_block_delta", "index": 0, "delta": delta}] * 20
    async with connected(Say(events=(thought, *more))) as (provider, _):
        reply = await provider.chat(messages=HI, on_text=lambda _: None)
    assert (reply.finish_reason, reply.reasoning) == ("length", None)


# Thinking


@pytest.mark.parametrize("options", [THINKING, MANUAL])
async def test_what_was_thought_goes_back_unchanged_before_its_calls(options):
    thought = [
        doubles(1, thinking="Double…\n\n one?", redacted="secret"),
        doubles(2, text="And now"),
    ]
    async with connected(*thought, "Four.", options=options) as (provider, server):
        assert await ran(Talk(), provider) == "Four."
    assert [request.refused for request in server.requests] == ["", "", ""]
    step = server.requests[-1].json["messages"][1]["content"]
    assert [block["type"] for block in step] == ["thinking", "redacted_thinking", "tool_use"]


async def test_thoughts_between_words_and_calls_stay_where_they_stood():
    blocks = (
        {"type": "thinking", "thinking": "One."},
        text("First "),
        text("this."),
        {"type": "redacted_thinking", "data": "two"},
        {"type": "tool_use", "id": "a", "name": "double", "input": {"number": 1}},
        {"type": "thinking", "thinking": ""},
        {"type": "tool_use", "id": "b", "name": "double", "input": {"number": 2}},
    )
    async with connected(Say(blocks=blocks), "Done.", options=THINKING) as (provider, server):
        assert await ran(Talk(), provider) == "Done."
    told = server.requests[1].json["messages"][1]["content"]
    sealed = {"signature", "cache_control"}
    plain = [{k: v for k, v in block.items() if k not in sealed} for block in told]
    assert [block | {"data": "two"} if "data" in block else block for block in plain] == [*blocks]


async def test_thoughts_of_finished_turns_are_left_out():
    async with connected(doubles(1, thinking="Hm."), "Two.", options=THINKING) as (
        provider,
        server,
    ):
        talk = Talk()
        talk.session.add_message("assistant", await ran(talk, provider))
        talk.session.add_message("user", "And now?")
        assert await ran(talk, provider) == "Hello."
    kinds = [b["type"] for m in server.requests[-1].json["messages"] for b in m["content"]]
    assert kinds == ["text", "tool_use", "tool_result", "text", "text"]


async def test_what_is_said_to_a_turn_while_it_goes_on_takes_no_thought_away():
    async with connected(
        doubles(1, thinking="Hm."), doubles(2, thinking="So."), "Two.", options=MANUAL
    ) as (provider, server):
        talk = Talk()
        faster = Keeping(steering=lambda _: [Entry.message("user", "Faster!")])
        assert await ran(talk, provider, faster) == "Two."
    shown = [b["type"] for m in server.requests[-1].json["messages"] for b in m["content"]]
    assert shown.count("thinking") == 2


@pytest.mark.parametrize("options", [THINKING, MANUAL])
async def test_a_turn_goes_on_when_a_summary_changes_what_stood_before_its_thoughts(options):
    async with connected(doubles(1, thinking="Hm."), doubles(2), "Four.", options=options) as (
        provider,
        server,
    ):
        talk = Talk()

        def summarise(session):
            session.summary = "They met."
            return ()

        assert await ran(talk, provider, Keeping(steering=summarise)) == "Four."
    refused = [request for request in server.requests if request.refused]
    assert all("Invalid `signature`" in request.refused for request in refused)
    assert 1 <= len(refused) <= 2


async def test_a_turn_that_another_vendors_model_began_goes_on():
    talk = Talk()
    calls = [Entry.tool_call("double", {"number": 1}, call_id="functions.double:0")]
    results = [Entry.tool_result("double", 2, call_id="functions.double:0")]
    metadata = {REASONING: {"vendor": "acme", "blocks": [{"type": "odd"}]}}
    for entry in (Entry.thinking("Hm.", metadata=metadata), *calls, *results):
        talk.session.add_entry(entry)
    async with connected("Two.", options=MANUAL) as (provider, server):
        assert await ran(talk, provider) == "Two."
    assert "thinking" not in server.requests[0].json


async def test_a_thought_goes_back_through_all_that_stands_before_the_provider(tmp_path):
    async with connected(doubles(1, thinking="Hm."), "Two.", options=MANUAL) as (provider, server):
        models = Models("anthropic:claude-test", lambda *_: provider)
        shown = Pictures(models, Attachments(tmp_path, limit_bytes=1))
        async with running(shown, InMemoryStore(), tools=[double]) as loop:
            loop.bus.put_nowait(heard("go"))
            assert await loop.chat.until(1) == ["Two."]
    step = server.requests[-1].json["messages"][1]["content"]
    assert [block["type"] for block in step] == ["thinking", "tool_use"]


async def test_no_other_server_is_sent_what_was_thought():
    async with connected(doubles(1, thinking="Hm."), options=THINKING) as (provider, _):
        talk = Talk()
        await ran(talk, provider)
    assert any(REASONING in message for message in talk.view().request())
    async with OpenAIServer("Two.") as server:
        other = OpenAIProvider(model="m", base_url=server.url)
        assert await ran(talk, other) == "Two."
        await other.close()
    assert b"signature" not in server.requests[0].body
    assert REASONING.encode() not in server.requests[0].body


async def test_a_turn_goes_on_with_its_thoughts_after_a_restart(tmp_path):
    began = anyio.Event()

    @tool
    async def wait() -> str:
        """Waits."""
        began.set()
        await anyio.sleep_forever()
        return ""

    waits = Say(text="", thinking="Wait, then.", calls=(("toolu_w", "wait", {}),))
    async with connected(waits, "Done.", options=MANUAL) as (provider, server):
        store = JsonlStore(tmp_path)
        async with running(provider, store, tools=[wait]) as loop:
            loop.bus.put_nowait(heard("go"))
            await began.wait()
        await store.close()
        store = JsonlStore(tmp_path)
        async with running(provider, store, tools=[wait], recover=True) as loop:
            assert await loop.chat.until(1) == ["Done."]
    step = server.requests[-1].json["messages"][1]["content"]
    assert [block["type"] for block in step] == ["thinking", "tool_use"]


# Errors


@pytest.mark.parametrize(
    ("status", "kind", "message", "error", "told"),
    [
        (401, "authentication_error", "invalid x-api-key", WrongKey, "check ANTHROPIC_API_KEY"),
        (403, "permission_error", "no", WrongKey, "ANTHROPIC_API_KEY"),
        (404, "not_found_error", "model: claude-test", UnknownModel, "no model 'claude-test'"),
        (413, "request_too_large", "Request exceeds", ContextTooLong, "longer than"),
        (429, "rate_limit_error", "Slow down", OverQuota, "in 7 seconds"),
        (500, "api_error", "Internal", ServerFailed, "on its side"),
        (529, "overloaded_error", "Overloaded", ServerFailed, "529"),
        (402, "billing_error", "Pay", OverQuota, "no credit"),
        (400, "invalid_request_error", "Your credit balance is too low", OverQuota, "no credit"),
        (400, "invalid_request_error", "prompt is too long: 2 > 1", ContextTooLong, "longer than"),
        (
            400,
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 9 > 8",
            ContextTooLong,
            "longer than",
        ),
        (400, "invalid_request_error", "max_tokens: 9 > 8", ProviderError, "max_tokens: 9 > 8"),
    ],
)
async def test_a_refusal_says_what_to_do(status, kind, message, error, told):
    refusal = Refuse(status=status, type=kind, message=message, headers=(("retry-after", "7"),))
    async with connected(refusal) as (provider, server):
        with pytest.raises(error, match=told) as caught:
            await provider.chat(messages=HI)
        assert KEY not in str(caught.value)
        assert type(caught.value) is error
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", ServerFailed),
        ("rate_limit_error", OverQuota),
        ("api_error", ServerFailed),
        ("invalid_request_error", ServerFailed),
    ],
)
async def test_an_error_within_a_stream_is_one(kind, error):
    failing = {"type": "error", "error": {"type": kind, "message": "Odd."}}
    begun = {"type": "message_start", "message": {"content": [], "usage": {}}}
    async with connected(Say(events=(begun, failing))) as (provider, _):
        with pytest.raises(error):
            await provider.chat(messages=HI, on_text=lambda _: None)


async def test_a_missing_key_is_named():
    async with connected(api_key=None) as (provider, server):
        with pytest.raises(WrongKey, match="set ANTHROPIC_API_KEY"):
            await provider.chat(messages=HI)
    assert not {"authorization", "x-api-key"} & set(server.requests[0].headers)


async def test_the_environment_gives_no_key_that_was_not_given(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", KEY)
    async with connected(api_key=None) as (provider, _):
        with pytest.raises(WrongKey):
            await provider.chat(messages=HI)


async def test_an_overloaded_server_is_asked_again_by_the_sdk_alone():
    busy = Refuse(status=529, type="overloaded_error", headers=(("retry-after-ms", "1"),))
    async with connected(busy, busy, "Hi.", max_retries=2) as (provider, server):
        assert (await provider.chat(messages=HI)).text == "Hi."
    assert len(server.requests) == 3


async def test_nothing_there_is_an_error_with_the_address():
    provider = AnthropicProvider(model="m", base_url="http://127.0.0.1:9", max_retries=0)
    with pytest.raises(NoConnection, match=r"127\.0\.0\.1:9"):
        await provider.chat(messages=HI)
    await provider.close()


async def test_a_base_url_may_end_as_openais_does():
    async with connected() as (_, server):
        other = AnthropicProvider(model="m", api_key=KEY, base_url=f"{server.url}/v1/")
        assert (await other.chat(messages=HI)).text == "Hello."
        await other.close()


async def test_a_redirect_that_would_lose_the_request_is_named():
    moved = Refuse(status=302, type="moved", headers=(("location", "/elsewhere"),))
    async with connected(moved) as (provider, _):
        with pytest.raises(ProviderError, match="elsewhere"):
            await provider.chat(messages=HI)


async def test_options_of_one_call_leave_the_others_alone():
    async with connected() as (provider, server):
        one = provider.with_options({"max_tokens": 9, "temperature": 1, "seed": 7})
        await one.chat(messages=HI)
        await provider.chat(messages=HI)
    assert [request.json["max_tokens"] for request in server.requests] == [9, 16_000]


# Fifty turns


def claude(request):
    """Doubles what it is told to, in steps where it is many, and thinks where it is asked to."""
    messages = request.json["messages"]
    last = messages[-1]["content"]
    asked = next(
        b["text"]
        for m in reversed(messages)
        for b in m["content"]
        if b["type"] == "text" and m["role"] == "user"
    )
    number = len(request.json["messages"]) * 100
    steps = sum(b["type"] == "tool_result" for b in last)
    thinking = "Let me think." if "think" in asked else ""
    if steps == 0 and "double" in asked:
        return doubles(number, thinking=thinking, text="One moment.")
    if steps == 1 and "many" in asked:
        return doubles(*range(number, number + 12), thinking=thinking)
    return Say(text=f"Answer to {asked!r}.", thinking=thinking)


def asked_in(turn):
    words = [f"turn {turn}"]
    words += ["double"] if turn % 3 == 0 else []
    words += ["many"] if turn % 6 == 0 else []
    words += ["think"] if turn % 4 == 0 else []
    return " ".join(words)


def heard(words, turn=0, **more):
    return Inbound(channel="test", chat="a", text=words, message_id=f"m{turn}", **more)


def thought_in(request):
    return any(b["type"] == "thinking" for m in request.json["messages"] for b in m["content"])


def steady(request):
    """How many blocks there are before the newest question."""
    form = request.json
    count, begins = len(form["tools"]) + len(form["system"]), 0
    for message in form["messages"]:
        if message["role"] == "user" and message["content"][0]["type"] != "tool_result":
            begins = count
        count += len(message["content"])
    return begins


def is_swap(before, after):
    """Whether the summary changed or the window moved."""
    begins = [[r.json["system"], r.blocks[len(r.json["tools"]) + 1]] for r in (before, after)]
    return begins[0] != begins[1]


async def test_in_fifty_turns_each_request_finds_what_the_one_before_it_kept():
    image = Attachment(kind="image", ref=PIXEL)
    summarizer = Summarizer(ScriptedProvider(otherwise="They counted."))
    async with (
        connected(otherwise=claude, options=THINKING) as (provider, server),
        running(
            provider,
            InMemoryStore(),
            tools=[double],
            summarizer=summarizer,
            message_buffer_limit=70,
        ) as loop,
    ):
        for turn in range(50):
            more = {"attachments": (image,)} if turn == 20 else {}
            loop.bus.put_nowait(heard(asked_in(turn), turn, **more))
            assert len(await loop.chat.until(turn + 1)) == turn + 1
            await summarizer.drain(5)
    assert not any(request.refused for request in server.requests)
    assert {item.kind for item in loop.chat.sent} == {"answer"}
    assert sum(map(thought_in, server.requests)) > 5
    pairs = [*pairwise(server.requests)]
    swaps = [pair for pair in pairs if is_swap(*pair)]
    assert len(swaps) == 2  # the cut, and the summary of what it left behind
    for before, after in pairs:
        if (before, after) not in swaps:
            # What was thought is gone with the next question: that exchange is read anew.
            is_new = thought_in(before) and not thought_in(after)
            kept = steady(before) if is_new else len(before.blocks)
            assert after.blocks[:kept] == before.blocks[:kept]
            assert after.usage["cache_read_input_tokens"] >= tokens(before.blocks[:kept])


def event(**said):
    return b"data: " + json.dumps(said).encode() + b"\n\n"


async def test_what_was_heard_is_not_said_again_when_it_fails_in_the_middle():
    begin = event(type="message_start", message={"content": []})
    begin += event(type="content_block_start", index=0, content_block={"type": "text"})
    begin += event(type="content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    wrong = event(type="error", error={"type": "invalid_request_error", "code": 400})
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
    thought = {"type": "thinking", "thinking": "t", "signature": "s"}
    called = {
        "role": "assistant",
        "content": None,
        "reasoning": {"vendor": "anthropic", "blocks": [thought, {"type": "tool_use"}]},
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f"}}],
    }
    result = {"role": "tool", "tool_call_id": "1", "content": "ok"}
    asked, heard = [{"role": "user", "content": "x"}, called, result], []
    async with RawServer(head + begin + wrong, hangs_up=True) as server:
        provider = AnthropicProvider(model="m", api_key=KEY, base_url=server.url, max_retries=0)
        with pytest.raises(ProviderError):
            await provider.chat(messages=asked, on_text=heard.append)
        await provider.close()
    assert (heard, server.count) == (["Hi"], 1)


async def test_no_key_follows_a_redirect_to_another_server():
    async with OpenAIServer() as other:
        head = f"HTTP/1.1 307 X\r\nLocation: {other.root}/\r\nContent-Length: 0\r\n\r\n"
        async with RawServer(head.encode()) as server:
            provider = AnthropicProvider(model="m", api_key=KEY, base_url=server.url, max_retries=0)
            with pytest.raises(ProviderError):
                await provider.chat(messages=[{"role": "user", "content": "x"}])
            await provider.close()
    assert KEY not in str([request.head for request in other.requests])
    assert other.count == 1


async def test_options_for_all_vendors_leave_out_what_the_api_does_not_know():
    async with AnthropicServer() as server:
        own = {
            "anthropic": {
                "api_key": KEY,
                "base_url": server.url,
                "options": {"stop_sequences": ["END"]},
            }
        }
        provider = make_provider(
            Settings(
                model="anthropic:claude-test",
                provider={"options": {"temperature": 0.3, "max_tokens": 99}},
                providers=own,
            )
        )
        await provider.chat(messages=[{"role": "user", "content": "x"}])
        await provider.close()
    (request,) = server.requests
    assert (request.json["max_tokens"], request.json["stop_sequences"]) == (99, ["END"])
    assert "temperature" not in request.json
