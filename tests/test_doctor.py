"""`nanoloop doctor` says what is well and what is not; the store as one that will write there."""

import errno
import json
import os
from pathlib import Path

import anyio
import pytest

from nanoloop.cli import doctor, main
from nanoloop.settings import Settings
from nanoloop.stores.place import shown
from tests.openai_server import Answer, OpenAIServer


@pytest.fixture
def checked(tmp_path, monkeypatch, capsys):
    """What the check says of a data folder, where no model is set."""
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "NANOLOOP_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def said(data, url=None):
        if url is not None:
            monkeypatch.setenv("NANOLOOP_STORE__URL", url)
        return main(["doctor", "--data", str(data)]), capsys.readouterr().out

    return said


@pytest.fixture
def servers(redis_url, postgres_url):
    return redis_url, postgres_url


def test_without_a_model_its_exit_code_says_that_it_is_not_configured(checked, tmp_path):
    code, said = checked(tmp_path / "data")
    assert code == 3
    assert "WRONG  model: no model is set" in said
    assert f"ok     store: 0 sessions in {tmp_path / 'data' / 'sessions.sqlite'}" in said
    assert not (tmp_path / "data").exists()


def test_a_place_that_can_not_be_written_in_is_wrong(checked, tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(doctor, "TemporaryFile", refuse)
    _, said = checked(tmp_path)
    assert "Read-only file system: check the permissions, or choose another place" in said


def test_a_data_folder_that_is_a_file_is_wrong(checked, tmp_path):
    (tmp_path / "file").touch()
    _, said = checked(tmp_path / "file")
    assert "WRONG  store: " in said
    assert "there is a file in place of a folder" in said


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


def test_a_server_that_takes_sessions_is_well_and_has_none_afterwards(checked, tmp_path, servers):
    for url in servers:
        assert "ok     store: 0 sessions in " in checked(tmp_path, url)[1]
        assert "ok     store: 0 sessions in " in checked(tmp_path, url)[1]


def test_a_redis_that_has_no_room_is_wrong(checked, tmp_path, redis_server):
    assert "ok     store" in checked(tmp_path, redis_server.url)[1]
    redis_server.ask("CONFIG SET maxmemory 1")
    assert "WRONG  store: " in checked(tmp_path, redis_server.url)[1]


def test_a_database_of_postgres_that_may_only_be_read_is_wrong(checked, tmp_path, postgres_url):
    assert "ok     store" in checked(tmp_path, postgres_url)[1]
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}default_transaction_read_only=on"
    assert "WRONG  store: " in checked(tmp_path, url)[1]


@pytest.mark.parametrize("is_here", [True, False])
def test_it_says_how_far_pictures_are_looked_into(checked, tmp_path, monkeypatch, is_here):
    monkeypatch.setattr(doctor, "is_pillow_here", lambda: is_here)
    _, said = checked(tmp_path)
    assert "ok     pictures: " in said
    assert ("pip install 'nanoloop-agent[pictures]'" in said) is not is_here


def test_what_a_model_lacks_is_said_as_where_one_is_asked(checked, tmp_path, capsys):
    _, said = checked(tmp_path)
    assert main(["run", "--data", str(tmp_path)]) == 3
    lacking = capsys.readouterr().err.removeprefix("nanoloop: ")
    assert " ".join(lacking.split()) in " ".join(said.split())


def test_its_former_name_still_works(checked, tmp_path, capsys):
    code, said = checked(tmp_path)
    assert main(["check", "--data", str(tmp_path)]) == code
    assert capsys.readouterr().out.splitlines()[0] == said.splitlines()[0]


def test_as_json_it_is_one_object_with_the_same_checks(checked, tmp_path, capsys):
    _, said = checked(tmp_path)
    assert main(["doctor", "--json", "--data", str(tmp_path)]) == 3
    told = json.loads(capsys.readouterr().out)
    assert told["is_well"] is False
    assert told["next"] in said
    marks = {True: "ok   ", False: "WRONG"}
    shown = [f"{marks[check['is_well']]}  {check['what']}: " for check in told["checks"]]
    assert [line in said for line in shown] == [True] * 8


def test_settings_that_are_wrong_are_told_as_json_too(checked, tmp_path, capsys):
    (tmp_path / "nanoloop.toml").write_text("modle = 'x'")
    code, said = checked(tmp_path)
    assert (code, "did you mean model?" in said) == (2, True)
    assert main(["doctor", "--json"]) == 2
    [check] = json.loads(capsys.readouterr().out)["checks"]
    assert (check["what"], check["is_well"]) == ("settings", False)


@pytest.mark.parametrize("what", ["disk", "memory"])
def test_with_hardly_any_room_it_is_not_well(checked, tmp_path, monkeypatch, what):
    monkeypatch.setattr(doctor, "LEAST_BYTES", 10**18)
    _, said = checked(tmp_path)
    assert f"WRONG  {what}: only " in said


async def test_a_model_that_says_nothing_is_not_waited_for_long(monkeypatch):
    monkeypatch.setattr(doctor, "CONNECT_SECONDS", 0.2)
    async with OpenAIServer(otherwise=Answer(held=True)) as server:
        settings = Settings(model="x", base_url=server.url)
        with anyio.fail_after(20):
            [found] = await doctor._models(settings)
    assert found == ("model", False, "x did not answer within 0 s", 1)
