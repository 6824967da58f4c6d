"""What was uploaded is gone once nothing refers to it, and stays as long as anything does."""

import anyio
import pytest

from nanoloop.errors import SessionDamaged, StoreError
from nanoloop.intake import user_entry
from nanoloop.messages import Attachment, Inbound
from nanoloop.parts import make_attachments, make_store
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings


class Place:
    """A store and the files beside it."""

    def __init__(self, folder, url):
        self.folder = folder
        settings = Settings(data=folder, store={"url": url})
        self.store = make_store(settings)
        self.sessions = Sessions(self.store)
        self.files = make_attachments(settings)

    async def uploaded(self, data=b"a cat"):
        given = {"owner": "web:", "name": "a.txt", "mime_type": "text/plain"}
        return (await self.files.keep(data, **given)).id

    async def told(self, session_id, *files, waits=False):
        """A session in which each of these files was sent."""
        session = await self.sessions.named(session_id)
        await self.files.refer(session_id, files)
        for file in files:
            came = (Attachment(kind="image", ref=f"attachment:{file}"),)
            message = Inbound(channel="web", chat="a", text="look", attachments=came)
            (session.hold if waits else session.add_entry)(user_entry(message))
        await self.store.save(session)
        return session

    async def has(self, file):
        return (await self.files.about(file), await self.files.data(file)) != (None, None)


@pytest.fixture(params=["memory:", "sqlite:", "jsonl:"])
async def place(request, tmp_path):
    place = Place(tmp_path, request.param)
    yield place
    await place.store.close()


async def test_a_file_goes_with_its_message_and_no_other_does(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat, dog)
    await place.sessions.erase("one", [1])
    assert (await place.has(cat), await place.has(dog)) == (False, True)


async def test_files_go_with_their_session_also_those_that_wait(place):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat)
    await place.told("one", dog, waits=True)
    await place.store.delete("one")
    assert (await place.has(cat), await place.has(dog)) == (False, False)


@pytest.mark.parametrize("out_of_sight", ["undo", "clear"])
async def test_what_was_taken_back_or_cleared_is_forgotten_with_its_session(place, out_of_sight):
    cat = await place.uploaded()
    session = await place.told("one", cat)
    getattr(session, out_of_sight)()
    await place.store.save(session)
    assert await place.has(cat)
    await place.store.delete("one")
    assert not await place.has(cat)


@pytest.mark.parametrize("waits", [True, False])
async def test_a_file_stays_while_another_session_refers_to_it(place, waits):
    cat = await place.uploaded()
    await place.told("one", cat, cat)
    await place.told("two", cat, waits=waits)
    await place.sessions.erase("one", [1])
    await place.store.delete("one")
    assert await place.has(cat)
    await place.store.delete("two")
    assert not await place.has(cat)


async def test_a_fork_keeps_the_files_of_what_it_was_made_of(place):
    cat = await place.uploaded()
    await place.told("one", cat)
    fork = await place.sessions.fork("one")
    await place.store.delete("one")
    assert await place.has(cat)
    await place.store.delete(fork.id)
    assert not await place.has(cat)


async def test_a_damaged_session_keeps_nobody_from_being_forgotten(place, monkeypatch):
    cat = await place.uploaded()
    await place.told("one", cat)
    await place.told("two", cat)
    load = place.store.load

    async def damaged(session_id):
        if session_id == "two":
            raise SessionDamaged(session_id, "torn")
        return await load(session_id)

    monkeypatch.setattr(place.store._store, "load", damaged)
    await place.store.delete("one")
    assert not await place.has(cat)


async def test_where_nothing_was_uploaded_no_session_is_read(place, monkeypatch):
    await place.told("one")
    monkeypatch.setattr(place.store._store, "entries", None)
    monkeypatch.setattr(place.store._store, "snapshot", None)
    with anyio.fail_after(5):
        await place.store.delete("one")
    assert [info async for info in place.store.list()] == []


async def test_what_could_not_be_looked_through_is_looked_through_later(place, monkeypatch):
    cat, dog = await place.uploaded(), await place.uploaded(b"a dog")
    await place.told("one", cat, dog)
    await place.told("two", dog)

    async def away(*_, **__):
        raise StoreError("it is away")

    with monkeypatch.context() as patch:
        patch.setattr(place.store._store, "entries", away)
        with pytest.raises(StoreError):
            await place.store.delete("one")
    assert await place.has(dog)
    assert await place.store.delete_expired() == 0
    assert (await place.has(cat), await place.has(dog)) == (False, True)
    assert not list(place.folder.glob("attachments/.*"))
