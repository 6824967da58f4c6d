"""What goes wrong on Telegram, and what becomes of it."""

import json
import logging
import threading
from types import SimpleNamespace

import anyio
import httpx
import pytest
from telegram.error import BadRequest, Forbidden

from nanoloop.channels.kit.platform import FormatRefused, MessageGone, Place, Text, TooLong, Upload
from nanoloop.channels.server import LOOP_BYTES
from nanoloop.channels.telegram import receiving
from nanoloop.channels.telegram.api import OTHER_POLLER, OTHER_WEBHOOK, explained
from nanoloop.channels.telegram.platform import TelegramPlatform
from nanoloop.channels.telegram.receiving import Webhook
from nanoloop.errors import Declined, SendLater
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.stage import Bot, comes_to, says
from tests.servers.telegram import TOKEN
from tests.stages.telegram import free_port, listening, telegram

ANN, BOB = "1001", "1002"
HELLO = Text(plain="**hello**", formatted="<b>hello</b>")


@pytest.fixture
async def stage():
    async with telegram() as stage:
        await stage.people(2)
        yield stage


@pytest.fixture
async def platform(stage):
    platform = stage.platform()
    async with listening(platform):
        yield platform


async def post(platform, text=HELLO, chat=ANN, **more):
    return await platform.post(Place(chat), text, **({"reply_to": None, "id": "x"} | more))


async def listened(platform):
    """What ends its listening."""

    async def hear(*_):
        pass

    with anyio.fail_after(10), pytest.raises(Exception) as ended:  # noqa: PT011 - its meaning is what is tested
        await platform.listen(hear, lambda: None)
    error = ended.value
    while isinstance(error, ExceptionGroup):
        (error,) = error.exceptions
    return error


# Coming in


async def test_an_update_is_confirmed_only_once_it_is_taken(stage, monkeypatch):
    monkeypatch.setattr(receiving, "PATIENCE_SECONDS", 0.01)
    taken, begun = anyio.Event(), anyio.Event()

    async def hear(*_):
        begun.set()
        await taken.wait()

    async with listening(stage.platform(), hear):
        await stage.say(ANN, "hello", sender=ANN)
        await begun.wait()
        polls = stage.server.calls["getupdates"]
        await comes_to(lambda: _count(stage, "getupdates"), lambda count: count > polls + 2)
        assert stage.server.pending
        taken.set()
        await comes_to(lambda: _pending(stage), 0)


async def test_a_chat_that_takes_long_holds_up_no_other(stage, monkeypatch):
    monkeypatch.setattr(receiving, "PATIENCE_SECONDS", 0.01)
    taken, heard = anyio.Event(), []

    async def hear(*some):
        heard.extend(one.text for one in some)
        if some[0].chat == ANN:
            await taken.wait()

    async with listening(stage.platform(), hear):
        await stage.say(ANN, "one", sender=ANN)
        await stage.say(BOB, "two", sender=BOB)
        await stage.say(BOB, "three", sender=BOB)
        await comes_to(lambda: _value(heard), ["one", "two", "three"])
        assert await _pending(stage) == 3  # only all before it confirm an update
        taken.set()
        await comes_to(lambda: _pending(stage), 0)
    assert heard == ["one", "two", "three"]


async def test_another_program_that_reads_the_messages_is_told_of(stage):
    async with httpx.AsyncClient() as client, anyio.create_task_group() as group:
        url = f"{stage.server.url}/bot{TOKEN}/getUpdates"

        async def poll():
            while not stage.server.calls["getupdates"]:
                await anyio.lowlevel.checkpoint()
            while True:
                await client.post(url, data={"timeout": "1"})

        group.start_soon(poll)
        error = await listened(stage.platform())
        group.cancel_scope.cancel()
    assert (type(error), error.reason) == (SendLater, OTHER_POLLER)


async def test_a_webhook_from_before_is_taken_away_and_a_later_one_is_told_of(stage):
    server = stage.server
    server.webhook = ("http://127.0.0.1:9/", "secret")
    platform = stage.platform()
    async with listening(platform) as next_one:
        await stage.say(ANN, "hello", sender=ANN)
        assert (await next_one()).text == "hello"
    server.webhook = ("http://127.0.0.1:9/", "secret")
    error = await listened(platform)
    assert (type(error), error.reason) == (SendLater, OTHER_WEBHOOK)
    assert server.webhook


async def test_a_gateway_that_fails_now_and_then_costs_nothing(stage, tmp_path):
    async with Bot(stage.platform(), tmp_path):
        await stage.say(ANN, "one", sender=ANN)
        await says(stage, ANN, "You said: one")
        stage.server.faults.failing = 4
        await stage.say(ANN, "two", sender=ANN)
        await says(stage, ANN, "You said: one", "You said: two")


# Going out


async def test_a_limit_says_for_how_long(stage, platform):
    await stage.limit(1, seconds=7)
    with pytest.raises(SendLater) as later:
        await post(platform)
    assert later.value.seconds == 7


async def test_each_chat_has_its_own_rate(stage, tmp_path):
    stage.server.faults.rate = (2, 0.3)
    async with Bot(stage.platform(), tmp_path):
        for text in ("one", "two", "three", "four"):
            await stage.say(ANN, text, sender=ANN)
            await stage.say(BOB, text, sender=BOB)
        wanted = [f"You said: {text}" for text in ("one", "two", "three", "four")]
        await says(stage, ANN, *wanted)
        await says(stage, BOB, *wanted)


async def test_who_has_blocked_the_bot_is_given_up_and_others_are_not(stage, tmp_path):
    stage.server.faults.blocked.add(int(ANN))
    async with Bot(stage.platform(), tmp_path) as bot:
        await stage.say(ANN, "one", sender=ANN)
        await stage.say(BOB, "two", sender=BOB)
        await says(stage, BOB, "You said: two")
        await comes_to(lambda: _named(bot, "send_failed"), [("blocked by the user", ANN)])


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BadRequest("Chat not found"), "chat not found"),
        (Forbidden("Forbidden: bot was kicked from the group chat"), "was kicked from"),
        (BadRequest("no such thing as my secret words"), "BadRequest"),
    ],
)
def test_a_refusal_is_told_in_known_phrases_and_never_as_it_came(error, reason):
    with pytest.raises(Declined) as declined, explained():
        raise error
    assert (declined.value.reason, str(declined.value)) == (reason, reason)


async def test_an_edit_that_changes_nothing_is_fine(stage, platform):
    message = await post(platform)
    await platform.edit(Place(ANN), message, HELLO)
    assert stage.server.calls["editmessagetext"] == 1


async def test_a_message_that_is_gone_is_posted_anew(stage, platform):
    message = await post(platform)
    await platform.remove(Place(ANN), message)
    await platform.remove(Place(ANN), message)
    with pytest.raises(MessageGone):
        await platform.edit(Place(ANN), message, HELLO)


async def test_what_is_malformed_or_too_long_is_told_apart(stage, platform):
    with pytest.raises(FormatRefused):
        await post(platform, Text(plain="a", formatted="<b>a"))
    await post(platform, Text(plain="a", formatted=f"<b>{'🙂' * 2048}</b>"))
    with pytest.raises(TooLong):
        await post(platform, Text(plain="🙂" * 2049))


async def test_an_answer_names_its_question_unless_that_is_gone(stage, platform):
    asked = await stage.say(ANN, "hello?", sender=ANN)
    await post(platform, reply_to=asked)
    await post(platform, reply_to="999")
    shown = await stage.shown(ANN)
    assert [one.reply_to for one in shown if one.is_bots] == [asked, None]


async def test_a_topic_is_answered_in_the_topic(stage, tmp_path):
    rules_say = stage.naming("hello")
    async with Bot(stage.platform(), tmp_path, provider=ScriptedProvider(otherwise="yes")):
        await stage.say(stage.group, rules_say, sender=ANN, thread="77")
        await says(stage, f"{stage.group} 77", "yes")


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        (Upload(name="a.png", mime_type="image/png", data=b"\x89PNG"), "[photo]"),
        (Upload(name="b.png", mime_type="image/png", data=b"broken"), "[b.png]"),
        (Upload(name="c.txt", mime_type="text/plain", data=b"words"), "[c.txt]"),
    ],
)
async def test_a_file_is_shown_as_well_as_telegram_can(stage, platform, file, shown):
    await platform.upload(Place(ANN), file, reply_to=None, id="x")
    (post,) = stage.server.chats[int(ANN)].values()
    assert (post.text, post.file) == (shown, file.data)


# The token


async def test_a_token_that_is_refused_is_told_once_and_answers_stay_owed(stage, tmp_path):
    provider = ScriptedProvider(held=True)
    async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
        await stage.say(ANN, "hello", sender=ANN)
        await provider.asked()
        await stage.refuse_token()
        stage.server.cut()
        await comes_to(lambda: _named(bot, "channel_refused"), lambda found: len(found) == 1)
        assert "BotFather" in bot.channel.state.reason
    stage.server.faults.refused = False
    async with Bot(stage.platform(), tmp_path):
        await says(stage, ANN, "You said: hello")


@pytest.mark.slow
async def test_the_token_is_in_no_log_and_no_error(stage, tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    provider = ScriptedProvider(otherwise="yes")
    async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
        await stage.say(ANN, "a secret of mine", sender=ANN, files={"a.txt": b"data"})
        await says(stage, ANN, "yes")
        stage.server.faults.failing = 1
        await stage.refuse_token()
        stage.server.cut()
        await comes_to(lambda: _named(bot, "channel_refused"), lambda found: found)
    nobody = TelegramPlatform(TOKEN, api="http://127.0.0.1:9")
    said = f"{caplog.text} {bot.events} {await listened(nobody)!r}"
    assert TOKEN not in said
    assert "a secret of mine" not in caplog.text


# The webhook


@pytest.fixture
async def told():
    async with telegram(webhook_port=free_port()) as stage:
        await stage.people(2)
        yield stage


async def test_a_webhook_hears_telegram_only(told):
    async with listening(told.platform()) as next_one, httpx.AsyncClient() as client:
        url, secret = told.server.webhook
        header = {"X-Telegram-Bot-Api-Secret-Token": secret}
        update = {"update_id": 1, "message": {}}
        assert (await client.post(url, json=update)).status_code == 403
        assert (
            await client.post(url, json=update, headers={**header, "x": "y"})
        ).status_code == 200
        for body in (b"{", b"[" * 1000, b"[" * 200_000):
            assert (await client.post(url, content=body, headers=header)).status_code == 400
        assert (await client.post(url, content=b"x" * 2**21, headers=header)).status_code == 413
        assert (await client.get(url, headers=header)).status_code == 403
        await told.say(ANN, "hello", sender=ANN)
        assert (await next_one()).text == "hello"


async def test_a_large_update_is_parsed_outside_the_event_loop(told, monkeypatch):
    threads = []

    def loads(body):
        threads.append(threading.get_ident())
        return json.loads(body)

    monkeypatch.setattr(receiving, "json", SimpleNamespace(loads=loads))
    async with listening(told.platform()), httpx.AsyncClient() as client:
        url, secret = told.server.webhook
        for size in (1, LOOP_BYTES):
            update = {"update_id": 1, "message": {}, "x": "x" * size}
            header = {"X-Telegram-Bot-Api-Secret-Token": secret}
            assert (await client.post(url, json=update, headers=header)).status_code == 200
    assert [each == threading.get_ident() for each in threads] == [True, False]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (lambda server: setattr(server, "webhook", None), "another program set a webhook"),
        (lambda server: setattr(server, "webhook_error", "Connection refused"), "can't reach"),
    ],
)
async def test_a_webhook_that_is_not_reached_is_told_of(stage, fault, words):
    port = free_port()
    webhook = Webhook(f"http://127.0.0.1:9/{port}", host="127.0.0.1", port=port, check_seconds=0.05)
    platform = stage.platform(webhook=webhook)
    async with anyio.create_task_group() as group:

        async def go_wrong():
            await comes_to(lambda: _count(stage, "setwebhook"), 1)
            await stage.say(ANN, "hello", sender=ANN)
            fault(stage.server)

        group.start_soon(go_wrong)
        error = await listened(platform)
    assert isinstance(error, SendLater)
    assert words in error.reason


async def test_a_port_that_is_taken_is_told_of(told):
    async with listening(told.platform()):
        error = await listened(told.platform())
    assert isinstance(error, SendLater)
    assert "channels.telegram.webhook_port" in error.reason


async def _count(stage, method):
    return stage.server.calls[method]


async def _pending(stage):
    return len(stage.server.pending)


async def _value(value):
    return value


async def _named(bot, name):
    found = [event for event in bot.events if event.name() == name]
    return [(getattr(event, "error", ""), getattr(event, "chat", "")) for event in found]
