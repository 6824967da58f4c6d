"""`nanoloop sessions forget` and `delete` leave nothing, in no file and in no index."""

import anyio
import pytest

from nanoloop.cli import Exit, main
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
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
def work(data):
    """A conversation with a secret in its summary, its ledger and the recall index."""

    async def store():
        opened = JsonlStore(data / "sessions")
        session = await opened.create(id="work", key="terminal:work")
        for text in ("the word is xyzzy", "noted", "tea", "yes"):
            session.add_message(
                "user" if text in {"the word is xyzzy", "tea"} else "assistant", text
            )
        session.trim_if_needed(1, 2)
        item = {"kind": "quote", "text": "xyzzy", "who": "user", "seq": 1, "count": 1}
        session.update_summary("The word is xyzzy.", seq=2, ledger=[item])
        await opened.save(session)
        index = Index(data / "recall.sqlite")
        await Recall(opened, index).catch_up(session)
        index.close()
        await opened.close()

    anyio.run(store)


def bytes_in(data):
    return b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())


def nanoloop(capsys, *words, code=Exit.DONE):
    assert main(["sessions", *words]) == code
    return capsys.readouterr()


@pytest.mark.usefixtures("work")
def test_what_is_forgotten_is_in_no_file(capsys, data):
    assert b"xyzzy" in bytes_in(data)
    assert "erased 1 of work" in nanoloop(capsys, "forget", "work", "1", "--yes").err
    assert b"xyzzy" not in bytes_in(data)
    assert "#3  user\n  tea" in nanoloop(capsys, "show", "work").out


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_what_is_deleted_is_in_no_file_though_recall_is_off(capsys, data, monkeypatch, enabled):
    monkeypatch.setenv("NANOLOOP_RECALL__ENABLED", enabled)
    nanoloop(capsys, "delete", "work", "--yes")
    assert b"xyzzy" not in bytes_in(data)


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("seqs", "code"), [("x", Exit.USAGE), ("0", Exit.USAGE), ("4-9", Exit.FAILED)]
)
def test_a_wrong_number_erases_nothing(capsys, data, seqs, code):
    before = bytes_in(data)
    nanoloop(capsys, "forget", "work", seqs, "--yes", code=code)
    assert bytes_in(data) == before


@pytest.mark.usefixtures("work")
def test_nothing_is_erased_unasked(capsys, data):
    assert "--yes" in nanoloop(capsys, "forget", "work", "1", code=Exit.USAGE).err
    assert b"xyzzy" in bytes_in(data)
