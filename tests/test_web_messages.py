"""Saying something over the web: sent, streamed, stopped, asked again."""

import anyio
import pytest

from nanoloop.channels.web import dialogue
from nanoloop.errors import StoreError
from nanoloop.intake import entry_of
from nanoloop.messages import Inbound, Quote, Speaker
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from nanoloop.session.queue import AMENDMENT, AMENDS
from tests.web_openai import until
from tests.web_server import serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


async def test_an_answer_comes_in_pieces_and_then_whole(web):
    session = await web.begin()
    async with web.reading(session) as reader:
        assert (await reader.next()).name == "hello"
        said = await web.say(session, "good morning")
        events = await reader.until("answer")
    pieces = [e.data for e in events if e.name == "text"]
    assert "".join(p["piece"] for p in pieces) == "You said: good morning"
    assert [p["at"] for p in pieces] == [0, 3, 9, 14]
    assert events[-1].data == {
        "message_id": said,
        "text": "You said: good morning",
        "kind": "answer",
    }


async def test_what_was_said_is_shown_page_by_page(web):
    session = await web.begin()
    for text in ("one", "two", "three"):
        await web.answered(session, text)
    newest = await web.call("GET", f"/api/sessions/{session}/messages", params={"limit": 4})
    assert [m["text"] for m in newest["messages"]] == [
        "two",
        "You said: two",
        "three",
        "You said: three",
    ]
    before = {"before": newest["before"], "limit": 4}
    oldest = await web.call("GET", f"/api/sessions/{session}/messages", params=before)
    assert [m["role"] for m in oldest["messages"]] == ["user", "assistant"]
    assert oldest["before"] is None


async def test_the_same_message_sent_twice_is_answered_once(web):
    session = await web.begin()
    await web.answered(session, "first")
    async with web.reading(session) as reader:
        for _ in range(2):
            await web.say(session, "once", message_id="0123456789")
        await reader.until("answer")
    await web.answered(session, "last")
    said = [m["text"] for m in await web.messages(session) if m["role"] == "user"]
    assert said == ["first", "once", "last"]


async def test_stop_ends_the_answer_and_keeps_what_was_said(web):
    session = await web.begin()
    web.provider.hold()
    async with web.reading(session) as reader:
        await web.say(session, "a long story please")
        await web.provider.asked()
        stopped = await web.call("POST", f"/api/sessions/{session}/stop", status=200)
        assert stopped == {"stopped": True}
        assert (await reader.until("answer"))[-1].data["kind"] == "notice"
    assert [m["role"] for m in await web.messages(session)] == ["user"]
    assert await web.call("POST", f"/api/sessions/{session}/stop") == {"stopped": False}


async def test_the_last_question_can_be_asked_again_in_other_words(web):
    session = await web.begin()
    await web.answered(session, "one")
    await web.answered(session, "two")
    async with web.reading(session) as reader:
        await web.call("POST", f"/api/sessions/{session}/retry", status=202, json={"text": "three"})
        names = [e.name for e in await reader.until("answer")]
    assert names[:3] == ["hello", "undone", "accepted"]
    said = [m["text"] for m in await web.messages(session)]
    assert said == ["one", "You said: one", "three", "You said: three"]


async def test_a_note_on_a_question_is_not_asked_in_its_place(web):
    session = await web.begin()
    await web.answered(session, "one")
    kept = await web.app.loop.sessions.open(session)
    asked = kept.window[0].metadata["message_id"]
    about = {"origin": AMENDMENT, AMENDS: asked}
    kept.add_entry(Entry.message("user", "it was changed", metadata=about))
    await web.app.loop.sessions.store.save(kept)
    async with web.reading(session) as reader:
        await web.call("POST", f"/api/sessions/{session}/retry", status=202, json={})
        await reader.until("answer")
    assert [m["text"] for m in await web.messages(session)] == ["one", "You said: one"]


async def test_what_a_message_quotes_is_shown_beside_its_text(web):
    session = await web.begin()
    kept = await web.app.loop.sessions.open(session)
    quote = Quote(text="pay", speaker=Speaker(id="2", name="Bob"), kind="forward")
    said = Inbound(channel="telegram", chat="1", text="this?", sender="Ann", quotes=(quote,))
    kept.add_entry(entry_of(said))
    await web.app.loop.sessions.store.save(kept)
    (shown,) = await web.messages(session)
    assert (shown["text"], shown["sender"]) == ("this?", "Ann")
    assert shown["quotes"] == [{"kind": "forward", "name": "Bob", "text": "pay"}]


async def test_what_is_asked_again_waits_for_the_answer_that_goes_on(web):
    session = await web.begin()
    web.provider.hold()
    await web.say(session, "one")
    await web.provider.asked()
    async with web.reading(session) as reader:
        again = {"text": "two"}
        await web.call("POST", f"/api/sessions/{session}/retry", status=202, json=again)
        web.provider.release()
        for _ in range(2):
            await reader.until("answer")
    said = [m["text"] for m in await web.messages(session)]
    assert said == ["two", "You said: two"]


async def test_what_waits_is_asked_again_in_its_place_and_nothing_before_it(web):
    session = await web.begin()
    path = f"/api/sessions/{session}"
    web.provider.hold()
    await web.say(session, "one")
    await web.provider.asked()
    await web.say(session, "two")
    await web.call("POST", f"{path}/retry", status=202, json={"message_id": "again-of-two"})
    async with web.reading(session) as reader:
        web.provider.release()
        answered = [(await reader.until("answer"))[-1].data["message_id"] for _ in range(3)]
    assert answered[-1] == "again-of-two"
    said = [m["text"] for m in await web.messages(session)]
    assert said == ["one", "You said: one", "two", "You said: two"]
    assert web.provider.count == 3


async def test_what_was_taken_back_meanwhile_is_asked_and_nothing_else_goes_for_it(web):
    session = await web.begin()
    await web.answered(session, "one")
    web.provider.hold()
    await web.say(session, "two")
    await web.provider.asked(2)
    await web.say(session, "/undo")
    await web.call("POST", f"/api/sessions/{session}/retry", status=202, json={})
    async with web.reading(session) as reader:
        web.provider.release()
        for _ in range(3):
            await reader.until("answer")
    said = [m["text"] for m in await web.messages(session)]
    assert said == ["one", "You said: one", "two", "You said: two"]


@pytest.mark.parametrize("more", [{"headers": {"Idempotency-Key": "again"}}, {}], ids=["key", "id"])
async def test_what_is_asked_again_under_its_name_is_asked_once(web, more):
    session = await web.begin()
    await web.answered(session, "one")
    await web.answered(session, "two")
    given = {} if more else {"message_id": "one-more-time"}
    path = f"/api/sessions/{session}/retry"
    names = []
    async with web.reading(session) as reader:
        for _ in range(2):
            told = await web.call("POST", path, status=202, json=given, **more)
            names.append(told["message_id"])
        await reader.until("answer")
        names.append((await web.call("POST", path, status=202, json=given, **more))["message_id"])
    assert len(set(names)) == 1
    assert web.provider.count == 3
    if more:
        await web.call("POST", path, status=422, json={"text": "other"}, **more)
    assert [m["text"] for m in await web.messages(session)][::2] == ["one", "two"]


async def test_an_exchange_is_taken_back_and_asked_again_in_one_commit(web, monkeypatch):
    session = await web.begin()
    await web.answered(session, "one")
    store, stood = web.app.loop.sessions.store, []
    save = store.save

    async def saved(now):
        await save(now)
        stored = await store.get(session)
        asked = stored.entry_at(stored.awaiting)
        stood.append((len(stored.window), asked and asked.content["text"]))

    monkeypatch.setattr(store, "save", saved)
    async with web.reading(session) as reader:
        await web.call("POST", f"/api/sessions/{session}/retry", status=202, json={"text": "two"})
        await reader.until("answer")
    assert stood == [(1, "two"), (2, None)]


async def test_a_message_to_a_session_that_its_chat_has_left_waits_for_what_goes_on(web):
    session = await web.begin()
    await web.answered(session, "one")
    await web.answered(session, "/new")
    (moved,) = [
        s["id"] for s in (await web.call("GET", "/api/sessions"))["sessions"] if s["id"] != session
    ]
    web.provider.hold()
    await web.say(moved, "two")
    await web.provider.asked(2)
    await web.say(moved, "still here")
    async with web.reading(session) as reader:
        await web.say(session, "three", message_id="in-the-old-one")
        web.provider.release()
        while (await reader.until("answer"))[-1].data["message_id"] != "in-the-old-one":
            pass
    assert [m["text"] for m in await web.messages(session)][-2:] == ["three", "You said: three"]
    said = [m["text"] for m in await web.messages(moved)]
    assert said == ["two", "You said: two", "still here", "You said: still here"]


async def test_the_only_question_can_be_asked_again_too(web):
    session = await web.begin()
    await web.answered(session, "one")
    async with web.reading(session) as reader:
        await web.call("POST", f"/api/sessions/{session}/retry", status=202, json={})
        await reader.until("answer")
    assert [m["text"] for m in await web.messages(session)] == ["one", "You said: one"]


async def test_a_failing_model_is_an_apology_as_an_event(tmp_path):
    provider = ScriptedProvider([RuntimeError("a secret of ours")])
    async with serving(tmp_path, provider=provider) as web:
        session = await web.begin()
        async with web.reading(session) as reader:
            await web.say(session, "hello")
            answer = (await reader.until("answer"))[-1].data
    assert answer["kind"] == "error"
    assert "secret" not in str(answer) + web.log.getvalue()


async def test_a_new_conversation_by_command_is_told_where_it_is(web):
    session = await web.begin()
    await web.answered(session, "one")
    async with web.reading(session) as reader:
        await web.say(session, "/new")
        moved = (await reader.until("session"))[-1].data["moved_to"]
    assert await web.answered(moved, "two") == "You said: two"
    assert len(await web.messages(moved)) == 2


async def test_one_can_go_back_to_the_session_before(web):
    session = await web.begin()
    await web.answered(session, "one")
    async with web.reading(session) as reader:
        await web.say(session, "/new")
        await reader.until("session")
    await web.answered(session, "two")
    assert len(await web.messages(session)) == 4


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"text": "  "},
        {"text": "x" * 100_001},
        {"text": "hi", "message_id": "../../etc"},
        {"text": "hi", "attachments": ["0" * 40]},
        {"text": "hi", "more": 1},
        {"text": 7},
    ],
)
async def test_what_is_no_message_is_refused_in_a_sentence(web, said):
    session = await web.begin()
    path = f"/api/sessions/{session}/messages"
    refused = await web.call("POST", path, status=422, json=said)
    assert refused["error"]["message"]


# What became of it


async def post(web, session, text, message_id="0123456789"):
    said = {"text": text, "message_id": message_id}
    return await web.client.post(f"/api/sessions/{session}/messages", json=said)


async def test_a_message_is_durable_before_it_is_accepted(web, monkeypatch):
    session, store = await web.begin(), web.app.loop.sessions.store
    back, save = anyio.Event(), store.save

    async def slow(kept):
        await back.wait()
        await save(kept)

    monkeypatch.setattr(store, "save", slow)
    with anyio.move_on_after(0.3) as waiting:
        await post(web, session, "hello")
    back.set()
    assert waiting.cancelled_caught
    assert (await post(web, session, "hello")).status_code == 202
    assert await store.has_heard((await store.get(session)).key, "0123456789")


async def test_of_many_posts_to_a_slow_chat_all_that_are_accepted_are_kept(web, monkeypatch):
    monkeypatch.setattr(web.app.loop._arrivals, "_waiting_limit", 20)
    session = await web.begin()
    web.provider.hold()
    answers = []

    async def say(number):
        answers.append(await post(web, session, f"m{number}", f"message-{number}"))

    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(say, number)
    kept = await web.app.loop.sessions.store.get(session)
    web.provider.release(40)
    accepted = [answer for answer in answers if answer.status_code == 202]
    refused = [answer for answer in answers if answer.status_code == 429]
    assert (len(accepted), len(refused), len(kept.waiting)) == (21, 19, 20)
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)


async def test_while_the_store_is_away_nothing_is_accepted_and_later_it_is_answered_once(
    web, monkeypatch
):
    session, store = await web.begin(), web.app.loop.sessions.store
    back, save = anyio.Event(), store.save

    async def failing(kept):
        if not back.is_set():
            raise StoreError("away")
        await save(kept)

    monkeypatch.setattr(store, "save", failing)
    with monkeypatch.context() as hurried:
        hurried.setattr(dialogue, "KEPT_SECONDS", 0.05)
        refused = [await post(web, session, "hello") for _ in range(2)]
    back.set()
    assert [answer.status_code for answer in refused] == [503, 503]
    assert int(refused[0].headers["retry-after"]) > 0
    assert (await post(web, session, "hello")).status_code == 202
    await until(lambda: not web.app.loop.is_busy(session))
    assert [m["text"] for m in await web.messages(session)] == ["hello", "You said: hello"]
