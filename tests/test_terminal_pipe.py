"""The terminal for scripts: lines in, answers out, one after the other."""

import json
import os
from contextlib import suppress
from dataclasses import replace

import anyio
import pytest
from anyio.lowlevel import checkpoint

from nanoloop.bus import InProcessBus
from nanoloop.channels.pipe import PipeChannel
from nanoloop.events import TextStreamed
from nanoloop.messages import Attachment, Outbound


class Echo:
    """A bus that answers each message at once; `answer` may be replaced."""

    def __init__(self, channel_of):
        self.asked = []
        self.most_open = 0
        self._open = 0
        self._channel_of = channel_of

    async def put(self, message):
        self.asked.append(message)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        self._group.start_soon(self._later, message)

    async def _later(self, message):
        await checkpoint()
        for item in self.answer(message):
            self._open -= isinstance(item, Outbound) and item.reply_to == message.message_id
            await self._channel_of().send(item)

    def answer(self, message):
        return [out(f"re: {message.text}", to=message)]

    async def serve(self, channel):
        with anyio.fail_after(5):
            async with anyio.create_task_group() as self._group:
                await channel.run(self)


def out(text, *, to=None, kind="answer", chat="home"):
    reply_to = to and to.message_id
    return Outbound(channel="terminal", chat=chat, text=text, kind=kind, reply_to=reply_to)


def piece(text):
    return TextStreamed(channel="terminal", chat="home", session_id="s", text=text)


class Ends:
    """Both ends of a channel's three pipes."""

    def __init__(self, text=b"", **options):
        self.stdin, self.feed = os.pipe()
        self.read_out, self.stdout = os.pipe()
        self.read_err, self.stderr = os.pipe()
        os.write(self.feed, text)
        self.channel = PipeChannel(
            chat="home",
            stdin=self.stdin,
            stdout=self.stdout,
            stderr=self.stderr,
            **options,
        )
        self.bus = Echo(lambda: self.channel)

    async def play(self):
        os.close(self.feed)
        await self.bus.serve(self.channel)
        os.close(self.stdout)
        os.close(self.stderr)
        return os.read(self.read_out, 100_000).decode(), os.read(self.read_err, 100_000).decode()


@pytest.fixture
def ends():
    made = []

    def make(*args, **options):
        made.append(Ends(*args, **options))
        return made[-1]

    yield make
    for one in made:
        for end in ("stdin", "feed", "read_out", "stdout", "read_err", "stderr"):
            with suppress(OSError):
                os.close(getattr(one, end))


async def test_each_line_is_a_message_and_answers_come_in_order(ends):
    script = ends("one\n\n  \ntwo\r\n你好".encode())
    assert await script.play() == ("re: one\nre: two\nre: 你好\n", "")
    assert [(m.channel, m.chat) for m in script.bus.asked] == [("terminal", "home")] * 3


async def test_no_line_is_sent_before_the_one_before_is_answered(ends):
    script = ends(b"1\n2\n3\n4\n")
    await script.play()
    assert script.bus.most_open == 1


async def test_two_equal_lines_are_two_messages(ends):
    script = ends(b"again\nagain\n")
    await script.play()
    first, second = script.bus.asked
    assert first.message_id != second.message_id


async def test_json_lines_carry_role_text_and_session(ends):
    script = ends(b"hello\n", as_json=True)
    script.bus.answer = lambda m: [
        out("by the way", kind="notice"),
        out("a\u009b\ud800b\nc é", to=m, kind="error"),
    ]
    written, _ = await script.play()
    assert [json.loads(line) for line in written.splitlines()] == [
        {"role": "notice", "text": "by the way", "session": "home", "unasked": True},
        {"role": "error", "text": "a\u009b\ud800b\nc é", "session": "home"},
    ]
    assert "é" in written
    assert "\u009b" not in written


PDF = {"name": "a.pdf", "mime_type": "application/pdf", "size": 9}
FILE = Attachment(kind="file", ref="attachment:1", **PDF)


async def test_the_files_of_an_answer_are_named_behind_it(ends):
    script = ends(b"hello\n")
    script.bus.answer = lambda m: [replace(out("here", to=m), attachments=(FILE,))]
    assert await script.play() == ("here\n[file: a.pdf, application/pdf, 9 bytes]\n", "")


async def test_json_lines_carry_the_files_of_an_answer(ends):
    script = ends(b"hello\n", as_json=True)
    script.bus.answer = lambda m: [replace(out("here", to=m), attachments=(FILE,))]
    written, _ = await script.play()
    assert json.loads(written)["files"] == [{"ref": "attachment:1", "kind": "file", **PDF}]


@pytest.mark.parametrize(
    ("kind", "failed"), [("answer", False), ("notice", False), ("error", True)]
)
async def test_only_an_error_is_a_failure(ends, kind, failed):
    script = ends(b"hello\n")
    script.bus.answer = lambda m: [out("text", to=m, kind=kind)]
    written, complained = await script.play()
    assert script.channel.failed is failed
    assert (written, complained) == (("", "text\n") if failed else ("text\n", ""))


async def test_an_unasked_notice_answers_nothing_and_stays_out_of_the_output(ends):
    script = ends(b"hello\n")
    script.bus.answer = lambda m: [out("psst", kind="notice"), out("hi", to=m)]
    assert await script.play() == ("hi\n", "psst\n")


async def test_another_chats_answer_is_not_written(ends):
    script = ends(b"hello\n")
    script.bus.answer = lambda m: [out("secret", chat="away"), out("hi", to=m)]
    assert await script.play() == ("hi\n", "")


async def test_bytes_that_are_no_text_are_replaced(ends):
    script = ends(b"a\xff\n")
    await script.play()
    assert script.bus.asked[0].text == "a\ufffd"


async def test_control_characters_in_an_answer_are_shown_not_obeyed(ends):
    script = ends(b"hello\n")
    script.bus.answer = lambda m: [out("\x1b[2J\x07\x9b1m\tok\ud800", to=m)]
    assert (await script.play())[0] == "␛[2J␇\ufffd1m\tok\ufffd\n"


async def test_the_run_ends_quietly_when_nobody_reads(ends):
    script = ends(b"one\ntwo\n")
    os.close(script.read_out)
    os.close(script.feed)
    await script.bus.serve(script.channel)
    assert [m.text for m in script.bus.asked] == ["one"]


async def test_a_long_answer_to_a_slow_reader_is_written_whole(ends):
    script = ends(b"hello\n")
    script.bus.answer = lambda m: [out("x" * 300_000, to=m)]
    os.close(script.feed)
    read = 0
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(script.bus.serve, script.channel)
            while read < 300_001:
                await anyio.wait_readable(script.read_out)
                read += len(os.read(script.read_out, 50_000))


async def test_a_line_may_come_in_parts(ends):
    script = ends(b"hel")
    async with anyio.create_task_group() as group:
        group.start_soon(script.bus.serve, script.channel)
        await anyio.wait_all_tasks_blocked()
        os.write(script.feed, b"lo\nwor")
        await anyio.wait_readable(script.read_out)
        os.write(script.feed, b"ld")
        os.close(script.feed)
    assert [m.text for m in script.bus.asked] == ["hello", "world"]


async def test_waiting_for_a_line_can_be_cancelled(ends):
    script = ends()
    async with anyio.create_task_group() as group:
        group.start_soon(script.bus.serve, script.channel)
        await anyio.wait_all_tasks_blocked()
        group.cancel_scope.cancel()
    assert script.bus.asked == []


async def test_files_do_as_well_as_pipes(tmp_path):
    (tmp_path / "in").write_text("one\ntwo\n")
    with (tmp_path / "in").open("rb") as source, (tmp_path / "out").open("wb") as target:
        channel = PipeChannel(chat="home", stdin=source.fileno(), stdout=target.fileno())
        await Echo(lambda: channel).serve(channel)
    assert (tmp_path / "out").read_text() == "re: one\nre: two\n"


async def test_one_message_is_sent_and_stdin_left_alone(ends):
    script = ends(b"not this\n", message="a\nb")
    assert await script.play() == ("re: a\nb\n", "")
    assert len(script.bus.asked) == 1


@pytest.mark.parametrize(
    ("pieces", "answer", "written"),
    [
        (["He", "llo"], "Hello", "Hello\n"),
        (["He"], "Hello", "Hello\n"),
        (["He", "o"], "Hello", "Heo\nHello\n"),
        (["Let me see. ", "It is 4."], "It is 4.", "Let me see. It is 4.\n"),
        ([], "Hello", "Hello\n"),
        (["\x1b[", "31m"], "\x1b[31m", "␛[31m\n"),
    ],
)
async def test_streamed_pieces_are_settled_by_the_whole(ends, pieces, answer, written):
    script = ends(message="hi", streams=True)
    script.bus.answer = lambda m: [*map(piece, pieces), out(answer, to=m)]
    assert (await script.play())[0] == written


async def test_pieces_are_not_written_unless_asked_for(ends):
    script = ends(message="hi", as_json=True, streams=True)
    assert not script.channel.streams
    script.bus.answer = lambda m: [piece("He"), out("Hello", to=m)]
    assert json.loads((await script.play())[0])["text"] == "Hello"


async def test_an_answer_that_can_not_be_written_ends_the_run_and_fails_it():
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        channel = PipeChannel(chat="c", message="hi", stdout=full)
        async with InProcessBus() as bus, anyio.create_task_group() as group:
            bus.attach(channel)
            group.start_soon(channel.run, bus)
            await anyio.wait_all_tasks_blocked()
            asked = await anext(bus.deliveries())
            reply = asked.message.message_id
            await bus.publish(Outbound(channel="terminal", chat="c", text="ho", reply_to=reply))
    finally:
        os.close(full)
    assert channel.failed


async def test_lines_that_nobody_has_asked_yet_stay_in_the_pipe():
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\nthree\n")
    async with InProcessBus() as bus, anyio.create_task_group() as group:
        group.start_soon(PipeChannel(chat="c", stdin=reading).run, bus)
        delivery = await anext(bus.deliveries())
        group.cancel_scope.cancel()
    assert delivery.message.text == "one"
    assert os.read(reading, 100) == b"two\nthree\n"
    os.close(reading)
    os.close(writing)
