"""`nanoloop approvals`: what waits for a yes, and a yes or no from the machine's owner."""

import json

import pytest

from nanoloop.cli import Exit, main
from nanoloop.stores.sqlite import SqliteStore
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
