"""`files.py`: small files are whole, and for their owner only."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from nanoloop.errors import FileRefused
from nanoloop.files import KEY_FILE, own_key, replace_file, save_json


def test_a_small_value_has_a_file_that_only_its_owner_reads(tmp_path):
    file = tmp_path / "data" / "channels" / "place.json"
    save_json(file, {"since": "s1"})
    assert json.loads(file.read_text()) == {"since": "s1"}
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_what_was_in_the_file_stays_if_the_new_can_not_be_written(tmp_path):
    file = tmp_path / "place.json"
    save_json(file, ["old"])
    (tmp_path / "place.json.new").mkdir()
    with pytest.raises(IsADirectoryError):
        save_json(file, ["new"])
    assert json.loads(file.read_text()) == ["old"]


def pieces(*, then):
    yield b"ha"
    then()


def test_a_half_that_can_not_be_made_whole_is_not_left_there(tmp_path):
    file = tmp_path / "place.json"
    with pytest.raises(ZeroDivisionError):
        replace_file(file, pieces(then=lambda: 1 / 0), durable=False)
    assert list(tmp_path.iterdir()) == []


def test_several_may_replace_a_shared_file_at_once_and_the_last_one_counts(tmp_path):
    file = tmp_path / "place.json"

    def meanwhile():
        replace_file(file, b"whole", durable=False)

    replace_file(file, pieces(then=meanwhile), durable=False)
    assert file.read_bytes() == b"ha"
    assert list(tmp_path.iterdir()) == [file]


def test_one_that_was_cut_short_by_a_kill_is_in_no_ones_way(tmp_path):
    file = tmp_path / "place.json"
    (tmp_path / "place.json.new").write_text('["ha')
    save_json(file, ["whole"])
    assert [found.name for found in tmp_path.iterdir()] == ["place.json"]


def test_a_data_folder_has_one_secret_key_that_only_its_owner_reads(tmp_path):
    folder = tmp_path / "data"
    key = own_key(folder)
    assert len(key) == 32
    assert own_key(folder) == key != own_key(tmp_path / "other")
    assert (folder / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [found.name for found in folder.iterdir()] == [KEY_FILE]


def test_all_who_ask_at_once_for_a_folders_key_get_the_same(tmp_path):
    with ThreadPoolExecutor(16) as pool:
        keys = set(pool.map(lambda _: own_key(tmp_path / "data"), range(64)))
    assert len(keys) == 1


def test_a_key_that_was_cut_short_is_made_anew(tmp_path):
    (tmp_path / KEY_FILE).write_bytes(b"half")
    key = own_key(tmp_path)
    assert len(key) == 32
    assert own_key(tmp_path) == key


def test_a_link_in_the_place_of_a_folders_key_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(bytes(32))
    (tmp_path / KEY_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileRefused, match=r"own\.key is a link"):
        own_key(tmp_path)
    assert (tmp_path / "elsewhere").read_bytes() == bytes(32)
