"""The settings of the web: there without being named, and told of like any other."""

import pytest

from nanoloop.cli import main
from nanoloop.errors import SettingsError
from nanoloop.settings import Settings
from tests.web_server import TOKEN


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NANOLOOP_CONFIG", "nanoloop.toml")
    monkeypatch.setenv("HOME", str(tmp_path))

    def load(text="", **env):
        (tmp_path / "nanoloop.toml").write_text(text)
        return Settings.load(config="nanoloop.toml", env={"HOME": str(tmp_path)} | env)

    return load


def test_its_table_is_there_where_nothing_is_said_of_it(load):
    assert load().channels.of("web").port == 8765
    assert load("[channels.terminal]\nenabled = false").channels.of("web").port == 8765


def test_what_is_said_of_it_is_told_with_its_place(load):
    settings = load("\nchannels.web.port = 1", NANOLOOP_CHANNELS__WEB__HOST="::1")
    web = settings.channels.of("web")
    assert (web.host, web.port) == ("::1", 1)
    assert str(settings.origin("channels.web.host")) == "env NANOLOOP_CHANNELS__WEB__HOST"
    assert str(settings.origin("channels.web.port")).endswith("nanoloop.toml:2")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("web.port = 99999", "1: channels.web.port is 99999, more than 65535: lower it"),
        ("web.prt = 1", "1: channels.web.prt is 1, but there is no such setting"),
        ("web.prt = 1", "did you mean channels.web.port?"),
        ("web.trusted_proxies = ['p.example']", "'p.example' is not an address: write 10.0.0.7 or"),
        ("wbe.port = 1", "channels.wbe is not a channel: did you mean channels.web?"),
        ("web.tokens.ann.tokn = 'x'", "did you mean channels.web.tokens.ann.token?"),
    ],
)
def test_what_is_wrong_with_it_is_told_as_of_any(load, text, told):
    with pytest.raises(SettingsError) as caught:
        load(f"channels.{text}")
    assert told in str(caught.value)


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_config_shows_all_of_it_with_tokens_masked(load, capsys, flags):
    load(f"channels.web.tokens.ann.token = '{TOKEN}'")
    assert main(["config", *flags]) == 0
    out = capsys.readouterr().out
    assert "channels.web.requests_per_minute" in out
    assert "channels.web.tokens.ann.token" in out
    assert TOKEN not in out
