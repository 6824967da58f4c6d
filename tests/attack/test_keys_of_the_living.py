"""Keys are destroyed of what ends, and never of what lives on or was put in its place."""

import shutil
import sqlite3
from datetime import timedelta
from threading import current_thread, main_thread

import anyio
import pytest

from nanoloop.errors import NotReadable, SessionNotFound
from nanoloop.intake import user_entry
from nanoloop.parts import KEYS_FILE, make_attachments, make_folder_sealing, make_store, open_store
from nanoloop.session.entry import utc_now
from nanoloop.stores import keys
from nanoloop.stores.sweep import destroy_all
from tests.attack.test_erased_person import (
    ANN,
    ANNS,
    ANNS_ACCOUNT,
    BOB,
    BOBS,
    EVE,
    EVES,
    ID,
    URLS,
    answers,
    backup,
    erase,
    reads,
    restored,
    said,
    settings_in,
    texts,
    turn,
)

LATER = timedelta(days=1)


async def spoken(store, session_id=ID, **more):
    session = await store.create(id=session_id, **more)
    session.add_message("user", EVES)
    await store.save(session)
    return session


@URLS
async def test_a_session_that_is_renewed_while_it_expires_keeps_its_keys(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    store, sweeper = open_store(settings), open_store(settings)
    session = await spoken(store, ttl=100, sliding=True)
    sweeper.clock = lambda: utc_now() + timedelta(seconds=150)
    glances = sweeper.database.glances

    async def overtaken(*, now):
        found = [stored async for stored in glances(now=now)]
        store.clock = session._clock = lambda: utc_now() + timedelta(seconds=90)
        session.add_message("user", ANNS)
        await store.save(session)
        for stored in found:
            yield stored

    sweeper.database.glances = overtaken
    assert await sweeper.delete_expired() == 0
    await sweeper.close()
    await store.close()
    assert await texts(settings) == [EVES, ANNS]


async def test_a_damaged_session_does_not_keep_others_from_expiring(tmp_path):
    settings = settings_in(tmp_path)
    store = open_store(settings)
    for name in ("a", "b", "c"):
        await spoken(store, name, ttl=10)
    await store.close()
    with sqlite3.connect(tmp_path / "sessions.sqlite") as rows:
        rows.execute(
            "UPDATE session SET head = (SELECT head FROM session WHERE id = 'b') WHERE id = 'a'"
        )
    store = open_store(settings)
    store.clock = lambda: utc_now() + LATER
    assert await store.delete_expired() == 3
    await store.close()


@URLS
@pytest.mark.parametrize("is_over", [True, False])
async def test_a_session_in_whose_place_another_one_is_opens_in_no_copy(tmp_path, url, is_over):
    settings = settings_in(tmp_path / "data", url)
    store = open_store(settings)
    await spoken(store, ttl=10)
    backup(settings.data, tmp_path / "old")
    if is_over:  # the chat goes on before the sweep comes
        store.clock = lambda: utc_now() + LATER
    session = await store.create(id=ID, replace=not is_over)
    session.add_message("user", "anew")
    await store.save(session)
    await store.delete_expired()
    assert [entry.content["text"] for entry in await store.entries(ID)] == ["anew"]
    await store.close()
    old = make_store(settings_in(restored(tmp_path / "old", settings.data), url))
    with pytest.raises(SessionNotFound):
        await old.load(ID)
    await old.close()


@URLS
async def test_an_answer_stays_with_its_people_when_somebody_who_only_waited_is_erased(
    tmp_path, url
):
    settings = settings_in(tmp_path / "data", url)
    store = make_store(settings)
    session = await store.create(id=ID, key=ID)
    await turn(store, session, said(ANN, "hello", number=1), answers(f"So {ANNS}"))
    session.hold(user_entry(said(EVE, EVES, number=2)))
    await store.save(session)
    await store.close()
    await erase(settings)
    assert await texts(settings) == ["hello", f"So {ANNS}"]
    backup(settings.data, tmp_path / "old")
    await erase(settings, person=ANNS_ACCOUNT)
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    assert [await reads(each) for each in (settings, old)] == [set(), set()]


@URLS
async def test_with_an_older_keys_file_nothing_gets_another_key_of_the_same_name(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    keys_file, older, newest = settings.data / KEYS_FILE, tmp_path / "older", tmp_path / "newest"
    store = make_store(settings)
    session = await store.create(id=ID, key=ID)
    await turn(store, session, said(ANN, ANNS, number=1), answers(ANNS))
    shutil.copy(keys_file, older)
    await turn(store, session, said(BOB, BOBS, number=2), answers(BOBS))
    shutil.copy(keys_file, newest)
    shutil.copy(older, tmp_path / "put")
    (tmp_path / "put").replace(keys_file)
    session.add_entry(user_entry(said(BOB, f"{BOBS} again", number=3)))
    with pytest.raises(NotReadable, match="restore the newest version of the keys file"):
        await store.save(session)
    newest.replace(keys_file)
    await store.save(session)
    await store.close()
    assert await texts(settings) == [ANNS, ANNS, BOBS, BOBS, f"{BOBS} again"]


async def test_what_a_kill_left_of_a_deleted_session_is_deleted_in_its_turn(tmp_path):
    store = open_store(settings_in(tmp_path))
    await spoken(store)
    head, delete, order = await store.database.head(ID), store.database.delete, []
    await destroy_all(store.sealing, [(ID, head)])  # and then it is killed

    async def next_in_turn():
        await store.order.write(ID, lambda: noted("the next"))

    async def noted(what):
        order.append(what)

    async def watched(session_id):
        group.start_soon(next_in_turn)
        await anyio.wait_all_tasks_blocked()
        order.append("deleted")
        await delete(session_id)

    store.database.delete = watched
    async with anyio.create_task_group() as group:
        await store.delete_expired()
    assert order == ["deleted", "the next"]
    assert await store.database.head(ID) is None
    await store.close()


async def test_what_others_changed_in_the_keys_is_not_read_in_the_event_loop(tmp_path, monkeypatch):
    settings, threads = settings_in(tmp_path), []
    store, other = open_store(settings), open_store(settings)
    session = await spoken(store)
    await spoken(other, "other")

    def read(text):
        threads.append(current_thread())
        return parsed(text)

    parsed = keys._parsed
    monkeypatch.setattr(keys, "_parsed", read)
    await other.delete("other")
    threads.clear()
    session.add_message("user", ANNS)
    await store.save(session)
    assert threads
    assert main_thread() not in threads
    await other.close()
    await store.close()


async def test_what_a_kill_left_of_an_upload_whose_key_is_destroyed_is_removed(tmp_path):
    settings = settings_in(tmp_path)
    files, folder = make_attachments(settings), make_folder_sealing(settings)
    kept = await files.keep(EVES.encode(), owner=ID, name="a.txt", mime_type="text/plain")
    await files.refer(ID, [kept.id])
    files.doubt([kept.id])
    folder.destroy(kept.id)  # and then it is killed
    assert await files.about(kept.id) is None
    files.settle(kept.id, unused_by=())
    assert [file.name for file in files.folder.glob(f"{kept.id}*")] == []
