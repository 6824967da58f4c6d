"""`nanoloop approvals`: what waits for a yes, and a yes or no from the machine's owner."""

import json

import pytest

from nanoloop.cli import Exit, main
from nanoloop.stores.sqlite import SqliteStore
from tests.openai_server import Answer, OpenAIServer
from tests.stages.command_line import UNSEEN, CommandLine, Terminal, ended
from tests.test_approvals import Till, asks, call, chatting


@pytest.fixture
async def waiting(tmp_path, monkeypatch):
    """A conversation in which two calls wait, and no daemon runs."""
    monkeypatch.chdir(tmp_path)
    both = asks(call(to="Ada\u202e"), call(to="Bob", call_id="c2"))
    store = SqliteStore(tmp_path / "data" / "sessions.sqlite")
    async with chatting(both, tools=[Till().tool], store=store) as c:
        await c.say("Pay both!")
    return tmp_path


async def resumed(folder, *replies):
    """Start again, and return what was paid and what the chat was told."""
    till, store = Till(), SqliteStore(folder / "data" / "sessions.sqlite")
    async with chatting(*replies, tools=[till.tool], store=store) as c:
        said = await c.channel.until("a", len(replies))
    return till.paid, said


def nanoloop(*words):
    return main(["approvals", *words, "--data", "data"])


async def in_thread(*words):
    from anyio.to_thread import run_sync  # noqa: PLC0415 - the command runs a loop of its own

    return await run_sync(lambda: nanoloop(*words))


async def test_waiting_calls_are_listed_with_all_arguments(waiting, capsys):
    assert await in_thread("list") == Exit.DONE
    said = capsys.readouterr().out
    assert "test:a 1: pay, asked just now" in said
    assert '"to": "Ada\\u{202e}"' in said
    assert await in_thread("list", "--json") == Exit.DONE
    rows = json.loads(capsys.readouterr().out)
    assert [(row["number"], row["arguments"]["to"]) for row in rows] == [
        (1, "Ada\u202e"),
        (2, "Bob"),
    ]


async def test_a_yes_is_carried_out_by_whoever_serves_the_chat(waiting, capsys):
    assert await in_thread("yes", "test:a", "2") == Exit.DONE
    assert capsys.readouterr().out == "approved call 2 of pay in test:a\n"
    assert await resumed(waiting, "It is paid.") == ([("Bob", 5)], ["It is paid."])


async def test_a_no_reaches_the_model_with_its_reason(waiting):
    assert await in_thread("no", "test:a", "1", "too expensive") == Exit.DONE
    assert await resumed(waiting, "Then not.") == ([], ["Then not."])


async def test_a_number_that_does_not_wait_is_refused_with_those_that_do(waiting, capsys):
    assert await in_thread("yes", "test:a", "7") == Exit.NOT_FOUND
    assert "no call 7 waits in test:a" in capsys.readouterr().err


TILL = '''
async def pay(to: str, reason: str = "") -> str:
    """Pay."""
    with open("paid", "a") as file:
        file.write(to)
    return "paid"
'''
SETTINGS = '[tools]\napprove = "always"\n[tools.functions]\npay = "till:pay"\n'


@pytest.mark.slow
@pytest.mark.parametrize("columns", [40, 90])
async def test_a_terminal_of_any_width_shows_all_of_a_question(tmp_path, columns):
    given = {"to": "Ada", "reason": "x" * 70 + " and a few more words for a narrow screen"}
    call = ("c1", "pay", json.dumps(given))
    async with OpenAIServer(Answer(text="", tool_calls=(call,)), otherwise="Done.") as server:
        line = CommandLine(tmp_path, server.url)
        (line.data / "tools").mkdir(parents=True)
        (line.data / "tools" / "till.py").write_text(TILL)
        (tmp_path / "given.toml").write_text(SETTINGS)
        with Terminal(columns=columns) as terminal:
            words = ("chat", "--config", str(tmp_path / "given.toml"))
            async with line.started(*words, terminal=terminal) as process:
                await terminal.shows("/help")
                terminal.type("Pay!\r")
                await terminal.shows("May I call pay? (number 1)")
                shown = UNSEEN.sub("", await terminal.shows("Answer /yes 1 or /no 1"))
                assert shown == UNSEEN.sub("", json.dumps(given))
                terminal.type("/yes\r")
                await terminal.shows("Done.")
                terminal.type("\x04")
                await ended(process)
    assert (tmp_path / "paid").read_text() == "Ada"
