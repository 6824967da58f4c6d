"""Whoever reads the disk, or a backup of it, finds nothing of what was erased."""

import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from hashlib import sha256

import anyio
import pytest
from cryptography.fernet import Fernet
from starlette.requests import Request

from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.channels.kit.channel import PlatformChannel
from nanoloop.channels.web.access import EVERYONE
from nanoloop.channels.web.names import MessageNames
from nanoloop.errors import SessionNotFound, StoreError
from nanoloop.intake import user_entry
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.messages import Attachment, Inbound
from nanoloop.parts import make_attachments, make_loop, make_store, recall_file
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.digest import Digest
from nanoloop.session.entry import ERASED, Entry
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings
from nanoloop.testing.channels.fake import LIMITS, FakeChats
from nanoloop.testing.channels.stage import answers, comes_to, open_to_all
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
    said = Inbound(
        channel="direct", chat="s", text=f"It is {SECRET}", sender=NAME, attachments=came
    )
    session = await store.create(id="direct:s", key="direct:s")
    session.add_entry(user_entry(said))
    session.add_entry(Entry.message("assistant", f"So it is {SECRET}."))
    session.add_entry(Entry.message("user", f"And {KEPT}?"))
    session.add_entry(Entry.message("assistant", "Yes."))
    session.pin(session.window[0])
    await store.save(session)
    await files.refer(session.id, [kept.id])
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
        entries = await store.entries("direct:s")
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
            await at_rest(loop)  # a command that was taken is run
            was_erased = not await is_in_store(loop.sessions.store)
        assert not was_erased or hits(folder, SECRET, NAME) == [], number
        outcomes.append(was_erased)
        shutil.rmtree(folder)
        if not is_killed:
            return outcomes
    return outcomes


ERASINGS = pytest.mark.parametrize(
    ("what", "url"),
    [(w, url) for w in ("forget", "delete", "command") for url in ("sqlite:", "jsonl:")],
)


@pytest.mark.slow
@ERASINGS
async def test_nothing_is_left_after_a_kill_while_it_is_erased_and_a_start(
    tmp_path, victims, url, what
):
    step = 29 if what == "command" else 9
    outcomes = await kill_at(range(1, 1000, step), tmp_path, victims, url, what)
    assert len(outcomes) > 3
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


@pytest.mark.long
@ERASINGS
async def test_nothing_is_left_after_a_kill_before_any_write(tmp_path, victims, url, what):
    outcomes = await kill_at(range(1, 1000), tmp_path, victims, url, what)
    assert set(outcomes) == {False, True}


async def test_only_what_was_erased_leaves_an_index_after_a_kill_and_all_if_it_missed_more(
    tmp_path,
):
    store = make_store(settings_in(tmp_path, "sqlite:"))
    session = await store.create(id="s")
    for number in range(6):
        session.add_message("user", f"{SECRET} {number}")
    await store.save(session)
    index = Index(tmp_path / "recall.sqlite")
    recall = Recall(store, index)
    sessions = Sessions(store, recall=recall)
    await recall.catch_up(session)
    for both in ([1, 2], [4]):  # as if killed behind each
        await recall.catch_up(await sessions.erase("s", both))
    session = await sessions.fresh("s")
    assert (session.erasures, session.erasing) == (2, (((1, 2),), ((4, 4),)))
    await sessions.finish_erasing(session)
    assert session.erasing == ()
    assert index.standing("s").turns == 6  # those that are left were not indexed again
    await Sessions(store).erase("s", [3])
    missed = await sessions.fresh("s")
    await Sessions(store).finish_erasing(missed)
    await sessions.finish_erasing(await sessions.erase("s", [5]))
    assert index.standing("s") is None
    assert [hit.seq for hit in await recall.search("s", SECRET)] == [6]
    index.close()
    await store.close()


def said(text, **more):
    return Inbound(channel="direct", chat="a", text=text, **more)


async def at_rest(loop):
    await comes_to(lambda: is_at_rest(loop), True)


@pytest.mark.parametrize("what", ["forget", "delete"])
async def test_what_was_erased_is_not_stored_again_if_it_is_delivered_again(tmp_path, what):
    settings, message = settings_in(tmp_path, "sqlite:"), said(SECRET, message_id="m1")
    async with running(settings) as (loop, direct):
        assert await loop.bus.hand_in(message) == "kept"
        await at_rest(loop)
        if what == "forget":
            await direct.ask("/forget 1-2", chat="a")
        else:
            await loop.sessions.delete("direct:a")
        assert await loop.bus.hand_in(message) == "repeated"
        await at_rest(loop)
        assert hits(tmp_path, SECRET) == []
    async with running(settings) as (loop, _):
        assert await loop.bus.hand_in(message) == "repeated"
        await at_rest(loop)
    assert hits(tmp_path, SECRET) == []


async def test_a_change_of_what_was_erased_does_not_bring_it_back(tmp_path):
    settings = settings_in(tmp_path, "sqlite:")
    async with running(settings) as (loop, direct):
        await loop.bus.hand_in(said(SECRET, message_id="m1"))
        await at_rest(loop)
        await direct.ask("/forget 1-2", chat="a")
        await loop.bus.hand_in(said(f"{SECRET}!", message_id="e1", edits="m1"))
        await at_rest(loop)
        assert "Erased for good: 0" in (await direct.ask("/forget 1-2", chat="a")).text
    assert hits(tmp_path, SECRET) == []


async def test_what_was_erased_in_a_session_is_erased_in_its_fork_too(tmp_path):
    settings = settings_in(tmp_path, "sqlite:")
    async with running(settings) as (loop, direct):
        await loop.bus.hand_in(said(SECRET, message_id="m1"))
        await at_rest(loop)
        for text in ("/fork", "/forget 1-2", "/switch 1", "/forget 1-2"):
            await direct.ask(text, chat="a")
    assert hits(tmp_path, SECRET) == []


async def test_a_memo_that_told_of_it_is_made_again_from_what_is_left(tmp_path):
    settings = settings_in(tmp_path, "sqlite:")
    store = make_store(settings)
    session = await store.create(id="s")
    for number in range(4):
        session.add_message("user", f"{SECRET} {number}")
    session.note_resize({"seq": 4}, Digest(value={"told": SECRET}, seq=4))
    await store.save(session)
    await store.erase(session, [1])
    assert (session.memo, session.memo_seq) == ({}, 0)
    await store.close()


async def test_an_index_of_another_machine_neither_finds_nor_keeps_what_was_erased(tmp_path):
    settings = settings_in(tmp_path, "sqlite:")
    store, there = make_store(settings), tmp_path / "there"
    session = await store.create(id="s")
    session.add_message("user", f"It is {SECRET}")
    session.add_message("user", f"We ate {KEPT}")
    await store.save(session)
    index = Index(there / "recall.sqlite")
    far = Recall(store, index)
    assert 1 in [hit.seq for hit in await far.search("s", SECRET)]
    async with Recall(store) as near:
        sessions = Sessions(store, recall=near)
        await sessions.finish_erasing(await sessions.erase("s", [1]))
    assert hits(there, SECRET)
    assert [hit.seq for hit in await far.search("s", f"{SECRET} {KEPT}")] == [2]
    assert hits(there, SECRET) == []
    index.close()
    await store.close()


async def test_an_index_of_another_machine_is_rid_of_it_without_a_search(tmp_path):
    settings = settings_in(tmp_path, "sqlite:")
    store, there = make_store(settings), tmp_path / "there"
    session = await store.create(id="s")
    session.add_message("user", f"the {SECRET}")
    await store.save(session)
    index = Index(there / "recall.sqlite")
    far = Recall(store, index)
    await far.catch_up(session)
    sessions = Sessions(store)
    await sessions.finish_erasing(await sessions.erase("s", [1]))
    await far.tidy()
    assert hits(there, SECRET) == []
    index.close()
    await store.close()


@pytest.mark.parametrize("why", ["sealed", "off"])
async def test_an_index_that_nobody_keeps_any_more_is_gone_after_a_start(tmp_path, why):
    await told(tmp_path, "sqlite:")
    (tmp_path / "input_history").write_text(SECRET)
    key = {"encryption_key": Fernet.generate_key().decode()} if why == "sealed" else {}
    url = f"sqlite:{tmp_path}/new.sqlite" if why == "sealed" else "sqlite:"
    settings = Settings(data=tmp_path, store={"url": url, **key}, recall={"enabled": why != "off"})
    app = App.of(settings, provider=ScriptedProvider())
    assert (tmp_path / "recall.sqlite").exists()
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        await comes_to(lambda: has_started(app), True)
        app.stop()
    assert list(tmp_path.glob("recall.*")) == []
    assert (tmp_path / "input_history").exists() == (why == "off")


async def test_what_cannot_be_removed_beside_a_sealed_store_is_named(tmp_path):
    (tmp_path / "recall.sqlite").mkdir()
    key = Fernet.generate_key().decode()
    app = App.of(settings_in(tmp_path, "sqlite:", encryption_key=key), provider=ScriptedProvider())
    with pytest.raises(StoreError, match="holds what was said in plain text"):
        await app.run()


async def test_what_another_process_left_when_it_was_killed_is_finished_by_one_that_lives(tmp_path):
    settings = settings_in(tmp_path, "sqlite:")
    async with running(settings) as (loop, direct):
        await direct.ask(SECRET, chat="a")
        await direct.ask(f"/recall {SECRET}", chat="a")
        theirs = make_store(settings)
        await Sessions(theirs).erase("direct:a", [1, 2])  # and killed here
        await theirs.close()
        assert hits(tmp_path, SECRET)
        await comes_to(lambda: owes_nothing(loop), True)
        assert hits(tmp_path, SECRET) == []


async def owes_nothing(loop):
    return [owed async for owed in loop.sessions.store.owing()] == []


async def has_started(app):
    return app.loop.is_serving


async def is_at_rest(loop):
    return not (loop.lanes or loop.summarizer.running or loop.recall.running)


def test_the_id_of_a_request_tells_nobody_without_the_key_what_was_said_in_it():
    request = Request({"type": "http", "headers": [(b"x-stainless-retry-count", b"0")]})
    unkeyed = sha256(f"{EVERYONE.name}\n{SECRET}".encode()).hexdigest()[:32]
    begins = [
        MessageNames(lambda key=key: key).of(request, EVERYONE, SECRET).message_id[:32]
        for key in (b"one key", b"one key", b"another")
    ]
    assert begins[0] == begins[1] != begins[2]
    assert unkeyed not in begins


CANARIES = (
    "quokkafort",
    "wombatina",
    "numbatfile",
    "bilbycontent",
    "pottorooanswer",
    "dunnartcall",
)
COMMANDS = (
    "/help",
    "/status",
    "/history",
    "/recall quokkafort",
    "/summary edit It was quokkafort.",
    "/summary",
    "/pin last",
    "/pin",
    "/unpin",
    "/agent",
    "/rename quokkafort",
    "/sessions quokkafort",
    "/export",
    "/export json",
    "/compact quokkafort",
    "/fork",
    "/undo",
    "/new",
    "/switch 1",
    "/stop",
    "/quokkafort",
    "/forget last",
)


def telling(messages, tools, model):
    newest = messages[-1]
    if newest["role"] == "user" and "look" in str(newest["content"]):
        arguments = json.dumps({"query": "dunnartcall quokkafort"})
        return Reply(tool_calls=(ToolCall(id="c1", name="recall", arguments=arguments),))
    return "pottorooanswer"


@asynccontextmanager
async def on_a_platform(settings, chats):
    """A bot on a platform, as a daemon runs it."""
    channel = PlatformChannel(
        chats.platform(),
        rules=open_to_all(),
        folder=settings.data,
        attachments=make_attachments(settings),
    )
    async with running(settings, otherwise=telling) as (loop, _):
        loop.bus.attach(channel)
        async with anyio.create_task_group() as group:
            group.start_soon(channel.run, loop.bus)
            yield loop
            group.cancel_scope.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("url", ["sqlite:", "jsonl:"])
async def test_beside_a_sealed_store_no_command_leaves_a_word_or_a_name(tmp_path, url):
    settings = settings_in(tmp_path / "data", url, encryption_key=Fernet.generate_key().decode())
    chats, asked = FakeChats(limits=replace(LIMITS, text=100_000)), 0
    async with on_a_platform(settings, chats) as loop:
        for text in ("It is quokkafort", "look for quokkafort", "one more", *COMMANDS):
            files = {"numbatfile.txt": b"bilbycontent"} if "one" in text else None
            await chats.say("with-7", text, sender="wombatina", files=files)
            asked += 1
            await answers(chats, "with-7", asked)
            await at_rest(loop)
            # This is what a kill would leave, too.
            assert hits(settings.data, *CANARIES) == [], text
        said = str(await chats.shown("with-7"))
        assert all(said.count(word) for word in ("quokkafort", "pottorooanswer", "numbatfile"))
    assert hits(settings.data, *CANARIES) == []
    async with on_a_platform(settings, chats) as loop:
        await chats.say("with-7", "/export", sender="wombatina")
        assert len(await answers(chats, "with-7", asked + 1)) == asked + 1
        assert hits(settings.data, *CANARIES) == []
