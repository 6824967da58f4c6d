"""Files that a tool attaches to its call while it runs: kept by the rules of returned files."""

import threading

import anyio
import pytest

from nanoloop import FileResult, current_call, tool
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import answers, says
from nanoloop.tools.call import CurrentCall, calling
from nanoloop.tools.file_results import MOST_FILES
from nanoloop.tools.toolbox import Toolbox
from tests.sent_files import PDF, PICTURE, bot_with, told

CHAT = "with-ann"


@pytest.fixture
def chats():
    return FakeChats()


async def sent(chats, folder, *tools, count=1, results=(0,)):
    """What the chat gets if the model calls these tools, each named `make`, and then answers."""
    async with bot_with(chats.platform(), folder, *results) as bot:
        bot.loop.agents.default.toolbox = Toolbox(tools, timeout_seconds=0.2)
        await chats.say(CHAT, "make it")
        said = await answers(chats, CHAT, count)
        await bot.loop.bus.flush()
        return said, told(bot.provider)


async def test_a_file_attached_in_a_thread_goes_out_with_the_answer(chats, tmp_path):
    accepted = []

    @tool
    def make() -> str:
        """Make it."""
        accepted.append(current_call().attach(PDF))
        return "made"

    said, [result] = await sent(chats, tmp_path, make, count=2)
    assert (said, accepted) == (["[report.pdf]", "Here it is."], [True])
    assert result.startswith("made\n[file: report.pdf, application/pdf, 3000009 bytes] attachment:")


async def test_a_thread_of_the_tools_own_attaches_and_no_more_once_the_call_has_ended(
    chats, tmp_path
):
    seen = []

    @tool
    async def make() -> str:
        """Make it."""
        call = current_call()
        seen.append(call)
        thread = threading.Thread(target=lambda: seen.append(call.attach(PICTURE)))
        thread.start()
        await anyio.to_thread.run_sync(thread.join)
        return "made"

    said, _ = await sent(chats, tmp_path, make, count=2)
    assert said == ["[chart.png]", "Here it is."]
    call, accepted = seen
    assert (accepted, call.attach(PICTURE)) == (True, False)


async def test_attached_and_returned_files_are_bounded_together(chats, tmp_path):
    accepted = []

    @tool
    def make() -> FileResult:
        """Make it."""
        files = [FileResult(b"x", name=f"{n}.txt") for n in range(MOST_FILES + 1)]
        accepted.extend(map(current_call().attach, files))
        return PDF

    said, [result] = await sent(chats, tmp_path, make, count=MOST_FILES + 1)
    assert accepted == [True] * MOST_FILES + [False]
    assert "[report.pdf]" not in said
    assert "[the file report.pdf is missing: a call may return at most 10 files]" in result


async def test_a_path_that_leads_out_of_its_folder_is_refused(chats, tmp_path):
    (tmp_path / "secret").write_text("tea")
    (tmp_path / "open").mkdir()

    @tool
    def make() -> str:
        """Make it."""
        current_call().attach(FileResult("../secret", beneath=tmp_path / "open"))
        return "made"

    said, [result] = await sent(chats, tmp_path, make)
    assert said == ["Here it is."]
    assert (
        result == "made\n[the file secret is missing: it has no file '../secret': give a plain "
        "name inside it]"
    )


async def test_a_file_stays_attached_if_the_call_then_fails_or_takes_too_long(chats, tmp_path):
    @tool(repeatable=True)
    async def make() -> str:
        """Make it."""
        if current_call().attach(PICTURE) and not chats.uploads:
            await anyio.sleep_forever()
        raise ValueError("a bug")

    said, results = await sent(chats, tmp_path, make, results=(0, 1), count=3)
    assert said == ["[chart.png]", "[chart.png]", "Here it is."]
    assert all("[image: chart.png" in result for result in results)
    assert "took longer than 0.2 s" in results[0]


async def test_a_tool_that_settles_loses_no_attached_file(chats, tmp_path):
    @tool(settle=lambda call: "it was made")
    def make() -> str:
        """Make it."""
        current_call().attach(PICTURE)
        raise ConnectionError

    said, [result] = await sent(chats, tmp_path, make, count=2)
    assert said == ["[chart.png]", "Here it is."]
    assert result.startswith("it was made\n[image: chart.png")


async def test_one_that_is_not_to_be_sent_is_only_named_to_the_model(chats, tmp_path):
    @tool
    def make() -> str:
        """Make it."""
        current_call().attach(FileResult(b"x", name="a.txt", send=False))
        return "made"

    async with bot_with(chats.platform(), tmp_path, 0) as bot:
        bot.loop.agents.default.toolbox = Toolbox([make])
        await chats.say(CHAT, "make it")
        await says(chats, CHAT, "Here it is.")
        assert told(bot.provider)[0].endswith("Name it in your answer to send.")


async def test_where_files_can_not_be_kept_none_is_accepted():
    call = CurrentCall(call="c", tool="make")
    with calling(call):
        assert not current_call().attach(PICTURE)
    with pytest.raises(TypeError, match="a bytes can't be attached: give a FileResult"):
        call.attach(b"x")
