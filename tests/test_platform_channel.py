"""What the kit does beyond the suite: files, budgets, groups, edits, drafts, ends."""

import json
from dataclasses import replace

import anyio
import pytest

from nanoloop.agents import Agent, Agents
from nanoloop.attachments import Attachments
from nanoloop.channels.kit import access
from nanoloop.channels.kit.drafts import Progress, rewrite_notes
from nanoloop.channels.kit.intake import Files, Transcriber
from nanoloop.channels.kit.platform import File, Upload
from nanoloop.errors import AttachmentsFull, Declined
from nanoloop.events import (
    FileLeftOut,
    HearingFailed,
    MessageRefused,
    MessageRepeated,
    NobodyMayTalk,
    SenderRefused,
    SendFailed,
    SendPostponed,
    TextStreamed,
)
from nanoloop.intake import entry_of, inbound_of
from nanoloop.messages import Inbound, Outbound
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH, in_language
from nanoloop.session.speech import handle_of
from nanoloop.settings.channels import PlatformSettings
from nanoloop.testing.channels.fake import LIMITS, FakeChats
from nanoloop.testing.channels.stage import Bot, answers, comes_to, open_to_all, says
from nanoloop.testing.channels.suite import Growing, waits
from tests.images import huge_png, png

CHAT = "with-ann"
ANN, BOB = (f"{name} #{handle_of('fake', name.lower())}" for name in ("Ann", "Bob"))
PNG = png()


@pytest.fixture
def chats():
    return FakeChats()


def asked(provider, call=-1):
    """What the model was asked last, as text."""
    return str(provider.calls[call].messages[-1]["content"])


def happened(bot, kind):
    return [event for event in bot.events if isinstance(event, kind)]


# Files


async def test_an_image_is_kept_and_shown_to_the_model(chats, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)
    provider = ScriptedProvider(otherwise="nice")
    async with Bot(chats.platform(), tmp_path, provider=provider, attachments=attachments):
        await chats.say(CHAT, "look", files={"cat.png": PNG})
        await says(chats, CHAT, "nice")
    assert "image_url" in asked(provider)
    assert [file.read_bytes() for file in (tmp_path / "kept").glob("*.data")] == [PNG]


@pytest.mark.parametrize("files", [{"cat.png": PNG[:50]}, {"cat.png": huge_png(30_000, 30_000)}])
async def test_a_broken_picture_is_left_out_alone_and_the_model_is_told(chats, tmp_path, files):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)
    provider = ScriptedProvider(otherwise="nice")
    async with Bot(chats.platform(), tmp_path, provider=provider, attachments=attachments) as bot:
        await chats.say(CHAT, "look", files={**files, "dog.png": PNG})
        await says(chats, CHAT, "nice")
    assert "[image: cat.png" in asked(provider)
    assert "(this picture can't be used: it " in asked(provider)
    assert asked(provider).count("attachment:") == 1
    assert "it " in happened(bot, FileLeftOut)[0].reason


async def kept_of(folder, data, **about):
    async def fetch():
        return data

    attachments = Attachments(folder, limit_bytes=1000)
    files = Files(channel="fake", limit_bytes=1000, attachments=attachments)
    return await files.attachment(File(kind="image", fetch=fetch, **about), owner="fake:a")


async def test_a_picture_of_a_kind_that_no_model_knows_is_a_file(tmp_path):
    kept = await kept_of(tmp_path, b"\0\0\0\x18ftypheic", name="a.heic", mime_type="image/heic")
    assert (kept.kind, kept.text) == ("file", "(a picture in an unsupported format)")


async def test_a_page_that_calls_itself_a_picture_is_a_text(chats, tmp_path):
    kept = await kept_of(tmp_path, b"<html>", name="a.png", mime_type="image/png")
    assert (kept.kind, kept.mime_type) == ("file", "text/plain")


async def test_a_text_file_is_read_and_a_strange_one_is_named(chats, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)
    provider = ScriptedProvider(otherwise="nice")
    async with Bot(chats.platform(), tmp_path, provider=provider, attachments=attachments):
        await chats.say(CHAT, "", files={"notes.txt": b"buy tea", "odd.png": b"\x00\x01"})
        await says(chats, CHAT, "nice")
    assert "buy tea" in asked(provider)
    assert "[file: odd.png" in asked(provider)


async def test_a_file_that_can_not_be_kept_costs_no_message(chats, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=10)
    provider = ScriptedProvider(otherwise="nice")
    async with Bot(chats.platform(), tmp_path, provider=provider, attachments=attachments) as bot:
        await chats.say(CHAT, "look", files={"cat.png": PNG})
        await says(chats, CHAT, "nice")
    assert [event.reason for event in happened(bot, FileLeftOut)] == ["AttachmentsFull"]
    assert "cat.png" in asked(provider)


async def test_files_that_went_make_room_for_others(tmp_path):
    attachments = Attachments(tmp_path, limit_bytes=10)
    given = {"owner": "fake:", "name": "a.bin", "mime_type": "application/octet-stream"}
    await attachments.keep(b"one file", **given)
    with pytest.raises(AttachmentsFull):
        await attachments.keep(b"a second", **given)
    for file in tmp_path.glob("*.data"):
        file.unlink()
    await attachments.keep(b"a second", **given)


async def test_a_voice_note_is_transcribed_by_the_hook(chats, tmp_path):
    async def transcribe(file, data):
        return f"he says {data.decode()}"

    provider = ScriptedProvider(otherwise="heard")
    transcriber = Transcriber(transcribe)
    async with Bot(chats.platform(), tmp_path, provider=provider, transcriber=transcriber):
        await chats.say(CHAT, "", files={"note.ogg": b"hello"})
        await says(chats, CHAT, "heard")
    assert "he says hello" in asked(provider)


async def test_a_file_that_an_answer_names_is_sent(chats, tmp_path):
    attachments = Attachments(tmp_path / "kept", limit_bytes=1000)

    def sent(messages, *_):
        return f"Here: ![cat]({messages[-1]['content'][-1]['image_url']['url']})"

    provider = ScriptedProvider(otherwise=sent)
    async with Bot(chats.platform(), tmp_path, provider=provider, attachments=attachments):
        await chats.lose(1)
        await chats.say(CHAT, "a cat!", files={"cat.png": PNG})
        await says(chats, CHAT, "[cat.png]", "Here:")
    assert chats.uploads[-1] == Upload(name="cat.png", mime_type="image/png", data=PNG)


# Who may talk


async def test_a_bot_that_serves_nobody_says_so_at_the_start(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, rules=PlatformSettings()) as bot:
        await comes_to(lambda: is_up(bot), wanted=True)
    assert "nanoloop pair approve" in happened(bot, NobodyMayTalk)[0].advice


async def is_up(bot):
    return bot.channel.state.name == "connected"


@pytest.mark.parametrize(
    "rules",
    [
        PlatformSettings(chats=(CHAT,)),
        PlatformSettings(users=("ann",)),
        PlatformSettings(users=("*",)),
    ],
)
async def test_a_chat_a_person_or_everyone_can_be_let_in(chats, tmp_path, rules):
    async with Bot(chats.platform(), tmp_path, rules=rules) as bot:
        await chats.say(CHAT, "hello")
        await says(chats, CHAT, "You said: hello")
    assert not happened(bot, NobodyMayTalk)


async def test_a_stranger_in_a_group_is_not_answered(chats, tmp_path):
    rules = open_to_all(users=("ann",))
    async with Bot(chats.platform(), tmp_path, rules=rules) as bot:
        await chats.say("group", "hello, all", sender="eve")
        await chats.say("group", "@bot hello", sender="eve")
        await chats.say("group", "@bot hello")
        await says(chats, "group", f"You said: [from {ANN}] hello")
    assert [event.sender for event in happened(bot, SenderRefused)] == ["eve"]


async def test_an_operator_approves_a_code_in_a_chat(chats, tmp_path):
    rules = PlatformSettings(operators=("ann",))
    async with Bot(chats.platform(), tmp_path, rules=rules):
        await chats.say("with-eve", "hello", sender="eve")
        code = (await answers(chats, "with-eve", 1))[0].splitlines()[1]
        await chats.say(CHAT, f"/pair {code}")
        await says(chats, CHAT, "Eve has access now.")
        assert (await answers(chats, "with-eve", 2))[1] == "You have access now."
        await chats.say(CHAT, f"/pair {code}")
        assert "has expired" in (await answers(chats, CHAT, 2))[1]


async def test_a_platform_speaks_its_language_also_if_that_changes_while_it_runs(chats, tmp_path):
    rules = PlatformSettings(operators=("ann",), language="de")
    async with Bot(chats.platform(), tmp_path, rules=rules) as bot:
        await chats.say("with-eve", "hello", sender="eve")
        code = (await answers(chats, "with-eve", 1))[0].splitlines()[1]
        await chats.say(CHAT, f"/pair {code}")
        await says(chats, CHAT, "Eve hat jetzt Zugang.")
        assert (await answers(chats, "with-eve", 2))[1] == "Der Zugang ist freigeschaltet."
        bot.channel.access.rules = rules.model_copy(update={"language": "ja"})
        await chats.say(CHAT, "/undo")
        await says(chats, CHAT, "Eve hat jetzt Zugang.", in_language("ja")["nothing_to_undo"])


async def test_nobody_lets_himself_in(chats, tmp_path):
    rules = PlatformSettings(users=("eve",))
    async with Bot(chats.platform(), tmp_path, rules=rules):
        await chats.say("with-eve", "/pair ABCDEFGH", sender="eve")
        assert "operator" in (await answers(chats, "with-eve", 1))[0]


async def test_a_code_is_given_once_and_not_for_each_message(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, rules=PlatformSettings()) as bot:
        for _ in range(3):
            await chats.say(CHAT, "hello")

        async def refused():
            return len(happened(bot, SenderRefused))

        await comes_to(refused, 3)
        await answers(chats, CHAT, 1)


async def test_what_is_said_too_fast_is_answered_later_all_of_it_and_in_order(
    chats, tmp_path, monkeypatch
):
    monkeypatch.setattr(access, "MINUTE", 0.2)
    # None of the looks at what is owed, which would find it too, only later.
    monkeypatch.setattr("nanoloop.nodes.BEAT_SECONDS", 3600)
    async with Bot(chats.platform(), tmp_path, rules=open_to_all(per_minute=20)) as bot:
        for number in range(50):
            await chats.say(CHAT, str(number))
        await says(chats, CHAT, *(f"You said: {number}" for number in range(50)))
    assert happened(bot, SenderRefused) == []
    assert happened(bot, MessageRefused) == []


async def test_what_has_to_wait_still_does_after_a_restart(chats, tmp_path):
    rules = open_to_all(per_minute=1)
    async with Bot(chats.platform(), tmp_path, rules=rules) as bot:
        await chats.say(CHAT, "one")
        await says(chats, CHAT, "You said: one")
        for text in ("two", "three"):
            await chats.say(CHAT, text)
        await comes_to(lambda: waits_in(bot), 2)
    async with Bot(chats.platform(), tmp_path, rules=rules) as bot:
        await comes_to(lambda: waits_in(bot), 2)
        await anyio.wait_all_tasks_blocked()
        assert bot.provider.count == 0


async def waits_in(bot, chat=CHAT):
    return len((await bot.loop.sessions.current(f"fake:{chat}")).waiting)


async def test_who_has_to_wait_in_a_group_holds_up_nobody_else(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, rules=open_to_all(per_minute=1)):
        for text in ("one", "two"):
            await chats.say(chats.group, chats.naming(text), sender="ann")
        await chats.say(chats.group, chats.naming("three"), sender="bob")
        said = (f"[from {ANN}] one", f"[from {ANN}] two", f"[from {BOB}] three")
        await says(chats, chats.group, *(f"You said: {text}" for text in said))


async def test_a_command_that_reads_waits_its_time_and_stop_does_not(chats, tmp_path):
    provider = ScriptedProvider(held=True)
    rules = open_to_all(per_minute=2)
    async with Bot(chats.platform(), tmp_path, provider=provider, rules=rules):
        await chats.say(CHAT, "one")
        await provider.asked()
        for text in ("/status", "/status", "/stop"):
            await chats.say(CHAT, text)
        said = await answers(chats, CHAT, 3)
        assert said.count("Stopped.") == 2  # the answer was, and that is what /stop says
        await anyio.wait_all_tasks_blocked()
        assert await answers(chats, CHAT, 3) == said


@pytest.mark.parametrize(("is_group", "account"), [(False, "fake:ann"), (True, None)])
async def test_a_turn_is_the_persons_in_private_and_else_the_groups(
    chats, tmp_path, is_group, account
):
    chat = chats.group if is_group else CHAT
    async with Bot(chats.platform(), tmp_path) as bot:
        await chats.say(chat, chats.naming("hello") if is_group else "hello", sender="ann")
        await answers(chats, chat, 1)
        session = await bot.loop.sessions.current(f"fake:{chat}")
    message = inbound_of(session.window[0], key=session.key)
    assert message.owner == (account or f"fake:{chat}")


async def test_a_chat_has_a_budget_for_a_day(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, rules=open_to_all(per_day=1)):
        await chats.say(CHAT, "one")
        await says(chats, CHAT, "You said: one")
        await chats.say(CHAT, "two")
        await chats.say(CHAT, "three")
        await says(chats, CHAT, "You said: one", ENGLISH["day_over"])
        await chats.say("with-bob", "four", sender="bob")
        await says(chats, "with-bob", "You said: four")


# Groups


async def test_what_was_said_beside_the_bot_can_be_ignored(chats, tmp_path):
    provider = ScriptedProvider(otherwise="yes")
    rules = open_to_all(overheard="ignore")
    async with Bot(chats.platform(), tmp_path, provider=provider, rules=rules):
        await chats.say("group", "it is late", sender="bob")
        await chats.say("group", "@bot is it?")
        await says(chats, "group", "yes")
    assert asked(provider) == f"[from {ANN}] is it?"


async def test_an_edit_that_names_the_bot_asks_it(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path):
        message = await chats.say("group", "is it late?")
        await chats.edit("group", message, "@bot is it late?")
        await says(chats, "group", f"You said: [from {ANN}] is it late?")


async def test_a_name_that_looks_like_another_mark_is_made_harmless(chats, tmp_path):
    provider = ScriptedProvider(otherwise="yes")
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.say("group", "@bot hello", sender="a] [bob")
        await says(chats, "group", "yes")
    assert asked(provider) == f"[from A Bob #{handle_of('fake', 'a] [bob')}] hello"


async def test_the_name_of_the_bot_alone_is_a_question_too(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path):
        await chats.say("group", "@bot")
        await says(chats, "group", f"You said: [from {ANN}] @bot")


# Drafts


async def test_a_question_that_is_taken_back_takes_its_half_answer_with_it(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, provider=Growing("half an answer")):
        message = await chats.say(CHAT, "go")
        await says(chats, CHAT, "half an answer")
        await chats.delete(CHAT, message)
        await says(chats, CHAT)


async def test_stop_leaves_what_was_said_until_then(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, provider=Growing("half an answer")):
        await chats.say(CHAT, "go")
        await says(chats, CHAT, "half an answer")
        await chats.say(CHAT, "/stop")
        assert "half an answer" in await answers(chats, CHAT, 3)


async def test_a_draft_that_someone_removed_is_posted_anew(chats, tmp_path):
    provider = Growing("half", "whole")
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.say(CHAT, "go")
        await says(chats, CHAT, "half")
        chats.messages(CHAT)
        chats._chats[CHAT].popitem()
        provider.goes_on.set()
        await says(chats, CHAT, "whole")


@pytest.mark.slow
async def test_an_answer_in_a_group_grows_at_the_pace_of_groups(tmp_path):
    chats = FakeChats(limits=replace(LIMITS, group_edit_seconds=3600))
    text = " ".join(["word"] * 50)
    provider = ScriptedProvider(otherwise=text, word_delay_seconds=0.01)
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.say("group", "@bot go")
        await says(chats, "group", text)
        await chats.say(CHAT, "go")
        await says(chats, CHAT, text)
    assert chats.messages("group")[-1].versions == 2
    assert chats.messages(CHAT)[-1].versions > 3


async def test_answers_that_grow_in_one_chat_share_its_pace(tmp_path):
    chats = FakeChats(limits=replace(LIMITS, edit_seconds=1, group_edit_seconds=4))
    provider = Growing("half", "whole", "whole")
    async with Bot(chats.platform(), tmp_path, provider=provider) as bot:
        for thread in ("1", "2"):
            await chats.say("group", "@bot go", thread=thread)
            await says(chats, f"group {thread}", "half")
        assert bot.channel._drafts._pace("group") == 8
        provider.goes_on.set()
        await says(chats, "group 2", "whole")
    assert not bot.channel._drafts._shown_in


async def test_without_edits_an_answer_comes_whole(tmp_path):
    chats = FakeChats(limits=replace(LIMITS, edit_seconds=None))
    provider = ScriptedProvider(word_delay_seconds=0.01)
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.lose(1)
        await chats.say(CHAT, "word " * 200)
        await comes_to(lambda: chats.shown(CHAT), lambda shown: len(shown) == 4)
    assert [message.versions for message in chats.messages(CHAT)] == [1] * 4


async def test_a_platform_that_takes_less_than_it_says_gets_shorter_messages(chats, tmp_path):
    platform = chats.platform()
    platform.limits = replace(LIMITS, text=800)
    words = ["word"] * 150
    async with Bot(platform, tmp_path, provider=ScriptedProvider([" ".join(words)])):
        await chats.say(CHAT, "go")
        await comes_to(lambda: said(chats), lambda text: text.split() == words)


async def said(chats):
    return " ".join(shown.text for shown in await chats.shown(CHAT) if shown.is_bots)


@pytest.mark.parametrize(
    ("error", "told"),
    [(RuntimeError("blocked"), "RuntimeError"), (Declined("not_in_channel"), "not_in_channel")],
)
async def test_what_can_never_be_sent_is_given_up_and_the_next_is_sent(
    chats, tmp_path, error, told
):
    platform = chats.platform()
    post = platform.post

    async def refusing(place, text, **about):
        if "one" in text.plain:
            raise error
        return await post(place, text, **about)

    platform.post = refusing
    async with Bot(platform, tmp_path) as bot:
        await chats.say(CHAT, "one")
        await chats.say(CHAT, "two")
        await says(chats, CHAT, "You said: two")
    assert [event.error for event in happened(bot, SendFailed)] == [told]


async def test_no_message_is_posted_twice_though_none_is_known_by_its_id(tmp_path):
    chats = FakeChats(knows_ids=False)
    provider = ScriptedProvider(["word " * 200], otherwise="done")
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.say(CHAT, "go")
        await answers(chats, CHAT, 3)
        await chats.limit(1)
        await chats.say(CHAT, "go on")
        await answers(chats, CHAT, 4)


async def test_an_answer_that_is_known_to_be_there_is_not_sent_after_a_restart(tmp_path):
    file = tmp_path / "channels" / "fake.jsonl"
    progress = Progress(tmp_path / "channels" / "fake.jsonl")
    progress.of("with-ann m1", name="a1")
    progress.post("with-ann m1", "m2", number=0)
    progress.finish("with-ann m1", name="a1")
    progress.of("with-ann m3", name="a3")
    progress.post("with-ann m3", "m4", number=0)
    with file.open("a") as torn:
        torn.write('{"posted": "with-ann m3", "mess')
    again = Progress(tmp_path / "channels" / "fake.jsonl")
    assert again.has("a1")
    assert not again.has("a3")
    assert again.of("with-ann m3").messages == ["m4"]


async def test_an_answer_that_grows_is_one_message_where_none_is_known_by_its_id(tmp_path):
    chats, provider = FakeChats(knows_ids=False), Growing("half", "whole")
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.say(CHAT, "go")
        await says(chats, CHAT, "half")
        provider.goes_on.set()
        await says(chats, CHAT, "whole")


async def test_an_answer_that_is_sent_again_is_shown_once(tmp_path):
    chats = FakeChats(knows_ids=False)
    answer = Outbound(channel="fake", chat=CHAT, text="hello", id="a1")
    async with Bot(chats.platform(), tmp_path) as bot:
        await bot.channel.send(answer)
        await bot.channel.send(answer)
        assert chats.calls == 1


async def test_a_limit_that_was_told_to_a_draft_holds_for_the_whole_answer(chats, tmp_path):
    provider = Growing("half", "whole")
    async with Bot(chats.platform(), tmp_path, provider=provider, sleep=never) as bot:
        await comes_to(lambda: is_up(bot), wanted=True)
        await chats.limit(1, seconds=1000)
        await chats.say(CHAT, "go")
        await comes_to(lambda: calls(chats), 1)
        provider.goes_on.set()
        await comes_to(lambda: count(bot, SendPostponed), 1)
        assert chats.calls == 1


async def never(seconds):
    await anyio.sleep_forever()


async def calls(chats):
    return chats.calls


async def count(bot, kind):
    return len(happened(bot, kind))


def piece(text, reply_to):
    return TextStreamed(channel="fake", chat=CHAT, session_id="s", text=text, reply_to=reply_to)


async def test_a_late_piece_of_what_was_taken_back_is_not_shown(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, provider=Growing("half")) as bot:
        message = await chats.say(CHAT, "go")
        await says(chats, CHAT, "half")
        await chats.delete(CHAT, message)
        await says(chats, CHAT)
        await bot.channel.send(piece("more", message))
        await bot.channel.send(Outbound(channel="fake", chat=CHAT, text="next"))
        assert not bot.channel._drafts._growing


async def test_a_question_that_changes_begins_its_answer_anew(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path) as bot:
        await comes_to(lambda: is_up(bot), wanted=True)
        await bot.channel.send(piece("half", "m1"))
        bot.channel._drafts.begin_anew(CHAT, "m1")
        await bot.channel.send(piece("anew", "m1"))
        await says(chats, CHAT, "anew")


async def test_words_that_were_not_shown_yet_come_before_the_notice(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path) as bot:
        await comes_to(lambda: is_up(bot), wanted=True)
        await bot.channel.send(piece("half", "m1"))
        stopped = Outbound(channel="fake", chat=CHAT, text="No.", kind="notice", reply_to="m1")
        await bot.channel.send(stopped)
        await says(chats, CHAT, "half", "No.")


async def test_nothing_is_kept_of_what_can_never_be_sent(chats, tmp_path):
    platform = chats.platform()

    async def refusing(*_, **__):
        raise RuntimeError("blocked")

    platform.post = refusing
    async with Bot(platform, tmp_path, provider=Growing("half")) as bot:
        await comes_to(lambda: is_up(bot), wanted=True)
        await bot.channel.send(piece("half", "m1"))
        with pytest.raises(RuntimeError):
            await bot.channel.send(Outbound(channel="fake", chat=CHAT, text="x", reply_to="m1"))
        assert not bot.channel._drafts._growing


async def test_typing_ends_with_the_answer(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path) as bot:
        await chats.say(CHAT, "one")
        await says(chats, CHAT, "You said: one")
        assert not bot.channel._typist._waiting.get(CHAT)


async def test_nothing_is_typed_where_a_message_was_only_heard_again(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path):
        await chats.say(CHAT, "one")
        await says(chats, CHAT, "You said: one")
    async with Bot(chats.platform(), tmp_path) as bot:
        await chats.repeat()
        await comes_to(lambda: number(happened(bot, MessageRepeated)), 1)
        await comes_to(lambda: number(bot.channel._typist._waiting), 0)


async def test_a_question_heard_again_ends_no_typing_for_itself_and_others(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path, provider=ScriptedProvider(held=True)) as bot:
        await chats.say(CHAT, "one")
        await bot.provider.asked()
        await chats.say(CHAT, "two")
        await chats.repeat()
        await comes_to(lambda: number(happened(bot, MessageRepeated)), 1)
        await anyio.wait_all_tasks_blocked()
        assert len(bot.channel._typist._waiting[CHAT]) == 2
        bot.provider.release()
        await says(chats, CHAT, "You said: one", "You said: two")
        assert not bot.channel._typist._waiting.get(CHAT)


# What goes on the bus


async def test_what_the_rules_say_goes_with_each_message(chats, tmp_path):
    rules = open_to_all(burst_seconds=0.01, steers=True, threads="shared", agent="cook")
    taken = []
    async with Bot(chats.platform(), tmp_path, rules=rules) as bot:
        hand_in = bot.loop.bus.hand_in

        async def noting(message):
            taken.append(message)
            return await hand_in(message)

        bot.loop.bus.hand_in = noting
        await chats.say("group", "@bot hello", thread="t1")
        await comes_to(lambda: number(taken), 1)
    message = taken[0]
    assert (message.burst_seconds, message.steers, message.agent) == (0.01, True, "cook")
    assert (message.chat, message.key, message.group) == ("group t1", "fake:group", True)
    assert (message.sender, message.text) == ("Ann", "hello")


async def number(things):
    return len(things)


# Agents


@pytest.mark.parametrize(
    ("rules", "listed", "chosen"),
    [
        ({}, "assistant (here)", None),
        ({"agent": "cook"}, "cook (here)", None),
        ({"agents": ("assistant", "cook")}, "assistant (here)\ncook", "cook"),
        ({"agents": ("cook",)}, "cook (here)", "cook"),
        ({"operators": ("ann",)}, "assistant (here)\ncook\nroot", "root"),
    ],
)
async def test_people_choose_the_agents_of_their_channel_and_operators_any(
    chats, tmp_path, rules, listed, chosen
):
    named = {name: Agent(name) for name in ("cook", "root")}
    async with Bot(chats.platform(), tmp_path, rules=open_to_all(**rules)) as bot:
        bot.loop.agents.renew(Agents(Agent(), named))
        await chats.say(CHAT, "hello")
        await says(chats, CHAT, "You said: hello")
        await chats.say(CHAT, "/agent")
        await says(chats, CHAT, "You said: hello", listed)
        for name in ("cook", "root"):
            await chats.say(CHAT, f"/agent {name}")
        said = (await answers(chats, CHAT, 4))[-2:]
        unknown = [text for text in said if "no agent" in text.lower()]
        assert len(unknown) == ("cook" not in listed) + ("root" not in listed)
        session = await bot.loop.sessions.current(f"fake:{CHAT}")
        assert bot.loop.agents.of(session).name == (chosen or rules.get("agent", "assistant"))


async def test_what_may_be_chosen_is_known_for_a_command_after_a_restart():
    message = Inbound(channel="a", chat="b", text="/agent root", agents=("cook",))
    assert inbound_of(entry_of(message)).agents == ("cook",)
    assert inbound_of(entry_of(replace(message, agents=()))).agents == ()
    assert inbound_of(entry_of(replace(message, agents=None))).agents is None


async def test_a_message_begins_with_no_agent_that_its_sender_may_not_have(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path) as bot:
        bot.loop.agents.renew(Agents(Agent(), {"root": Agent("root")}))
        for number, agents in enumerate(((), ("cook",), None)):
            chat = f"chat {number}"
            message = Inbound(channel="fake", chat=chat, text="hi", agent="root", agents=agents)
            await bot.loop.bus.hand_in(message)
        keys = [f"fake:chat {number}" for number in range(3)]
        found = [(await bot.loop.sessions.current(key)).agent for key in keys]
    assert found == ["assistant", "assistant", "root"]


async def test_the_words_that_are_answered_are_told_to_the_model(chats, tmp_path):
    provider = ScriptedProvider(["one", "two"])
    async with Bot(chats.platform(), tmp_path, provider=provider):
        await chats.say(CHAT, "go")
        await says(chats, CHAT, "one")
        await chats.say(CHAT, "why?", reply_to=chats.messages(CHAT)[-1].id)
        await says(chats, CHAT, "one", "two")
    assert asked(provider) == f"[quoting you] one\n[from {ANN}] why?"


async def test_a_long_quote_is_shortened_and_an_overheard_file_is_named(chats, tmp_path):
    provider = ScriptedProvider(otherwise="yes")
    async with Bot(chats.platform(), tmp_path, provider=provider):
        said = await chats.say("group", "x" * 2000, sender="bob", files={"cat.png": PNG})
        await chats.say("group", "@bot this?", reply_to=said)
        await says(chats, "group", "yes")
    overheard, quote, own = asked(provider).split("\n")
    assert overheard == f"[overheard from {BOB}, with image] {'x' * 500}…"
    assert quote == f"[quoting {BOB}] {'x' * 1000}…"
    assert own == f"[from {ANN}] this?"


async def test_what_says_nothing_asks_nothing(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path):
        await chats.say(CHAT, " ")
        await chats.say(CHAT, "hello")
        await says(chats, CHAT, "You said: hello")


# Ends


async def test_what_comes_while_it_ends_is_left_to_the_next_start(chats, tmp_path):
    provider = ScriptedProvider(held=True)
    async with Bot(chats.platform(), tmp_path, provider=provider) as bot:
        await chats.say(CHAT, "one")
        await provider.asked()
        bot.channel.take_no_more()
        await chats.say(CHAT, "two")
        provider.release()
        await says(chats, CHAT, "You said: one")
    async with Bot(chats.platform(), tmp_path):
        await says(chats, CHAT, "You said: one", "You said: two")


async def test_a_bug_in_taking_a_message_in_costs_that_one_only(chats, tmp_path, monkeypatch):
    async with Bot(chats.platform(), tmp_path) as bot:
        monkeypatch.setattr("nanoloop.channels.kit.intake.display_name", broken)
        await chats.say(CHAT, "one")
        await comes_to(lambda: failed(bot), 1)
        monkeypatch.undo()
        await chats.say(CHAT, "two")
        await says(chats, CHAT, "You said: two")


def broken(name):
    raise ValueError(name)


async def failed(bot):
    return len(happened(bot, HearingFailed))


async def test_the_status_shows_the_channel(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path):
        await chats.say(CHAT, "/status")
        assert "fake: connected" in (await answers(chats, CHAT, 1))[0]


async def test_a_command_that_is_delivered_twice_is_done_once(chats, tmp_path):
    async with Bot(chats.platform(), tmp_path):
        await chats.say(CHAT, "/new")
        await chats.repeat()
        await chats.say(CHAT, "hello")
        said = await answers(chats, CHAT, 2)
    assert "new conversation" in said[0]
    assert said[1] == "You said: hello"


async def test_a_message_during_an_answer_can_steer_it(chats, tmp_path):
    provider = ScriptedProvider(held=True)
    rules = open_to_all(steers=True)
    async with Bot(chats.platform(), tmp_path, provider=provider, rules=rules) as bot:
        await chats.say(CHAT, "one")
        await provider.asked()
        await chats.say(CHAT, "two")
        await waits(bot, CHAT, 1)
        provider.release()
        await says(chats, CHAT, "You said: one", "You said: two")


def test_what_earlier_versions_noted_of_an_answer_is_known_and_kept_without_its_text(tmp_path):
    file = tmp_path / "channels" / "fake.jsonl"
    file.parent.mkdir()
    noted = [
        {"begun": "with-ann m1 #1 user: the word is xyzzy", "name": "a1"},
        {"posted": "with-ann m1 #1 user: the word is xyzzy", "message": "m2", "number": 0},
        {"begun": "with-ann m3", "name": "a3"},
        {"done": "with-ann m3", "name": "a3"},
    ]
    file.write_text("".join(f"{json.dumps(fact)}\n" for fact in noted))
    progress = Progress(tmp_path / "channels" / "fake.jsonl")
    assert progress.of("with-ann m1 #1 user: the word is xyzzy").messages == ["m2"]
    assert progress.has("a3")
    assert "xyzzy" not in file.read_text()
    assert "with-ann" not in file.read_text()


def test_files_of_channels_that_do_not_run_are_rid_of_texts_too(tmp_path):
    file = tmp_path / "channels" / "fake.jsonl"
    file.parent.mkdir()
    file.write_text('{"begun": "with-ann m1 xyzzy", "name": "a1"}\n')
    rewrite_notes(tmp_path, of=["fake"])
    assert "xyzzy" in file.read_text()
    rewrite_notes(tmp_path, of=["other"])
    assert "xyzzy" not in file.read_text()


def test_what_another_process_has_posted_of_an_answer_is_known_once_it_is_read_again(tmp_path):
    mine, theirs = (
        Progress(tmp_path / "channels" / "fake.jsonl"),
        Progress(tmp_path / "channels" / "fake.jsonl"),
    )
    theirs.of("an answer", name="a name")
    theirs.post("an answer", "a message", number=0)
    mine.load()
    assert (mine.of("an answer").name, mine.of("an answer").messages) == ("a name", ["a message"])
