"""The files of messages that were taken: once each, though a process is killed in between."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nanoloop.errors import AlreadyHeard, StoreError
from nanoloop.files import locked_file
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.stores.database import HEARD_SECONDS, HeardMessage
from nanoloop.stores.jsonl import heard, journal, log_file
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.testing.stores.stage import SetClock
from tests.test_stores import SEAL

BEFORE = Path(__file__).parent / "formats" / "jsonl_1"


@pytest.fixture
async def store(tmp_path):
    opened = JsonlStore(tmp_path, busy_seconds=0.2)
    yield opened
    await opened.close()


@pytest.fixture
async def other(tmp_path):
    """Another process, as far as files go."""
    opened = JsonlStore(tmp_path, busy_seconds=0.2)
    yield opened
    await opened.close()


class Killed(Exception):
    """The process ends here."""


async def takes(store, name, message, chat="chat"):
    """Have a session, a new one if need be, take a message; returns what came of it."""
    try:
        session = await store.load(name)
    except KeyError:
        session = await store.create(id=name)
    session.add_message("user", message)
    session.hear(chat, message)
    try:
        await store.save(session)
    except AlreadyHeard:
        return "repeated"
    return "kept"


def file_of(folder, chat="chat"):
    return folder / "heard" / f"{chat}.jsonl"


@contextmanager
def killed_before(module, name):
    """Have the process end where this would be called."""

    def killed(*_, **__):
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, killed)
        with pytest.raises(Killed):
            yield


KILLS = {
    "commit": (log_file, "write_all"),
    "insert": (journal, "replace_file"),
    "erase": (journal, "replace_file"),
}


@pytest.mark.parametrize("is_made", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("how", KILLS)
async def test_a_kill_between_the_two_writes_neither_loses_nor_doubles(
    store, other, tmp_path, how, is_made
):
    await takes(store, "s", "m0")
    session = Session(id="new") if how == "insert" else await store.load("s")
    session.add_message("user", "m1")
    session.hear("chat", "m1")
    act = {"commit": store.save, "insert": store.add, "erase": lambda it: store.erase(it, [1])}
    with killed_before(*((heard.HeardFiles, "_end") if is_made else KILLS[how])):
        await act[how](session)
    assert not file_of(tmp_path).read_bytes().endswith(b"\n")
    assert await other.has_heard("chat", "m1") == is_made
    assert [each.id async for each in other.heard()] == ["m0", "m1"][: 1 + is_made]
    assert await takes(other, "t", "m1") == ("repeated" if is_made else "kept")
    assert file_of(tmp_path).read_bytes().endswith(b"\n")
    assert await other.has_heard("chat", "m1")


@pytest.mark.parametrize("act", ["another commit", "a replacement", "an erasure", "a removal"])
async def test_what_a_killed_process_took_is_known_whatever_happens_to_its_session(
    store, other, act
):
    assert await takes(store, "s", "m0") == "kept"
    with killed_before(heard.HeardFiles, "_end"):
        await takes(store, "s", "m1")
    session = await other.load("s")
    if act == "another commit":
        session.set("k", "v")
        await other.save(session)
    elif act == "a replacement":
        await other.create(id="s", replace=True)
    elif act == "an erasure":
        await other.erase(session, [1])
    else:
        await other.delete("s")
    assert await takes(other, "t", "m1") == "repeated"


async def test_what_a_killed_process_took_is_known_after_its_session_expired(tmp_path, monkeypatch):
    clock = SetClock()
    store = JsonlStore(tmp_path, clock=clock)
    await store.create(id="s", ttl=10)
    await takes(store, "s", "m0")
    with killed_before(heard.HeardFiles, "_end"):
        await takes(store, "s", "m1")
    clock.advance(11)
    assert await store.delete_expired() == 1
    assert await takes(store, "t", "m1") == "repeated"
    await store.close()


@pytest.mark.parametrize("half", [b'{"at":1,"ids":["m', b'{"at":1,"ids":["m1"]}', b"\0\0", b"7"])
async def test_a_line_that_is_torn_takes_nothing(store, other, tmp_path, half):
    await takes(store, "s", "m0")
    with file_of(tmp_path).open("ab") as torn:
        torn.write(half)
    assert not await other.has_heard("chat", "m1")
    assert await takes(other, "s", "m1") == "kept"
    assert [each.id async for each in store.heard()] == ["m0", "m1"]


async def test_a_file_that_is_torn_at_its_beginning_is_begun_anew(store, tmp_path):
    await store.create(id="s")
    file_of(tmp_path).parent.mkdir()
    file_of(tmp_path).write_bytes(b'{"ch')
    assert await takes(store, "s", "m1") == "kept"
    assert [each.chat async for each in store.heard()] == ["chat"]


async def test_while_one_process_takes_messages_of_a_chat_no_other_does(store, tmp_path):
    await takes(store, "s", "m0")
    await takes(store, "t", "n0", chat="other")
    with locked_file(file_of(tmp_path)):
        with pytest.raises(StoreError, match="another process has locked session 's': stop it"):
            await takes(store, "s", "m1")
        with pytest.raises(StoreError, match="another process has locked messages of a chat"):
            await store.hear([HeardMessage(chat="chat", id="m2", at=1)])
        assert await store.has_heard("chat", "m0")
        assert await takes(store, "t", "n1", chat="other") == "kept"
    assert [entry.content["text"] for entry in await store.entries("s")] == ["m0"]
    assert await takes(store, "s", "m1") == "kept"


async def test_a_commit_that_the_disk_refuses_takes_nothing(store, other, tmp_path, monkeypatch):
    await takes(store, "s", "m0")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log_file, "write_all", full)
        with pytest.raises(StoreError, match="free some space"):
            await takes(store, "s", "m1")
    assert not await store.has_heard("chat", "m1")
    assert await takes(other, "t", "m1") == "kept"
    assert await takes(store, "s", "m1") == "repeated"


async def test_a_line_that_can_not_be_ended_is_ended_later(store, other, tmp_path, monkeypatch):
    await takes(store, "s", "m0")

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(heard.HeardFiles, "_end", full)
        assert await takes(store, "s", "m1") == "kept"
    session = await store.load("s")
    session.set("k", "v")
    await store.save(session)
    assert await takes(other, "t", "m1") == "repeated"


async def test_only_what_is_new_is_read(store, other, tmp_path, monkeypatch):
    at = 10**15
    await store.hear([HeardMessage(chat="chat", id=f"x{n}", at=at) for n in range(2000)])
    await takes(store, "s", "m0")
    await takes(other, "t", "n0")
    read, pread = [], os.pread
    monkeypatch.setattr(
        heard.os, "pread", lambda *a: (found := pread(*a), read.append(len(found)))[0]
    )
    before = file_of(tmp_path).stat().st_size
    await takes(other, "t", "n1")
    assert file_of(tmp_path).stat().st_size - before < 120
    await takes(store, "s", "m1")
    assert sum(read) < 20_000
    assert await takes(store, "s", "n1") == "repeated"


async def test_a_file_is_written_anew_once_most_of_it_is_obsolete(tmp_path, monkeypatch):
    monkeypatch.setattr(heard, "FEW", 5)
    clock = SetClock()
    store, other = (JsonlStore(tmp_path, clock=clock) for _ in range(2))
    for number in range(20):
        await takes(store, "s", f"old {number}")
    await takes(other, "t", "between")
    clock.advance(HEARD_SECONDS + 1)
    await store.delete_expired()
    written = file_of(tmp_path).stat().st_ino
    for number in range(3):
        assert await takes(store, "s", f"new {number}") == "kept"
        assert await takes(other, "t", f"new {number}") == "repeated"
    assert file_of(tmp_path).stat().st_ino != written
    assert b"old" not in file_of(tmp_path).read_bytes()
    assert await takes(store, "s", "old 1") == "kept"
    for each in (store, other):
        await each.close()


async def test_a_file_that_another_one_took_the_place_of_is_read_anew(store, other, tmp_path):
    await takes(store, "s", "m0")
    await takes(other, "t", "m1", chat="longer")
    # As another process may leave it, with a number of the disk's that was free again.
    longer = file_of(tmp_path, "longer").read_bytes() + b'{"at":1,"ids":["m2"]}\n' * 9
    file_of(tmp_path).write_bytes(longer)
    assert [await store.has_heard("chat", f"m{number}") for number in range(3)] == [
        False,
        True,
        True,
    ]
    assert await takes(store, "s", "m2") == "repeated"


async def test_the_file_of_a_chat_that_is_silent_goes(store, tmp_path):
    await takes(store, "s", "m1")
    await takes(store, "s", "m1", chat="living")
    os.utime(file_of(tmp_path), (1, 1))
    await store.delete_expired()
    assert {path.name for path in (tmp_path / "heard").iterdir()} == {"living.jsonl"}
    assert not await store.has_heard("chat", "m1")
    assert await takes(store, "s", "m1") == "kept"


async def test_what_is_in_memory_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(heard, "IN_MEMORY", 50)
    store = JsonlStore(tmp_path)
    for number in range(20):
        for chat in range(12):
            assert await takes(store, f"s{chat}", f"m{number}", chat=f"c{chat}") == "kept"
    files = store.database._folder.heard
    assert sum(len(known.ids) for known in files._chats.values()) <= 60
    assert await takes(store, "s0", "m3", chat="c0") == "repeated"
    await store.close()


async def test_names_that_are_too_long_for_a_file_are_copied_too(store):
    await takes(store, "s", "m1", chat="x" * 500)
    assert [each.chat async for each in store.heard()] == ["x" * 500]


async def test_the_ids_that_an_earlier_version_noted_are_known(tmp_path):
    store = JsonlStore(shutil.copytree(BEFORE, tmp_path / "sessions"))
    await store.delete_expired()
    known = {(each.chat, each.id) async for each in store.heard()}
    assert known == {
        ("telegram:1", "m1"),
        ("asked", "m2"),
        ("waiting", "m3"),
        ("waiting", "m4"),
        ("unsent", "m5"),
        ("noted", "m6"),
        ("noted", "m7"),
        ("cut", "m8"),
    }
    assert await takes(store, "waiting", "m4", chat="waiting") == "repeated"
    await store.close()


@pytest.mark.parametrize("seal", [None, SEAL], ids=["plain", "sealed"])
async def test_what_a_power_loss_took_is_found_in_the_sessions_again(tmp_path, monkeypatch, seal):
    store = JsonlStore(tmp_path, seal=seal)
    session = await store.create(id="s", key="chat")
    for number in range(20):
        session.add_entry(said(f"m{number}"))
        session.hear("chat", f"m{number}")
        session.trim_if_needed(6, 3)
        await store.save(session)
    session.hold(said("waits"))
    session.hear("chat", "waits")
    await store.save(session)
    await store.close()
    shutil.rmtree(tmp_path / "heard")
    monkeypatch.setattr("nanoloop.stores.jsonl.store.machine_start", lambda: "another")
    again = JsonlStore(tmp_path, seal=seal)
    await again.delete_expired()
    known = {each.id async for each in again.heard()}
    assert known == {"waits", *(f"m{number}" for number in range(20))}
    await again.close()


def said(message):
    return Entry.message("user", message, metadata={"message_id": message})


TAKER = """
import asyncio, sys
from nanoloop.errors import AlreadyHeard, SessionExists
from nanoloop.stores.jsonl.store import JsonlStore

async def main(folder, name, first):
    store = JsonlStore(folder)
    try:
        session = await store.create(id=name)
    except SessionExists:
        session = await store.load(name)
    for number in range(int(first), 100_000):
        session.add_message("user", f"m{number}")
        session.hear("chat", f"m{number}")
        try:
            await store.save(session)
        except AlreadyHeard:
            session = await store.load(name)
        else:
            print(number, flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def taker(folder, name, first):
    """A process that takes the chat's messages from this one on, and tells the number of each."""
    command = [sys.executable, "-c", TAKER, str(folder), name, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
async def test_each_is_taken_once_by_two_processes_that_are_killed_all_the_time(tmp_path):
    store, taken = JsonlStore(tmp_path), []
    for round_number in range(8):
        first = max(0, len(taken) - 5)
        with taker(tmp_path, "a", first) as one, taker(tmp_path, "b", first) as two:
            for _ in range(2 + round_number):
                one.stdout.readline()
            two.kill()
            one.stdout.readline()
        taken = [*await texts(store, "a"), *await texts(store, "b")]
        assert sorted(taken) == sorted(f"m{number}" for number in range(len(taken)))
    assert len(taken) > 20
    await store.close()


async def texts(store, name):
    with suppress(KeyError):
        return [entry.content["text"] for entry in await store.entries(name)]
    return []
