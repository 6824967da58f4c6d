"""Whoever reads the disk, or a backup of it, finds nothing of what was erased."""

import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.channels.direct import DirectChannel
from nanoloop.errors import SessionNotFound
from nanoloop.intake import user_entry
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.messages import Attachment, Inbound
from nanoloop.parts import make_attachments, make_loop, make_store, recall_file
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import ERASED, Entry
from nanoloop.settings import Settings
from tests.stages.command_line import ROOT

SECRET = "quokkafort"
NAME = "Wombatina"
KEPT = "marmalade"


def settings_in(folder, url, **more):
    return Settings(data=folder, store={"url": url, **more})


def hits(folder, *words):
    """The files with one of these words in their bytes or in their name."""
    found = []
    for path in folder.rglob("*"):
        told = path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        found += [path.name for word in words if word.lower().encode() in told.lower()]
    return found


@asynccontextmanager
async def running(settings, *, otherwise="Noted."):
    """A loop as a daemon runs it, with all that an earlier process left taken up."""
    store = make_store(settings)
    loop = make_loop(settings, ScriptedProvider([], otherwise=otherwise), store)
    direct = DirectChannel(loop.bus)
    await store.delete_expired()
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        await loop.recover()
        yield loop, direct
        loop.bus.close()
    await store.close()


async def told(folder, url):
    """A conversation with a secret and a file in it, all of it indexed."""
    settings = settings_in(folder, url)
    store, files = make_store(settings), make_attachments(settings)
    kept = await files.keep(
        f"the {SECRET}".encode(), owner="web:", name=f"{SECRET}.txt", mime_type="text/plain"
    )
    came = (Attachment(kind="image", ref=f"attachment:{kept.id}"),)
    said = Inbound(channel="web", chat="s", text=f"It is {SECRET}", sender=NAME, attachments=came)
    session = await store.create(id="s", key="web:s")
    session.add_entry(user_entry(said))
    session.add_entry(Entry.message("assistant", f"So it is {SECRET}."))
    session.add_entry(Entry.message("user", f"And {KEPT}?"))
    session.add_entry(Entry.message("assistant", "Yes."))
    session.pin(session.window[0])
    await store.save(session)
    async with Recall(store, Index(recall_file(settings))) as recall:
        await recall.catch_up(session)
    await store.close()


class Victims:
    """Processes that are killed while they erase."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.erasing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def erase(self, **job):
        """Whether it was killed before it was done."""
        print(json.dumps(job), file=self._process.stdin, flush=True)
        return self._process.stdout.readline().split() == ["ended", "-9"]

    def close(self):
        self._process.communicate()


@pytest.fixture(scope="module")
def victims():
    victims = Victims()
    yield victims
    victims.close()


async def is_in_store(store):
    """Whether the erasing has not taken place."""
    try:
        entries = await store.entries("s")
    except SessionNotFound:
        return False
    return entries[0].type != ERASED


async def kill_at(writes, tmp_path, victims, url, what):
    """Kill it before each of these writes, start again, and look; returns what had happened."""
    await told(tmp_path / "before", url)
    assert hits(tmp_path / "before", SECRET)
    outcomes = []
    for number in writes:
        folder = tmp_path / "data"
        shutil.copytree(tmp_path / "before", folder)
        is_killed = victims.erase(count=number, folder=str(folder), url=url, what=what)
        async with running(settings_in(folder, url)) as (loop, _):
            was_erased = not await is_in_store(loop.sessions.store)
            # Before anything is answered.
            assert not was_erased or hits(folder, SECRET, NAME) == [], number
        assert not was_erased or hits(folder, SECRET, NAME) == [], number
        outcomes.append(was_erased)
        shutil.rmtree(folder)
        if not is_killed:
            return outcomes
    return outcomes


ERASINGS = pytest.mark.parametrize(
    ("what", "url"), [(w, url) for w in ("forget", "delete") for url in ("sqlite:", "jsonl:")]
)


@pytest.mark.slow
@ERASINGS
async def test_nothing_is_left_after_a_kill_while_it_is_erased_and_a_start(
    tmp_path, victims, url, what
):
    outcomes = await kill_at(range(1, 1000, 7), tmp_path, victims, url, what)
    assert len(outcomes) > 5
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


@pytest.mark.long
@ERASINGS
async def test_nothing_is_left_after_a_kill_before_any_write(tmp_path, victims, url, what):
    outcomes = await kill_at(range(1, 1000), tmp_path, victims, url, what)
    assert set(outcomes) == {False, True}
