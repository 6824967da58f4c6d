"""`nanoloop sessions`: find, list, show, export, delete."""

import json
import re

import anyio
import pytest

from nanoloop.cli import Exit, main
from nanoloop.cli.sessions import age, size
from nanoloop.session.entry import Entry, utc_now
from nanoloop.stores.jsonl import JsonlStore


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOLOOP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def stored(data):
    """Store a session with these messages, as a daemon would have."""

    def stored(key, *texts, named=None, bound=False, trim=None):
        async def store():
            opened = JsonlStore(data / "sessions")
            session = await opened.create(id=named or key, key=key)
            for number, text in enumerate(texts):
                session.add_message("assistant" if number % 2 else "user", text)
            if trim is not None:
                session.trim_if_needed(1, trim)
                session.update_summary("they counted", seq=session.pending_seq)
            await opened.save(session)
            if bound:
                await opened.bind(key, session.id)
            await opened.close()

        anyio.run(store)

    return stored


def nanoloop(capsys, *words, code=Exit.DONE):
    assert main(["sessions", *words]) == code
    return capsys.readouterr()


def test_the_list_is_newest_first_with_title_size_and_id(capsys, stored):
    stored("terminal:a", "What is\nthe time?", "Noon.")
    stored("terminal:b", "Hello \x1b[31m")
    head, first, second = nanoloop(capsys, "list").out.splitlines()
    assert head.split()[:2] == ["LAST", "ACTIVE"]
    assert re.search(r"just now +1 +0 +\d.* +terminal:b +Hello ␛\[31m$", first)
    assert re.search(r"just now +2 +0 +\d.* +terminal:a +What is the time\?", second)


def test_the_list_as_json_has_every_fact(capsys, stored):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    (info,) = json.loads(nanoloop(capsys, "list", "--json").out)
    assert (info["id"], info["entries"], info["pending"]) == ("terminal:a", 4, 0)
    assert info["updated_at"].endswith("Z")
    assert {"title", "agent", "size", "awaiting", "created_at"} <= info.keys()


def test_an_empty_list_says_what_to_do(capsys):
    assert "nanoloop chat" in nanoloop(capsys, "list").err
    assert json.loads(nanoloop(capsys, "list", "--json").out) == []


def test_a_session_is_shown_with_summary_and_messages(capsys, stored):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    shown = nanoloop(capsys, "show", "a").out
    assert "Summary of the first 2 entries\n  they counted" in shown
    assert re.findall(r"(?:user|assistant)\n  (\w+)", shown) == ["one", "two", "three", "four"]


def test_only_the_last_messages_are_shown_where_that_is_wanted(capsys, stored):
    stored("terminal:a", *(f"text {number}" for number in range(300)))
    shown = nanoloop(capsys, "show", "a", "--last", "2").out
    assert re.findall(r"^  text \d+", shown, re.MULTILINE) == ["  text 298", "  text 299"]
    assert "entries before this: 298" in shown
    assert nanoloop(capsys, "show", "a", "--last", "0").out.count("  text") == 300


def test_tools_and_control_characters_are_shown_safely(capsys, data):
    async def store():
        opened = JsonlStore(data / "sessions")
        session = await opened.create(id="s")
        session.add_entry(Entry.message("user", "\x1b]0;title\x07"))
        session.add_entry(Entry.tool_call("clock", {"zone": "UTC"}, call_id="1"))
        session.add_entry(Entry.tool_result("clock", "noon\n\x1b[2J", None, call_id="1"))
        await opened.save(session)
        await opened.close()

    anyio.run(store)
    shown = nanoloop(capsys, "show", "s").out
    assert "\x1b" not in shown
    assert '  -> clock {"zone": "UTC"}\n\n  <- noon ␛[2J' in shown


def test_an_export_is_the_whole_state(capsys, stored):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    whole = json.loads(nanoloop(capsys, "export", "a", "--format", "json").out)
    assert whole["id"] == "terminal:a"
    assert whole["summary"] == "they counted"
    assert [m["content"] for m in whole["full_chat_history"]] == ["one", "two", "three", "four"]
    assert [m["content"] for m in whole["current_chat_history"]] == ["three", "four"]


@pytest.mark.parametrize(("form", "line"), [("yaml", "summary: they counted"), ("md", "# one")])
def test_an_export_has_other_forms(capsys, stored, form, line):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    assert line in nanoloop(capsys, "export", "a", "--format", form).out.splitlines()


def test_a_name_is_an_id_or_a_key_or_a_chat_of_the_terminal(capsys, stored):
    stored("terminal:work", "the first")
    stored("terminal:work", "the second", named="terminal:work@2", bound=True)
    stored("telegram:42", "from afar", named="afar", bound=True)
    for name, text in (
        ("terminal:work", "the first"),
        ("terminal:work@2", "the second"),
        ("work", "the second"),
        ("telegram:42", "from afar"),
    ):
        assert json.loads(nanoloop(capsys, "export", name).out)["title"] == text


@pytest.mark.parametrize("action", ["show", "export", "delete"])
def test_an_unknown_name_ends_with_4_and_the_nearest(capsys, stored, action):
    stored("terminal:groceries", "milk")
    err = nanoloop(capsys, action, "grocerys", code=Exit.NOT_FOUND).err
    assert err == "nanoloop: no session 'grocerys': did you mean 'groceries'?\n"


def test_deleting_needs_a_yes_where_nobody_can_be_asked(capsys, stored):
    stored("terminal:a", "one")
    assert "--yes" in nanoloop(capsys, "delete", "a", code=Exit.USAGE).err
    nanoloop(capsys, "delete", "a", "--yes")
    assert json.loads(nanoloop(capsys, "list", "--json").out) == []


@pytest.mark.parametrize(("answer", "code"), [("y", Exit.DONE), ("", Exit.FAILED)])
def test_deleting_asks_in_a_terminal(capsys, monkeypatch, stored, answer, code):
    stored("terminal:a", "one")
    monkeypatch.setattr("os.isatty", lambda _: True)
    monkeypatch.setattr("builtins.input", lambda: answer)
    assert "terminal:a" in nanoloop(capsys, "delete", "a", code=code).err
    left = json.loads(nanoloop(capsys, "list", "--json").out)
    assert len(left) == (code is Exit.FAILED)


def test_reading_works_while_a_daemon_runs_and_deleting_does_not(capsys, data, stored):
    stored("terminal:a", "one")
    daemon = JsonlStore(data / "sessions")
    anyio.run(daemon.delete_expired)
    for words in (("list",), ("show", "a"), ("export", "a")):
        nanoloop(capsys, *words)
    nanoloop(capsys, "delete", "a", "--yes", code=Exit.IN_USE)
    anyio.run(daemon.close)


def test_flags_for_all_may_stand_before_or_behind_the_action(capsys, stored, data, monkeypatch):
    stored("terminal:a", "one")
    monkeypatch.delenv("NANOLOOP_DATA")
    for words in (("list", "--data", str(data)), ("--data", str(data), "list")):
        assert "terminal:a" in nanoloop(capsys, *words).out


def test_ages_and_sizes_read_well():
    assert age(utc_now()) == "just now"
    assert [size(n) for n in (999, 1200, 3_400_000)] == ["999 B", "1.2 kB", "3.4 MB"]
