"""Tests of what a store keeps: sessions, windows, histories, and bindings of chats."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from nanoloop.errors import SessionExists, SessionNotFound, StoreConflict, StoreError
from nanoloop.protocols import Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.testing.stores.stage import STRANGE, SetClock, infos, said, say, texts


class MakingSessions:
    """Tests of creating and adding sessions."""

    async def test_a_session_without_an_id_gets_one(self, store: Store) -> None:
        made = await store.create()
        assert len(made.id) == 32
        assert (await store.get(made.id)).id == made.id

    async def test_what_it_was_created_with_comes_back(self, store: Store) -> None:
        made = await store.create(id="a:b", key="k", metadata={"x": [1]}, agent="poet", ttl=9)
        back = await store.get("a:b")
        assert (back.key, back.agent, back.metadata) == ("k", "poet", {"x": [1]})
        assert back.created_at == made.created_at == back.updated_at

    async def test_an_unknown_one_is_not_found(self, store: Store) -> None:
        for read in (store.get, store.load, store.entries):
            with pytest.raises(SessionNotFound):
                await read("../x")

    async def test_an_id_is_given_once(self, store: Store) -> None:
        await said(store, 2)
        with pytest.raises(SessionExists):
            await store.create(id="s")
        assert (await store.get("s")).entry_count == 2

    async def test_of_two_that_create_the_same_id_one_does(self, store: Store) -> None:
        outcomes: list[Any] = []

        async def create() -> None:
            try:
                outcomes.append(await store.create(id="s"))
            except SessionExists:
                outcomes.append(None)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(create)
        assert sum(made is not None for made in outcomes) == 1

    async def test_a_replacement_begins_empty_and_the_replaced_one_can_not_commit(
        self, store: Store
    ) -> None:
        old = await said(store, 2)
        await store.create(id="s", replace=True)
        old.add_message("user", "late")
        with pytest.raises((StoreConflict, SessionNotFound)):
            await store.save(old)
        assert (await store.get("s")).entry_count == 0

    async def test_a_replacement_of_a_fresh_one_shuts_the_fresh_one_out(self, store: Store) -> None:
        old = await store.create(id="s")
        await store.create(id="s", replace=True)
        old.add_message("user", "late")
        with pytest.raises((StoreConflict, SessionNotFound)):
            await store.save(old)

    async def test_two_gets_are_two_objects_that_share_nothing(self, store: Store) -> None:
        made = await store.create(id="s")
        made.set("list", [1])
        await store.save(made)
        one, two = await store.get("s"), await store.get("s")
        one.set("list", [1, 2])
        one.add_message("user", "x")
        assert two.get("list") == ([1], True)
        assert two.entry_count == 0

    async def test_its_revision_tells_of_each_commit(self, store: Store) -> None:
        session = await store.create(id="s")
        before = await store.revision("s")
        session.add_message("user", "hi")
        await store.save(session)
        assert await store.revision("s") == before + 1 == session.revision
        with pytest.raises(SessionNotFound):
            await store.revision("nobody")

    async def test_a_session_made_elsewhere_is_added_whole(self, store: Store) -> None:
        session = Session(id="mine")
        say(session, 3)
        session.set("k", "v")
        await store.add(session)
        back = await store.get("mine")
        assert texts(back.window) == texts(session.window)
        assert back.state == {"k": "v"}
        with pytest.raises(SessionExists):
            await store.add(Session(id="mine"))

    async def test_one_that_a_store_keeps_already_can_not_be_added(self, store: Store) -> None:
        session = await said(store, 1)
        await store.delete("s")
        with pytest.raises(StoreError, match="fork"):
            await store.add(session)

    async def test_a_session_that_no_store_made_can_not_be_saved(self, store: Store) -> None:
        session = Session(id="mine")
        with pytest.raises(SessionNotFound):
            await store.save(session)


class SavingSessions:
    """Tests of saving sessions."""

    async def test_what_was_saved_is_there(self, store: Store) -> None:
        session = await said(store, 3)
        session.update_summary("so far")
        session.set("k", {"deep": [None, 1.5, True]})
        await store.save(session)
        back = await store.get("s")
        assert texts(back.window) == ["message 0", "message 1", "message 2"]
        assert (back.summary, back.state) == ("so far", {"k": {"deep": [None, 1.5, True]}})
        assert (back.turns, back.title, back.updated_at) == (1, "message 0", session.updated_at)

    async def test_a_loaded_session_goes_on(self, store: Store) -> None:
        await said(store, 3)
        for text in ("four", "five"):
            session = await store.load("s")
            session.add_message("user", text)
            await store.save(session)
        back = await store.get("s")
        assert texts(back.window)[2:] == ["message 2", "four", "five"]
        assert [entry.seq for entry in back.window] == [1, 2, 3, 4, 5]

    async def test_entries_come_back_as_they_were(self, store: Store) -> None:
        session = await store.create(id="s")
        session.add_entry(Entry.tool_call("t", {"a": 1}, call_id="c"))
        session.add_entry(Entry.tool_result("t", {"r": [1]}, "broke", call_id="c"))
        session.add_entry(Entry.thinking("hm"))
        session.add_entry(Entry(type="future", content={"x": 1}, metadata={"m": 2}))
        await store.save(session)
        kept = [entry.to_dict() for entry in (await store.get("s")).window]
        assert kept == [entry.to_dict() for entry in session.window]

    @pytest.mark.parametrize("text", STRANGE, ids=ascii)
    async def test_any_text_survives(self, store: Store, text: str) -> None:
        session = await store.create(id="s", metadata={"note": text})
        session.add_message("user", text)
        session.set("k", text)
        session.update_summary(text)
        await store.save(session)
        for back in (await store.get("s"), await store.load("s")):
            assert texts(back.window) == [text]
            assert (back.get("k")[0], back.summary, back.metadata["note"]) == (text, text, text)

    async def test_a_very_long_text_survives(self, store: Store) -> None:
        session = await store.create(id="s")
        long = "0123456789" * 100_000
        session.add_message("user", long)
        session.add_message("assistant", "short")
        await store.save(session)
        assert texts((await store.load("s")).window) == [long, "short"]
        assert texts(await store.entries("s", after=1)) == ["short"]

    async def test_saving_nothing_new_is_no_commit(self, store: Store) -> None:
        session = await said(store, 1)
        revision = session.revision
        await store.save(session)
        assert session.revision == (await store.get("s")).revision == revision

    async def test_the_second_of_two_writers_is_told(self, store: Store) -> None:
        await said(store, 1)
        one, two = await store.get("s"), await store.get("s")
        one.add_message("user", "first")
        two.add_message("user", "second")
        await store.save(one)
        with pytest.raises(StoreConflict):
            await store.save(two)
        assert texts((await store.get("s")).window) == ["message 0", "first"]

    async def test_of_two_writers_at_once_one_wins(self, store: Store) -> None:
        await said(store, 1)
        outcomes: list[Any] = []

        async def write(session: Session, text: str) -> None:
            session.add_message("user", text)
            try:
                await store.save(session)
            except StoreConflict:
                outcomes.append(None)
            else:
                outcomes.append(text)

        sessions = [await store.get("s") for _ in range(4)]
        async with anyio.create_task_group() as group:
            for number, session in enumerate(sessions):
                group.start_soon(write, session, f"writer {number}")
        won = [text for text in outcomes if text]
        assert len(won) == 1
        assert texts((await store.get("s")).window) == ["message 0", *won]

    async def test_one_object_may_be_saved_by_many_at_once(self, store: Store) -> None:
        session = await store.create(id="s")
        async with anyio.create_task_group() as group:
            for number in range(20):
                session.add_message("user", str(number))
                group.start_soon(store.save, session)
        back = await store.get("s")
        assert texts(back.window) == [str(number) for number in range(20)]

    async def test_nothing_is_revived_after_a_delete(self, store: Store) -> None:
        session = await said(store, 1)
        await store.delete("s")
        await store.delete("s")
        session.add_message("user", "late")
        with pytest.raises(SessionNotFound):
            await store.save(session)
        with pytest.raises(SessionNotFound):
            await store.get("s")
        assert await infos(store) == []

    async def test_a_deleted_id_can_be_used_again(self, store: Store) -> None:
        await said(store, 3)
        await store.delete("s")
        await store.create(id="s")
        assert (await store.get("s")).entry_count == 0


class LoadingWindows:
    """Tests of loading a session with only its window, or with its whole history."""

    async def test_a_load_has_the_window_only(self, store: Store) -> None:
        await said(store, 30, keep=4)
        session = await store.load("s")
        assert texts(session.window) == [f"message {number}" for number in range(26, 30)]
        assert session.entries_between(0, 26) == []
        assert (session.entry_count, session.last_seq, session.pending_seq) == (30, 30, 26)

    async def test_a_get_has_everything(self, store: Store) -> None:
        await said(store, 30, keep=4)
        session = await store.get("s")
        assert len(session.history()) == 30
        assert len(session.window) == 4
        assert len(session.pending) == 26

    async def test_what_is_pending_can_be_read(self, store: Store) -> None:
        session = await said(store, 30, keep=4)
        session.update_summary("the first ten", seq=10)
        await store.save(session)
        back = await store.load("s")
        pending = await store.entries("s", after=back.covered_seq, upto=back.pending_seq)
        assert [entry.seq for entry in pending] == list(range(11, 27))

    async def test_a_reset_leaves_an_empty_history(self, store: Store) -> None:
        session = await said(store, 5)
        session.reset_history()
        await store.save(session)
        for back in (await store.load("s"), await store.get("s")):
            assert (back.entry_count, back.window, back.epoch) == (0, (), 1)
        assert await store.entries("s") == []
        session.add_message("user", "again")
        await store.save(session)
        assert texts((await store.load("s")).window) == ["again"]

    async def test_what_was_taken_back_is_in_no_view(self, store: Store) -> None:
        session = await said(store, 4)
        session.undo()
        session.add_message("user", "instead")
        await store.save(session)
        expected = ["message 0", "message 1", "instead"]
        for back in (await store.load("s"), await store.get("s")):
            assert texts(back.window) == expected
        assert texts(await store.entries("s")) == expected

    async def test_a_window_that_is_no_tail_is_the_same_after_a_load(self, store: Store) -> None:
        full = [{"role": "user", "content": f"m{number}"} for number in range(9)]
        recap = {"role": "assistant", "content": "recap"}
        chosen = [full[2], recap, full[7]]
        session = Session.load({"full_chat_history": full, "current_chat_history": chosen})
        await store.add(session)
        session.add_message("user", "next")
        await store.save(session)
        for back in (await store.load(session.id), await store.get(session.id)):
            assert texts(back.window) == ["m2", "recap", "m7", "next"]
        assert (await infos(store))[0].pending == len((await store.get(session.id)).pending)

    async def test_a_fork_can_be_added(self, store: Store) -> None:
        session = await said(store, 6, keep=2)
        fork = (await store.get("s")).fork(3)
        await store.add(fork)
        back = await store.get(fork.id)
        assert texts(back.history()) == ["message 2", "message 1", "message 0"]
        assert (await store.get("s")).entry_count == session.entry_count


class ReadingEntries:
    """Tests of reading ranges of a history."""

    async def test_they_come_in_pages(self, store: Store) -> None:
        await said(store, 25, keep=2)
        seqs: list[list[int]] = []
        after = 0
        while page := await store.entries("s", after=after, limit=10):
            seqs.append([entry.seq for entry in page])
            after = page[-1].seq
        assert seqs == [list(range(1, 11)), list(range(11, 21)), list(range(21, 26))]

    @pytest.mark.parametrize(
        ("after", "upto", "limit", "expected"),
        [
            (0, None, None, [1, 2, 3, 4, 5]),
            (2, 4, None, [3, 4]),
            (2, 4, 1, [3]),
            (0, 0, None, []),
            (5, None, None, []),
            (4, 99, 0, []),
            (-3, 2, 9, [1, 2]),
        ],
    )
    async def test_a_range_is_open_below_and_closed_above(
        self, store: Store, after: int, upto: int | None, limit: int | None, expected: list[int]
    ) -> None:
        await said(store, 5)
        found = await store.entries("s", after=after, upto=upto, limit=limit)
        assert [entry.seq for entry in found] == expected

    async def test_every_place_of_a_long_history_is_found(self, store: Store) -> None:
        session = await store.create(id="s")
        for number in range(600):
            session.add_message("user", f"{number} " + "x" * (number * 37 % 3000))
            if number % 7 == 0:
                session.set("k", "y" * (number % 900))
                await store.save(session)
        await store.save(session)
        for after in (0, 1, 77, 300, 301, 555, 598, 599):
            assert [e.seq for e in await store.entries("s", after=after, limit=1)] == [after + 1]


class ListingSessions:
    """Tests of listing sessions."""

    async def test_the_last_active_comes_first(self, store: Store, clock: SetClock) -> None:
        for name in ("a", "b", "c"):
            clock.advance(1)
            await store.create(id=name)
        clock.advance(1)
        session = await store.load("a")
        session.add_message("user", "hi")
        await store.save(session)
        assert [info.id for info in await infos(store)] == ["a", "c", "b"]

    async def test_it_tells_a_session_at_a_glance(self, store: Store) -> None:
        session = await store.create(id="s", key="tg:1", agent="poet", ttl=60)
        session.add_entry(Entry.message("user", "Hello there"))
        say(session, 20)
        session.trim_if_needed(4, 4)
        session.update_summary("some", seq=10)
        session.awaiting = 20
        await store.save(session)
        info = (await infos(store))[0]
        assert (info.id, info.key, info.agent, info.title) == ("s", "tg:1", "poet", "Hello there")
        assert (info.entries, info.awaiting) == (21, 20)
        assert info.pending == session.pending_seq - 10
        assert info.updated_at == session.updated_at
        assert info.expires_at is not None
        assert info.size > 0


class BindingKeys:
    """Tests of binding chats to sessions."""

    @pytest.mark.parametrize("key", ["a", "A", "a:b", "a/b", "..", ".", "x" * 500, *STRANGE])
    async def test_a_key_means_what_it_was_last_bound_to(self, store: Store, key: str) -> None:
        assert await store.bound(key) is None
        await store.bind(key, "one")
        await store.bind(key, "two")
        assert await store.bound(key) == "two"
        assert await store.bound(key + "?") is None
