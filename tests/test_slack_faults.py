"""What Slack does to a bot now and then, and what the bot makes of it."""

from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.attachments import Attachments
from nanoloop.channels.kit.platform import Place, Text, Upload
from nanoloop.events import ChannelLost, ChannelRefused, FileLeftOut
from nanoloop.messages import Quote, Speaker
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.stage import Bot, comes_to, says
from nanoloop.testing.channels.suite import Growing
from tests.servers.slack import BOT, SlackServer
from tests.stages.slack import SlackStage

CHAT, ANN = "D0", "U0"


@pytest.fixture
async def server():
    async with SlackServer().serving() as server:
        server.users[ANN] = "Ann"
        yield server


@pytest.fixture
def stage(server, tmp_path):
    return SlackStage(server, tmp_path)


@asynccontextmanager
async def listening(stage, hear):
    """The bare platform, connected."""
    platform, connected = stage.platform(), anyio.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(platform.listen, hear, connected.set)
        await connected.wait()
        yield platform
        group.cancel_scope.cancel()


async def refusal(stage, folder):
    """Why the bot is let in no more."""

    async def look():
        return [event.reason for event in bot.events if isinstance(event, ChannelRefused)]

    async with Bot(stage.platform(), folder) as bot:
        return (await comes_to(look, len))[0]


async def test_an_envelope_is_acknowledged_once_it_is_durable(server, stage):
    heard, durable = anyio.Event(), anyio.Event()

    async def hear(*_):
        heard.set()
        await durable.wait()

    async with listening(stage, hear):
        server.say(CHAT, ANN, "hello")
        await heard.wait()
        await anyio.wait_all_tasks_blocked()
        assert not server.acknowledged
        durable.set()
        await comes_to(lambda: acknowledged(server), 1)


async def test_one_chat_whose_messages_take_long_holds_up_no_other(server, stage):
    heard = []

    async def hear(one):
        heard.append(one.text)
        if one.chat == CHAT:
            await anyio.sleep_forever()

    async with listening(stage, hear):
        server.say(CHAT, ANN, "one")
        server.say("D1", ANN, "two")
        await comes_to(lambda: acknowledged(server), 1)
    assert sorted(heard) == ["one", "two"]


async def acknowledged(server):
    return len(server.acknowledged)


async def test_what_comes_again_as_it_was_not_acknowledged_in_time_is_answered_once(
    server, stage, tmp_path
):
    provider = ScriptedProvider(held=True)
    async with Bot(stage.platform(), tmp_path, provider=provider):
        server.say(CHAT, ANN, "one")
        server.redeliver()
        server.say(CHAT, ANN, "two")
        provider.release()
        await says(stage, CHAT, "You said: one", "You said: two")


async def test_a_connection_that_slack_renews_is_renewed_at_once(server, stage, tmp_path):
    async with Bot(stage.platform(), tmp_path) as bot:
        await server.connected.wait()
        server.connected = anyio.Event()
        server.disconnect()
        server.say(CHAT, ANN, "one")
        await server.connected.wait()
        server.say(CHAT, ANN, "two")
        await says(stage, CHAT, "You said: one", "You said: two")
    assert not [event for event in bot.events if isinstance(event, ChannelLost)]


async def test_what_slack_has_given_up_delivering_is_read_in_the_history(server, stage, tmp_path):
    async with Bot(stage.platform(), tmp_path):
        server.say(CHAT, ANN, "one")
        await says(stage, CHAT, "You said: one")
    server.is_forgetful = True
    for text in ("two", "three"):
        server.say(CHAT, ANN, text)
    async with Bot(stage.platform(), tmp_path):
        await server.connected.wait()
        server.say(CHAT, ANN, "four")
        said = (f"You said: {text}" for text in ("one", "two", "three", "four"))
        await says(stage, CHAT, *said)


async def test_a_thread_is_caught_up_with_too(server, stage, tmp_path):
    root = server.say(CHAT, ANN, "root")
    async with Bot(stage.platform(), tmp_path):
        server.say(CHAT, ANN, "one", thread_ts=root)
        await says(stage, f"{CHAT} {root}", "You said: one")
    server.is_forgetful = True
    server.say(CHAT, ANN, "two", thread_ts=root)
    async with Bot(stage.platform(), tmp_path):
        await says(stage, f"{CHAT} {root}", "You said: one", "You said: two")


async def test_a_history_that_may_not_be_read_now_is_read_a_little_later(server, stage, tmp_path):
    async with Bot(stage.platform(), tmp_path):
        server.say(CHAT, ANN, "one")
        await says(stage, CHAT, "You said: one")
    server.is_forgetful = True
    server.say(CHAT, ANN, "two")
    server.refuse("conversations.history", "ratelimited", times=2, retry_after=0.01)
    async with Bot(stage.platform(), tmp_path):
        await says(stage, CHAT, "You said: one", "You said: two")


@pytest.mark.parametrize(
    ("method", "error", "said"),
    [
        ("auth.test", "token_revoked", "channels.slack.token"),
        ("apps.connections.open", "invalid_auth", "channels.slack.app_token"),
        ("apps.connections.open", "missing_scope", "connections:write"),
    ],
)
async def test_a_refusal_at_the_start_says_what_to_do(stage, tmp_path, method, error, said):
    stage.server.refuse(method, error, needed="connections:write")
    assert said in await refusal(stage, tmp_path)


async def test_a_right_that_is_missing_is_named(server, stage, tmp_path):
    server.scopes = "chat:write,users:read"
    reason = await refusal(stage, tmp_path)
    assert "im:history" in reason
    assert "chat:write" not in reason


async def test_socket_mode_that_is_switched_off_is_told(server, stage, tmp_path):
    async with Bot(stage.platform(), tmp_path) as bot:
        await server.connected.wait()
        server.disconnect("link_disabled")
        await comes_to(lambda: state(bot), "refused")
    assert "Socket Mode" in bot.channel.state.reason


async def state(bot):
    return bot.channel.state.name


async def test_an_answer_whose_beginning_was_deleted_is_posted_anew(server, stage, tmp_path):
    provider = Growing("a begin", "a beginning and an end")
    async with Bot(stage.platform(), tmp_path, provider=provider):
        server.say(CHAT, ANN, "go")
        await says(stage, CHAT, "a begin")
        begun = next(shown.id for shown in await stage.shown(CHAT) if shown.is_bots)
        server.drop(CHAT, begun)
        provider.goes_on.set()
        await says(stage, CHAT, "a beginning and an end")


async def test_a_message_that_is_too_long_for_slack_is_split_further(server, stage, tmp_path):
    server.limit = 1000
    words = " ".join(f"word{number}" for number in range(300))
    async with Bot(stage.platform(), tmp_path, provider=ScriptedProvider([words])):
        server.say(CHAT, ANN, "go")

        async def look():
            shown = await stage.shown(CHAT)
            return " ".join(one.text for one in shown if one.is_bots).split()

        await comes_to(look, words.split())


async def test_what_was_posted_before_a_kill_without_our_knowing_is_not_posted_again(
    server, stage, tmp_path
):
    async with listening(stage, _nothing) as platform:
        first = await platform.post(Place(CHAT), Text(plain="once"), reply_to=None, id="a")
    async with listening(stage, _nothing) as platform:
        again = await platform.post(Place(CHAT), Text(plain="once"), reply_to=None, id="a")
    assert first == again
    assert len(server.channels[CHAT]) == 1


async def test_a_file_is_fetched_with_the_token_and_kept(server, stage, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)
    async with Bot(stage.platform(), tmp_path, attachments=attachments):
        await stage.say(CHAT, "look", sender=ANN, files={"tea.png": b"picture"})
        await answered(stage)
    assert [file.read_bytes() for file in (tmp_path / "kept").glob("*.data")] == [b"picture"]


async def test_the_token_is_not_shown_where_a_file_lies_elsewhere(server, stage, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)
    file = {"id": "F1", "name": "a.txt", "url_private": "http://localhost:1/files/F1"}
    async with Bot(stage.platform(), tmp_path, attachments=attachments) as bot:
        server.say(CHAT, ANN, "look", files=[file])
        await answered(stage)
    left = [event.reason for event in bot.events if isinstance(event, FileLeftOut)]
    assert left == ["the file is hosted elsewhere"]
    assert not (tmp_path / "kept").exists()


async def answered(stage):
    async def look():
        return any(shown.is_bots for shown in await stage.shown(CHAT))

    await comes_to(look, wanted=True)


async def test_a_file_is_posted_to_its_chat(server, stage):
    async with listening(stage, _nothing) as platform:
        upload = Upload(name="tea.png", mime_type="image/png", data=b"picture")
        name = await platform.upload(Place(CHAT), upload, reply_to=None, id="a")
    assert server.uploads == {name: b"picture"}
    assert [m["files"][0]["id"] for m in server.channels[CHAT].values()] == [name]


async def test_a_command_behind_a_space_is_one(server, stage, tmp_path):
    async with Bot(stage.platform(), tmp_path):
        server.say(CHAT, ANN, " /help")
        await answered(stage)
    assert "/new" in next(shown.text for shown in await stage.shown(CHAT) if shown.is_bots)


async def test_people_are_called_by_their_names_and_asked_for_once(server, stage):
    heard = []

    async def hear(one):
        heard.append(one)

    async with listening(stage, hear):
        for _ in range(3):
            server.say("C0", ANN, f"<@{ANN}> &lt;3 <@{BOT}> in <#C9|tea>")
        await comes_to(lambda: acknowledged(server), 3)
    assert heard[0].name == "Ann"
    assert heard[0].text == f"@Ann <3 <@{BOT}> in #tea"
    assert heard[0].mention == f"<@{BOT}>"
    assert server.calls.count("users.info") == 1


async def test_a_shared_message_is_of_who_wrote_it(server, stage):
    heard = []

    async def hear(one):
        heard.append(one)

    share = {"is_share": True, "text": "pay &lt;3", "author_id": "U9", "author_name": "Bob"}
    unnamed = {"is_share": True, "text": "now"}
    async with listening(stage, hear):
        server.say("C0", ANN, "see", attachments=[share, unnamed, {"text": "a preview"}])
        await comes_to(lambda: acknowledged(server), 1)
    assert heard[0].text == "see"
    assert heard[0].quotes == (
        Quote(kind="forward", text="pay <3", speaker=Speaker(id="U9", name="Bob")),
        Quote(kind="forward", text="now"),
    )


async def _nothing(*_):
    """Hear and forget."""
