"""What Discord does to a bot now and then, and what the bot makes of it."""

from contextlib import asynccontextmanager
from types import SimpleNamespace

import anyio
import discord
import pytest

from nanoloop.attachments import Attachments
from nanoloop.channels.kit.backlog import Gaps, SeenMessages
from nanoloop.channels.kit.platform import Place, Text, Upload
from nanoloop.errors import Declined, SettingsError
from nanoloop.events import ChannelLost, ChannelRefused
from nanoloop.messages import Quote
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings.channels import PlatformSettings
from nanoloop.testing.channels.stage import Bot, comes_to, says
from nanoloop.testing.channels.suite import Growing
from tests.servers.discord import DiscordServer

# isort: split

from nanoloop.channels.discord import DiscordSettings, make
from nanoloop.channels.discord.platform import _quoted, explained
from tests.stages.discord import DiscordStage


@pytest.fixture
async def server():
    async with DiscordServer().serving() as server:
        yield server


@pytest.fixture
def stage(server, tmp_path):
    return DiscordStage(server, tmp_path)


@pytest.fixture
async def ann(stage):
    return (await stage.people(1))[0]


@asynccontextmanager
async def listening(stage, hear):
    """The bare platform, connected."""
    platform, connected = stage.platform(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(platform.listen, hear, connected.set)
        await connected.wait()
        yield platform
        group.cancel_scope.cancel()


async def _nothing(*_):
    """Hear and forget."""


async def test_a_connection_that_is_cut_is_resumed_with_all_that_was_said(
    server, stage, ann, tmp_path
):
    async with Bot(stage.platform(), tmp_path) as bot:
        await stage.say(ann[0], "one", sender=ann[1])
        await says(stage, ann[0], "You said: one")
        server.cut()
        message = await stage.say(ann[0], "tow", sender=ann[1])
        await stage.edit(ann[0], message, "two", sender=ann[1])
        await comes_to(lambda: said(stage, ann[0]), lambda found: "You said: two" in found)
    assert (server.identified, server.resumed) == (1, 1)
    assert not [event for event in bot.events if isinstance(event, ChannelLost)]


async def said(stage, chat):
    return [shown.text for shown in await stage.shown(chat) if shown.is_bots]


async def test_what_was_said_while_a_session_was_lost_is_read_in_the_history(
    server, stage, ann, tmp_path
):
    async with Bot(stage.platform(), tmp_path):
        await stage.say(ann[0], "one", sender=ann[1])
        await says(stage, ann[0], "You said: one")
        server.forgets_sessions = True
        server.cut()
        for text in ("two", "three"):
            await stage.say(ann[0], text, sender=ann[1])
        await says(stage, ann[0], *(f"You said: {text}" for text in ("one", "two", "three")))
    assert server.resumed == 0


async def test_a_message_that_a_kill_left_unread_is_read_after_the_start(stage, ann, tmp_path):
    async def hear(*_):
        heard.set()
        await anyio.sleep_forever()

    heard = anyio.Event()
    async with listening(stage, hear):
        await stage.say(ann[0], "one", sender=ann[1])
        await heard.wait()
    async with Bot(stage.platform(), tmp_path):
        await says(stage, ann[0], "You said: one")


def test_what_was_cut_short_is_not_hidden_by_what_came_behind_it():
    seen = SeenMessages()
    gaps = Gaps(seen, since=_nothing, take=_nothing)
    gaps.note(Place("chat"), "1")
    with pytest.raises(ZeroDivisionError), gaps.taking():
        raise ZeroDivisionError  # message 2
    gaps.note(Place("chat"), "3")
    assert seen.places() == [(Place("chat"), "1")]
    seen.close()


async def test_a_thread_is_caught_up_with_too(stage, tmp_path):
    (_, ann), _ = await stage.people(2)
    provider = ScriptedProvider(otherwise="yes")
    async with Bot(stage.platform(), tmp_path, provider=provider):
        root = await stage.say(stage.group, "root", sender=ann)
        await stage.say(stage.group, stage.naming("one"), sender=ann, thread=root)
        await says(stage, f"{stage.group} {root}", "yes")
    await stage.say(stage.group, stage.naming("two"), sender=ann, thread=root)
    async with Bot(stage.platform(), tmp_path, provider=provider):
        await says(stage, f"{stage.group} {root}", "yes", "yes")


async def refusal(bot):
    async def look():
        return [event.reason for event in bot.events if isinstance(event, ChannelRefused)]

    return (await comes_to(look, len))[0]


async def test_a_bot_that_may_not_read_messages_says_what_to_switch_on(server, stage, tmp_path):
    server.allows_content = False
    async with Bot(stage.platform(), tmp_path) as bot:
        assert "Message Content Intent" in await refusal(bot)


async def test_a_wrong_token_is_told_with_what_to_do(stage, tmp_path):
    await stage.refuse_token()
    async with Bot(stage.platform(), tmp_path) as bot:
        assert "channels.discord.token" in await refusal(bot)


async def test_an_answer_whose_beginning_was_deleted_is_posted_anew(stage, ann, tmp_path):
    provider = Growing("a begin", "a beginning and an end")
    async with Bot(stage.platform(), tmp_path, provider=provider):
        await stage.say(ann[0], "go", sender=ann[1])
        await says(stage, ann[0], "a begin")
        begun = next(shown.id for shown in await stage.shown(ann[0]) if shown.is_bots)
        await stage.delete(ann[0], begun, sender=ann[1])
        provider.goes_on.set()
        await says(stage, ann[0], "a beginning and an end")


async def test_who_has_a_role_may_talk(stage, tmp_path):
    (_, ann), (_, bob) = await stage.people(2)
    role = stage.world.create_role(stage.guild.id, "friends")
    stage.world.add_member_role(stage.guild.id, int(ann), role.id)
    rules = PlatformSettings(roles=(str(role.id),))
    async with Bot(stage.platform(), tmp_path, rules=rules):
        await stage.say(stage.group, stage.naming("hello"), sender=bob)
        await stage.say(stage.group, stage.naming("good day"), sender=ann)
        await comes_to(lambda: said(stage, stage.group), lambda found: len(found) == 1)
    assert "good day" in (await said(stage, stage.group))[0]


async def test_what_someone_answers_is_quoted_and_names_are_read(server, stage):
    (_, ann), (_, bob) = await stage.people(2)
    heard = []

    async def hear(one):
        heard.append(one)

    async with listening(stage, hear):
        first = await stage.say(stage.group, "tea is ready", sender=bob)
        text = f"<@{bob}> <#{stage.group}> <:cup:123> thanks"
        await stage.say(stage.group, text, sender=ann, reply_to=first)
        await comes_to(lambda: count(heard), 2)
    assert heard[1].text == "@bob #all :cup: thanks"
    (quote,) = heard[1].quotes
    assert (quote.text, quote.kind, quote.speaker.id) == ("tea is ready", "quote", str(bob))
    assert heard[1].reply_to == first
    assert (heard[1].private, heard[1].addressed) == (False, False)


def test_what_is_forwarded_is_of_someone_unknown():
    snapshots = [SimpleNamespace(content="pay")]
    message = SimpleNamespace(reference=None, message_snapshots=snapshots)
    assert list(_quoted(message, None)) == [Quote(kind="forward", text="pay")]


async def count(heard):
    return len(heard)


async def test_a_file_is_fetched_and_kept(stage, ann, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)
    async with Bot(stage.platform(), tmp_path, attachments=attachments):
        await stage.say(ann[0], "look", sender=ann[1], files={"tea.png": b"picture"})
        await comes_to(lambda: said(stage, ann[0]), len)
    assert [file.read_bytes() for file in (tmp_path / "kept").glob("*.data")] == [b"picture"]


async def test_a_file_is_posted_to_its_chat(stage, ann):
    async with listening(stage, _nothing) as platform:
        upload = Upload(name="tea.png", mime_type="image/png", data=b"picture")
        await platform.upload(Place(ann[0]), upload, reply_to=None, id="a")
    message = next(iter(stage.world.messages[int(ann[0])].values()))
    assert [file["filename"] for file in message.attachments] == ["tea.png"]


async def test_an_answer_to_a_message_that_is_gone_is_posted_all_the_same(stage, ann):
    async with listening(stage, _nothing) as platform:
        gone = await stage.say(ann[0], "hello", sender=ann[1])
        await stage.delete(ann[0], gone, sender=ann[1])
        await platform.post(Place(ann[0]), Text(plain="hi"), reply_to=gone, id="a")
    assert await said(stage, ann[0]) == ["hi"]


def test_a_refusal_is_told_by_its_codes():
    answer = SimpleNamespace(status=403, reason="Forbidden")
    with pytest.raises(Declined) as declined, explained():
        raise discord.Forbidden(answer, {"code": 50001, "message": "my secret words"})
    assert declined.value.reason == "Discord returned 403, code 50001"


def test_a_token_that_is_none_is_refused_before_anything_is_sent(tmp_path):
    with pytest.raises(SettingsError, match=r"channels\.discord\.token"):
        make(DiscordSettings(token="nonsense"), tmp_path)
