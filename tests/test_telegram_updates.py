"""What people do on Telegram, as the kit hears it."""

import pytest

from nanoloop.channels.telegram.hearing import Moves
from nanoloop.channels.telegram.platform import TelegramPlatform
from nanoloop.messages import Quote, Speaker
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.stage import Bot, open_to_all, says
from tests.servers.telegram import BOT
from tests.stages.telegram import GROUP, NAMED, listening, telegram

ANN, BOB = "1001", "1002"
SMALL, LARGE = -500, -1_001_000_000_500
"""A group, and the supergroup that it becomes."""


@pytest.fixture
async def stage():
    async with telegram() as stage:
        await stage.people(2)
        yield stage


@pytest.fixture
async def next_one(stage):
    async with listening(stage.platform()) as next_one:
        yield next_one


async def test_a_message_is_heard_with_its_sender_and_its_time(stage, next_one):
    said = await stage.say(ANN, "hello", sender=ANN)
    heard = await next_one()
    assert (heard.chat, heard.id, heard.sender, heard.name) == (ANN, said, ANN, "Ann")
    assert heard.private
    assert not heard.is_bot
    assert heard.time.tzinfo


async def test_an_edit_names_the_message_that_it_changes(stage, next_one):
    said = await stage.say(ANN, "helo", sender=ANN)
    await next_one()
    await stage.edit(ANN, said, "hello", sender=ANN)
    await stage.edit(ANN, said, "hello!", sender=ANN)
    first, second = await next_one(), await next_one()
    assert (first.edits, first.text, second.text) == (said, "hello", "hello!")
    assert len({said, first.id, second.id}) == 3


@pytest.mark.parametrize(
    ("text", "is_addressed", "mention"),
    [
        ("good morning", False, ""),
        (f"🙂 {NAMED} hello", True, NAMED),
        (f"🙂 {NAMED.upper()} hello", True, NAMED.upper()),
        ("@someone hello", False, ""),
        ("/new", True, ""),
        (f"/new{NAMED}", True, NAMED),
    ],
)
async def test_a_group_names_the_bot_or_does_not(stage, next_one, text, is_addressed, mention):
    await stage.say(stage.group, text, sender=ANN)
    heard = await next_one()
    assert (heard.addressed, heard.mention, heard.text) == (is_addressed, mention, text)
    assert not heard.private


async def test_a_person_without_a_username_is_named_by_a_link(stage, next_one):
    entity = {"type": "text_mention", "offset": 0, "length": 3, "user": BOT}
    await stage.say(stage.group, "Bot, hello", sender=ANN, entities=[entity])
    heard = await next_one()
    assert (heard.addressed, heard.mention) == (True, "Bot")


async def test_a_command_for_another_bot_is_not_heard(stage, next_one):
    await stage.say(stage.group, "/new@other_bot", sender=ANN)
    await stage.say(stage.group, "hello", sender=ANN)
    assert (await next_one()).text == "hello"


async def test_an_answer_to_the_bot_addresses_it_and_quotes_it(stage, next_one):
    asked = await stage.say(stage.group, "morning", sender=BOB)
    await stage.say(stage.group, "really?", sender=ANN, reply_to=asked)
    await stage.say(
        stage.group, "why?", sender=ANN, reply_to=asked, quote={"text": "mor", "position": 0}
    )
    await next_one()
    to_bob, picked = await next_one(), await next_one()
    assert (to_bob.addressed, to_bob.reply_to) == (False, asked)
    assert [(q.text, q.kind, q.speaker.id) for q in to_bob.quotes] == [("morning", "quote", BOB)]
    assert picked.quotes[0].text == "mor"


_US = {"id": -7, "type": "channel", "title": "Us"}


@pytest.mark.parametrize(
    ("origin", "speaker"),
    [
        (
            {"type": "user", "sender_user": {"id": 7, "is_bot": False, "first_name": "Eve"}},
            Speaker(id="7", name="Eve"),
        ),
        ({"type": "user", "sender_user": BOT}, Speaker(id=str(BOT["id"]), name="Bot", is_me=True)),
        ({"type": "hidden_user", "sender_user_name": "Eve"}, Speaker(name="Eve")),
        ({"type": "chat", "sender_chat": _US}, Speaker(id="-7", name="Us")),
        ({"type": "channel", "chat": _US, "message_id": 3}, Speaker(id="-7", name="Us")),
    ],
)
async def test_a_forwarded_message_is_of_who_wrote_it(stage, next_one, origin, speaker):
    await stage.say(ANN, "/new@other_bot", sender=ANN, forward_origin={"date": 1, **origin})
    heard = await next_one()
    assert (heard.sender, heard.text) == (ANN, "")
    assert heard.quotes == (Quote(kind="forward", text="/new@other_bot", speaker=speaker),)


async def test_a_quote_from_another_chat_is_of_who_wrote_it(stage, next_one):
    eve = {"id": 7, "is_bot": False, "first_name": "Eve"}
    elsewhere = {"origin": {"type": "user", "date": 1, "sender_user": eve}}
    quote = {"text": "pay", "position": 0}
    await stage.say(ANN, "why?", sender=ANN, quote=quote, external_reply=elsewhere)
    heard = await next_one()
    assert heard.quotes == (Quote(text="pay", speaker=Speaker(id="7", name="Eve")),)


async def test_a_topic_is_a_thread_and_no_answer_to_who_began_it(stage, next_one):
    await stage.say(stage.group, "in a topic", sender=ANN, thread="77")
    heard = await next_one()
    assert (heard.thread, heard.addressed, heard.reply_to) == ("77", False, None)


async def test_who_speaks_for_the_group_is_the_group(stage, next_one):
    chat = {"id": GROUP, "type": "supergroup", "title": "Us"}
    await stage.say(stage.group, "hello", sender=BOB, is_bot=True, sender_chat=chat)
    heard = await next_one()
    assert (heard.sender, heard.name, heard.is_bot) == (str(GROUP), "Us", False)


@pytest.mark.parametrize(
    ("name", "kind", "mime_type"),
    [
        ("a.jpg", "image", "image/jpeg"),
        ("a.ogg", "audio", "audio/ogg"),
        ("a.mp4", "video", "video/mp4"),
        ("a.txt", "file", "text/plain"),
    ],
)
async def test_a_file_is_fetched_when_it_is_wanted(stage, next_one, name, kind, mime_type):
    await stage.say(ANN, f"look {NAMED}", sender=ANN, files={name: b"data"})
    heard = await next_one()
    (file,) = heard.files
    assert (heard.text, heard.mention) == (f"look {NAMED}", NAMED)
    assert (file.kind, file.mime_type, file.size) == (kind, mime_type, 4)
    assert not stage.server.calls["getfile"]
    assert await file.fetch() == b"data"


async def test_all_of_an_album_is_heard(stage, next_one):
    await stage.say(ANN, "look", sender=ANN, files={"1.jpg": b"1", "2.jpg": b"2"})
    first, second = await next_one(), await next_one()
    assert [first.text, second.text] == ["look", ""]
    assert await second.files[0].fetch() == b"2"


@pytest.mark.parametrize(
    ("held", "text"),
    [
        ({"location": {"latitude": 52.5, "longitude": 13.4}}, "[place: 52.5, 13.4]"),
        ({"contact": {"phone_number": "123", "first_name": "Bob"}}, "[contact: Bob  123]"),
    ],
)
async def test_what_has_no_text_is_told_in_words(stage, next_one, held, text):
    await stage.say(ANN, "", sender=ANN, **held)
    assert (await next_one()).text == text


async def test_what_is_nothing_to_the_bot_or_no_message_is_passed_over(stage, next_one):
    await stage.say(ANN, "", sender=ANN, new_chat_title="Us")
    stage.server.tell("message", {"message_id": "?", "chat": {"id": int(ANN)}})
    await stage.say(ANN, "hello", sender=ANN)
    assert (await next_one()).text == "hello"


async def test_a_group_keeps_its_conversation_when_it_becomes_a_supergroup(stage, tmp_path):
    def platform() -> TelegramPlatform:
        return stage.platform(moves=Moves(tmp_path / "moves.json"))

    stage.server.chats[SMALL] = {}
    rules = open_to_all(groups="always")
    provider = ScriptedProvider(otherwise="yes")
    await stage.say(str(SMALL), "apples", sender=ANN)
    second = await stage.say(str(SMALL), "pears", sender=ANN)
    async with Bot(platform(), tmp_path, provider=provider, rules=rules):
        await says(stage, str(SMALL), "yes", "yes")
        stage.migrate(SMALL, LARGE)
        assert await stage.say(str(LARGE), "plums", sender=ANN) == second
        await says(stage, str(LARGE), "yes")
    async with Bot(platform(), tmp_path, provider=provider, rules=rules):
        await stage.say(str(LARGE), "figs", sender=ANN)
        await says(stage, str(LARGE), "yes", "yes")
    assert "apples" in str(provider.calls[-1].messages)


async def test_an_answer_follows_its_group_to_where_it_has_moved(stage, tmp_path):
    stage.server.chats[SMALL] = {}
    provider = ScriptedProvider(held=True, otherwise="yes")
    rules = open_to_all(groups="always")
    async with Bot(stage.platform(), tmp_path, provider=provider, rules=rules):
        await stage.say(str(SMALL), "hello", sender=ANN)
        await provider.asked()
        stage.server.migrate(SMALL, LARGE)
        provider.release()
        await says(stage, str(LARGE), "yes")


def test_where_another_process_saw_a_group_move_to_is_known_once_it_is_read_again(tmp_path):
    mine, theirs = Moves(tmp_path / "moves.json"), Moves(tmp_path / "moves.json")
    theirs.learn(-5, -1005)
    mine.load()
    assert (mine.now("-5"), mine.first(-1005)) == (-1005, "-5")
