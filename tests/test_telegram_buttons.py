"""Questions about tool calls on Telegram: the buttons below them, and who presses them."""

from contextlib import asynccontextmanager

import pytest

from nanoloop import Agent, ScriptedProvider
from nanoloop.channels.telegram.hearing import DOUBLE_SECONDS, Moves, Reader
from nanoloop.sentences import ENGLISH
from nanoloop.testing.channels.stage import Bot, answers, comes_to, open_to_all, says
from tests.servers.telegram import BOT
from tests.stages.telegram import free_port, listening, telegram
from tests.test_approvals import Till, asks, call

ANN, BOB = "1001", "1002"
CODE = "0123456789abcd"


@pytest.fixture(params=["polling", "webhook"])
async def stage(request):
    port = free_port() if request.param == "webhook" else None
    async with telegram(webhook_port=port) as stage:
        await stage.people(2)
        yield stage


@asynccontextmanager
async def asked(stage, folder, *replies, chat=ANN, rules=None, text="Pay!", **more):
    """A bot that has asked Ann whether it may pay: its tool, the message, and its buttons."""
    till, provider = Till(), ScriptedProvider(replies or [asks(), "It is paid."], otherwise="well")
    agent = Agent(tools=[till.tool])
    async with Bot(stage.platform(), folder, provider=provider, agent=agent, rules=rules):
        await stage.say(chat, text, sender=ANN, **more)
        await answers(stage, chat, 1)
        ((message, buttons),) = stage.buttons(chat).items()
        yield till, message, buttons


async def answered(stage, count=1):
    """Wait until the buttons show no waiting sign any more."""

    async def look():
        return len(set(stage.server.answered))

    await comes_to(look, count)


async def test_a_pressed_yes_runs_the_call_once(stage, tmp_path):
    async with asked(stage, tmp_path) as (till, message, buttons):
        assert list(buttons) == ["Yes", "No"]
        stage.press(ANN, message, buttons["Yes"], sender=ANN)
        assert (await answers(stage, ANN, 2))[1] == "It is paid."
        await answered(stage)
        stage.press(ANN, message, buttons["No"], sender=ANN)
        assert (await answers(stage, ANN, 3))[2] == "Number 1 was already answered."
        await answered(stage, 2)
    assert till.paid == [("Ada", 5)]


async def test_the_answer_to_a_press_replies_to_the_question(stage, tmp_path):
    async with asked(stage, tmp_path) as (_, message, buttons):
        stage.press(ANN, message, buttons["Yes"], sender=ANN)
        await answers(stage, ANN, 2)
        assert (await stage.shown(ANN))[-1].reply_to == message


async def test_a_pressed_no_tells_the_model_so(stage, tmp_path):
    async with asked(stage, tmp_path, asks(), "Then not.") as (till, message, buttons):
        stage.press(ANN, message, buttons["No"], sender=ANN)
        assert (await answers(stage, ANN, 2))[1] == "Then not."
    assert till.paid == []


async def test_of_two_calls_each_has_its_own_buttons(stage, tmp_path):
    both = asks(call(to="Ada"), call(to="Bob", call_id="c2"))
    async with asked(stage, tmp_path, both, "one") as (till, message, buttons):
        assert list(buttons) == ["Yes 1", "No 1", "Yes 2", "No 2"]
        stage.press(ANN, message, buttons["Yes 2"], sender=ANN)
        assert (await answers(stage, ANN, 2))[1] == "one"
    assert till.paid == [("Bob", 5)]


async def test_a_strangers_press_is_refused_as_a_strangers_message_is(stage, tmp_path):
    rules = open_to_all(users=(ANN,), pairing=False)
    async with asked(stage, tmp_path, rules=rules) as (till, _, buttons):
        stage.press(BOB, 7, buttons["Yes"], sender=BOB)
        await answered(stage)
        await says(stage, BOB, ENGLISH["stranger"].format(person=BOB))
        assert till.paid == []


async def test_in_a_group_a_stranger_presses_in_vain_and_hears_nothing(stage, tmp_path):
    rules = open_to_all(users=(ANN,))
    group = {"chat": stage.group, "text": stage.naming("Pay!"), "rules": rules}
    async with asked(stage, tmp_path, **group) as (till, message, buttons):
        stage.press(stage.group, message, buttons["Yes"], sender=BOB)
        await answered(stage)
        stage.press(stage.group, message, buttons["Yes"], sender=ANN)
        assert (await answers(stage, stage.group, 2))[1] == "It is paid."
    assert till.paid == [("Ada", 5)]


async def test_in_a_group_somebody_elses_press_does_not_count(stage, tmp_path):
    group = {"chat": stage.group, "text": stage.naming("Pay!")}
    async with asked(stage, tmp_path, **group) as (till, message, buttons):
        stage.press(stage.group, message, buttons["Yes"], sender=BOB)
        assert (await answers(stage, stage.group, 2))[1] == ENGLISH["void_others"]
        assert till.paid == []


async def test_in_a_topic_the_press_belongs_to_the_topic(stage, tmp_path):
    group = {"chat": stage.group, "text": stage.naming("Pay!"), "thread": "7"}
    async with asked(stage, tmp_path, **group) as (till, message, buttons):
        stage.press(stage.group, message, buttons["Yes"], sender=ANN, thread="7")
        assert (await answers(stage, f"{stage.group} 7", 2))[1] == "It is paid."
    assert till.paid == [("Ada", 5)]


async def test_after_a_restart_the_buttons_still_work(stage, tmp_path):
    async with asked(stage, tmp_path) as (_, message, buttons):
        pass
    stage.press(ANN, message, buttons["Yes"], sender=ANN)
    till, provider = Till(), ScriptedProvider(otherwise="It is paid.")
    async with Bot(stage.platform(), tmp_path, provider=provider, agent=Agent(tools=[till.tool])):
        assert (await answers(stage, ANN, 2))[1] == "It is paid."
    assert till.paid == [("Ada", 5)]


# What is heard of a press


@pytest.mark.parametrize(
    "data",
    [
        "/always 1",
        f"/yes 1 {CODE} and more",
        f"/yes  1 {CODE}",
        f"/yes 1 {CODE}\n",
        "/yes 1",
        "/yes",
        "yes",
        "/new",
        "Hello!",
        f"/yes \u0661 {CODE}",
        f"/yes 1 {CODE.upper()}",
    ],
)
async def test_data_that_no_button_has_is_not_heard_and_still_answered(data):
    async with telegram() as stage, listening(stage.platform()) as next_one:
        await stage.people(1)
        stage.press(ANN, 7, data, sender=ANN)
        await stage.say(ANN, "hello", sender=ANN)
        assert (await next_one()).text == "hello"
        await answered(stage)


async def test_a_press_is_heard_as_a_message_of_the_person_who_pressed():
    async with telegram() as stage, listening(stage.platform()) as next_one:
        stage.press(stage.group, 7, f"/no 12 {CODE}", sender=BOB)
        heard = await next_one()
    assert (heard.chat, heard.sender, heard.name) == (stage.group, BOB, "Bob")
    assert (heard.text, heard.reply_to, heard.private) == (f"/no 12 {CODE}", "7", False)
    assert heard.addressed


async def test_a_press_on_a_message_that_is_too_old_to_be_sent_along_is_heard():
    async with telegram() as stage, listening(stage.platform()) as next_one:
        stage.press(ANN, 7, f"/yes 1 {CODE}", sender=ANN, date=0)
        assert (await next_one()).text == f"/yes 1 {CODE}"


async def test_a_double_click_is_heard_once_and_a_redelivery_with_the_same_id():
    async with telegram() as stage, listening(stage.platform()) as next_one:
        first = stage.press(ANN, 7, f"/yes 1 {CODE}", sender=ANN)
        stage.press(ANN, 7, f"/yes 1 {CODE}", sender=ANN)
        stage.server.tell("callback_query", first["callback_query"])
        stage.press(ANN, 7, f"/no 1 {CODE}", sender=ANN)
        heard = [await next_one() for _ in range(3)]
    assert [one.text.split()[0] for one in heard] == ["/yes", "/yes", "/no"]
    assert heard[0].id == heard[1].id != heard[2].id


async def test_a_second_press_some_time_later_is_heard():
    async with telegram() as stage:
        now, platform = 0.0, stage.platform()
        reader = Reader(platform._bot, Moves(), pressed=lambda _: None, clock=lambda: now)
        first, second = (stage.press(ANN, 7, f"/yes 1 {CODE}", sender=ANN) for _ in range(2))
        assert reader(first) is not None
        assert reader(second) is None
        now = DOUBLE_SECONDS
        assert reader(second) is not None
        await platform._bot.shutdown()


async def test_a_press_by_a_bot_or_under_no_message_is_no_answer(stage):
    async with listening(stage.platform()) as next_one:
        update = stage.press(ANN, 7, f"/yes 1 {CODE}", sender=ANN)
        del stage.server.pending[update["update_id"]]
        query = {k: v for k, v in update["callback_query"].items() if k != "message"}
        stage.server.tell("callback_query", query | {"chat": {"id": 1}, "inline_message_id": "x"})
        stage.server.tell("callback_query", update["callback_query"] | {"from": BOT})
        assert (await next_one()).is_bot
