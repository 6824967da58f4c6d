"""Files that tools make and answers name: sent once, and a sentence where one is not sent."""

import json
import re
from dataclasses import replace

import pytest

from nanoloop import FileResult
from nanoloop.errors import Declined, SendLater
from nanoloop.events import FileLeftOut
from nanoloop.protocols import Reply, ToolCall
from nanoloop.session.entry import PiecesWithoutFiles, named_files, without_files
from nanoloop.testing.channels.fake import LIMITS, FakeChats, FakePlatform
from nanoloop.testing.channels.stage import answers, comes_to, open_to_all, says
from nanoloop.tools import file_results
from tests.sent_files import PDF, PICTURE, PNG, SOUND, bot_with, told

CHAT = "with-ann"
ID = "a" * 40


@pytest.fixture
def chats():
    return FakeChats()


def names(chats):
    return [file.name for file in chats.uploads]


class Choosy(FakePlatform):
    """Refuses some files, in one way after the other."""

    def __init__(self, chats, *ways, **limits):
        super().__init__(chats)
        self.limits = replace(chats.limits, **limits)
        self.ways = [*ways]
        self.albums = []

    async def upload(self, place, file, *, reply_to, id):  # noqa: A002
        way = self.ways.pop(0) if self.ways else None
        if way is not None:
            raise way
        if file.caption is None:
            return await super().upload(place, file, reply_to=reply_to, id=id)
        self._chats.uploads.append(file)
        return await self._chats.take_post(place, file.caption, reply_to, id)

    async def album(self, place, files, *, reply_to, id):  # noqa: A002
        self.albums.append([file.name for file in files])
        for file in files[1:]:
            self._chats.uploads.append(file)
        return await self.upload(place, files[0], reply_to=reply_to, id=id)


async def asked(chats, platform, folder, *results, count=1, **more):
    """What the bot says to one question."""
    async with bot_with(platform, folder, *results, **more) as bot:
        await chats.say(CHAT, "make it")
        said = await answers(chats, CHAT, count)
        await bot.loop.bus.flush()
        return said, bot


# What a tool returns


async def test_a_file_that_a_tool_returns_goes_out_with_the_answer(chats, tmp_path):
    said, bot = await asked(chats, chats.platform(), tmp_path, PDF, count=2)
    assert said == ["[report.pdf]", "Here it is."]
    assert [(file.mime_type, file.data) for file in chats.uploads] == [
        ("application/pdf", PDF.content)
    ]
    [result] = told(bot.provider)
    assert result.startswith("[file: report.pdf, application/pdf, 3000009 bytes] attachment:")
    assert result.endswith("It is sent with your answer.")


async def test_text_beside_files_is_the_result(chats, tmp_path):
    _said, bot = await asked(chats, chats.platform(), tmp_path, ["two", PDF, PICTURE], count=3)
    assert names(chats) == ["report.pdf", "chart.png"]
    assert told(bot.provider)[0].startswith("two\n[file: report.pdf")


async def test_a_file_that_is_not_to_be_sent_is_sent_if_the_answer_names_it(chats, tmp_path):
    def naming(messages, *_):
        return f"Look: ![chart]({messages[-1]['content'].split()[-8].rstrip('.')})"

    kept = replace(PICTURE, send=False)
    said, _bot = await asked(chats, chats.platform(), tmp_path, kept, answer=naming, count=2)
    assert said == ["[chart.png]", "Look:"]


async def test_a_file_that_is_not_to_be_sent_is_not(chats, tmp_path):
    said, _ = await asked(chats, chats.platform(), tmp_path, replace(PDF, send=False))
    assert said == ["Here it is."]


async def test_a_path_within_the_allowed_folder_is_read(chats, tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "b.txt").write_bytes(b"tea")
    (tmp_path / "a" / "b.txt").chmod(0o644)
    await asked(chats, chats.platform(), tmp_path, FileResult("a/b.txt", beneath=tmp_path), count=2)
    assert [(file.name, file.data) for file in chats.uploads] == [("b.txt", b"tea")]
    assert (tmp_path / "a" / "b.txt").stat().st_mode & 0o777 == 0o644


def test_what_is_no_file_is_refused_where_it_is_made():
    with pytest.raises(TypeError, match="give bytes or a path"):
        FileResult(12)


async def test_of_many_files_the_first_ten_are_kept(chats, tmp_path):
    many = [FileResult(b"x", name=f"{n}.txt") for n in range(12)]
    _said, bot = await asked(chats, chats.platform(), tmp_path, many, count=11)
    assert len(chats.uploads) == file_results.MOST_FILES
    assert (
        "[the file 11.txt is missing: a call may return at most 10 files]" in told(bot.provider)[0]
    )


# What an answer names


async def test_a_file_that_is_gone_from_the_disk_is_named_in_the_text(chats, tmp_path):
    async with bot_with(chats.platform(), tmp_path, PDF) as bot:

        def losing(*_):
            for file in (tmp_path / "kept").glob("*.data"):
                file.unlink()
            return "Here it is."

        bot.provider._replies[-1] = losing
        await chats.say(CHAT, "make it")
        await says(
            chats,
            CHAT,
            "Here it is.\n\nThe file report.pdf is missing: it is no longer in this conversation.",
        )


def test_a_link_to_a_file_leaves_its_words():
    text = f"![a](attachment:{ID})Here is [the report](attachment:{ID}), `attachment:{ID}`."
    assert without_files(text) == "Here is the report, ."
    assert named_files(text) == [ID]


@pytest.mark.parametrize("size", range(1, 12))
def test_in_pieces_an_answer_shows_the_same(size):
    named = f"![a](attachment:{ID}) (attachment:{ID}) `attachment:{ID}`"
    text = f"At [a](http://b) {named} and [b](attachment:{ID})!"
    shown = PiecesWithoutFiles(lambda: True)
    pieces = [shown(text[at : at + size]) for at in range(0, len(text), size)]
    assert without_files(text).startswith("".join(pieces).rstrip())
    assert len("".join(pieces)) > 20


# What a platform does with it


async def test_a_short_text_goes_in_the_message_of_its_file(chats, tmp_path):
    platform = Choosy(chats, caption=100)
    said, _ = await asked(chats, platform, tmp_path, PDF, rules=open_to_all(stream=False))
    assert said == ["Here it is."]
    assert [file.caption.plain for file in chats.uploads] == ["Here it is."]


async def test_a_long_text_comes_after_its_file(chats, tmp_path):
    platform = Choosy(chats, caption=5)
    said, _ = await asked(chats, platform, tmp_path, PDF, rules=open_to_all(stream=False), count=2)
    assert said == ["[report.pdf]", "Here it is."]


async def test_files_of_one_sort_go_together(chats, tmp_path):
    platform = Choosy(chats, album=10)
    await asked(chats, platform, tmp_path, [PICTURE, PICTURE, PDF, SOUND], count=4)
    assert platform.albums == [["chart.png", "chart.png"]]
    assert names(chats) == ["chart.png", "chart.png", "report.pdf", "said.ogg"]


REFUSED = "The file report.pdf is missing: it is not accepted here."


@pytest.mark.parametrize("caption", [0, 100])
@pytest.mark.parametrize("error", [Declined("too big"), ValueError("a bug")])
async def test_a_refused_file_costs_a_sentence_and_not_the_answer(chats, tmp_path, error, caption):
    platform = Choosy(chats, error, error, caption=caption)
    rules = open_to_all(stream=False)
    said, bot = await asked(chats, platform, tmp_path, PDF, rules=rules)
    assert said == [f"Here it is.\n\n{REFUSED}"]
    assert [e for e in bot.events if isinstance(e, FileLeftOut)]


async def test_an_album_that_is_refused_is_sent_file_by_file(chats, tmp_path):
    platform = Choosy(chats, Declined("no albums"), None, Declined("bad picture"), album=10)
    said, _ = await asked(
        chats, platform, tmp_path, [PICTURE, replace(PICTURE, name="b.png")], count=2
    )
    assert said[1].endswith("The file b.png is missing: it is not accepted here.")


async def test_what_may_pass_is_tried_again_and_given_up_at_last(chats, tmp_path):
    again = SendLater("the network failed", seconds=0)
    platform = Choosy(chats, *[again] * 10)
    said, _ = await asked(chats, platform, tmp_path, PDF)
    assert said == [f"Here it is.\n\n{REFUSED}"]


async def test_a_file_that_is_too_large_for_the_platform_is_not_even_tried(tmp_path):
    chats = FakeChats(limits=replace(LIMITS, file_bytes=1_000_000))
    said, _ = await asked(chats, chats.platform(), tmp_path, [PICTURE, PDF], count=2)
    large = "it has 3.1 MB, and at most 1.0 MB can be sent here."
    assert said == ["[chart.png]", f"Here it is.\n\nThe file report.pdf is missing: {large}"]


async def test_nothing_is_sent_twice_whatever_breaks_between(chats, tmp_path):
    async with bot_with(chats.platform(), tmp_path, [PICTURE, PDF]):
        for number in range(3):
            await chats.lose(1, taken=number % 2 == 0)
        await chats.say(CHAT, "make it")
        await says(chats, CHAT, "[chart.png]", "[report.pdf]", "Here it is.")


async def test_after_a_kill_between_file_and_text_the_text_follows_once(chats, tmp_path):
    again = SendLater("the network failed", seconds=60)
    platform = Choosy(chats, None, again)
    async with bot_with(platform, tmp_path, [PICTURE, PDF]):
        await chats.say(CHAT, "make it")
        await comes_to(lambda: answers(chats, CHAT, 1), lambda _: not platform.ways)
    async with bot_with(chats.platform(), tmp_path):
        await says(chats, CHAT, "[chart.png]", "[report.pdf]", "Here it is.")
    assert names(chats) == ["chart.png", "report.pdf"]
    assert chats.uploads[0].data == PNG


async def test_after_a_restart_before_the_answer_the_file_still_goes_out(chats, tmp_path):
    async with bot_with(chats.platform(), tmp_path, PDF) as bot:
        bot.provider.hold()
        await chats.say(CHAT, "make it")
        await bot.provider.asked(1)
        bot.provider.release(1)
        await bot.provider.asked(2)
    async with bot_with(chats.platform(), tmp_path):
        await says(chats, CHAT, "[report.pdf]", "Here it is.")


async def test_a_large_result_and_a_file_of_one_call_are_both_kept(chats, tmp_path):
    def read(messages, *_):
        found = re.search(r'read_result\(id="(\w+)"', str(messages))
        call = ToolCall(id="r", name="read_result", arguments=json.dumps({"id": found[1]}))
        return Reply(text="", model="x", finish_reason="tool_calls", tool_calls=(call,))

    async with bot_with(chats.platform(), tmp_path, ["long " * 10_000, PDF]) as bot:
        bot.provider._replies.insert(1, read)
        await chats.say(CHAT, "make it")
        await says(chats, CHAT, "[report.pdf]", "Here it is.")
        assert told(bot.provider)[0].endswith("It is sent with your answer.")
        assert "long long" in told(bot.provider)[1]
