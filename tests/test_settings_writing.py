"""Saying more in the user's settings file: everything else in it stays."""

import stat
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import SettingsError
from nanoloop.settings.files import with_settings, write

OWN = """\
# my bot
message_buffer_min = 7

[log]
level = "debug" # for now
"""


def test_what_was_there_stays_word_for_word():
    after = with_settings(OWN, {"model": "local:tiny"})
    assert after.endswith(OWN)
    assert tomllib.loads(after) == tomllib.loads(OWN) | {"model": "local:tiny"}


def test_a_setting_that_was_there_is_said_anew_in_its_place():
    after = with_settings(f'model = "old"\n{OWN}', {"model": "new"})
    assert after == f'model = "new"\n{OWN}'


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x7f")))
def test_any_value_is_read_as_it_was_written(value):
    assert tomllib.loads(with_settings(OWN, {"model": value}))["model"] == value


@pytest.mark.parametrize("text", ["not toml", 'model = """\nover\nlines"""\n'])
def test_a_file_that_is_not_understood_is_left_as_it_is(tmp_path, text):
    file = tmp_path / "nanoloop.toml"
    file.write_text(text)
    with pytest.raises(SettingsError, match="model"):
        write(file, {"model": "x"})
    assert file.read_text() == text


def test_a_file_with_a_key_is_for_its_owner_and_others_keep_their_mode(tmp_path):
    file = tmp_path / "new" / "nanoloop.toml"
    write(file, {"api_key": "secret"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.write_text(OWN)
    file.chmod(0o644)
    write(file, {"model": "x"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    write(file, {"api_key": "secret"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_stays_one(tmp_path):
    (tmp_path / "kept.toml").write_text(OWN)
    (tmp_path / "nanoloop.toml").symlink_to("kept.toml")
    write(tmp_path / "nanoloop.toml", {"model": "x"})
    assert (tmp_path / "nanoloop.toml").is_symlink()
    assert 'model = "x"' in (tmp_path / "kept.toml").read_text()


@pytest.mark.parametrize(
    "text",
    [
        "",
        OWN,
        "[providers.groq]",
        "[providers.groq] # fast\nbase_url = 'http://x/v1'\n",
        "[providers.groq]\napi_key = 'old'\n",
        "providers.groq.api_key = 'old'\n",
        "providers.groq.base_url = 'http://x/v1'\n",
        "[providers.mistral]\napi_key = 'theirs'\n",
    ],
)
def test_a_setting_of_a_table_is_said_where_the_table_is_or_above_all(text):
    said = tomllib.loads(with_settings(text, {"providers.groq.api_key": "k", "model": "m"}))
    before = tomllib.loads(text)
    groq = before.get("providers", {}).get("groq", {})
    assert said.pop("providers") == before.pop("providers", {}) | {"groq": groq | {"api_key": "k"}}
    assert said == before | {"model": "m"}


def test_a_file_with_a_vendors_key_is_for_its_owner(tmp_path):
    file = tmp_path / "nanoloop.toml"
    file.write_text(OWN)
    write(file, {"providers.groq.api_key": "secret"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
