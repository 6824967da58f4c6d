"""The keys file: keys are there before they are used, and gone once they are destroyed."""

import stat
from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event

import pytest
from cryptography.fernet import Fernet

from nanoloop.errors import DiskRefused, FileRefused, NotReadable
from nanoloop.files import waited_lock
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.keys import KeyDestroyed, KeysWanted

KEY, NEW = (Fernet.generate_key().decode() for _ in range(2))
PLACE = b"here, for a-1 and b-1"


@pytest.fixture
def opened(tmp_path):
    """Open the file as another process does."""

    def opened(keys=KEY):
        keys_file = KeySeal(keys, keys_file=tmp_path / "keys" / "store.keys").keys_file
        keys_file.begin()
        return keys_file

    return opened


def test_what_was_sealed_opens_until_one_of_its_keys_is_destroyed(opened):
    keys = opened()
    keys.add(["a-1", "b-1"])
    one, both = (keys.seal(names, b"said", PLACE) for names in (["a-1"], ["a-1", "b-1"]))
    assert keys.open(both, PLACE) == b"said"
    keys.destroy(["b-1"], now=7)
    assert keys.open(one, PLACE) == b"said"
    assert (keys.gone_at("b-1"), keys.gone_at("a-1")) == (7, None)
    for each in (keys, opened()):
        with pytest.raises(KeyDestroyed):
            each.open(both, PLACE)


def test_it_opens_nowhere_else_and_not_with_another_key(opened):
    keys = opened()
    keys.add(["a-1", "b-1"])
    sealed = keys.seal(["a-1"], b"said", PLACE)
    for text, place in [(sealed, b"there"), (sealed.replace("a-1", "b-1"), PLACE), ("n3.x", PLACE)]:
        with pytest.raises(ValueError, match=r".*"):
            keys.open(text, place)


def test_a_destroyed_key_makes_nothing_look_erased_where_it_never_sealed_anything(opened):
    keys = opened()
    keys.add(["a-1", "c-1"])
    sealed = keys.seal(["a-1"], b"said", PLACE)
    keys.destroy(["c-1"])
    with pytest.raises(ValueError, match="was not encrypted for this place"):
        keys.open(sealed.replace("a-1", "c-1"), PLACE)


def test_a_key_is_on_the_disk_before_anything_is_sealed_with_it(opened, monkeypatch):
    keys, synced = opened(), []
    monkeypatch.setattr("nanoloop.stores.keys.os.fsync", synced.append)
    with pytest.raises(KeysWanted) as wanted:
        keys.seal(["a-1"], b"said", PLACE)
    keys.add(wanted.value.names)
    assert len(synced) == 1
    assert opened().open(keys.seal(["a-1"], b"said", PLACE), PLACE) == b"said"


def test_what_another_process_adds_and_destroys_is_noticed(opened):
    one, other = opened(), opened()
    one.add(["a-1"])
    sealed = one.seal(["a-1"], b"said", PLACE)
    assert other.open(sealed, PLACE) == b"said"
    other.add(["a-2"])
    assert one.missing(["a-1", "a-2"]) == []
    other.destroy(["a-1"])
    one.refresh()
    with pytest.raises(KeyDestroyed):
        one.open(sealed, PLACE)
    with pytest.raises(KeyDestroyed):  # it is gone for good
        one.add(["a-1"])
    assert opened().missing(["a-1"]) == ["a-1"]


def test_a_destroyed_key_is_in_no_file_of_the_folder(opened):
    keys = opened()
    keys.add(["a-1", "b-1", "b-2"])
    lines = {line.split()[0]: line.split()[1] for line in keys.path.read_bytes().splitlines()[1:]}
    keys.destroy(["a-1"], all_of={"b": "a note"})
    there = b"".join(path.read_bytes() for path in keys.path.parent.iterdir())
    assert not any(token in there for token in lines.values())
    assert (keys.unsettled(), opened().unsettled()) == ({"b": "a note"}, {"b": "a note"})
    assert b"a note" not in there
    keys.settle(["b"])
    assert opened().unsettled() == {}
    assert opened().is_gone("b-7")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_line_that_a_kill_cut_off_is_mended_and_was_never_a_key(opened, cut):
    keys = opened()
    keys.add(["a-1"])
    whole = keys.path.read_bytes()
    line = keys.path.read_bytes().splitlines(keepends=True)[-1].replace(b"a-1", b"a-2")
    keys.path.write_bytes(whole + line[:cut])
    after = opened()
    assert after.missing(["a-1", "a-2"]) == ["a-2"]
    after.add(["a-2", "a-3"])
    assert opened().missing(["a-1", "a-2", "a-3"]) == []
    assert keys.missing(["a-1", "a-2", "a-3"]) == []


def test_many_at_once_lose_no_key_of_each_other(opened):
    with ThreadPoolExecutor(6) as pool:
        files = [opened() for _ in range(6)]
        for number in range(5):
            list(pool.map(lambda n: files[n].add([f"s{n}-{number}"]), range(6)))  # noqa: B023
        list(pool.map(lambda n: files[n].destroy([f"s{n}-0"]), range(6)))
    names = [f"s{n}-{number}" for n in range(6) for number in range(5)]
    assert sorted(opened().missing(names)) == sorted(f"s{n}-0" for n in range(6))


def test_another_master_key_wraps_all_keys_anew(opened):
    keys = opened()
    keys.add(["a-1"])
    keys.destroy(all_of={"b": "a note"})
    sealed = keys.seal(["a-1"], b"said", PLACE)
    opened(f"{NEW},{KEY}").rewrap()
    assert opened(NEW).open(sealed, PLACE) == b"said"
    assert opened(NEW).unsettled() == {"b": "a note"}
    with pytest.raises(NotReadable, match="append the key"):
        opened(KEY).open(sealed, PLACE)


def test_it_is_private_and_a_link_in_its_place_is_refused(opened, tmp_path):
    keys = opened()
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(keys.path.parent.stat().st_mode) == 0o700
    keys.path.rename(tmp_path / "elsewhere")
    keys.path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileRefused, match="is a link"):
        opened()


def test_the_keys_of_another_store_are_refused_in_place_of_ones_own(opened, tmp_path):
    keys = opened()
    keys.add(["a-1"])
    other = KeySeal(KEY, keys_file=tmp_path / "other.keys").keys_file
    other.begin()
    other.path.replace(keys.path)
    for act in (keys.refresh, lambda: keys.add(["a-2"])):
        with pytest.raises(NotReadable, match="was replaced by that of another store"):
            act()


def test_to_destroy_a_key_while_the_file_is_away_is_refused(opened, tmp_path):
    keys = opened()
    keys.add(["a-1"])
    keys.path.rename(tmp_path / "away")
    for destroyed in ({"names": ["a-1"]}, {"all_of": {"a": ""}}):
        with pytest.raises(NotReadable, match="is gone: restore it"):
            keys.destroy(**destroyed)


def test_what_another_process_added_is_on_the_disk_before_it_is_used(opened, monkeypatch):
    keys, other, synced = opened(), opened(), []
    with monkeypatch.context() as patched:  # as if it was killed right before
        patched.setattr("nanoloop.stores.keys.os.fsync", lambda _: None)
        other.add(["a-1"])
    monkeypatch.setattr("nanoloop.stores.keys.os.fsync", synced.append)
    assert keys.missing(["a-1"]) == []
    assert len(synced) == 1
    assert keys.missing(["a-1"]) == []
    assert len(synced) == 1


def test_who_reads_does_not_wait_for_who_waits_to_change_the_file(opened, monkeypatch):
    keys, waits = opened(), Event()
    keys.add(["a-1"])
    sealed = keys.seal(["a-1"], b"said", PLACE)
    keys = opened()
    monkeypatch.setattr("nanoloop.files.time.sleep", lambda _: waits.set())
    with ThreadPoolExecutor(2) as pool:
        with waited_lock(keys.path.with_name(f"{keys.path.name}.lock")):  # another process has it
            adding = pool.submit(keys.add, ["b-1"])
            waits.wait()
            reading = pool.submit(keys.open, sealed, PLACE)
            wait([reading, adding], return_when="FIRST_COMPLETED")
            assert (reading.done(), adding.done()) == (True, False)
        adding.result()
    assert opened().missing(["a-1", "b-1"]) == []


def test_an_older_copy_that_is_put_back_is_read_as_it_is(opened, tmp_path):
    keys, other = opened(), opened()
    keys.add(["a-1"])
    older, newest = tmp_path / "older", tmp_path / "newest"
    older.write_bytes(keys.path.read_bytes())
    keys.add(["a-2"])
    other.add(["a-3"])
    newest.write_bytes(keys.path.read_bytes())
    older.replace(keys.path)
    assert keys.missing(["a-1", "a-2"]) == ["a-2"]
    with pytest.raises(NotReadable, match="restore the newest version of the keys file"):
        keys.check_has("a-2")
    opened().add(["a-4", "a-5"])
    for each in (keys, other, opened()):
        assert each.missing(["a-1", "a-2", "a-3", "a-4", "a-5"]) == ["a-2", "a-3"]
        each.add(["a-6"])
    newest.replace(keys.path)
    assert other.missing(["a-1", "a-2", "a-3", "a-4"]) == ["a-4"]


def test_a_file_that_cannot_be_read_is_refused_in_a_sentence(opened):
    keys = opened()
    keys.path.unlink()
    keys.path.mkdir()
    for act in (keys.refresh, lambda: keys.add(["a-1"])):
        with pytest.raises(DiskRefused, match="there is a folder in place of the file"):
            act()
