"""`nanoloop config --schema` says what a settings file may hold, as nanoloop itself sees it."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from nanoloop import plugins
from nanoloop.cli import Exit, main
from nanoloop.cli.config import example, schema
from nanoloop.errors import SettingsError
from nanoloop.settings import Settings
from nanoloop.settings.keys import known_settings

ROOT = Path(__file__).parent.parent
PLATFORM = next(name for name in plugins.names("channels") if name != "web")
KEYS = [key for key, _ in known_settings(Settings)]
VALUES = (True, -1, 0, 7, 10_000, 0.5, "", "info", "http://x.example", ["a"], {}, {"a": 1})


@pytest.fixture(scope="module")
def fits():
    check = Draft202012Validator(schema())
    return check.is_valid


def taken(said, tmp_path):
    """Whether nanoloop takes these settings; each value stands alone, so none is in conflict."""
    file = tmp_path / "nanoloop.toml"
    file.write_text(toml(said))
    try:
        Settings.load(config=file, env={})
    except SettingsError:
        return False
    return True


def toml(said, above=""):
    plain = {key: value for key, value in said.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items()]
    for key, value in said.items():
        if isinstance(value, dict):
            lines += [f"[{above}{key}]", toml(value, f"{above}{key}.")]
    return "\n".join(lines)


def nested(key, value):
    for name in reversed(key.replace("providers.NAME", "providers.groq").split(".")):
        value = {PLATFORM if name == "NAME" else name: value}
    return value


def test_it_is_a_schema_and_is_printed_as_json(capsys):
    assert main(["config", "--schema"]) == Exit.DONE
    said = json.loads(capsys.readouterr().out)
    Draft202012Validator.check_schema(said)
    assert said["properties"]["model"]["description"].startswith("The model that answers")
    assert "(seconds)" in json.dumps(said)


def test_it_takes_every_example(fits):
    every = re.sub(r"^#(?! |$)", "", example(), flags=re.MULTILINE)
    texts = [every.replace("channels.NAME", f"channels.{PLATFORM}")]
    texts += [path.read_text() for path in (ROOT / "config").glob("*.example.toml")]
    assert len(texts) > 1
    for text in texts:
        assert fits(tomllib.loads(text)), text


@pytest.mark.parametrize(
    "said",
    [
        {"modle": "x"},
        {"log": {"level": "loud"}},
        {"channels": {"telegraph": {"enabled": True}}},
        {"providers": {"grok": {"api_key": "x"}}},
        {"agents": {"cook": {"promt": "x"}}},
        {"message_buffer_min": "seven"},
    ],
)
def test_it_refuses_what_nanoloop_refuses(fits, said, tmp_path):
    assert not taken(said, tmp_path)
    assert not fits(said)


@given(st.sampled_from(KEYS), st.sampled_from(VALUES))
def test_what_nanoloop_takes_it_takes_too(tmp_path_factory, fits, key, value):
    said = nested(key, value)
    if taken(said, tmp_path_factory.mktemp("settings")):
        assert fits(said), said
