"""Somebody who can put a link, a pipe or a file of their own into the data folder."""

import json
import os
import sqlite3
from contextlib import closing

import pytest

from nanoloop.channels.kit.backlog import Notebook
from nanoloop.channels.kit.drafts import Progress
from nanoloop.channels.states import running
from nanoloop.directory import SessionDirectory
from nanoloop.errors import FileRefused, StoreError
from nanoloop.events import FileNarrowed
from nanoloop.files import (
    load_file,
    locked_file,
    make_folder,
    open_beneath,
    open_file,
    own_key,
    put_file,
    read_file,
    replace_file,
    save_json,
    unfinished,
)
from nanoloop.memory.index import Index
from nanoloop.protocols import Node
from nanoloop.stores.heartbeats import NodeFiles
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore

PRECIOUS = b"what the owner has elsewhere"


@pytest.fixture
def precious(tmp_path):
    """A file outside the data folder, which has to stay as it is."""
    file = tmp_path / "precious"
    file.write_bytes(PRECIOUS)
    yield file
    assert file.read_bytes() == PRECIOUS


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "data"
    make_folder(folder)
    return folder


def planted(kind, path, precious):
    """Something in the place of a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "link":
        path.symlink_to(precious)
    elif kind == "dangling link":
        path.symlink_to(precious.with_name("nothing"))
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"{}")
        os.chown(path, 12345, -1)


KINDS = ["link", "dangling link", "pipe", "file of somebody else"]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def entered(context):
    with context:
        pass


OPENING = {
    "read": load_file,
    "append": lambda path: os.close(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)),
    "lock": lambda path: entered(locked_file(path)),
    "notebook": lambda path: Notebook(path, "").open(),
    "drafts": Progress,
}


@as_root
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opens", OPENING.values(), ids=OPENING)
def test_nothing_but_a_file_of_ours_is_opened(kind, opens, data, precious):
    path = data / "place"
    planted(kind, path, precious)
    with pytest.raises(FileRefused, match=f"^{path} (is a link|is not a file|belongs to)"):
        opens(path)
    assert not precious.with_name("nothing").exists()


@as_root
def test_whose_a_file_is_and_what_to_do_is_one_sentence(data, precious):
    planted("file of somebody else", data / "place", precious)
    with pytest.raises(FileRefused) as refused:
        load_file(data / "place")
    assert str(refused.value) == (
        f"{data / 'place'} belongs to user 12345: run this as user 12345, or make it yours with "
        f"`chown root {data / 'place'}`"
    )


def test_a_link_where_a_file_is_written_anew_is_replaced_or_refused_never_followed(data, precious):
    (data / "place.json").symlink_to(precious)
    save_json(data / "place.json", ["ours"])
    assert json.loads(load_file(data / "place.json")) == ["ours"]
    unfinished(data / "place.json").symlink_to(precious)  # it was emptied once
    with pytest.raises(FileRefused, match="is a link"):
        replace_file(data / "place.json", b"more", durable=False)


async def test_a_link_to_what_is_read_in_the_background_is_not_followed(data, precious):
    (data / "place").symlink_to(precious)
    with pytest.raises(FileRefused, match="is a link"):
        await read_file(data / "place")
    await put_file(data / "place", b"ours", durable=False)
    assert await read_file(data / "place") == b"ours"


def store_of(kind, data):
    return SqliteStore(data / "s.sqlite") if kind == "sqlite" else JsonlStore(data / "sessions")


async def said(store):
    session = await store.create(id="s", key="s")
    session.add_message("user", "hello")
    await store.save(session)
    await store.close()


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
async def test_a_database_is_not_opened_through_a_link(suffix, data, precious):
    planted("link", data / f"s.sqlite{suffix}", precious)
    with pytest.raises(StoreError, match="is a link"):
        await said(SqliteStore(data / "s.sqlite"))


async def test_a_session_is_not_read_through_a_link(data, precious):
    await said(JsonlStore(data / "sessions"))
    file = data / "sessions" / "s.jsonl"
    file.rename(precious.with_name("elsewhere"))
    file.symlink_to(precious.with_name("elsewhere"))
    store = JsonlStore(data / "sessions")
    with pytest.raises(StoreError, match="is a link"):
        await store.load("s")
    await store.close()


def test_heartbeats_and_locks_leave_what_a_link_names_alone(data, precious):
    planted("link", data / "nodes" / "lock", precious)
    with pytest.raises(FileRefused, match="lock is a link"):
        NodeFiles(data / "nodes").beat(Node(id="a"))


def test_a_saved_session_is_not_loaded_through_a_link(data, precious):
    folder = SessionDirectory(data)
    planted("link", folder.path("work"), precious)
    with pytest.raises(FileRefused, match="is a link"):
        folder.load("work")


def test_an_index_is_not_made_through_a_link(data, precious):
    planted("link", data / "recall.sqlite", precious)
    with pytest.raises(FileRefused, match="is a link"):
        Index(data / "recall.sqlite")._open()


def test_a_status_behind_a_link_is_nobodys(data, precious):
    planted("link", data / "running" / "1.json", precious)
    assert running(data) == []


# Modes


@pytest.fixture(params=[0o000, 0o022, 0o277, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
@pytest.mark.parametrize("kind", ["sqlite", "jsonl"])
async def test_all_that_is_written_is_private_under_any_umask(kind, tmp_path):
    data = tmp_path / "data"
    make_folder(data)
    await said(store_of(kind, data))
    save_json(data / "channels" / "place.json", [])
    Progress(data / "channels" / "telegram.jsonl").finish("an answer", name="a")
    with closing(Notebook(data / "pairing.sqlite", "CREATE TABLE IF NOT EXISTS t (a)")) as notes:
        notes.open()
        with closing(Index(data / "recall.sqlite")) as index:
            index.settle()
            own_key(data)
            found = {
                path.relative_to(tmp_path): path.stat().st_mode & 0o777
                for path in tmp_path.rglob("*")
            }
    wrong = {
        str(path): oct(mode)
        for path, mode in found.items()
        if mode != (0o700 if (tmp_path / path).is_dir() else 0o600)
    }
    assert wrong == {}
    assert len(found) > 8


async def test_a_file_of_ours_that_others_can_read_is_narrowed_with_one_line(data, heard):
    file = data / "telegram.jsonl"
    file.write_bytes(b"")
    file.chmod(0o644)
    Progress(file).finish("an answer", name="a")
    Progress(file)
    assert heard == [FileNarrowed(file=str(file), mode="0644")]
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_database_and_what_is_beside_it_are_narrowed_too(data, heard):
    reader = sqlite3.connect(data / "s.sqlite")
    await said(SqliteStore(data / "s.sqlite"))
    for file in data.iterdir():
        file.chmod(0o664)
    store = SqliteStore(data / "s.sqlite")
    assert (await store.load("s")).entry_count == 1
    await store.close()
    reader.close()
    assert {oct(file.stat().st_mode & 0o777) for file in data.iterdir()} == {"0o600"}
    assert {type(event) for event in heard} == {FileNarrowed}


# What somebody else named


def read(folder, name):
    with os.fdopen(open_beneath(folder, name), "rb") as file:
        return file.read()


@pytest.fixture
def shelf(tmp_path):
    folder = tmp_path / "shelf"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "c.txt").write_bytes(b"inside")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "c.txt").write_bytes(b"outside")
    return folder


def test_a_file_beneath_a_folder_is_opened_by_its_name(shelf):
    assert read(shelf, "a/b/c.txt") == b"inside"


@pytest.mark.parametrize(
    "name",
    ["../outside/c.txt", "a/../../outside/c.txt", "/etc/passwd", "", ".", "..", "a//b/c.txt",
     "a/./b/c.txt", "a/b/c.txt/", "a\0b", "a/b/c.txt\0.md"],
)  # fmt: skip
def test_a_name_that_leads_elsewhere_opens_nothing(shelf, name):
    with pytest.raises(FileRefused, match="give a plain name inside it"):
        read(shelf, name)


@pytest.mark.parametrize("name", ["c.txt", "a", "a/b"])
def test_a_link_on_the_way_or_at_the_end_is_not_followed(shelf, name, tmp_path):
    target = shelf / name
    if target.exists():
        (shelf / name).rename(tmp_path / "moved")
        target.symlink_to(tmp_path / "outside" if name == "a/b" else tmp_path / "moved")
        name = "a/b/c.txt"
    else:
        target.symlink_to(tmp_path / "outside" / "c.txt")
    with pytest.raises(FileRefused, match=r"leads through|is a link"):
        read(shelf, name)


def test_a_folder_swapped_for_a_link_while_it_is_walked_leads_nowhere(shelf, tmp_path, monkeypatch):
    opened = os.open

    def swapping(name, *args, **more):
        if name == "c.txt":  # between the look at the folder and the file in it
            (shelf / "a").rename(tmp_path / "moved")
            (shelf / "a").symlink_to(tmp_path / "outside")
            (tmp_path / "outside" / "b").symlink_to(tmp_path / "outside")
        return opened(name, *args, **more)

    monkeypatch.setattr(os, "open", swapping)
    assert read(shelf, "a/b/c.txt") == b"inside"


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_a_pipe_a_device_and_a_folder_are_no_files(shelf, flags):
    os.mkfifo(shelf / "pipe")
    for name in ("pipe", "a"):
        with pytest.raises(FileRefused, match="is not a file"):
            open_beneath(shelf, name, flags)
    with pytest.raises(FileRefused, match="is not a file"):
        open_beneath(shelf.__class__("/dev"), "zero", flags)


def test_a_file_that_is_missing_is_said_to_be_missing(shelf):
    with pytest.raises(FileNotFoundError):
        read(shelf, "a/b/none.txt")
    with pytest.raises(FileNotFoundError):
        read(shelf, "none/c.txt")
