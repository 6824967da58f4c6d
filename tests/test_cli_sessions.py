"""`nanoloop sessions`: find, list, show, export, change, import, delete."""

import io
import json
import re
from datetime import timedelta

import anyio
import pytest

from nanoloop.cli import Exit, main
from nanoloop.cli.amounts import age, duration, size
from nanoloop.session.entry import Entry, rfc3339, utc_now
from nanoloop.stores.jsonl.store import JsonlStore


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
    assert err == "nanoloop: there is no session 'grocerys': did you mean 'groceries'?\n"


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


def test_flags_for_all_may_stand_before_or_behind_the_action(capsys, stored, data, monkeypatch):
    stored("terminal:a", "one")
    monkeypatch.delenv("NANOLOOP_DATA")
    for words in (("list", "--data", str(data)), ("--data", str(data), "list")):
        assert "terminal:a" in nanoloop(capsys, *words).out


def ids(capsys, *words):
    return [info["id"] for info in json.loads(nanoloop(capsys, "list", "--json", *words).out)]


def test_b3_4_the_list_finds_by_beginning_then_title_then_agent_and_number(capsys, stored):
    stored("terminal:tea", "What is hot?")
    stored("terminal:b", "Which tea is best?")
    stored("telegram:42", "Hello")
    assert ids(capsys, "--search", "tea") == ["terminal:tea", "terminal:b"]
    assert ids(capsys, "--search", "telegram:") == ["telegram:42"]
    assert ids(capsys, "--limit", "1") == ["telegram:42"]
    assert ids(capsys, "--agent", "nobody") == []
    assert "no session matches" in nanoloop(capsys, "list", "--search", "xyz").err


def test_b3_4_the_list_finds_what_was_said(capsys, stored):
    stored("terminal:a", "hello", "the CAT is grey", "bye")
    stored("terminal:b", "hello", "the dog is grey")
    assert ids(capsys, "--text", "grey cat") == ["terminal:a"]


def aged(data, **days):
    """Let these sessions be last active so many days ago."""

    async def age_them():
        opened = JsonlStore(data / "sessions")
        for name, count in days.items():
            session = await opened.load(f"terminal:{name}")
            moment = rfc3339(utc_now() - timedelta(days=count))
            session.load_dict({"updated_at": moment})
            await opened.save(session)
        await opened.close()

    anyio.run(age_them)


def test_b3_7_a_dry_run_says_what_would_go_and_changes_nothing(capsys, stored, data):
    for name in "abc":
        stored(f"terminal:{name}", "hi")
    aged(data, a=50, b=40)
    out = nanoloop(capsys, "prune", "--older-than", "30d", "--dry-run").out
    assert re.findall(r"terminal:\w", out) == ["terminal:b", "terminal:a"]
    assert len(ids(capsys)) == 3
    assert ids(capsys, "--older-than", "45d") == ["terminal:a"]


def test_b3_7_pruning_puts_away_and_later_deletes(capsys, stored, data):
    for name in "abc":
        stored(f"terminal:{name}", "hi")
    aged(data, a=50, b=40)
    nanoloop(capsys, "prune", "--older-than", "30d")
    assert ids(capsys) == ["terminal:c"]
    assert ids(capsys, "--archived") == ["terminal:b", "terminal:a"]
    nanoloop(capsys, "prune", "--older-than", "45d", "--archived", code=Exit.USAGE)
    nanoloop(capsys, "prune", "--older-than", "45d", "--archived", "--yes")
    assert ids(capsys, "--archived") == ["terminal:b"]
    assert "no conversation is that old" in nanoloop(capsys, "prune", "--older-than", "45d").err


def test_b3_7_the_newest_are_kept_however_old(capsys, stored, data):
    for name in "abc":
        stored(f"terminal:{name}", "hi")
    aged(data, a=50, b=40, c=35)
    nanoloop(capsys, "prune", "--older-than", "30d", "--keep", "2")
    assert ids(capsys) == ["terminal:c", "terminal:b"]


def test_b3_7_a_conversation_is_put_away_and_got_back(capsys, stored):
    stored("terminal:a", "hi")
    nanoloop(capsys, "archive", "a")
    assert ids(capsys) == []
    assert "hi" in nanoloop(capsys, "show", "a").out
    nanoloop(capsys, "unarchive", "a")
    assert ids(capsys) == ["terminal:a"]


def test_a_conversation_gets_another_title(capsys, stored):
    stored("terminal:a", "hi")
    nanoloop(capsys, "rename", "a", " Our  trip ")
    assert json.loads(nanoloop(capsys, "export", "a").out)["title"] == "Our trip"


def test_a_fork_up_to_a_message_has_a_name_to_go_on_with(capsys, stored):
    stored("terminal:a", "one", "two", "three", "four")
    assert "#3  user\n  three" in nanoloop(capsys, "show", "a").out
    nanoloop(capsys, "fork", "a", "--from", "2", "--as", "b")
    fork = json.loads(nanoloop(capsys, "export", "b").out)
    assert (fork["id"], fork["key"]) == ("b", "terminal:b")
    assert [m["content"] for m in fork["full_chat_history"]] == ["one", "two"]
    nanoloop(capsys, "fork", "a", "--from", fork["entries"][0]["id"])
    assert len(ids(capsys)) == 3


def test_a_fork_takes_nobodys_name_and_no_entry_that_is_not_there(capsys, stored):
    stored("terminal:a", "one")
    stored("terminal:b", "two")
    assert "already exists" in nanoloop(capsys, "fork", "a", "--as", "b", code=Exit.FAILED).err
    assert "no entry" in nanoloop(capsys, "fork", "a", "--from", "x", code=Exit.FAILED).err


def test_the_last_exchange_is_taken_back(capsys, stored):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    assert "removed 2 entries: three" in nanoloop(capsys, "undo", "a").err
    assert "already part of the summary" in nanoloop(capsys, "undo", "a", code=Exit.FAILED).err
    whole = json.loads(nanoloop(capsys, "export", "a").out)
    assert [m["content"] for m in whole["full_chat_history"]] == ["one", "two"]


def test_r3_22_statistics_are_of_the_whole_history(capsys, stored):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    facts = json.loads(nanoloop(capsys, "stats", "a", "--json").out)
    assert (facts["user"], facts["assistant"], facts["tool_calls"]) == (2, 2, 0)
    assert (facts["in_window"], facts["covered_by_summary"]) == (2, 2)
    assert "covered by summary: 2" in nanoloop(capsys, "stats", "a").out


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_an_export_comes_back_as_it_was_under_another_name(capsys, stored, tmp_path, form):
    stored("terminal:a", "one", "two", "three", "four", trim=1)
    text = nanoloop(capsys, "export", "a", "--format", form).out
    (tmp_path / "file").write_text(text)
    assert "already exists" in nanoloop(capsys, "import", "file", code=Exit.FAILED).err
    nanoloop(capsys, "import", "file", "--as", "b")
    old, new = (json.loads(nanoloop(capsys, "export", name).out) for name in "ab")
    assert new["id"] == "b"
    same = ("entries", "window", "summary", "summary_cursor", "title", "created_at", "turns")
    assert {name: new[name] for name in same} == {name: old[name] for name in same}


MAGENT = {"id": "session-1", "messages": [{"role": "user", "content": "from Magent"}]}
NANOBOT = [
    {"_type": "metadata", "key": "telegram:42", "summary": "so far"},
    {"role": "user", "content": "from nanobot", "timestamp": "2026-01-02T03:04:05"},
]


@pytest.mark.parametrize(
    ("text", "session_id", "said"),
    [
        (json.dumps(MAGENT, indent=1), "session-1", "from Magent"),
        ("\n".join(map(json.dumps, NANOBOT)), "telegram:42", "from nanobot"),
    ],
    ids=["magent", "nanobot"],
)
def test_files_of_the_systems_before_are_read_in(capsys, monkeypatch, text, session_id, said):
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    nanoloop(capsys, "import", "-")
    whole = json.loads(nanoloop(capsys, "export", session_id).out)
    assert whole["full_chat_history"][0]["content"] == said


def test_an_import_tells_which_numbers_made_no_sense(capsys, stored, tmp_path):
    stored("terminal:a", "one", "two")
    data = json.loads(nanoloop(capsys, "export", "a").out)
    (tmp_path / "file").write_text(json.dumps({**data, "summary_cursor": -1}))
    err = nanoloop(capsys, "import", "file", "--as", "b").err
    assert (
        err
        == "imported b, with 2 entries\nsummary_cursor was invalid in the file and was corrected\n"
    )


@pytest.mark.parametrize("text", ["", "[1]", "{", "hello", '{"_type": "metadata", "format": 1}'])
def test_what_is_no_session_is_refused_in_a_sentence(capsys, tmp_path, text):
    (tmp_path / "file").write_text(text)
    err = nanoloop(capsys, "import", "file", code=Exit.FAILED).err
    assert err.startswith("nanoloop: file can't be imported: ")


@pytest.mark.parametrize("text", ["30", "d", "-3d", "30y"])
def test_an_age_is_refused_where_it_is_none(capsys, text):
    err = nanoloop(capsys, "list", f"--older-than={text}", code=Exit.USAGE).err
    assert "write 45m, 12h, 30d or 2w" in err


def test_ages_and_sizes_read_well():
    assert duration("2w") == timedelta(days=14)
    assert age(utc_now()) == "just now"
    assert [size(n) for n in (999, 1200, 3_400_000)] == ["999 B", "1.2 kB", "3.4 MB"]
