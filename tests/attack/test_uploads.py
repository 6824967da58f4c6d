"""Somebody who knows the id of a file that another one sent: an id grants no access."""

import json
import os
from contextlib import asynccontextmanager, suppress
from itertools import count

import aiofiles.os
import anyio
import anyio.lowlevel
import pytest
from cryptography.fernet import Fernet

from nanoloop.attachments import SWEEPS, UNSURE, UNUSED_SECONDS, Attachments
from nanoloop.errors import FileRefused, NotReadable, SessionDamaged
from nanoloop.intake import user_entry
from nanoloop.messages import Attachment, Inbound
from nanoloop.parts import make_attachments, make_store
from nanoloop.providers.models import UNSEEN
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.session.entry import SCHEME, Entry, files_in
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import Bot, comes_to
from tests.images import png
from tests.web_server import OTHER, TOKENS, bearer, serving

PNG = png()
ANN, BOB, GROUP = "with-ann", "with-bob", "group-of-all"


def naming(file):
    """An answer of a model that names this file, as anybody could have told it to."""
    return f"Here: ![it]({SCHEME}{file})"


# On a platform: every uploader, every asker


class Talk:
    """Chats with a bot whose answers name one file, once that is known."""

    def __init__(self, folder):
        self.chats = FakeChats()
        self.attachments = Attachments(folder / "kept", limit_bytes=10**6)
        self.file = ""
        self._count = 0
        provider = ScriptedProvider(otherwise=self._answer)
        self.bot = Bot(
            self.chats.platform(), folder, provider=provider, attachments=self.attachments
        )

    def _answer(self, *_):
        self._count += 1
        return f"{naming(self.file)} {self._count}" if self.file else f"nice {self._count}"

    async def upload(self, chat):
        """Send a file there; every answer names it from now on."""
        await self.says(chat, self.chats.naming("look"), "nice 1", files={"cat.png": PNG})
        (self.file,) = await anyio.to_thread.run_sync(self.attachments.all)

    async def gets(self, chat):
        """Whether the answer in this chat comes with the file."""
        answer = f"Here:  {self._count + 1}"
        await self.says(chat, self.chats.naming("show it"), lambda text: text.startswith(answer))
        texts = [shown.text for shown in await self.chats.shown(chat)]
        return texts[-2] == "[cat.png]"

    async def says(self, chat, text, answer, **more):
        await self.chats.say(chat, text, sender=chat.rpartition("-")[2], **more)

        async def look():
            return (await self.chats.shown(chat))[-1]

        def is_it(last):
            fits = answer(last.text) if callable(answer) else answer in ("", last.text)
            return last.is_bots and fits

        await comes_to(look, is_it)


@asynccontextmanager
async def talking(folder):
    talk = Talk(folder)
    async with talk.bot:
        yield talk


@pytest.mark.parametrize("uploader", [ANN, BOB, GROUP])
@pytest.mark.parametrize("asker", [ANN, BOB, GROUP])
async def test_a_file_is_sent_only_in_the_chat_that_it_came_to(uploader, asker, tmp_path):
    async with talking(tmp_path) as talk:
        await talk.upload(uploader)
        assert await talk.gets(asker) == (uploader == asker)


async def test_a_new_conversation_has_none_of_the_old_ones_files_and_a_fork_has_all(tmp_path):
    async with talking(tmp_path) as talk:
        await talk.upload(ANN)
        await talk.says(ANN, "/new", "")
        assert not await talk.gets(ANN)
        await talk.says(ANN, "/fork", "")
        assert not await talk.gets(ANN)
        await talk.says(ANN, "/switch 1", "")
        assert await talk.gets(ANN)
        await talk.says(ANN, "/fork", "")
        assert await talk.gets(ANN)
        await talk.says(ANN, "/new", "")
        assert not await talk.gets(ANN)
        assert not await talk.gets(BOB)


async def test_nobody_gets_a_file_by_typing_its_id(tmp_path):
    async with talking(tmp_path) as talk:
        await talk.upload(ANN)
        words = f"{talk.chats.naming('')} {naming(talk.file)} {SCHEME}{talk.file}"
        missing = f"Here:  2\n\n{ENGLISH['file_unknown']}"
        await talk.says(BOB, words, missing, files={"dog.png": png("blue")})
        assert not await talk.gets(BOB)


# On the web


async def uploaded(web, token=None):
    headers = {"X-Name": "a.png", **(bearer(token) if token else {})}
    return await web.call("POST", "/api/attachments", status=201, content=PNG, headers=headers)


@asynccontextmanager
async def two(folder):
    """Alice with a picture in her session, and Bob, who knows its id."""
    provider = ScriptedProvider(otherwise="Fine.")
    async with serving(folder, provider=provider, tokens=TOKENS) as web:
        kept = await uploaded(web, (bearer and None) or TOKENS["alice"]["token"])
        alice = (await web.call("POST", "/api/sessions", json={}, headers=bearer()))["id"]
        await told(web, alice, "look", bearer(), attachments=[kept["id"]])
        bob = (await web.call("POST", "/api/sessions", json={}, headers=bearer(OTHER)))["id"]
        yield web, kept["id"], alice, bob


async def told(web, session, text, headers, **more):
    """Say it; returns what the model was shown."""
    count = web.provider.count
    path, said = f"/api/sessions/{session}/messages", {"text": text, **more}
    await web.call("POST", path, status=202, json=said, headers=headers)

    async def look():
        return web.provider.count

    await comes_to(look, lambda now: now > count)
    return str(web.provider.calls[-1].messages)


async def test_another_token_neither_reads_nor_sends_nor_deletes_it(tmp_path):
    async with two(tmp_path) as (web, file, alice, bob):
        path = f"/api/attachments/{file}"
        for method in ("GET", "DELETE"):
            await web.call(method, path, status=404, headers=bearer(OTHER))
        said = {"text": "look", "attachments": [file]}
        path = f"/api/sessions/{bob}/messages"
        await web.call("POST", path, status=422, headers=bearer(OTHER), json=said)
        part = {"type": "image_url", "image_url": {"url": f"{SCHEME}{file}"}}
        asked = {"model": "assistant", "messages": [{"role": "user", "content": [part]}]}
        for user in ({}, {"user": "me"}):
            refused = {**asked, **user}
            path = "/v1/chat/completions"
            await web.call("POST", path, status=400, headers=bearer(OTHER), json=refused)
        assert "data:image" not in await told(web, bob, naming(file), bearer(OTHER))
        assert "data:image" in await told(web, alice, "again", bearer())


async def test_a_session_that_was_imported_gets_no_file_by_naming_it(tmp_path):
    async with two(tmp_path) as (web, file, alice, _):
        sessions = web.app.loop.sessions
        whole = await sessions.store.get(alice)
        data = {**whole.to_dict(), "id": "web:bob.imported", "key": "web:bob.imported"}
        await sessions.store.add(Session.load(data))
        shown = await told(web, "web:bob.imported", "and?", bearer(OTHER))
        assert "data:image" not in shown
        assert UNSEEN["text"] in shown
        await web.call("GET", f"/api/attachments/{file}", status=404, headers=bearer(OTHER))
        # Nor does the file go with it: others refer to it.
        path = "/api/sessions/web:bob.imported"
        await web.call("DELETE", path, status=204, headers=bearer(OTHER))
        await web.call("GET", f"/api/attachments/{file}", status=200, headers=bearer())


async def test_a_fork_is_shown_its_parents_pictures_and_a_new_session_is_not(tmp_path):
    async with two(tmp_path) as (web, file, alice, _):
        sessions = web.app.loop.sessions
        fork = await sessions.fork(alice, new_id="web:alice.fork", key="web:alice.fork")
        assert "data:image" in await told(web, fork.id, "and?", bearer())
        begun = (await web.call("POST", "/api/sessions", json={}, headers=bearer()))["id"]
        assert "data:image" not in await told(web, begun, naming(file), bearer())
        # Her own file she may send there.
        assert "data:image" in await told(web, begun, "now", bearer(), attachments=[file])


async def test_who_uploaded_a_file_deletes_it_for_good(tmp_path):
    async with two(tmp_path) as (web, file, alice, _):
        await web.call("DELETE", f"/api/attachments/{file}", status=204, headers=bearer())
        await web.call("GET", f"/api/attachments/{file}", status=404, headers=bearer())
        await web.call("DELETE", f"/api/attachments/{file}", status=404, headers=bearer())
        assert not list(tmp_path.glob(f"attachments/*{file}*"))
        assert UNSEEN["text"] in await told(web, alice, "again", bearer())


async def test_ids_tell_nothing_of_what_was_sent_nor_by_whom(tmp_path):
    attachments = Attachments(tmp_path, limit_bytes=10**6)
    given = {"name": "a.txt", "mime_type": "text/plain"}
    ids = {(await attachments.keep(b"hi", owner=str(n), **given)).id for n in range(20)}
    assert len(ids) == 20
    other = Attachments(tmp_path / "other", limit_bytes=10**6)
    assert (await other.keep(b"hi", owner="0", **given)).id not in ids


# What refers to a file, and what does not


@pytest.mark.parametrize(
    "entry",
    [
        Entry.message("user", f"{SCHEME}{'a' * 40}"),
        Entry.message("assistant", naming("a" * 40)),
        Entry.message("user", [{"type": "text", "text": f"{SCHEME}{'a' * 40}"}]),
        Entry.message("user", "hi", metadata={"attachments": [{"name": f"{SCHEME}{'a' * 40}"}]}),
        Entry.message("user", "hi", metadata={"sender": f"{SCHEME}{'a' * 40}"}),
        Entry.message(
            "user", [{"type": "image_url", "image_url": {"url": f"x {SCHEME}{'a' * 40}"}}]
        ),
    ],
)
def test_words_refer_to_no_file(entry):
    assert files_in(entry) == set()


def test_what_came_with_a_message_does():
    came = (Attachment(kind="image", ref=f"{SCHEME}{'a' * 40}"),)
    entry = user_entry(Inbound(channel="web", chat="a", text="look", attachments=came))
    assert files_in(entry) == {"a" * 40}


# What nobody refers to


class Place:
    """A store, and files beside it, as one process has them."""

    def __init__(self, folder, url="sqlite:", **more):
        self.folder = folder
        self.settings = Settings(data=folder, store={"url": url, **more})
        self.open()

    def open(self):
        self.store = make_store(self.settings)
        self.sessions = Sessions(self.store)
        self.files = make_attachments(self.settings)

    async def uploaded(self, data=b"a cat", name="a.txt"):
        return (await self.files.keep(data, owner="a", name=name, mime_type="text/plain")).id

    async def told(self, session_id, file, *, waits=False, refers=True):
        session = await self.sessions.named(session_id)
        came = (Attachment(kind="image", ref=f"{SCHEME}{file}"),)
        entry = user_entry(Inbound(channel="web", chat="a", text="look", attachments=came))
        hold = session.hold if waits else session.add_entry
        if refers:
            await self.sessions.take(session, entry, lambda _: hold(entry))
        else:
            await self.sessions.change(session, lambda _: hold(entry))
        return session

    def age(self, file):
        """Make it a day old, as far as the sweep sees."""
        mark = self.folder / "attachments" / f"{file}{UNSURE}"
        then = mark.stat().st_mtime - UNUSED_SECONDS - 1
        os.utime(mark, (then, then))

    async def has(self, file):
        return (await self.files.about(file), await self.files.data(file)) != (None, None)

    def names(self, file):
        return sorted(each.name for each in self.folder.glob(f"attachments/*{file}*"))


@pytest.fixture(params=["sqlite:", "jsonl:"])
async def place(request, tmp_path):
    place = Place(tmp_path, request.param)
    yield place
    await place.store.close()


async def test_an_upload_that_no_session_refers_to_goes_after_a_day(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    place.age(cat)
    await place.store.delete_expired()
    assert (await place.has(cat), await place.has(dog)) == (False, True)
    assert place.names(cat) == []


@pytest.mark.parametrize("waits", [True, False])
async def test_one_that_is_referred_to_stays_also_where_its_message_waits(place, waits):
    cat = await place.uploaded()
    await place.told("one", cat, waits=waits)
    place.age(cat)
    for _ in range(2):
        await place.store.delete_expired()
    assert await place.has(cat)
    assert place.names(cat) == [f"{cat}.data", f"{cat}.json"]


async def test_one_whose_message_was_never_kept_goes_after_a_day(place):
    cat = await place.uploaded()
    await place.files.refer("one", [cat])  # and killed before the commit
    place.age(cat)
    await place.store.delete_expired()
    assert place.names(cat) == []


async def test_one_that_is_sent_again_or_referred_to_again_has_another_day(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    place.age(cat)
    place.age(dog)
    assert await place.uploaded() == cat
    await place.files.refer("one", [dog])
    await place.store.delete_expired()
    assert (await place.has(cat), await place.has(dog)) == (True, True)


@pytest.mark.parametrize("left", [(".unsure",), (".unsure", ".data"), (".unsure", ".json")])
async def test_what_a_kill_left_of_an_upload_or_of_a_deletion_goes_too(place, left):
    cat = await place.uploaded()
    for suffix in {".unsure", ".data", ".json"} - {*left}:
        (place.folder / "attachments" / f"{cat}{suffix}").unlink()
    place.age(cat)
    await place.store.delete_expired()
    assert place.names(cat) == []


async def test_what_a_kill_left_in_the_middle_of_a_write_goes_too(place):
    await place.uploaded()
    folder = place.folder / "attachments"
    for name in ("0" * 16, "1" * 16):
        (folder / f".{name}").write_bytes(b"half a")
    os.utime(folder / f".{'0' * 16}", (0, 0))
    await place.store.delete_expired()
    assert [file.name for file in folder.glob(".*")] == [f".{'1' * 16}"]


async def test_many_that_refer_to_one_file_at_once_all_do(place):
    cat = await place.uploaded()
    others = make_attachments(place.settings)  # as another process has them
    async with anyio.create_task_group() as group:
        for number in range(10):
            for files in (place.files, others):
                group.start_soon(files.refer, f"s{number}{files is others}", [cat])
    assert len((await place.files.about(cat)).sessions) == 20


async def test_a_disk_that_fails_makes_the_message_wait_as_for_the_store(place):
    cat = await place.uploaded()
    lock = place.folder / "attachments" / "lock"
    lock.unlink(missing_ok=True)
    lock.symlink_to(place.folder / "elsewhere")
    with pytest.raises(FileRefused, match="is a link"):
        await place.files.refer("one", [cat])


async def test_a_damaged_session_loses_none_of_its_files_to_the_sweep(place, monkeypatch):
    cat = await place.uploaded()
    await place.told("one", cat)
    place.age(cat)

    async def damaged(session_id):
        raise SessionDamaged(session_id, "torn")

    with monkeypatch.context() as patch:
        patch.setattr(place.store._store, "load", damaged)
        await place.store.delete_expired()
    assert await place.has(cat)


async def expired(place, session):
    past = {"expires_at": "2020-01-01T00:00:00Z"}
    await place.sessions.change(session, lambda now: now.load_dict(past))


async def swept(place, *files):
    """Sweep once the day of these is over."""
    for file in files:
        place.age(file)
    return await place.store.delete_expired()


async def test_the_file_of_a_session_that_expired_goes_a_day_after_it(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    session = await place.told("one", cat)
    await place.told("two", dog)
    assert await swept(place, cat, dog) == 0
    await expired(place, session)
    assert await place.store.delete_expired() == 1
    assert (await place.has(cat), await place.has(dog)) == (True, True)
    await swept(place, cat)
    assert (await place.has(cat), await place.has(dog)) == (False, True)


async def test_what_waited_in_a_session_that_expired_takes_its_files_along(place):
    cat = await place.uploaded()
    session = await place.told("one", cat, waits=True)
    await expired(place, session)
    assert await place.store.delete_expired() == 1
    following = await place.sessions.outlive(session, "two")
    await swept(place, cat)
    assert await place.files.held(following.id, cat) is not None


@pytest.mark.parametrize("restarts", [True, False])
async def test_so_do_the_files_of_one_that_another_process_removed(place, restarts):
    cat = await place.uploaded()
    session = await place.told("one", cat)
    await swept(place, cat)
    await expired(place, session)
    assert await place.store._store.delete_expired() == 1
    if restarts:
        await place.store.close()
        place.open()
    for _ in range(1 if restarts else SWEEPS):
        await place.store.delete_expired()
    await swept(place, cat)
    assert place.names(cat) == []


async def test_the_files_of_a_damaged_session_go_with_it(place, monkeypatch):
    cat = await place.uploaded()
    await place.told("one", cat)
    await swept(place, cat)

    async def damaged(session_id, *_, **__):
        raise SessionDamaged(session_id, "torn")

    for read in ("load", "entries", "snapshot", "revision"):
        monkeypatch.setattr(place.store._store, read, damaged)
    await place.store.delete_expired()
    await place.sessions.delete("one")
    assert place.names(cat) == []


async def test_so_do_those_of_an_expired_one_that_was_begun_anew(place):
    cat = await place.uploaded()
    session = await place.told("one", cat)
    await swept(place, cat)
    await expired(place, session)
    place.sessions.forget("one")
    await place.sessions.named("one")
    await place.sessions.delete("one")
    assert place.names(cat) == []


async def test_what_is_sent_again_while_its_message_is_erased_stays(place):
    cat = await place.uploaded()
    await place.told("one", cat)
    again = await place.uploaded()
    await place.sessions.erase("one", [1])
    await place.told("one", again)
    assert await place.files.held("one", again) is not None
    assert not await place.has(cat)


async def test_nothing_erases_between_a_files_use_and_its_message(place, monkeypatch):
    cat = await place.uploaded()
    await place.told("one", cat)
    refer, erased = place.files.refer, anyio.Event()

    async def erase():
        await place.sessions.erase("one", [1])
        erased.set()

    async with anyio.create_task_group() as group:

        async def referred(*given):
            await refer(*given)
            group.start_soon(erase)
            while not erased.is_set() and not any(place.store.order._waiting.values()):
                await anyio.lowlevel.checkpoint()

        monkeypatch.setattr(place.store.attachments, "refer", referred)
        await place.told("one", cat)
    assert await place.files.held("one", cat) is not None


async def test_one_that_is_on_its_way_to_another_session_stays(place):
    cat = await place.uploaded()
    await place.told("one", cat)
    await place.files.refer("two", [cat])
    await place.sessions.erase("one", [1])
    assert await place.files.held("two", cat) is not None


async def test_a_kill_during_one_of_two_erasures_leaves_neither_file(place, monkeypatch):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat)
    await place.told("two", dog)
    await swept(place, cat, dog)

    letting_go = place.store._let_go

    async def killed(*_):
        monkeypatch.setattr(place.store, "_let_go", letting_go)
        await place.sessions.erase("two", [1])
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(place.store, "_let_go", killed)
        await place.sessions.erase("one", [1])
    await place.store.delete_expired()
    assert place.names(cat) == place.names(dog) == []


async def test_what_an_earlier_version_was_killed_while_it_deleted_goes_too(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    for file in (cat, dog):
        await place.told("one", file)
    await swept(place, cat, dog)
    await place.store._store.erase(await place.sessions.open("one"), [1])
    (place.folder / "attachments" / ".forgetting").write_text(f"{cat} {dog} ../../x")
    await place.store.delete_expired()
    assert (place.names(cat), await place.has(dog)) == ([], True)
    assert not list(place.folder.glob("attachments/.*"))


def test_each_file_is_settled_without_a_look_at_the_others(tmp_path, monkeypatch):
    files = Attachments(tmp_path, limit_bytes=10**6)
    for number in range(3):
        (tmp_path / f"{number:040x}{UNSURE}").touch()
        os.utime(tmp_path / f"{number:040x}{UNSURE}", (0, 0))
    unsure = files.unsure()
    monkeypatch.setattr(type(tmp_path), "glob", None)
    for name in unsure:
        files.settle(name, unused_by=())
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


async def test_what_waits_behind_new_takes_its_files_along(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat)
    await place.told("one", dog, waits=True)
    begun = await place.sessions.start_new("one")
    assert await place.files.held(begun.id, cat) is None
    assert await place.files.held(begun.id, dog) is not None


# Files of earlier versions


def made_former(place, file, name):
    """Make it what an earlier version kept: named by its content, with nobody noted."""
    folder = place.folder / "attachments"
    known = json.loads((folder / f"{file}.json").read_text())
    del known["sessions"], known["at"]
    (folder / f"{name}.json").write_text(json.dumps({**known, "id": name}))
    (folder / f"{file}.data").rename(folder / f"{name}.data")
    for suffix in (".json", UNSURE):
        (folder / f"{file}{suffix}").unlink()


async def test_files_of_an_earlier_version_are_held_where_they_were_sent(place):
    cat, dog = "c" * 40, "d" * 40
    made_former(place, await place.uploaded(), cat)
    made_former(place, await place.uploaded(b"a dog"), dog)
    await place.told("one", cat, refers=False)
    await place.told("two", cat, refers=False, waits=True)
    await place.told("three", cat, refers=False)
    assert await place.files.held("one", cat) is None
    await place.store.delete_expired()
    held = {name: await place.files.held(name, cat) for name in ("one", "two", "three", "four")}
    assert [name for name, kept in held.items() if kept] == ["one", "two", "three"]
    # What none refers to has a day, as any other.
    assert await place.has(dog)
    place.age(dog)
    place.age(cat)
    await place.store.delete_expired()
    assert (await place.has(cat), await place.has(dog)) == (True, False)
    # A session that names it from now on was not sent it.
    await place.told("four", cat, refers=False)
    await place.store.delete_expired()
    assert await place.files.held("four", cat) is None


async def test_files_that_another_key_sealed_wait_for_it(tmp_path):
    keys = [{"encryption_key": Fernet.generate_key().decode()} for _ in range(2)]
    place = Place(tmp_path, **keys[0])
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat)
    place.age(dog)
    await place.store.close()
    with pytest.raises(NotReadable, match="append that key"):
        Place(tmp_path, url="sqlite:other.sqlite", **keys[1])
    place = Place(tmp_path, **keys[0])
    assert await place.files.held("one", cat)
    await place.store.delete_expired()
    assert (await place.has(cat), await place.has(dog)) == (True, False)
    await place.store.close()


async def test_a_session_whose_key_is_lost_stops_nothing_and_keeps_its_files(place, monkeypatch):
    cat, dog = "c" * 40, "d" * 40
    made_former(place, await place.uploaded(), cat)
    made_former(place, await place.uploaded(b"a dog"), dog)
    await place.told("one", dog, refers=False)
    await place.told("two", cat, refers=False)
    load = place.store._store.load

    async def sealed(session_id):
        if session_id == "two":
            raise NotReadable("its key is lost")
        return await load(session_id)

    with monkeypatch.context() as patch:
        patch.setattr(place.store._store, "load", sealed)
        for _ in range(2):
            await place.store.delete_expired()
        assert await place.files.held("one", dog) is not None
        assert await place.has(cat)
    await place.store.delete_expired()  # its key is back
    held = [await place.files.held("two", file) for file in (cat, dog)]
    assert [kept is not None for kept in held] == [True, False]
    assert await place.files.held("one", dog) is not None


async def test_one_that_another_session_without_its_key_may_use_is_erased_here_alone(
    place, monkeypatch
):
    cat = await place.uploaded()
    await place.told("one", cat)
    await place.told("two", cat)
    load = place.store._store.load

    async def sealed(session_id):
        if session_id == "two":
            raise NotReadable("its key is lost")
        return await load(session_id)

    monkeypatch.setattr(place.store._store, "load", sealed)
    await place.sessions.erase("one", [1])
    await place.store.delete_expired()
    assert (await place.files.about(cat)).sessions == ("two",)


# Killed at any write


class Killed(BaseException):
    """What stops a process where it is: after it nothing more is written."""


class Kill:
    """Lets a process write this often, and kills it then."""

    def __init__(self, patch, after):
        self.left = after
        for place, name in ((os, "open"), (os, "replace"), (os, "unlink"), (os, "fsync")):
            patch.setattr(place, name, self._counted(getattr(place, name)))
        patch.setattr(aiofiles.os, "replace", self._waiting(aiofiles.os.replace))

    def _counted(self, call):
        def counted(*args, **more):
            self._count()
            return call(*args, **more)

        return counted

    def _waiting(self, call):
        async def counted(*args, **more):
            self._count()
            return await call(*args, **more)

        return counted

    def _count(self):
        self.left -= 1
        if self.left < 0:
            raise Killed


async def lived(place, how_far):
    """Uploads, tells, forgets and deletes; notes how far it came."""
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat)
    await place.told("two", dog)
    how_far.append(dog)
    await place.store.delete("one")
    await place.files.remove(cat)
    await place.store.delete("zero")
    how_far.append(cat)


@pytest.mark.slow
async def test_a_kill_at_any_write_leaves_nothing_behind_and_takes_nothing_away(tmp_path):
    for after in count():
        place, how_far = Place(tmp_path / str(after)), []
        await place.sessions.named("one")
        await place.sessions.named("two")
        await place.told("zero", owl := await place.uploaded(b"an owl"))
        place.age(owl)
        await place.store.delete_expired()  # of this one it has turned out
        with pytest.MonkeyPatch.context() as patch:
            Kill(patch, after)
            with suppress(Killed):
                await lived(place, how_far)
        await place.store.close()
        place.open()
        for mark in (place.folder / "attachments").glob("*"):
            os.utime(mark, (0, 0))
        await place.store.delete_expired()
        infos = [info.id async for info in place.store.list()]
        told = {name: (await place.store.get(name)).window for name in infos}
        users = {file: name for name in infos for entry in told[name] for file in files_in(entry)}
        named = set(users)
        assert set(place.files.all()) == named, f"killed after {after}"
        assert all([await place.files.held(name, file) for file, name in users.items()])
        left = {file.name for file in (place.folder / "attachments").glob("*")}
        parts = {f"{file}{suffix}" for file in named for suffix in (".json", ".data")}
        assert left - {"lock", "sessions-noted"} == parts, f"killed after {after}"
        await place.store.close()
        if len(how_far) == 2:
            break
    assert after > 20
