"""AGENTS.md: what it says is so, and nobody's own file is touched."""

import re
import shlex

import pytest

from nanoloop.cli import main
from nanoloop.cli.agents_file import agents_text, write_agents_file
from nanoloop.settings import Settings


@pytest.fixture
def home(tmp_path, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "NANOLOOP_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def commands(text):
    block = re.search(r"```bash\n(.*?)```", text, re.DOTALL)[1]
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [words for words in lines if words]


def test_it_is_written_beside_the_settings_and_written_anew(home):
    folder = home / ".config" / "nanoloop"
    folder.mkdir(parents=True)
    (folder / "nanoloop.toml").write_text('store.url = "jsonl:"\n')
    file = write_agents_file(Settings.load())
    assert file == folder / "AGENTS.md"
    assert str(home / ".local" / "share" / "nanoloop" / "sessions`") in file.read_text()
    (folder / "nanoloop.toml").write_text('store.url = "postgresql://me:hidden@db.example/bot"\n')
    write_agents_file(Settings.load())
    assert "`postgresql://db.example/bot`" in file.read_text()
    assert "hidden" not in file.read_text()


def test_someone_elses_file_stays_as_it_is(home):
    (home / "nanoloop.toml").write_text("")
    (home / "AGENTS.md").write_text("# Of my project\n")
    assert write_agents_file(Settings.load(config="nanoloop.toml")) is None
    assert (home / "AGENTS.md").read_text() == "# Of my project\n"


def test_each_of_the_six_commands_is_one_and_means_this_bot(home, capsys):
    (home / "a folder").mkdir()
    (home / "a folder" / "bot.toml").write_text("")
    settings = Settings.load(config="a folder/bot.toml", flags={"data": "the data"})
    found = commands(agents_text(settings))
    assert len(found) == 6
    for words in found:
        assert main([*words[1:], "--help"]) == 0
        assert capsys.readouterr().out
    for words in (words for words in found if "logs" not in words):
        assert words[words.index("--config") + 1] == str(home / "a folder" / "bot.toml")
        assert words[words.index("--data") + 1] == str(home / "the data")


def test_where_all_is_as_usual_the_commands_need_no_flags(home):
    folder = home / ".config" / "nanoloop"
    folder.mkdir(parents=True)
    (folder / "nanoloop.toml").write_text("")
    assert "--config" not in agents_text(Settings.load())
