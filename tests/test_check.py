"""`nanoloop check` looks at the place of the sessions as one that will write there."""

import errno
import os
from pathlib import Path

import pytest

from nanoloop.cli import check, main
from nanoloop.stores.place import shown


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """What the check says of a data folder, where no model is set."""
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "NANOLOOP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def said(data):
        return main(["check", "--data", str(data)]), capsys.readouterr().out

    return said


def test_without_a_model_its_exit_code_says_that_it_is_not_configured(checked, tmp_path):
    code, said = checked(tmp_path / "data")
    assert code == 3
    assert "WRONG  model: no model is set" in said
    assert f"ok     store: 0 sessions in {tmp_path / 'data' / 'sessions.sqlite'}" in said
    assert not (tmp_path / "data").exists()


def test_a_place_that_can_not_be_written_in_is_wrong(checked, tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(check, "TemporaryFile", refuse)
    _, said = checked(tmp_path)
    assert "Read-only file system: choose a place that may be written in" in said


def test_a_data_folder_that_is_a_file_is_wrong(checked, tmp_path):
    (tmp_path / "file").touch()
    _, said = checked(tmp_path / "file")
    assert "WRONG  store: " in said
    assert "a file is where a folder should be" in said


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("memory:", "memory"),
        ("jsonl:", "data/sessions"),
        ("sqlite:/a/b", "/a/b"),
        ("redis://me:secret@host:1/0?password=secret", "redis://host:1/0"),
        ("redis://:se/cr@et@host", "redis://…"),
        ("redis://:secret?secret@host", "redis://…"),
        ("unix:///run/redis?password=secret", "unix:///run/redis"),
        ("postgresql://me:secret@host/bot", "postgresql://host/bot"),
    ],
)
def test_a_place_is_shown_without_what_is_secret(url, place):
    assert shown(url, Path("data")) == place
