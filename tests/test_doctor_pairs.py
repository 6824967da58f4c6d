"""Settings that make `nanoloop run` fail make `nanoloop doctor` fail with the same sentence."""

import json
import os
import socket
from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoloop.cli import Exit, main
from nanoloop.settings import Settings
from nanoloop.settings.keys import known_settings
from tests.openai_server import OpenAIServer

SERVES = {"channels.web.enabled"}
"""What would make `run` serve, for ever."""
KEYS = [key for key, _ in known_settings(Settings) if key not in SERVES and "NAME" not in key]
VALUES = (True, -1, 0, 7, 10_000, 0.5, "", "info", "http://x.example", "memory:", ["a"], {"a": 1})

WEB = "\n[channels.web]\nenabled = true\nport = 0"
"""Something to serve, so that the store is opened."""
ALONE = {
    "a key that there is none of": 'modle = "x"',
    "a broken file": "model = ",
    "two in conflict": "message_buffer_min = 60\nmessage_buffer_limit = 50",
    "several that are wrong": 'message_buffer_min = "x"\n[log]\nlevel = "loud"',
    "a summary model without a key": 'summary_model = "xai:grok"',
    "a model without a key": 'model = "groq:a"',
    "no such vendor": 'model = "grok:a"',
    "no such local model": 'model = "local:nothing-there"',
    "no such file": 'model = "/nowhere/my.gguf"',
    "no such tool": '[agents.cook]\ntools = ["hammer"]',
    "no such agent": '[channels.terminal]\nagent = "cook"',
    "no such platform": '[channels.telegraph]\nusers = ["1"]',
    "no such module": '[channels]\ntranscribe = "no_such_module:words"',
    "no such function": '[channels]\ntranscribe = "json:words"',
    "no place to write": '[store]\nurl = "sqlite:/proc/here/bot.db"' + WEB,
    "no place for files": '[store]\nurl = "jsonl:/proc/here"' + WEB,
    "a file above a folder": 'data = "nanoloop.toml/data"' + WEB,
    "a file above files": 'data = "nanoloop.toml"\n[store]\nurl = "jsonl:"' + WEB,
    "no such database": '[store]\nurl = "redis://127.0.0.1:9"\ntimeout_seconds = 0.1' + WEB,
    "no such server": '[store]\nurl = "postgresql://127.0.0.1:9/bot"\ntimeout_seconds = 0.1' + WEB,
    "no such store": '[store]\nurl = "mongodb://host"' + WEB,
    "a wrong key": '[store]\nencryption_key = "short"' + WEB,
    "a file for a folder": 'data = "nanoloop.toml"' + WEB,
    "an open door": '[channels.web]\nenabled = true\nhost = "0.0.0.0"',
    "a taken port": "[channels.web]\nenabled = true\nport = {port}",
    "nothing to serve": "",
    "nobody at the terminal": "[channels.terminal]\nenabled = false",
}


@pytest.fixture(scope="module")
def url():
    """A model that answers, in a thread of its own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(OpenAIServer(otherwise="ok")) as server,
    ):
        yield server.url


@pytest.fixture
def world(tmp_path, monkeypatch, url):
    """An empty home, in which nothing but the settings file says anything."""
    for name in [name for name in os.environ if name.startswith(("NANOLOOP_", "OPENAI_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("NANOLOOP_CONFIG", "nanoloop.toml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def toml(key, value):
    *tables, name = key.split(".")
    said = "{a = 1}" if isinstance(value, dict) else json.dumps(value)
    return "\n".join(([f"[{'.'.join(tables)}]"] if tables else []) + [f"{name} = {said}"])


def failing_alike(capsys, text):
    """Run both; neither goes well, and what the one says the other says too."""
    Path("nanoloop.toml").write_text(text)
    code = main(["run"])
    *_, said = capsys.readouterr()
    assert code != Exit.DONE
    assert said
    doctors_code = main(["doctor"])
    shown, err = capsys.readouterr()
    assert doctors_code != Exit.DONE, said
    for line in said.splitlines():
        assert line.removeprefix("nanoloop: ") in shown, (text, shown, err)
    assert "next: " in shown


@pytest.mark.parametrize("case", ALONE)
def test_what_stops_the_daemon_is_what_the_doctor_says(world, capsys, case):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failing_alike(capsys, ALONE[case].replace("{port}", port))


def test_whether_a_port_is_free_is_seen_and_it_stays_so(world, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    Path("nanoloop.toml").write_text(f"[channels.web]\nenabled = true\nport = {port}")
    for _ in range(2):
        assert main(["doctor"]) == Exit.DONE
        said = capsys.readouterr().out
        assert f"ok     web: it can listen on http://127.0.0.1:{port}; a token is needed" in said
        assert not [*Path().rglob("web-token")]
    assert said.splitlines()[-1].startswith("next: `nanoloop run` serves now")


@given(st.sampled_from(KEYS), st.sampled_from(VALUES))
@settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True
)
def test_so_it_is_with_any_value_of_any_setting(world, capsys, key, value):
    failing_alike(capsys, toml(key, value))


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), min_size=1, max_size=3))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_so_it_is_with_several_at_once(world, capsys, pairs):
    failing_alike(
        capsys,
        "\n".join(
            f"{key} = {toml(key, value).rpartition(' = ')[2]}" for key, value in dict(pairs).items()
        ),
    )
