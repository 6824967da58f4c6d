"""The terminal for people: keys, growing answers, and the way out."""

import io
import re
import stat
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output

from nanoloop.channels.screen import Blocks, last_lines, printable, rendered
from nanoloop.channels.terminal import TerminalChannel, keep_private
from nanoloop.errors import BusFull, WrongKey
from nanoloop.events import TextStreamed
from nanoloop.messages import Attachment, Outbound

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C, CTRL_D, ENTER, ESCAPE_ENTER = "\x03", "\x04", "\r", "\x1b\r"


class Inbox:
    """A bus that keeps what it is given, and may be full."""

    def __init__(self):
        self.full = False
        self._send, self._receive = anyio.create_memory_object_stream(100)

    def put_nowait(self, message):
        if self.full:
            raise BusFull(1)
        self._send.send_nowait(message)

    async def next(self):
        with anyio.fail_after(5):
            return await self._receive.receive()

    def close(self):
        self._send.close()
        self._receive.close()


class Paper(Vt100_Output):
    """A screen that remembers all that was ever written on it."""

    def __init__(self):
        self.written = io.StringIO()
        super().__init__(self.written, lambda: Size(rows=20, columns=60), enable_cpr=False)

    def get_rows_below_cursor_position(self):
        return 20

    @property
    def text(self):
        return ESCAPES.sub("", self.written.getvalue())


class Desk:
    """A channel with a keyboard to type on and a screen to read."""

    def __init__(self, keyboard, history):
        self.bus = Inbox()
        self.paper = Paper()
        self.left = anyio.Event()
        self.keyboard = keyboard
        self.channel = TerminalChannel(
            chat="home",
            history=history,
            status=lambda: "1/50",
            terminal_input=keyboard,
            terminal_output=self.paper,
        )

    def type(self, *keys):
        self.keyboard.send_text("".join(keys))

    async def run(self):
        await self.channel.run(self.bus)
        self.left.set()

    async def shows(self, text):
        with anyio.fail_after(5):
            while text not in self.paper.text:
                await anyio.lowlevel.checkpoint()

    async def say(self, text, *, to=None, kind="answer"):
        reply_to = to and to.message_id
        await self.channel.send(
            Outbound(channel="terminal", chat="home", text=text, kind=kind, reply_to=reply_to)
        )

    async def apologise(self, text, incident):
        apology = Outbound(channel="terminal", chat="home", text=text, kind="error")
        await self.channel.send(replace(apology, incident=incident))

    async def stream(self, *pieces):
        for text in pieces:
            await self.channel.send(
                TextStreamed(channel="terminal", chat="home", session_id="s", text=text)
            )

    async def is_left(self):
        with anyio.fail_after(5):
            await self.left.wait()


@asynccontextmanager
async def desk(tmp_path):
    with create_pipe_input() as keyboard:
        made = Desk(keyboard, tmp_path / "data" / "history")
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(made.run)
                await made.shows("1/50")
                yield made
                group.cancel_scope.cancel()
        finally:
            made.bus.close()


async def test_enter_sends_and_other_keys_begin_a_line(tmp_path):
    async with desk(tmp_path) as person:
        person.type("one\\", ENTER, "two", ESCAPE_ENTER, "three", ENTER)
        message = await person.bus.next()
        assert message.text == "one\ntwo\nthree"
        assert (message.channel, message.chat) == ("terminal", "home")


async def test_an_empty_line_is_not_sent_and_equal_ones_are_two_messages(tmp_path):
    async with desk(tmp_path) as person:
        person.type(ENTER, " ", ENTER, ENTER, "hi", ENTER)
        first = await person.bus.next()
        await person.shows("hi")
        person.type("hi", ENTER)
        assert first.message_id != (await person.bus.next()).message_id


async def test_a_streamed_answer_is_shown_as_it_grows_and_settles(tmp_path):
    async with desk(tmp_path) as person:
        await person.stream("First **block**.\n\n", "Second ", "grows")
        await person.shows("First")
        await person.shows("Second grows")
        await person.stream(" more.")
        await person.say("First **block**.\n\nSecond grows more.")
        await person.shows("Second grows more.")
        assert person.channel._blocks.open == ""


async def test_the_files_of_an_answer_are_named_below_it(tmp_path):
    async with desk(tmp_path) as person:
        file = Attachment(kind="image", ref="attachment:1", name="a.png", size=9)
        said = Outbound(channel="terminal", chat="home", text="here", attachments=(file,))
        await person.channel.send(said)
        await person.shows("[image: a.png, 9 bytes]")


async def test_control_characters_reach_no_terminal(tmp_path):
    async with desk(tmp_path) as person:
        await person.stream("\x1b]0;title\x07\n\n")
        await person.say("\x1b[2Jgone?", kind="error")
        await person.shows("␛[2Jgone?")
        assert "\x1b]0" not in person.paper.written.getvalue()
        assert "\x07" not in person.paper.written.getvalue()


async def test_below_an_apology_stands_what_the_operator_is_told(tmp_path):
    async with desk(tmp_path) as there:
        failed = WrongKey("the key was refused\x1b[2J: check it")
        incident = there.channel.incidents.of(failed, place="s").incident
        await there.apologise("I am sorry.", incident)
        await there.shows(f"incident {incident}: the key was refused␛[2J: check it")
        await there.apologise("Once more.", "000000")
        await there.shows("Once more.")
    assert there.paper.text.count("incident") == 1


async def test_ctrl_c_stops_the_answer_on_its_way(tmp_path):
    async with desk(tmp_path) as person:
        person.type("hello", ENTER)
        asked = await person.bus.next()
        await person.shows("Ctrl-C to stop")
        person.type("draft", CTRL_C)
        assert (await person.bus.next()).text == "/stop"
        await person.say("stopped", to=asked, kind="notice")
        assert not person.left.is_set()


async def test_ctrl_c_twice_leaves_even_while_an_answer_is_on_its_way(tmp_path):
    async with desk(tmp_path) as person:
        person.type("hello", ENTER)
        await person.bus.next()
        await person.shows("Ctrl-C to stop")
        person.type(CTRL_C, CTRL_C)
        await person.is_left()


@pytest.mark.parametrize("keys", [CTRL_D, CTRL_C + CTRL_C, f"text{CTRL_C}{CTRL_C}{CTRL_C}"])
async def test_the_ways_out(tmp_path, keys):
    async with desk(tmp_path) as person:
        person.type(keys)
        await person.is_left()


async def test_ctrl_c_clears_a_line_before_it_counts(tmp_path):
    async with desk(tmp_path) as person:
        person.type("text", CTRL_C, CTRL_C)
        await person.shows("Ctrl-C again to quit")
        assert not person.left.is_set()
        person.type("kept", ENTER)
        assert (await person.bus.next()).text == "kept"


async def test_a_refused_message_is_there_to_be_sent_again(tmp_path):
    async with desk(tmp_path) as person:
        person.bus.full = True
        person.type("hello", ENTER)
        await person.shows("try again in a moment")
        person.bus.full = False
        person.type(ENTER)
        assert (await person.bus.next()).text == "hello"


async def test_the_status_line_is_shown(tmp_path):
    async with desk(tmp_path) as person:
        await person.shows("1/50")


async def test_another_chats_items_are_not_shown(tmp_path):
    async with desk(tmp_path) as person:
        await person.channel.send(Outbound(channel="terminal", chat="away", text="secret"))
        await person.say("mine")
        await person.shows("mine")
        assert "secret" not in person.paper.text


async def test_a_notice_leaves_a_growing_answer_alone_and_an_error_ends_it(tmp_path):
    async with desk(tmp_path) as person:
        person.type("hello", ENTER)
        asked = await person.bus.next()
        await person.stream("half")
        await person.say("by the way", kind="notice")
        assert person.channel._blocks.open == "half"
        await person.shows("Ctrl-C to stop")
        await person.say("sorry", to=asked, kind="error")
        assert person.channel._blocks.open == ""


async def test_the_input_history_is_for_its_owner_only(tmp_path):
    async with desk(tmp_path) as person:
        person.type("a secret", ENTER)
        await person.bus.next()
        file = person.channel._history
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert "+a secret\n" in file.read_text()


def test_the_input_history_keeps_its_newest_lines_only(tmp_path):
    file = tmp_path / "history"
    file.write_text("".join(f"\n# time\n+line {n}\n" for n in range(60_000)))
    keep_private(file)
    assert file.stat().st_size <= 500_000
    assert file.read_text().startswith("# time\n+line ")
    assert file.read_text().endswith("+line 59999\n")


MARKDOWN = """# Title

Text with `code`.

1. one

   more of one
2. two

```python
a = 1

b = 2
```

| a | b |
|---|---|
| 1 | 2 |
"""


def test_blocks_are_finished_when_the_next_begins():
    blocks = Blocks()
    finished = [
        shown for line in MARKDOWN.splitlines(keepends=True) if (shown := blocks.feed(line))
    ]
    assert [shown.split("\n")[0] for shown in finished] == [
        "# Title",
        "Text with `code`.",
        "1. one",
        "```python",
    ]
    assert blocks.open.startswith("| a | b |")
    assert "".join(finished) + blocks.settle(MARKDOWN) == MARKDOWN


@given(st.lists(st.text("ab\n`-1.| #>", max_size=12), max_size=12))
def test_whatever_is_streamed_is_shown_whole_and_once(pieces):
    blocks = Blocks()
    shown = [blocks.feed(piece) for piece in pieces]
    assert "".join(shown) + blocks.settle() == "".join(pieces)


@given(st.text("ab \n", min_size=1, max_size=20), st.integers(0, 20))
def test_an_answer_whose_end_was_not_streamed_is_completed(answer, cut):
    blocks = Blocks()
    shown = blocks.feed(answer[:cut]) + blocks.settle(answer)
    assert answer.strip() in shown


def test_an_answer_whose_pieces_are_missing_is_shown_whole():
    blocks = Blocks()
    blocks.feed("Hel")
    blocks.feed("world")
    assert blocks.settle("Hello world") == "Hello world"


@given(st.text())
def test_printable_text_can_be_encoded_and_has_no_control_characters(text):
    shown = printable(text).encode().decode()
    assert all(c in "\n\t" or not (ord(c) < 32 or 127 <= ord(c) < 160) for c in shown)


def test_markdown_is_rendered_within_the_width_and_links_are_in_sight():
    page = rendered("see [this](http://example.org) " + "word " * 40, 40)
    assert "http://example.org" in page
    assert "\x1b]8" not in page


def test_a_block_higher_than_the_screen_shows_its_end():
    assert last_lines("a\nb\nc", 2) == "b\nc"
    assert last_lines("a\nb", 2) == "a\nb"
