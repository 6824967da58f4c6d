"""What a bot hears in rooms of a real Synapse, and which rooms it goes into."""

import anyio
import pytest

from nanoloop.attachments import Attachments
from nanoloop.channels.kit.platform import Host
from nanoloop.channels.matrix import sync as timeline
from nanoloop.events import SenderRefused
from nanoloop.sentences import ENGLISH
from nanoloop.settings.channels import PlatformSettings
from nanoloop.testing.channels.stage import Bot, comes_to, says
from tests.images import png
from tests.stages.matrix import listening, matrix_stage

PNG = png()


@pytest.fixture
async def stage(synapse, tmp_path):
    async with matrix_stage(synapse, tmp_path) as stage:
        yield stage


@pytest.fixture
async def chat(stage):
    """Ann's private chat with the bot."""
    return (await stage.people(1))[0][0]


async def first(stage, room, content, **more):
    """What is heard of a message of Ann's."""
    async with listening(stage.platform()) as ears:
        await stage.ann.send(room, content, **more)
        return (await ears.comes())[0]


async def test_a_message_says_who_said_it_and_where(stage):
    await stage.ann.call_oneself("Ann Lee")
    [(chat, _)] = await stage.people(1)
    heard = await first(stage, chat, {"msgtype": "m.text", "body": "hello"})
    assert (heard.chat, heard.sender, heard.name) == (chat, stage.ann.id, "Ann Lee")
    assert (heard.text, heard.private, heard.is_bot) == ("hello", True, False)


async def test_a_room_of_three_is_no_private_one(stage):
    heard = await first(stage, stage.group, {"msgtype": "m.text", "body": "hello"})
    assert (heard.private, heard.addressed) == (False, False)


async def test_a_private_room_is_a_group_once_a_third_one_joins(stage, chat):
    async with listening(stage.platform()) as ears:
        await stage.ann.send(chat, {"msgtype": "m.text", "body": "only you"})
        await ears.comes(1)
        await stage.ann.invite(chat, stage.bob.id)
        await stage.bob.join(chat)
        await stage.ann.send(chat, {"msgtype": "m.text", "body": "both of you"})
        heard = await ears.comes(2)
    assert [one.private for one in heard] == [True, False]


async def test_an_emote_says_who_acts(stage, chat):
    heard = await first(stage, chat, {"msgtype": "m.emote", "body": "waves"})
    assert heard.text == f"* {heard.name} waves"


async def test_a_name_chosen_from_a_list_names_the_bot(stage):
    link = f'<a href="https://matrix.to/#/{stage.bot.id}">Nano</a>: is it?'
    form = {"format": "org.matrix.custom.html", "formatted_body": link}
    heard = await first(stage, stage.group, {"msgtype": "m.text", "body": "Nano: is it?", **form})
    assert heard.addressed


async def test_an_image_is_fetched_as_the_bot_itself(stage, chat):
    address = await stage.ann.upload("cat.png", PNG)
    info = {"mimetype": "image/png", "size": len(PNG)}
    image = {"msgtype": "m.image", "body": "cat.png", "url": address, "info": info}
    async with listening(stage.platform()) as ears:
        await stage.ann.send(chat, image)
        heard = (await ears.comes())[0]
        [file] = heard.files
        assert await file.fetch() == PNG
    assert heard.text == ""
    assert (file.kind, file.name, file.mime_type) == ("image", "cat.png", "image/png")
    assert file.size == len(PNG)


async def test_a_voice_note_is_audio_and_a_sticker_an_image(stage, chat):
    address = await stage.ann.upload("note.ogg", b"OggS")
    voice = {"msgtype": "m.audio", "body": "note.ogg", "url": address}
    async with listening(stage.platform()) as ears:
        await stage.ann.send(chat, {**voice, "org.matrix.msc3245.voice": {}})
        await stage.ann.send(chat, {"body": "a cat", "url": address, "info": {}}, kind="m.sticker")
        heard = await ears.comes(2)
    assert [file.kind for one in heard for file in one.files] == ["audio", "image"]


async def test_a_file_that_says_less_than_it_has_is_not_read_to_its_end(stage, chat):
    platform = stage.platform()
    address = await stage.ann.upload("long.txt", b"x" * 300_000)
    async with listening(platform):
        assert len(await platform._homeserver.download(address, 1000)) < 300_000


async def test_a_file_that_takes_long_holds_up_no_other_room(stage, chat, tmp_path):
    address = await stage.ann.upload("cat.png", PNG)
    image = {"msgtype": "m.image", "body": "cat.png", "url": address}
    stage.proxy.held = "/media/download/"

    attachments = Attachments(tmp_path / "kept", limit_bytes=100_000)
    async with Bot(stage.platform(), tmp_path, attachments=attachments):
        await stage.ann.send(chat, image)
        await comes_to(lambda: called(stage, stage.proxy.held), wanted=True)
        await stage.say(chat, "what is it?", sender=stage.ann.id)
        for number in range(2):
            await stage.say(stage.group, f"{stage.bot.id}: {number}", sender=stage.bob.id)
            await comes_to(lambda n=number: answered(stage, stage.group, str(n)), wanted=True)
        assert not await answered(stage, chat, "what is it?")
        stage.proxy.goes_on.set()
        await comes_to(lambda: answered(stage, chat, "what is it?"), wanted=True)
    said = [shown.text for shown in await stage.shown(chat) if shown.is_bots]
    assert "image_url" in said[0]  # the model saw it


async def answered(stage, room, text):
    return any(shown.is_bots and text in shown.text for shown in await stage.shown(room))


async def test_an_answer_quotes_what_it_answers_as_it_was_edited(stage):
    async with listening(stage.platform()) as ears:
        message = await stage.say(stage.group, "tow", sender=stage.bob.id)
        await stage.edit(stage.group, message, "two", sender=stage.bob.id)
        await stage.say(stage.group, "really?", sender=stage.ann.id, reply_to=message)
        heard = (await ears.comes(3))[2]
    assert (heard.reply_to, heard.text) == (message, "really?")
    assert [(q.text, q.speaker.id) for q in heard.quotes] == [("two", stage.bob.id)]


async def test_what_was_said_before_the_bot_knew_of_it_can_be_quoted(stage):
    message = await stage.say(stage.group, "tow", sender=stage.bob.id)
    await stage.edit(stage.group, message, "two", sender=stage.bob.id)
    async with listening(stage.platform()) as ears:
        await ears.comes(2)
    async with listening(stage.platform()) as ears:
        await stage.say(stage.group, "really?", sender=stage.ann.id, reply_to=message)
        assert (await ears.comes())[0].quotes[0].text == "two"


async def test_an_edit_keeps_its_thread_and_says_which_message_it_edits(stage):
    async with listening(stage.platform()) as ears:
        root = await stage.say(stage.group, "apples", sender=stage.ann.id)
        message = await stage.say(stage.group, "paers", sender=stage.ann.id, thread=root)
        await ears.comes(2)  # what is taken back before it is read has no text any more
        await stage.edit(stage.group, message, "pears", sender=stage.ann.id)
        await ears.comes(3)
        await stage.delete(stage.group, message, sender=stage.ann.id)
        _, said, edited, gone = await ears.comes(4)
    assert (said.thread, edited.thread, gone.thread) == (root, root, root)
    assert (edited.edits, edited.text, gone.deletes) == (message, "pears", message)


async def test_nobody_edits_what_another_one_said(stage):
    async with listening(stage.platform()) as ears:
        message = await stage.say(stage.group, "I like tea", sender=stage.ann.id)
        await stage.edit(stage.group, message, "I hate tea", sender=stage.bob.id)
        await stage.say(stage.group, "indeed", sender=stage.ann.id)
        heard = await ears.comes(2)
    assert [one.text for one in heard] == ["I like tea", "indeed"]


async def test_what_a_moderator_takes_back_is_its_authors(stage):
    async with listening(stage.platform()) as ears:
        message = await stage.say(stage.group, "rude words", sender=stage.bob.id)
        await ears.comes(1)  # who hears of both at once finds no words any more
        await stage.delete(stage.group, message, sender=stage.ann.id)
        _, gone = await ears.comes(2)
    assert (gone.deletes, gone.sender) == (message, stage.bob.id)


async def test_reactions_are_passed_over(stage):
    async with listening(stage.platform()) as ears:
        message = await stage.say(stage.group, "tea?", sender=stage.ann.id)
        relation = {"rel_type": "m.annotation", "event_id": message, "key": "👍"}
        await stage.bob.send(stage.group, {"m.relates_to": relation}, kind="m.reaction")
        await stage.say(stage.group, "good", sender=stage.ann.id)
        assert [one.text for one in await ears.comes(2)] == ["tea?", "good"]


@pytest.mark.parametrize(
    "content",
    [
        {"body": "x", "msgtype": "m.image", "url": 7, "info": "none"},
        {"body": "x", "msgtype": "m.image", "url": "mxc://", "info": {"size": -1}},
        {"body": "x", "msgtype": "m.text", "m.mentions": {"user_ids": "all"}},
        {"body": "x", "msgtype": "m.text", "m.relates_to": {"m.in_reply_to": {"event_id": "$no"}}},
        {"body": "x", "msgtype": "m.text", "m.relates_to": {"rel_type": "m.replace"}},
    ],
)
async def test_what_is_odd_stops_nothing(stage, chat, content):
    async with listening(stage.platform()) as ears:
        await stage.ann.send(chat, content)
        await stage.say(chat, "hello", sender=stage.ann.id)
        await comes_to(lambda: last_text(ears), "hello")


async def test_a_gap_is_filled_in_order(stage, chat, monkeypatch):
    monkeypatch.setattr(timeline, "PAGE", 5)
    monkeypatch.setitem(timeline._TOLD, "limit", 5)
    for number in range(18):
        await stage.say(chat, f"{number}", sender=stage.ann.id)
    async with listening(stage.platform()) as ears:
        heard = await ears.comes(18)
    assert [one.text for one in heard] == [f"{number}" for number in range(18)]


async def test_what_was_not_handed_in_yet_is_heard_again(stage, chat):
    begun = anyio.Event()

    async def hear(*heard):
        if any(one.text == "hello" for one in heard):
            begun.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(stage.platform().listen, hear, lambda: None)
        await stage.say(chat, "hello", sender=stage.ann.id)
        await begun.wait()
        group.cancel_scope.cancel()
    async with listening(stage.platform()) as ears:
        assert [one.text for one in await ears.comes()] == ["hello"]


async def test_at_its_very_first_start_nothing_old_is_heard(stage, chat, tmp_path):
    await stage.say(chat, "old", sender=stage.ann.id)
    async with listening(stage.platform(folder=tmp_path / "new")) as ears:
        await comes_to(lambda: reads_on(stage), wanted=True)
        await stage.say(chat, "new", sender=stage.ann.id)
        assert [one.text for one in await ears.comes()] == ["new"]


async def test_a_bookmark_that_the_homeserver_does_not_know_is_begun_anew(stage, chat):
    stage.bookmark.move("nonsense")
    async with listening(stage.platform()) as ears:
        await comes_to(lambda: has_moved(stage), wanted=True)
        await stage.say(chat, "new", sender=stage.ann.id)
        assert [one.text for one in await ears.comes()] == ["new"]


async def test_an_invitation_is_accepted_and_what_was_said_since_is_answered(stage, tmp_path):
    room = await stage.ann.create_room(stage.bot.id, direct=True)
    await stage.ann.send(room, {"msgtype": "m.text", "body": "hello"})
    stage.watch(room)
    async with Bot(stage.platform(), tmp_path):
        await says(stage, room, "You said: hello")


async def test_what_was_said_before_an_invitation_is_none_of_the_bots_business(stage):
    room = await stage.ann.create_room(preset="public_chat")
    await stage.ann.send(room, {"msgtype": "m.text", "body": "a secret"})
    await stage.ann.invite(room, stage.bot.id)
    await stage.ann.send(room, {"msgtype": "m.text", "body": "hello"})
    async with listening(stage.platform()) as ears:
        assert [one.text for one in await ears.comes()] == ["hello"]


async def test_an_accepted_invitation_outlasts_a_restart(stage):
    room = await stage.ann.create_room(stage.bot.id)
    stage.proxy.refused = "/join/"
    async with listening(stage.platform()):
        await comes_to(lambda: called(stage, "/join/"), wanted=True)
        await comes_to(lambda: to_join(stage), [room])
    stage.proxy.refused = None
    async with listening(stage.platform()) as ears:
        await stage.ann.send(room, {"msgtype": "m.text", "body": "hello"})
        assert [one.text for one in await ears.comes()] == ["hello"]


async def test_a_stranger_cannot_invite_the_bot(stage, heard):
    platform = stage.platform()
    platform.meet(Host(channel="matrix"))
    async with listening(platform):
        room = await stage.ann.create_room(stage.bot.id)
        await comes_to(lambda: membership(stage, room), "leave")
    assert [(event.chat, event.sender) for event in heard] == [(room, stage.ann.id)]


async def test_the_bot_follows_a_room_that_moves(stage):
    room = await stage.ann.create_room(preset="public_chat")
    await stage.bot.join(room)
    async with listening(stage.platform()) as ears:
        path = f"/_matrix/client/v3/rooms/{room}/upgrade"
        answer = await stage.ann.ask("POST", path, {"new_version": "10"})
        await comes_to(lambda: called(stage, "/join/"), wanted=True)
        await stage.say(answer["replacement_room"], "here", sender=stage.ann.id)
        assert (await ears.comes())[0].chat == answer["replacement_room"]


async def test_who_may_invite_the_bot_may_change_while_it_runs(stage, tmp_path):
    async with Bot(stage.platform(), tmp_path, rules=PlatformSettings(pairing=False)) as bot:
        refused = await stage.ann.create_room(stage.bot.id)
        await comes_to(lambda: membership(stage, refused), "leave")
        bot.channel.access.rules = PlatformSettings(users=(stage.ann.id,))
        welcome = await stage.ann.create_room(stage.bot.id)
        await comes_to(lambda: membership(stage, welcome), "join")
    reasons = [event.reason for event in bot.events if isinstance(event, SenderRefused)]
    assert reasons == ["may not invite the bot"]


async def test_an_encrypted_room_is_told_once_that_it_cannot_be_read(stage, chat):
    content = {"algorithm": "m.megolm.v1.aes-sha2", "ciphertext": "?", "session_id": "?"}
    for _ in range(2):
        async with listening(stage.platform()) as ears:
            await stage.ann.send(chat, content, kind="m.room.encrypted")
            await stage.say(chat, "and now?", sender=stage.ann.id)
            await ears.comes()
    told = [shown.text for shown in await stage.shown(chat) if shown.is_bots]
    assert told == [ENGLISH["encrypted_room"]]


async def last_text(ears):
    return ears.heard[-1].text if ears.heard else ""


async def reads_on(stage):
    """Whether it has read for the first time."""
    return stage.proxy.since is not None


async def has_moved(stage):
    return stage.bookmark.since != "nonsense"


async def to_join(stage):
    return stage.bookmark.to_join


async def called(stage, part):
    return any(part in call for call in stage.proxy.calls)


async def membership(stage, room):
    path = f"/_matrix/client/v3/rooms/{room}/state/m.room.member/{stage.bot.id}"
    return (await stage.ann.ask("GET", path))["membership"]
