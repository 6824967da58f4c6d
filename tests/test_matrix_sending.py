"""What a bot says in rooms of a real Synapse, and how it lives with that Synapse's faults."""

import anyio
import pytest

from nanoloop.channels.kit.platform import MessageGone, Place, Refused, Text, TooLong, Upload
from nanoloop.errors import Declined, SendLater
from nanoloop.events import ChannelRefused
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.stage import Bot, comes_to, says
from tests.stages.matrix import listening, matrix_stage

PNG = b"\x89PNG\r\n\x1a\n and so on"
HELLO = Text(plain="hello")


@pytest.fixture
async def stage(synapse, tmp_path):
    async with matrix_stage(synapse, tmp_path) as stage:
        yield stage


@pytest.fixture
async def chat(stage):
    """Ann's private chat with the bot."""
    return (await stage.people(1))[0][0]


@pytest.fixture
async def platform(stage):
    """The bot's, connected, and knowing Ann's chat."""
    platform = stage.platform()
    async with listening(platform):
        yield platform


async def sent(stage, room, count=1):
    """The bot's events in a room, as they were sent."""
    owner = stage._owners[room]

    async def look():
        await owner.look()
        events = owner.events.get(room, {}).values()
        return [
            e["content"] for e in events if e["sender"] == stage.bot.id and "body" in e["content"]
        ]

    return await comes_to(look, lambda found: len(found) >= count)


async def test_markdown_comes_as_html_beside_the_plain_text(stage, chat, platform):
    text = Text(plain="some **bold**", formatted=platform.rendered("some **bold**"))
    await platform.post(Place(chat), text, reply_to=None, id="one")
    [content] = await sent(stage, chat)
    assert content["body"] == "some **bold**"
    assert content["formatted_body"] == "<p>some <strong>bold</strong></p>"
    assert content["format"] == "org.matrix.custom.html"


async def test_a_post_of_the_same_name_is_shown_once(stage, chat, platform):
    first = await platform.post(Place(chat), HELLO, reply_to=None, id="one")
    assert await platform.post(Place(chat), HELLO, reply_to=None, id="one") == first
    assert await platform.post(Place(chat), HELLO, reply_to=None, id="two") != first


async def test_an_edit_says_what_is_new_and_a_star_for_old_clients(stage, chat, platform):
    message = await platform.post(Place(chat), HELLO, reply_to=None, id="one")
    await platform.edit(Place(chat), message, Text(plain="bye", formatted="<b>bye</b>"))
    _, edit = await sent(stage, chat, 2)
    assert edit["body"] == "* bye"
    assert edit["m.new_content"]["formatted_body"] == "<b>bye</b>"
    assert edit["m.relates_to"] == {"rel_type": "m.replace", "event_id": message}


async def test_a_private_answer_is_plain_and_one_in_a_group_says_what_it_answers(stage, platform):
    [(chat, ann)] = await stage.people(1)
    asked = await stage.say(stage.group, "is it?", sender=ann)
    heard = await stage.say(chat, "is it?", sender=ann)
    await comes_to(lambda: knows(platform, heard, asked), wanted=True)
    await platform.post(Place(chat), HELLO, reply_to=heard, id="one")
    await platform.post(Place(stage.group), HELLO, reply_to=asked, id="two")
    [private], [public] = await sent(stage, chat), await sent(stage, stage.group)
    assert "m.relates_to" not in private
    assert public["m.relates_to"] == {"m.in_reply_to": {"event_id": asked}}
    assert (private["msgtype"], public["msgtype"]) == ("m.text", "m.notice")


async def test_a_room_that_no_news_has_named_is_known_all_the_same(stage, chat, platform):
    await platform.post(Place(chat), HELLO, reply_to="$1", id="one")
    [content] = await sent(stage, chat)
    assert content["msgtype"] == "m.text"


async def test_an_answer_in_a_thread_stays_in_it(stage, platform):
    root = await stage.say(stage.group, "apples", sender=stage.ann.id)
    await platform.post(Place(stage.group, root), HELLO, reply_to=None, id="one")
    [content] = await sent(stage, stage.group)
    relation = content["m.relates_to"]
    assert (relation["rel_type"], relation["event_id"]) == ("m.thread", root)
    assert relation["is_falling_back"]


async def test_no_name_in_an_answer_calls_anyone(stage, chat, platform):
    await platform.post(Place(chat), Text(plain="@room: look"), reply_to=None, id="one")
    [content] = await sent(stage, chat)
    assert content["m.mentions"] == {}


async def test_an_image_is_posted_as_one_and_only_once(stage, chat, platform):
    image = Upload(name="cat.png", mime_type="image/png", data=PNG)
    message = await platform.upload(Place(chat), image, reply_to=None, id="one")
    assert await platform.upload(Place(chat), image, reply_to=None, id="one") == message
    [content] = await sent(stage, chat)
    assert (content["msgtype"], content["body"]) == ("m.image", "cat.png")
    assert content["info"] == {"mimetype": "image/png", "size": len(PNG)}
    assert await platform._homeserver.download(content["url"], 1000) == PNG


async def test_a_message_that_a_moderator_took_back_is_gone(stage, chat, platform):
    message = await platform.post(Place(chat), HELLO, reply_to=None, id="one")
    await comes_to(lambda: knows(platform, message), wanted=True)
    await stage.ann.redact(chat, message)
    await comes_to(lambda: says_nothing(platform, message), wanted=True)
    with pytest.raises(MessageGone):
        await platform.edit(Place(chat), message, HELLO)


async def test_a_message_can_be_taken_back_twice(stage, chat, platform):
    message = await platform.post(Place(chat), HELLO, reply_to=None, id="one")
    await platform.remove(Place(chat), message)
    await platform.remove(Place(chat), message)
    assert await stage.shown(chat) == []


async def test_what_is_too_long_is_told_as_such(chat, platform):
    with pytest.raises(TooLong):
        await platform.post(Place(chat), Text(plain="x" * 70_000), reply_to=None, id="one")


async def test_a_room_that_the_bot_is_not_in_takes_nothing(stage, platform):
    room = await stage.ann.create_room()
    with pytest.raises(Declined, match="M_FORBIDDEN"):
        await platform.post(Place(room), HELLO, reply_to=None, id="one")


@pytest.mark.slow
async def test_the_homeservers_own_rate_limit_is_obeyed(stage, chat, synapse, tmp_path):
    _, admin = synapse.register(f"admin-of-{stage.bot.id[1:6]}", admin=True)
    path = f"/_synapse/admin/v1/users/{stage.bot.id}/override_ratelimit"
    limit = {"messages_per_second": 1, "burst_count": 1}
    synapse.ask("POST", path, limit, token=admin)
    async with Bot(stage.platform(), tmp_path, sleep=anyio.sleep) as bot:
        await stage.say(chat, "one", sender=stage.ann.id)
        await stage.say(chat, "two", sender=stage.ann.id)
        await says(stage, chat, "You said: one", "You said: two")
    assert any(event.name() == "send_postponed" for event in bot.events)


@pytest.mark.slow
async def test_a_homeserver_that_restarts_during_an_answer_costs_nothing(stage, chat, tmp_path):
    provider = ScriptedProvider(held=True)
    async with Bot(stage.platform(), tmp_path, provider=provider):
        await stage.say(chat, "one", sender=stage.ann.id)
        await provider.asked()
        await anyio.to_thread.run_sync(stage.server.restart)
        await stage.say(chat, "two", sender=stage.ann.id)
        provider.release()
        await says(stage, chat, "You said: one", "You said: two")


async def test_a_wrong_token_is_refused_with_what_to_do(stage, tmp_path):
    stage.bot.token = "syt_wrong"
    async with Bot(stage.platform(), tmp_path) as bot:
        await comes_to(lambda: is_refused(bot), wanted=True)
    [refusal] = [event for event in bot.events if isinstance(event, ChannelRefused)]
    assert "channels.matrix.token" in refusal.reason
    assert "syt_wrong" not in refusal.reason


async def test_another_accounts_token_is_refused(stage):
    with pytest.raises(Refused, match=rf"{stage.bot.id}, not to @other:example.org"):
        await stage.platform(user="@other:example.org").listen(None, lambda: None)


async def test_a_token_that_is_refused_in_the_middle_gives_no_answer_up(stage, chat):
    platform = stage.platform()
    try:
        async with listening(platform):
            await stage.refuse_token()
            with pytest.raises(SendLater):
                await platform.post(Place(chat), HELLO, reply_to=None, id="one")
    except* (Refused, SendLater):
        pass  # the part that listens may hear of it first


async def knows(platform, *messages):
    return all(platform._recent.known(message) for message in messages)


async def says_nothing(platform, message):
    return not platform._recent.known(message)["content"]


async def is_refused(bot):
    return bot.channel.state.name == "refused"


@pytest.mark.slow
async def test_an_answer_to_a_homeserver_that_is_down_comes_when_it_is_back(stage, chat, tmp_path):
    provider = ScriptedProvider(held=True)
    async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
        await stage.say(chat, "one", sender=stage.ann.id)
        await provider.asked()
        stage.server.kill()
        provider.release()
        await comes_to(lambda: is_lost(bot), wanted=True)
        await anyio.to_thread.run_sync(stage.server.start)
        await says(stage, chat, "You said: one")


async def is_lost(bot):
    return bot.channel.state.name == "waiting"
