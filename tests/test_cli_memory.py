"""`nanoloop memory`: what is where, the summary set right, who waits for one."""

import io
import json

import anyio
import pytest

from nanoloop.cli import Exit, main
from nanoloop.stores.jsonl.store import JsonlStore


@pytest.fixture(autouse=True)
def data(tmp_path, monkeypatch):
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "VISUAL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOLOOP_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


@pytest.fixture
def work(data):
    """Two entries summarised, two pending, two in the window, and one item in the ledger."""

    async def store():
        opened = JsonlStore(data / "sessions")
        session = await opened.create(id="work", key="terminal:work")
        for number in range(6):
            session.add_message("assistant" if number % 2 else "user", f"it is {number}")
            if number in {3, 5}:
                session.trim_if_needed(1, 2)
            if number == 3:
                item = {"kind": "id", "text": "A-1", "who": "user", "seq": 1, "count": 1}
                session.update_summary("They counted.", seq=2, ledger=[item])
        await opened.save(session)
        await opened.close()

    anyio.run(store)


def summary(data):
    async def read():
        opened = JsonlStore(data / "sessions", read_only=True)
        return (await opened.load("work")).summary

    return anyio.run(read)


def nanoloop(capsys, *words, code=Exit.DONE):
    assert main(["memory", *words]) == code
    return capsys.readouterr()


@pytest.mark.usefixtures("work")
def test_show_draws_what_is_where(capsys):
    out = nanoloop(capsys, "show", "work").out
    assert "[==..##]" in out
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.strip()}
    assert rows["log"][1] == "6"
    assert [rows[name][1] for name in ("summarised", "pending", "window")] == ["2", "2", "2"]
    assert rows["pending"][3:6] == ["#3", "to", "#4,"]
    assert "for all up to #2" in out
    assert "1 kept word for word" in out
    assert out.rstrip().endswith("They counted.")


@pytest.mark.usefixtures("work")
def test_show_counts_for_scripts_and_says_no_word_of_what_was_said(capsys):
    facts = json.loads(nanoloop(capsys, "show", "work", "--json").out)
    assert facts["log"]["tokens"] == sum(
        facts[name]["tokens"] for name in ("summarised", "pending", "window")
    )
    assert (facts["pending"]["first"], facts["pending"]["last"]) == (3, 4)
    assert facts["summary"]["covers_up_to"] == 2
    assert "counted" not in json.dumps(facts)


@pytest.mark.usefixtures("work")
def test_status_lists_who_waits_for_a_summary(capsys):
    assert nanoloop(capsys, "status").out.splitlines()[1].split() == ["2", "6", "work"]
    assert json.loads(nanoloop(capsys, "status", "--json").out)[0]["pending"] == 2


def test_status_says_so_where_nothing_waits(capsys):
    assert "is waiting for a summary" in nanoloop(capsys, "status").err


@pytest.mark.usefixtures("work")
def test_the_summary_is_edited_by_a_flag(capsys, data):
    nanoloop(capsys, "edit", "work", "--text", "Mine.")
    assert summary(data) == "Mine."


@pytest.mark.usefixtures("work")
def test_the_summary_is_edited_from_standard_input(capsys, data, monkeypatch):
    monkeypatch.setattr("os.isatty", lambda _fd: False)
    monkeypatch.setattr("sys.stdin", io.StringIO("Mine,\nall of it.\n"))
    nanoloop(capsys, "edit", "work")
    assert summary(data) == "Mine,\nall of it."


@pytest.mark.usefixtures("work")
def test_the_summary_is_edited_in_the_editor(capsys, data, monkeypatch):
    monkeypatch.setattr("os.isatty", lambda _fd: True)
    monkeypatch.setenv("EDITOR", "sed -i s/counted/talked/")
    assert "changed" in nanoloop(capsys, "edit", "work").err
    assert summary(data) == "They talked."
    monkeypatch.setenv("EDITOR", "false")
    assert "is unchanged" in nanoloop(capsys, "edit", "work", code=Exit.FAILED).err


@pytest.mark.usefixtures("work")
def test_an_edit_of_what_was_deleted_meanwhile_is_kept_as_a_draft(
    capsys, data, monkeypatch, tmp_path
):
    monkeypatch.setattr("os.isatty", lambda _fd: True)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    editor = tmp_path / "editor"
    editor.write_text(f'sed -i s/counted/talked/ "$1"; rm {data}/sessions/work.jsonl')
    monkeypatch.setenv("EDITOR", f"sh {editor}")
    assert "your text is saved in" in nanoloop(capsys, "edit", "work", code=Exit.NOT_FOUND).err
    (draft,) = tmp_path.glob("nanoloop-summary-*.md")
    assert draft.read_text() == "They talked."
