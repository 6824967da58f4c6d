"""`nanoloop debug-report`: one file with all of a conversation, and without a secret."""

import json
import os
from dataclasses import asdict

import anyio
import pytest

from nanoloop.channels.states import Failed, RunningProcess
from nanoloop.cli import main
from nanoloop.cli.debug_report import _report
from nanoloop.session.entry import Entry
from nanoloop.settings import Settings
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore

KEY = "a-key-of-the-settings"
LOOKS_SECRET = [
    "sk-proj-0123456789abcdef",
    "xoxb-123456789012-abcdef",
    "12345678:AbCdEfGhIjKlMnOpQrStUvWxYz0123456789",
    "ghp_0123456789abcdefghij",
]


@pytest.fixture(autouse=True)
def world(tmp_path, monkeypatch):
    for name in ("OPENAI_BASE_URL", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NANOLOOP_DATA", str(tmp_path / "data"))
    monkeypatch.setenv(
        "NANOLOOP_PROVIDERS__GROQ__BASE_URL", "https://me:pass-word@proxy.example/v1"
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(params=[SqliteStore, JsonlStore])
def work(world, request):
    """A conversation with a summary, a tool's call with a password, and keys that people typed."""

    async def fill():
        name = "sessions.sqlite" if request.param is SqliteStore else "sessions"
        store = request.param(world / "data" / name)
        session = await store.create(id="work", key="telegram:42")
        session.add_message("user", f"My key is {KEY}, another {' and '.join(LOOKS_SECRET)}.")
        given = {"user": "ann", "password": "pass-word"}
        session.add_entry(Entry.tool_call("login", given, call_id="1"))
        session.add_entry(Entry.tool_result("login", "done", call_id="1"))
        session.add_message("assistant", "I keep nothing of that.")
        session.update_summary("They spoke of keys.", seq=1)
        session.set("cart", ["tea"])
        session.set("api_key", "typed by hand")
        await store.save(session)
        other = await store.create(id="other", key="telegram:43")
        other.add_message("user", "Something else.")
        await store.save(other)
        await store.bind("telegram:42", "work")
        await store.close()

    anyio.run(fill)


def report(world, capsys, chat="telegram:42"):
    assert main(["debug-report", chat, "--output", "report.json"]) == 0
    return json.loads((world / "report.json").read_text()), capsys.readouterr().out


@pytest.mark.usefixtures("work")
def test_it_has_all_that_is_stored_of_that_conversation_and_of_no_other(world, capsys):
    told, out = report(world, capsys)
    talk = told["conversation"]
    assert (talk["id"], talk["keys"], talk["problems"]) == ("work", ["telegram:42"], [])
    assert [entry["type"] for entry in talk["entries"]] == [
        "message",
        "tool_call",
        "tool_result",
        "message",
    ]
    assert talk["head"]["last"] == 4
    assert "They spoke of keys." in json.dumps(talk["sections"])
    assert talk["sections"]["state"] == {"api_key": "********", "cart": ["tea"]}
    assert told["settings"]["settings"]["model"]["value"]
    assert told["nanoloop"]["python"]
    assert "Something else." not in json.dumps(told)
    assert "all 4 entries" in out


@pytest.mark.usefixtures("work")
def test_it_has_no_secret_of_the_settings_and_nothing_that_looks_like_one(world, capsys):
    told, out = report(world, capsys)
    text = json.dumps(told)
    assert [one for one in (KEY, "pass-word", *LOOKS_SECRET) if one in text] == []
    assert '"user": "ann"' in text
    assert "values that are or look like secrets were masked" in out
    assert told["conversation"]["entries"][0]["content"]["text"].startswith("My key is ********, ")


@pytest.mark.usefixtures("work")
def test_of_what_failed_it_has_only_what_failed_there(world, capsys):
    failures = [
        Failed(time="now", incident=where, where=where, said="The model is busy.")
        for where in ("telegram:42", "telegram:43", "work")
    ]
    state = RunningProcess(pid=os.getpid(), since="now", failures=failures)
    (world / "data" / "status").mkdir()
    (world / "data" / "status" / "n.json").write_text(json.dumps(asdict(state)))
    told, _ = report(world, capsys)
    assert [failed["where"] for failed in told["processes"][0]["failures"]] == [
        "telegram:42",
        "work",
    ]


@pytest.mark.usefixtures("work")
def test_it_is_for_its_owner_only_and_replaces_no_file(world, capsys):
    report(world, capsys)
    assert (world / "report.json").stat().st_mode & 0o777 == 0o600
    before = (world / "report.json").read_bytes()
    assert main(["debug-report", "work", "--output", "report.json"]) == 1
    assert "report.json already exists" in capsys.readouterr().err
    assert (world / "report.json").read_bytes() == before


@pytest.mark.usefixtures("work")
def test_without_a_name_the_file_is_named_after_the_conversation(world, capsys):
    assert main(["debug-report", "telegram:42"]) == 0
    (made,) = world.glob("debug-report-work-*.json")
    assert made.name in capsys.readouterr().out


def test_a_conversation_that_is_not_there_leaves_no_file(world, capsys):
    assert main(["debug-report", "nobody"]) == 4
    assert "no session 'nobody'" in capsys.readouterr().err
    assert [*world.glob("*.json")] == []


def test_a_damaged_one_is_reported_with_what_is_wrong(world):
    (world / "data" / "sessions").mkdir(parents=True)
    (world / "data" / "sessions" / "work.jsonl").write_bytes(b"\xff no metadata\n")
    told, _ = anyio.run(_report, "work", Settings.load(cwd=world))
    assert told["conversation"]["problems"]
