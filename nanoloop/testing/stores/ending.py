"""Tests of erased entries, expired sessions, and concurrent writers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import anyio
import pytest

from nanoloop.errors import SessionNotFound, StoreConflict
from nanoloop.protocols import Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.testing.stores.stage import SetClock, everything_in, infos, said, say, texts

WORDS = "the secret is xyzzy"


class KnowingAll:
    """The base class for tests that search everything stored for certain words."""

    def all_of(self, store: Store, folder: Path) -> str:
        """Return everything stored, as text; by default, the contents of the test's folder."""
        return everything_in(folder)


class ErasingEntries(KnowingAll):
    """Tests that erased messages are gone from everything stored."""

    async def with_secret(self, store: Store, *, keep: int | None = None) -> Session:
        session = await store.create(id="s")
        session.add_entry(Entry.message("user", WORDS, metadata={"message_id": "m1"}))
        say(session, 5)
        if keep is not None:
            session.trim_if_needed(1, keep)
        await store.save(session)
        return session

    async def test_the_words_are_gone_from_all_that_is_stored(
        self, store: Store, tmp_path: Path
    ) -> None:
        session = await self.with_secret(store)
        session.update_summary(f"They said {WORDS}.", seq=0)
        await store.save(session)
        session.update_summary("They spoke.")
        assert session.title == WORDS
        await store.erase(session, [1])
        assert "xyzzy" not in self.all_of(store, tmp_path)
        assert "xyzzy" not in (await store.get("s")).dump()

    async def test_the_others_stay_as_they_were_and_keep_their_numbers(self, store: Store) -> None:
        session = await self.with_secret(store, keep=2)
        before = await store.entries("s")
        await store.erase(session, [1, 4])
        after = await store.entries("s")
        assert [entry.seq for entry in after] == [1, 2, 3, 4, 5, 6]
        assert [e for e in after if e.type == "message"] == [before[n] for n in (1, 2, 4, 5)]
        assert (after[0].type, dict(after[0].content), dict(after[0].metadata)) == (
            ("erased", {}, {})
        )

    @pytest.mark.parametrize("keep", [None, 2])
    async def test_the_session_goes_on_after_it(self, store: Store, keep: int | None) -> None:
        session = await self.with_secret(store, keep=keep)
        await store.erase(session, [1, 5])
        session.add_message("user", "later")
        await store.save(session)
        for again in (await store.load("s"), await store.get("s")):
            assert again.messages == session.messages
            assert again.last_seq == 7
        assert texts(await store.entries("s", after=5)) == ["message 4", "later"]

    async def test_an_object_from_before_can_not_bring_them_back(self, store: Store) -> None:
        session = await self.with_secret(store)
        other = await store.load("s")
        await store.erase(session, [1])
        other.add_message("user", "more")
        with pytest.raises(StoreConflict):
            await store.save(other)
        assert "xyzzy" not in str(await store.entries("s"))

    async def test_an_object_that_is_behind_erases_nothing(self, store: Store) -> None:
        session = await self.with_secret(store)
        other = await store.load("s")
        session.add_message("user", "more")
        await store.save(session)
        with pytest.raises(StoreConflict):
            await store.erase(other, [1])
        assert (await store.get("s")).title == WORDS

    async def test_what_is_not_saved_yet_is_saved_without_them(
        self, store: Store, tmp_path: Path
    ) -> None:
        session = await store.create(id="s")
        session.add_message("user", WORDS)
        session.add_message("assistant", "noted")
        await store.erase(session, [1])
        assert "xyzzy" not in self.all_of(store, tmp_path)
        assert [entry.type for entry in await store.entries("s")] == ["erased", "message"]

    async def test_what_was_taken_back_is_erased_too(self, store: Store, tmp_path: Path) -> None:
        session = await self.with_secret(store)
        session.add_message("user", "and plugh")
        await store.save(session)
        session.undo()
        await store.erase(session, [7])
        assert "plugh" not in self.all_of(store, tmp_path)
        assert (await store.get("s")).last_seq == 7

    async def test_a_summary_that_tells_of_them_goes_and_all_waits_for_a_new_one(
        self, store: Store
    ) -> None:
        session = await self.with_secret(store, keep=2)
        session.update_summary("Of 3.", seq=3, ledger=[{"kind": "id", "text": "A-1", "seq": 3}])
        await store.save(session)
        epoch = session.epoch
        await store.erase(session, [2])
        again = await store.load("s")
        assert (again.summary, again.ledger, again.covered_seq) == ("", (), 0)
        assert again.pending_seq == 3
        assert again.epoch > epoch

    async def test_a_summary_that_does_not_reach_so_far_stays(self, store: Store) -> None:
        session = await self.with_secret(store, keep=2)
        session.update_summary("Of 3.", seq=3)
        await store.erase(session, [5])
        again = await store.load("s")
        assert (again.summary, again.covered_seq) == ("Of 3.", 3)

    async def test_a_deleted_one_is_not_found(self, store: Store) -> None:
        session = await self.with_secret(store)
        await store.delete("s")
        with pytest.raises(SessionNotFound):
            await store.erase(session, [1])

    async def test_every_place_of_a_long_history_is_found_after_it(self, store: Store) -> None:
        session = await said(store, 300, keep=20)
        await store.erase(session, range(100, 200))
        for after in (0, 99, 150, 199, 298):
            (entry,) = await store.entries("s", after=after, limit=1)
            assert entry.seq == after + 1
        assert len((await store.load("s")).window) == 20


class ExpiringSessions:
    """Tests of sessions with a time to live, using the test's clock."""

    async def test_it_is_strictly_after_the_moment(self, store: Store, clock: SetClock) -> None:
        session = await store.create(id="s", ttl=10)
        clock.advance(10)
        assert (await store.load("s")).id == "s"
        session.add_message("user", "in time")
        await store.save(session)
        clock.advance(0.001)
        for read in (store.get, store.load, store.entries):
            with pytest.raises(SessionNotFound):
                await read("s")
        session.add_message("user", "late")
        with pytest.raises(SessionNotFound):
            await store.save(session)

    async def test_only_a_sliding_one_is_extended(self, store: Store, clock: SetClock) -> None:
        for name, sliding in (("fixed", False), ("sliding", True)):
            session = await store.create(id=name, ttl=10, sliding=sliding)
            session.set("k", 1)
            await store.save(session)
        clock.advance(6)
        for name in ("fixed", "sliding"):
            session = await store.load(name)
            session.add_message("user", "hi")
            await store.save(session)
        clock.advance(6)
        assert [info.id for info in await infos(store)] == ["sliding"]

    @pytest.mark.parametrize("ttl", [None, 0, -1])
    async def test_without_a_time_to_live_it_never_ends(
        self, store: Store, clock: SetClock, ttl: float | None
    ) -> None:
        await store.create(id="s", ttl=ttl)
        clock.advance(10**9)
        assert await store.delete_expired() == 0
        assert (await store.get("s")).id == "s"

    async def test_what_expired_is_removed_and_counted(self, store: Store, clock: SetClock) -> None:
        for number in range(5):
            await store.create(id=f"s{number}", ttl=10 if number % 2 else None)
        clock.advance(11)
        assert await store.delete_expired() == 2
        assert await store.delete_expired() == 0
        assert sorted(info.id for info in await infos(store)) == ["s0", "s2", "s4"]

    async def test_the_id_of_an_expired_one_is_free(self, store: Store, clock: SetClock) -> None:
        await store.create(id="s", ttl=1, metadata={"n": 1})
        clock.advance(2)
        await store.create(id="s", metadata={"n": 2})
        assert (await store.get("s")).metadata == {"n": 2}


class RacingWriters(KnowingAll):
    """Tests of several concurrent writers."""

    async def test_a_delete_in_the_middle_of_commits_leaves_nothing(self, store: Store) -> None:
        for _ in range(5):
            session = await said(store, 1)
            async with anyio.create_task_group() as group:
                for number in range(6):
                    group.start_soon(self.save, store, session, f"late {number}")
                    if number == 2:
                        group.start_soon(store.delete, "s")
            with pytest.raises(SessionNotFound):
                await store.load("s")
            assert await infos(store) == []
        await store.create(id="s")
        assert await store.entries("s") == []

    async def save(self, store: Store, session: Session, text: str) -> None:
        session.add_message("user", text)
        with suppress(SessionNotFound):
            await store.save(session)

    async def test_a_session_that_expires_while_it_is_loaded_is_whole_or_not_found(
        self, store: Store, clock: SetClock
    ) -> None:
        session = await store.create(id="s", ttl=10)
        say(session, 30)
        await store.save(session)
        found: list[list[str]] = []

        async def read() -> None:
            with suppress(SessionNotFound):
                found.append(texts((await store.load("s")).window))

        async with anyio.create_task_group() as group:
            for number in range(9):
                group.start_soon(read)
                if number == 4:
                    clock.advance(11)
                    group.start_soon(store.delete_expired)
        assert all(each == texts(session.window) for each in found)
        with pytest.raises(SessionNotFound):
            await store.load("s")

    async def test_a_sweep_spares_the_successor_of_what_expired(
        self, store: Store, clock: SetClock
    ) -> None:
        for number in range(8):
            await store.create(id=f"s{number}", ttl=10)
        clock.advance(11)
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(lambda name: store.create(id=name), f"s{number}")
                group.start_soon(store.delete_expired)
        assert len(await infos(store)) == 8
        assert (await store.load("s7")).entry_count == 0

    async def test_a_save_and_an_erase_at_once_are_one_behind_the_other(
        self, store: Store, tmp_path: Path
    ) -> None:
        session = await store.create(id="s")
        session.add_message("user", WORDS)
        await store.save(session)
        async with anyio.create_task_group() as group:
            group.start_soon(self.save, store, session, "before")
            group.start_soon(store.erase, session, [1])
            group.start_soon(self.save, store, session, "behind")
        assert texts(await store.entries("s", after=1)) == ["before", "behind"]
        assert "xyzzy" not in self.all_of(store, tmp_path)
