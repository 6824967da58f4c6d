"""One URL says where sessions last; what is no such URL is refused with the forms there are."""

import pytest

from nanoloop.errors import SettingsError
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.opening import Opening
from nanoloop.stores.place import default_url, parts
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("memory:", ("memory", "")),
        ("jsonl:", ("jsonl", "")),
        ("jsonl:/var/lib/bot", ("jsonl", "/var/lib/bot")),
        ("sqlite:bot.db", ("sqlite", "bot.db")),
        ("redis://localhost", ("redis", "//localhost")),
        ("redis+cluster://a:1", ("redis+cluster", "//a:1")),
        ("unix:///run/redis.sock", ("unix", "///run/redis.sock")),
        ("postgresql://bot:pw@db/bot", ("postgresql", "//bot:pw@db/bot")),
        ("postgresql:///bot", ("postgresql", "///bot")),
    ],
)
def test_a_url_says_kind_and_place(url, said):
    assert parts(url) == said


@pytest.mark.parametrize(
    "url",
    [
        "",
        "memory",
        "memory:x",
        "mysql://db",
        "redis:",
        "redis://",
        "redis:localhost",
        "/tmp/x",
        ":",
    ],
)
def test_anything_else_is_refused(url):
    with pytest.raises(ValueError, match=r"sqlite:FILE"):
        parts(url)


def test_a_wrong_one_in_the_settings_is_refused_without_its_password(tmp_path):
    env = {"NANOLOOP_STORE__URL": "mysql://me:secret@db/x"}
    with pytest.raises(SettingsError, match=r"not a store: write memory:") as refused:
        Settings.load(env=env, cwd=tmp_path)
    assert "secret" not in str(refused.value)


def test_each_url_opens_its_store(tmp_path):
    opening = Opening(data=tmp_path)
    assert isinstance(opening.open("memory:"), InMemoryStore)
    assert isinstance(opening.open("jsonl:"), JsonlStore)
    assert isinstance(opening.open("sqlite:"), SqliteStore)
    assert isinstance(opening.open("redis://localhost"), RedisStore)
    assert isinstance(opening.open("postgresql:///bot"), PostgresStore)
    assert list(tmp_path.iterdir()) == []  # nothing is touched before it is used


def test_files_that_are_there_stay_the_store(tmp_path):
    (tmp_path / "sessions").mkdir()
    (tmp_path / "sessions" / "a.jsonl").touch()
    assert default_url(tmp_path) == "jsonl:"
    (tmp_path / "sessions.sqlite").touch()
    assert default_url(tmp_path) == "sqlite:"
