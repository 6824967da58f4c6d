"""Files that say nothing without their key, and what happens with another one, or with several."""

import json
import subprocess
import sys

import pytest
from cryptography.fernet import Fernet

from nanoloop.errors import NotReadable, SettingsError
from nanoloop.parts import make_store
from nanoloop.session.entry import Entry
from nanoloop.settings import Settings
from nanoloop.stores.copying import seal_all
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.jsonl.store import JsonlStore

OLD, NEW = (Fernet.generate_key().decode() for _ in range(2))


@pytest.fixture
def opened(tmp_path):
    """Open the one folder with these keys, or with none."""
    return lambda keys=None: JsonlStore(tmp_path, seal=KeySeal(keys) if keys else None)


async def confide(store, text="a secret", **more):
    """A session that has this text wherever one can be."""
    session = await store.create(id="s", key="tg:1", metadata={"who": text}, **more)
    session.add_entry(Entry.message("user", text, metadata={"sender": text, "message_id": "7"}))
    session.add_entry(Entry.tool_call("look", {"what": text}, call_id="1"))
    session.add_entry(Entry.tool_result("look", None, text, call_id="1"))
    session.set("told", text)
    session.title = session.memo = text
    session.settings.set("session.memo.instructions", text)
    session.update_summary(text)
    await store.save(session)
    return session


async def reopened(store, opening):
    await store.close()
    return opening


def everything(folder):
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


async def test_b2_7_no_word_stands_plain_in_any_file(opened, tmp_path):
    store = opened(OLD)
    session = await confide(store)
    session.current_chat_history = [{"role": "system", "content": "a secret of no log"}]
    session.title = "another secret"  # the first line is rewritten in place
    await store.save(session)
    assert b"secret" not in everything(tmp_path)
    assert b"look" not in everything(tmp_path)


async def test_b2_7_all_of_it_comes_back(opened):
    store = opened(OLD)
    session = await confide(store)
    session.current_chat_history = [{"role": "system", "content": "of no log"}]
    await store.save(session)
    again = await reopened(store, opened(OLD))
    for back in (await again.get("s"), await again.load("s")):
        assert (back.title, back.summary, back.memo) == ("a secret",) * 3
        assert (back.state, back.metadata) == ({"told": "a secret"}, {"who": "a secret"})
        assert back.settings.get("session.memo.instructions") == "a secret"
        assert back.messages == [{"role": "system", "content": "of no log"}]
    assert [e.to_dict() for e in await again.entries("s")] == [
        e.to_dict() for e in reversed((await again.get("s")).history())
    ]
    await again.close()


async def test_b2_7_ids_numbers_types_and_times_stay_readable(opened, tmp_path):
    store = opened(OLD)
    session = await confide(store)
    lines = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    entry = next(line for line in lines if line["_type"] == "entry")
    kept = session.window[0].to_dict()
    assert {k: entry[k] for k in ("id", "type", "timestamp")} == {
        k: kept[k] for k in ("id", "type", "timestamp")
    }
    assert (entry["seq"], lines[0]["id"], lines[0]["key"]) == (1, "s", "tg:1")
    await store.close()


@pytest.mark.parametrize(
    ("keys", "says"),
    [(None, "NANOLOOP_STORE__ENCRYPTION_KEY"), (NEW, "append that key")],
    ids=["no key", "another"],
)
async def test_b2_7_without_the_key_nothing_is_opened(opened, keys, says):
    store = opened(OLD)
    await confide(store)
    other = await reopened(store, opened(keys))
    for read in (other.get, other.load, other.entries):
        with pytest.raises(NotReadable, match=says):
            await read("s")
    with pytest.raises(NotReadable, match=says):
        await other.create(id="t")
    with pytest.raises(NotReadable, match=says):
        [info async for info in other.list()]
    await other.close()


async def test_b2_7_a_key_that_comes_later_seals_what_comes_later(opened, tmp_path):
    plain = opened()
    session = await confide(plain, "plain words")
    sealed = await reopened(plain, opened(OLD))
    session = await sealed.load("s")
    session.add_message("user", "a secret")
    session.update_summary("a secret too")
    await sealed.save(session)
    back = await sealed.get("s")
    assert [e.content.get("text") for e in back.history()][::3] == ["a secret", "plain words"]
    assert (back.summary, back.title) == ("a secret too", "plain words")
    assert b"secret" not in everything(tmp_path)
    first = (tmp_path / "s.jsonl").read_bytes().splitlines()[0]
    assert json.loads(first)["summary"] == ""
    await sealed.close()


async def test_b2_7_of_several_keys_the_first_seals_and_each_opens(opened):
    store = opened(OLD)
    await confide(store)
    both = await reopened(store, opened(f"{NEW}, {OLD}"))
    session = await both.load("s")
    session.add_message("user", "newer")
    await both.save(session)
    await both.create(id="t", metadata={"of": "the new key"})
    new = await reopened(both, opened(NEW))
    with pytest.raises(NotReadable, match="append that key"):
        await new.load("t")
    both = await reopened(new, opened(f"{NEW}, {OLD}"))
    assert (await seal_all(both)).copied == 1
    new = await reopened(both, opened(NEW))
    assert (await new.load("t")).metadata == {"of": "the new key"}
    assert (await new.get("s")).summary == "a secret"
    await new.close()


async def test_b2_7_the_key_comes_from_the_settings(tmp_path):
    env = {"NANOLOOP_STORE__ENCRYPTION_KEY": OLD, "NANOLOOP_DATA": str(tmp_path)}
    settings = Settings.load(env=env, cwd=tmp_path)
    assert OLD not in repr(settings)
    store = make_store(settings)
    await confide(store)
    assert b"secret" not in everything(tmp_path)
    await store.close()


def test_b2_7_what_is_no_key_is_refused_and_not_repeated():
    with pytest.raises(SettingsError, match="generate one with") as refused:
        KeySeal("hunter2")
    assert "hunter2" not in str(refused.value)


def test_b2_7_without_the_package_the_extra_is_named():
    code = """
import sys
sys.modules["cryptography.fernet"] = None
from nanoloop.errors import SettingsError
try:
    import nanoloop.stores.encryption
except SettingsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'nanoloop-agent[encrypt]'" in done.stdout
