"""A message that is sent again under its name: the same answer, and no second message."""

from functools import partial

import anyio
import openai
import pytest

from nanoloop.channels.web import names
from nanoloop.channels.web.dialogue import hand_in
from nanoloop.channels.web.names import NAMES_SECONDS, OTHER_BODY
from nanoloop.channels.web.openai import answer
from nanoloop.errors import OverQuota
from nanoloop.protocols import Reply
from nanoloop.providers.scripted import ScriptedProvider
from tests.web_openai import PLAIN, ask, asking, client_of, stream, text_of, until
from tests.web_server import OTHER, TOKEN, TOKENS, serving

ANN = "web:local.ann"
"""The session that the user named ann has."""
EACH = pytest.mark.parametrize("more", [{"user": "ann"}, {}], ids=["session", "stateless"])


def keyed(key="order-1"):
    return {"extra_headers": {"Idempotency-Key": key}}


def again(count=1):
    """As the SDK sends what it has sent before."""
    return {"extra_headers": {"X-Stainless-Retry-Count": str(count)}}


NAMED = pytest.mark.parametrize(
    ("first", "second"), [(keyed(), keyed()), ({}, again())], ids=["key", "retry"]
)


class HalfWay:
    """Says the first half of an answer, and the rest when the test says so."""

    def __init__(self):
        self.rest = anyio.Event()
        self.count = 0

    async def chat(self, *, messages, tools=None, model=None, on_text=None):
        self.count += 1
        on_text("One half, ")
        await self.rest.wait()
        on_text("and the other.")
        return Reply(text="One half, and the other.")

    async def close(self):
        """Nothing to let go of."""


@pytest.fixture
async def web(tmp_path):
    async with asking(tmp_path) as web:
        yield web


async def said_by_user(web):
    return [m["text"] for m in await web.messages(ANN) if m["role"] == "user"]


async def ask_raw(web, text, **more):
    create = web.openai.chat.completions.with_raw_response.create
    messages = [{"role": "user", "content": text}]
    return await create(model="assistant", messages=messages, **more)


# Finished


@EACH
@NAMED
async def test_a_repeated_name_gets_the_answer_that_there_is(web, more, first, second):
    one = await ask_raw(web, "tea", **more, **first)
    two = await ask_raw(web, "tea", **more, **second)
    assert one.text == two.text
    assert one.headers.get("idempotent-replayed") is None
    assert two.headers["idempotent-replayed"] == "true"
    assert web.provider.count == 1
    if more:
        assert await said_by_user(web) == ["tea"]


@EACH
@NAMED
async def test_a_stream_is_repeated_as_well(web, more, first, second):
    one = await stream(web.openai, "tea please", **more, **first)
    two = await stream(web.openai, "tea please", **more, **second)
    assert text_of(one) == text_of(two) == "You said: tea please"
    assert {c.id for c in one} == {c.id for c in two}
    assert web.provider.count == 1


@EACH
async def test_a_key_with_another_body_is_refused(web, more):
    await ask(web.openai, "tea", **more, **keyed())
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await ask(web.openai, "coffee", **more, **keyed())
    assert refused.value.body["message"] == OTHER_BODY
    assert web.provider.count == 1


async def test_a_key_in_another_session_is_refused(web):
    await ask(web.openai, "tea", user="ann", **keyed())
    with pytest.raises(openai.UnprocessableEntityError):
        await ask(web.openai, "tea", user="bob", **keyed())


async def test_a_key_that_is_too_long_is_refused(web):
    with pytest.raises(openai.UnprocessableEntityError, match="at most 255 characters"):
        await ask(web.openai, "tea", user="ann", **keyed("x" * 256))


@EACH
async def test_the_same_words_without_a_retry_are_another_message(web, more):
    for _ in range(2):
        await ask(web.openai, "tea", **more)
        await ask(web.openai, "tea", **more, **PLAIN)
    assert web.provider.count == 4


@EACH
@NAMED
async def test_no_caller_gets_anothers_answer(tmp_path, more, first, second):
    async with asking(tmp_path, key=TOKEN, tokens=TOKENS) as web, client_of(web, key=OTHER) as bob:
        await ask(web.openai, "tea", **more, **first)
        await ask(bob, "tea", **more, **second)
        assert web.provider.count == 2


async def test_callers_who_see_the_same_session_have_names_of_their_own(tmp_path):
    tokens = {name: {**token, "sessions": ["*"]} for name, token in TOKENS.items()}
    async with asking(tmp_path, key=TOKEN, tokens=tokens) as web, client_of(web, key=OTHER) as bob:
        await ask(web.openai, "tea", user="ann")
        session = web.channel.backend.feeds
        shared = {"X-Nanoloop-Session": next(iter(session._feeds))}
        for client in (web.openai, bob):
            await ask(client, "more", extra_headers={**shared, "Idempotency-Key": "1"})
        assert web.provider.count == 3


async def test_a_retry_after_ten_minutes_is_another_message(web):
    web.channel.backend.names._clock = lambda: now
    now = 1000.0
    await ask(web.openai, "tea")
    now += NAMES_SECONDS
    await ask(web.openai, "tea", **again())
    assert web.provider.count == 1
    now += 1
    await ask(web.openai, "tea", **again())
    assert web.provider.count == 2


async def test_the_names_of_a_caller_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "NAMES_OF_ONE", 2)
    async with asking(tmp_path) as web:
        for key in ("a", "b", "c"):
            await ask(web.openai, "tea", **keyed(key))
        (known,) = web.channel.backend.names._of.values()
        assert list(known) == ["key b", "key c"]
        await ask(web.openai, "tea", **keyed("a"))
        assert web.provider.count == 4


# Running


@EACH
@NAMED
async def test_a_repeated_name_gets_what_is_still_to_come(web, more, first, second):
    web.provider.hold()
    answers = []

    async def asked(given):
        answers.append(await ask(web.openai, "tea", **more, **given))

    async with anyio.create_task_group() as group:
        group.start_soon(asked, first)
        await web.provider.asked()
        group.start_soon(asked, second)
        await until(lambda: len(web.channel.backend.streams) == 2)
        web.provider.release()
    assert answers == ["You said: tea"] * 2
    assert web.provider.count == 1


@EACH
@NAMED
async def test_a_stream_that_comes_late_gets_the_pieces_so_far_and_the_rest(
    tmp_path, more, first, second
):
    provider = HalfWay()
    async with asking(tmp_path, provider=provider) as web:
        create = partial(
            web.openai.chat.completions.create,
            model="assistant",
            messages=[{"role": "user", "content": "tea"}],
            stream=True,
            **more,
        )
        async with await create(**first) as early:
            await begins_with_half(early)
        async with await create(**second) as late:
            await begins_with_half(late)
            provider.rest.set()
            rest = [chunk async for chunk in late]
    assert text_of(rest) == "and the other."
    assert provider.count == 1


async def test_a_key_that_is_forgotten_here_still_finds_the_turn_running(tmp_path):
    provider = HalfWay()
    async with asking(tmp_path, provider=provider) as web, anyio.create_task_group() as group:
        group.start_soon(partial(ask, web.openai, "tea", user="ann", **keyed()))
        await until(lambda: web.channel.backend.feeds.of(ANN).running)
        web.channel.backend.names._of.clear()
        late = await web.openai.chat.completions.create(
            model="assistant",
            messages=[{"role": "user", "content": "tea"}],
            stream=True,
            user="ann",
            **keyed(),
        )
        await begins_with_half(late)
        provider.rest.set()
        assert text_of([chunk async for chunk in late]) == "and the other."
    assert provider.count == 1


async def test_an_answer_that_is_being_written_is_waited_for(web, monkeypatch):
    web.provider.hold()
    store, saving, back = web.app.loop.sessions.store, anyio.Event(), anyio.Event()
    save = store.save

    async def slow(kept):
        saving.set()
        await back.wait()
        await save(kept)

    async def handed_in(backend, message):
        """Just before the answer is durable."""
        outcome = await hand_in(backend, message)
        monkeypatch.setattr(store, "save", slow)
        web.provider.release()
        await saving.wait()
        return outcome

    answers = []

    async def asked():
        answers.append(await ask(web.openai, "tea", user="ann", **keyed()))

    async with anyio.create_task_group() as group:
        group.start_soon(asked)
        await web.provider.asked()
        web.channel.backend.names._of.clear()
        monkeypatch.setattr(answer, "hand_in", handed_in)
        group.start_soon(asked)
        await saving.wait()
        with anyio.CancelScope(shield=True):  # whatever comes of it, the server must end
            await anyio.wait_all_tasks_blocked()
            back.set()
    assert answers == ["You said: tea"] * 2


async def begins_with_half(chunks):
    async for chunk in chunks:
        if text := chunk.choices[0].delta.content:
            assert text == "One half, "
            return


@NAMED
async def test_who_is_cut_off_and_comes_back_finds_the_turn_running(web, first, second):
    web.provider.hold()
    with anyio.CancelScope() as cut:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(ask, web.openai, "tea", user="ann", **first))
            await web.provider.asked()
            cut.cancel()
    await until(lambda: not [w for w in web.channel.backend.streams._open if w._answer._waiting])
    await anyio.wait_all_tasks_blocked()
    web.provider.release()
    assert await ask(web.openai, "tea", user="ann", **second) == "You said: tea"
    assert web.provider.count == 1
    assert await said_by_user(web) == ["tea"]


@pytest.fixture
async def left(tmp_path, monkeypatch):
    """A server that a client has left in the middle of an answer, and not come back in time."""
    monkeypatch.setattr(names, "GRACE_SECONDS", 0.05)

    async def left(web, **more):
        with anyio.CancelScope() as cut:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(ask, web.openai, "tea", **more))
                await web.provider.asked()
                cut.cancel()
        await until(lambda: not len(web.channel.backend.streams))
        await until(lambda: not web.app.loop.is_busy(ANN))
        web.provider.release()

    async with asking(tmp_path, provider=ScriptedProvider(held=True)) as web:
        web.left = partial(left, web)
        yield web


async def test_who_does_not_come_back_in_time_has_stopped_it(left):
    await left.left(user="ann")
    with pytest.raises(openai.ConflictError, match="got no complete answer"):
        await ask(left.openai, "tea", user="ann", **again())
    assert await said_by_user(left) == ["tea"]
    assert left.provider.count == 1


async def test_who_does_not_come_back_in_time_is_asked_anew_without_a_session(left):
    await left.left()
    assert await ask(left.openai, "tea", **again()) == "You said: tea"
    assert left.provider.count == 2


@EACH
async def test_who_has_given_a_key_gets_the_answer_however_late(tmp_path, monkeypatch, more):
    monkeypatch.setattr(names, "GRACE_SECONDS", 0)
    async with asking(tmp_path, provider=ScriptedProvider(held=True)) as web:
        with anyio.CancelScope() as cut:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(ask, web.openai, "tea", **more, **keyed()))
                await web.provider.asked()
                cut.cancel()
        web.provider.release()
        await until(lambda: not len(web.channel.backend.streams))
        assert await ask(web.openai, "tea", **more, **keyed()) == "You said: tea"
        assert web.provider.count == 1


# Failed


async def test_a_turn_that_failed_is_not_begun_again_under_its_name(tmp_path):
    provider = ScriptedProvider([OverQuota("no more")])
    async with asking(tmp_path, provider=provider) as web:
        for _ in range(2):
            with pytest.raises(openai.RateLimitError):
                await ask(web.openai, "tea", user="ann", **keyed())
        assert await said_by_user(web) == ["tea"]
    assert provider.count == 1


async def test_what_failed_without_a_session_is_asked_again(tmp_path):
    provider = ScriptedProvider([OverQuota("no more")])
    async with asking(tmp_path, provider=provider) as web:
        with pytest.raises(openai.RateLimitError):
            await ask(web.openai, "tea", **keyed())
        assert await ask(web.openai, "tea", **keyed()) == "You said: tea"


@NAMED
async def test_what_was_not_kept_in_time_is_asked_once_when_it_comes_again(
    web, monkeypatch, first, second
):
    await ask(web.openai, "one", user="ann")
    store = web.app.loop.sessions.store
    back, save = anyio.Event(), store.save

    async def slow(kept):
        await back.wait()
        await save(kept)

    monkeypatch.setattr(store, "save", slow)
    with monkeypatch.context() as hurried:
        hurried.setattr("nanoloop.channels.web.dialogue.KEPT_SECONDS", 0.05)
        with pytest.raises(openai.InternalServerError):
            await ask(web.openai, "tea", user="ann", **first)
    back.set()
    assert await ask(web.openai, "tea", user="ann", **second) == "You said: tea"
    assert await said_by_user(web) == ["one", "tea"]


# After a restart


@pytest.mark.parametrize("ask", [ask, stream])
@NAMED
async def test_the_answer_is_found_after_a_restart(tmp_path, ask, first, second):
    async with asking(tmp_path) as web:
        await ask(web.openai, "tea", user="ann", **first)
        await ask(web.openai, "cake", user="ann", **PLAIN)
    async with asking(tmp_path) as web:
        said = await ask(web.openai, "tea", user="ann", **second)
        assert (said if isinstance(said, str) else text_of(said)) == "You said: tea"
        assert web.provider.count == 0
        assert await said_by_user(web) == ["tea", "cake"]


async def test_a_key_with_another_body_is_refused_after_a_restart_too(tmp_path):
    async with asking(tmp_path) as web:
        await ask(web.openai, "tea", user="ann", **keyed())
    async with asking(tmp_path) as web:
        with pytest.raises(openai.UnprocessableEntityError) as refused:
            await ask(web.openai, "coffee", user="ann", **keyed())
        assert refused.value.body["message"] == OTHER_BODY
        assert await said_by_user(web) == ["tea"]


HURRIED = {"loop": {"shutdown_turns_seconds": 0.1}}


@NAMED
async def test_a_turn_that_a_restart_cut_off_is_found_running_again(tmp_path, first, second):
    held = ScriptedProvider(held=True)
    async with asking(tmp_path, provider=held, settings=HURRIED) as web:
        with anyio.CancelScope() as cut:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(ask, web.openai, "tea", user="ann", **first))
                await held.asked()
                cut.cancel()
    async with asking(tmp_path, provider=ScriptedProvider(held=True)) as web:
        answers = []

        async def asked():
            answers.append(await ask(web.openai, "tea", user="ann", **second))

        async with anyio.create_task_group() as group:
            await web.provider.asked()
            group.start_soon(asked)
            await until(lambda: len(web.channel.backend.streams))
            web.provider.release()
        assert answers == ["You said: tea"]
        assert web.provider.count == 1
        assert await said_by_user(web) == ["tea"]


async def test_a_message_that_got_no_answer_before_a_restart_says_so(tmp_path):
    async with asking(tmp_path, provider=ScriptedProvider([OverQuota("no more")])) as web:
        with pytest.raises(openai.RateLimitError):
            await ask(web.openai, "tea", user="ann", **keyed())
    async with asking(tmp_path) as web:
        with pytest.raises(openai.ConflictError, match="got no complete answer") as refused:
            await ask(web.openai, "tea", user="ann", **keyed())
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert web.provider.count == 0


async def test_an_answer_is_found_behind_much_else(tmp_path, monkeypatch):
    monkeypatch.setattr(names, "ENTRIES_READ", 2)
    async with asking(tmp_path) as web:
        await ask(web.openai, "tea", user="ann", **keyed())
        for n in range(5):
            await ask(web.openai, f"cake {n}", user="ann", **PLAIN)
    async with asking(tmp_path) as web:
        assert await ask(web.openai, "tea", user="ann", **keyed()) == "You said: tea"
        assert web.provider.count == 0


# The own API


async def post(web, session, text, *, status=202, key="order-1", **more):
    path = f"/api/sessions/{session}/messages"
    headers = {"Idempotency-Key": key}
    return await web.call("POST", path, status=status, json={"text": text, **more}, headers=headers)


async def test_a_key_names_a_message_of_the_own_api(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin()
        one = await post(web, session, "tea")
        assert await post(web, session, "tea") == one
        assert await post(web, session, "tea", key="order-2") != one
        refused = await post(web, session, "coffee", status=422)
        assert refused["error"]["message"] == OTHER_BODY
    async with serving(tmp_path) as web:
        assert await post(web, session, "tea") == one
        refused = await post(web, session, "coffee", status=422, key="order-2")
        assert refused["error"]["message"] == OTHER_BODY
        said = [m["text"] for m in await web.messages(session) if m["role"] == "user"]
    assert said == ["tea", "tea"]


async def test_an_id_in_the_body_counts_before_the_key(tmp_path):
    async with serving(tmp_path) as web:
        session = await web.begin()
        told = await post(web, session, "tea", message_id="0123456789")
    assert told == {"message_id": "0123456789"}
