"""How settings name a model on this machine, and what goes with it."""

from pathlib import Path

import pytest

from nanoloop.models.catalogue import file_of, is_local
from nanoloop.settings import Settings


def load(tmp_path, text="", **env):
    file = tmp_path / "nanoloop.toml"
    file.write_text(text)
    return Settings.load(config=file, env={"HOME": str(tmp_path)} | env)


@pytest.mark.parametrize("name", ["local:tiny", "/srv/models/big.gguf", "~/big.gguf"])
def test_a_name_with_local_or_the_path_of_a_file_means_this_machine(name):
    assert is_local(name)


@pytest.mark.parametrize("name", ["qwen3:4b", "gpt-5.4-mini", "localhost", "a/b"])
def test_other_names_are_a_servers(name):
    assert not is_local(name)


def test_a_name_is_a_file_in_the_folder_and_a_path_is_itself():
    assert file_of("local:tiny", Path("/srv")) == Path("/srv/tiny.gguf")
    assert file_of("/elsewhere/big.gguf", Path("/srv")) == Path("/elsewhere/big.gguf")
    assert file_of("~/big.gguf", Path("/srv")) == Path.home() / "big.gguf"


def test_a_local_model_needs_neither_key_nor_server(tmp_path):
    assert not load(tmp_path).has_model
    assert load(tmp_path, 'model = "local:tiny"').has_model


def test_models_lie_beside_the_users_data_or_where_one_says(tmp_path):
    assert load(tmp_path).models == tmp_path / ".local/share/nanoloop/models"
    assert load(tmp_path, NANOLOOP_DATA="/bot").models == tmp_path / ".local/share/nanoloop/models"
    assert load(tmp_path, NANOLOOP_MODELS="/srv").models == Path("/srv")


def test_the_hubs_address_may_come_from_the_variable_that_others_read(tmp_path):
    assert load(tmp_path, HF_ENDPOINT="http://hub.example/").local.hub == "http://hub.example"


def test_it_may_summarise_what_it_said_itself(tmp_path):
    text = 'model = "local:tiny"\nsummary_model = "local:tiny"'
    assert load(tmp_path, text).summary_model == "local:tiny"
