"""`nanoloop chat` as a person and a script use it: real processes, a real model server."""

import json
import re
import signal

import anyio
import pytest

from nanoloop.sentences import ENGLISH
from nanoloop.stores.sqlite import SqliteStore
from tests.openai_server import Answer, OpenAIServer
from tests.stages.command_line import CommandLine, Terminal, ended


def echo(request):
    return f"re: {request.json['messages'][-1]['content']}"


@pytest.fixture
async def server():
    async with OpenAIServer(otherwise=echo) as server:
        yield server


@pytest.fixture
def nanoloop(tmp_path, server):
    return CommandLine(tmp_path, server.url)


def said(request):
    return [m["content"] for m in request.json["messages"] if m["role"] != "system"]


async def exported(nanoloop, name="default"):
    out, _ = await nanoloop.run("sessions", "export", name)
    return [(m["role"], m["content"]) for m in json.loads(out)["full_chat_history"]]


async def stored(nanoloop, session_id="terminal:default"):
    store = SqliteStore(nanoloop.data / "sessions.sqlite", read_only=True)
    return await store.load(session_id)


@pytest.mark.slow
async def test_each_line_from_a_pipe_is_answered_in_order(nanoloop):
    out, err = await nanoloop.run("chat", text="one\n\ntwo\nthree")
    assert out == "re: one\nre: two\nre: three\n"
    assert err == ""


@pytest.mark.slow
async def test_json_is_one_object_a_line_with_role_text_and_session(nanoloop):
    out, _ = await nanoloop.run("chat", "--session", "quiz", "--json", text="one\n/nonsense\n")
    answer, notice = map(json.loads, out.splitlines())
    assert answer == {"role": "assistant", "text": "re: one", "session": "quiz"}
    assert notice["role"] == "notice"


@pytest.mark.slow
async def test_one_message_is_answered_and_no_input_is_read(nanoloop):
    out, err = await nanoloop.run("chat", "-m", "hello", text="not this\n")
    assert (out, err) == ("re: hello\n", "")


@pytest.mark.slow
async def test_a_session_goes_on_in_the_next_process(nanoloop, server):
    await nanoloop.run("chat", "--session", "work", "-m", "one")
    await nanoloop.run("chat", "--session", "other", "-m", "apart")
    await nanoloop.run("chat", "--session", "work", text="two\n")
    assert said(server.requests[-1]) == ["one", "re: one", "two"]


@pytest.mark.slow
async def test_a_failed_answer_ends_with_1_and_says_why_on_stderr(nanoloop, server):
    nanoloop.set(OPENAI_API_KEY="sk-12345678")
    server.otherwise = Answer(status=401, body=b'{"error": {"message": "wrong"}}')
    out, err = await nanoloop.run("chat", "-m", "hello", code=1)
    assert out == ""
    told, operators = err.splitlines()
    (incident,) = re.findall(r"\(incident (\w+)\)$", told)
    assert told.startswith(ENGLISH["model_key"])
    assert operators.startswith(f"incident {incident}: {server.url} refused the key (401): check")
    log = [json.loads(line) for line in nanoloop.log.read_text().splitlines()]
    assert [line["incident"] for line in log if line["event"] == "turn_failed"] == [incident]
    assert "hello" not in err
    assert "sk-12345678" not in err


@pytest.mark.slow
async def test_a_log_level_that_is_asked_for_is_heeded(nanoloop):
    _, err = await nanoloop.run("chat", "-m", "hello", "--log-level", "info")
    assert "turn_finished" in [json.loads(line)["event"] for line in err.splitlines()]


@pytest.mark.parametrize("command", ["chat", "run"])
async def test_without_a_key_or_a_server_three_lines_tell_the_choices(tmp_path, command):
    out, err = await CommandLine(tmp_path).run(command, code=3)
    assert out == ""
    assert len(err.splitlines()) == 3
    for choice in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "nanoloop demo"):
        assert choice in err


@pytest.mark.parametrize("words", [("-m", " "), ("--session", "")])
async def test_an_empty_flag_is_wrong_usage(nanoloop, words):
    await nanoloop.run("chat", *words, code=2)


@pytest.mark.slow
async def test_sigint_twice_ends_with_130_and_the_question_is_answered_at_the_next_start(
    nanoloop, server
):
    server.answers.append(Answer(held=True))
    async with nanoloop.started("chat", "-m", "one") as process:
        await server.arrived(1)
        assert await ended(process, pressing=signal.SIGINT) == 130
    await nanoloop.run("chat", "-m", "two")
    assert [text for _, text in await exported(nanoloop)] == ["one", "re: one", "two", "re: two"]


@pytest.mark.slow
async def test_killed_in_the_middle_of_an_answer_it_answers_once_at_the_next_start(
    nanoloop, server
):
    server.answers.append(Answer(text="never to be finished", hold_after=3))
    with Terminal() as terminal:
        async with nanoloop.started("chat", "-m", "one", terminal=terminal) as process:
            await terminal.shows("never")
            process.kill()
            await ended(process)
    out, _ = await nanoloop.run("chat", text="two\n")
    assert out == "re: one\nre: two\n"
    history = [("user", "one"), ("assistant", "re: one"), ("user", "two"), ("assistant", "re: two")]
    assert await exported(nanoloop) == history
    assert server.count == 3


@pytest.mark.slow
async def test_what_a_second_process_says_in_the_same_conversation_waits_for_its_turn(
    nanoloop, server
):
    server.otherwise = Answer(held=True)
    async with nanoloop.started("chat", "-m", "one") as first:
        await server.arrived(1)
        server.otherwise = "Hello."
        async with nanoloop.started("chat", "-m", "two") as second:
            with anyio.fail_after(20):
                while not (await stored(nanoloop)).waiting:  # noqa: ASYNC110 - of another process
                    await anyio.sleep(0.05)
            assert server.count == 1
            server.release()
            assert await ended(first) == 0
            assert await ended(second) == 0
    out, _ = await nanoloop.run("chat", "-m", "/history", code=0)
    assert [line.split(" ", 1)[1] for line in out.strip().splitlines()] == [
        *("user: one", "assistant: Hello."),
        *("user: two", "assistant: Hello."),
    ]


@pytest.mark.slow
async def test_a_person_sees_answers_and_status_but_no_log(nanoloop):
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            await terminal.shows("/help")
            await terminal.shows("window 0/50")
            terminal.type("hello\r")
            shown = await terminal.shows("re: hello")
            terminal.type("\x04")
            assert await ended(process) == 0
    assert "turn_finished" not in shown
    log = nanoloop.log.read_text()
    assert "turn_finished" in [json.loads(line)["event"] for line in log.splitlines()]
    assert "hello" not in log
    assert nanoloop.log.stat().st_mode & 0o077 == 0


@pytest.mark.slow
async def test_who_comes_back_sees_the_last_exchange(nanoloop):
    await nanoloop.run("chat", "-m", "how are you?")
    with Terminal() as terminal:
        async with nanoloop.started("chat", terminal=terminal) as process:
            assert "1 answer so far" in await terminal.shows("/help")
            await terminal.shows("how are you?")
            await terminal.shows("re: how are you?")
            await terminal.shows("window 2/50")
            terminal.type("\x03\x03")
            assert await ended(process) == 0
