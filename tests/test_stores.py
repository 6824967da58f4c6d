"""What every store promises. A new store joins by a line in `STORES`."""

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import count

import anyio
import pytest
from cryptography.fernet import Fernet

from nanoloop.errors import (
    InvalidSessionId,
    SessionExists,
    SessionNotFound,
    StoreConflict,
    StoreError,
)
from nanoloop.events import SessionsCounted, hearing
from nanoloop.protocols import Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.stores.encryption import FernetSeal
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.layered import LayeredStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.stores.store import sweep

NUMBERS = count(1)
SEAL = FernetSeal(Fernet.generate_key().decode())


def sqlite_file(test):
    return folder(test) / "sessions.sqlite"


def folder(request):
    return request.getfixturevalue("tmp_path") / "sessions"


def fresh_schema(request):
    """A server and a schema of the test's own in it: made sooner than a database."""
    server = request.getfixturevalue("shared_postgres")
    return {"url": server.url, "schema": f"test_{next(NUMBERS)}"}


STORES = {
    "in_memory": lambda _, clock: InMemoryStore(clock=clock),
    "layered": lambda _, clock: LayeredStore(InMemoryStore(clock=clock), sessions=2),
    "jsonl": lambda test, clock: JsonlStore(folder(test), clock=clock),
    "jsonl_fsync": lambda test, clock: JsonlStore(folder(test), clock=clock, durability="fsync"),
    "jsonl_sealed": lambda test, clock: JsonlStore(folder(test), clock=clock, seal=SEAL),
    "sqlite": lambda test, clock: SqliteStore(sqlite_file(test), clock=clock),
    "sqlite_fsync": lambda test, clock: SqliteStore(
        sqlite_file(test), clock=clock, durability="fsync"
    ),
    "sqlite_sealed": lambda test, clock: SqliteStore(sqlite_file(test), clock=clock, seal=SEAL),
    "postgres": lambda test, clock: PostgresStore(**fresh_schema(test), clock=clock),
    "redis": lambda test, clock: RedisStore(test.getfixturevalue("redis_url"), clock=clock),
}
"""How to open each store, empty, with a clock of the test's."""

STRANGE = ("🙂 żółć 漢字", "\ud800 half", "a\u2028b\u0085c", "nul\x00nul", "line\nline\r\n", "")


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=STORES.values(), ids=STORES.keys())
async def store(request, clock):
    opened = request.param(request, clock)
    yield opened
    await opened.close()


def say(session, count, *, text="message"):
    for number in range(count):
        session.add_message("assistant" if number % 2 else "user", f"{text} {number}")


async def said(store, count, *, keep=None):
    """A session with so many messages, of which the window shows the last `keep`."""
    session = await store.create(id="s")
    say(session, count)
    if keep is not None:
        session.trim_if_needed(1, keep)
    await store.save(session)
    return session


def texts(entries):
    return [entry.content["text"] for entry in entries]


async def infos(store):
    return [info async for info in store.list()]


class TestSessions:
    async def test_it_keeps_the_protocol(self, store):
        kept: Store = store
        assert await kept.delete("nobody") is None

    async def test_a_session_without_an_id_gets_one(self, store):
        made = await store.create()
        assert len(made.id) == 32
        assert (await store.get(made.id)).id == made.id

    async def test_c19_an_id_may_be_made_as_wanted_and_is_numbered_where_it_is_taken(self, store):
        made = [await store.create(new_id=lambda: "session-1") for _ in range(3)]
        assert [each.id for each in made] == ["session-1", "session-1-01", "session-1-02"]
        assert (await store.create(id="own", new_id=lambda: "session-1")).id == "own"
        with pytest.raises(InvalidSessionId):
            await store.create(new_id=lambda: "../x")

    async def test_what_it_was_created_with_comes_back(self, store):
        made = await store.create(id="a:b", key="k", metadata={"x": [1]}, agent="poet", ttl=9)
        back = await store.get("a:b")
        assert (back.key, back.agent, back.metadata) == ("k", "poet", {"x": [1]})
        assert back.created_at == made.created_at == back.updated_at

    async def test_an_unknown_one_is_not_found(self, store):
        for read in (store.get, store.load, store.entries):
            with pytest.raises(SessionNotFound):
                await read("../x")

    async def test_an_id_is_given_once(self, store):
        await said(store, 2)
        with pytest.raises(SessionExists):
            await store.create(id="s")
        assert (await store.get("s")).entry_count == 2

    async def test_of_two_that_create_the_same_id_one_does(self, store):
        outcomes = []

        async def create():
            try:
                outcomes.append(await store.create(id="s"))
            except SessionExists:
                outcomes.append(None)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(create)
        assert sum(made is not None for made in outcomes) == 1

    async def test_a_replacement_begins_empty_and_the_replaced_one_can_not_commit(self, store):
        old = await said(store, 2)
        await store.create(id="s", replace=True)
        old.add_message("user", "late")
        with pytest.raises((StoreConflict, SessionNotFound)):
            await store.save(old)
        assert (await store.get("s")).entry_count == 0

    async def test_a_replacement_of_a_fresh_one_shuts_the_fresh_one_out(self, store):
        old = await store.create(id="s")
        await store.create(id="s", replace=True)
        old.add_message("user", "late")
        with pytest.raises((StoreConflict, SessionNotFound)):
            await store.save(old)

    async def test_two_gets_are_two_objects_that_share_nothing(self, store):
        made = await store.create(id="s")
        made.set("list", [1])
        await store.save(made)
        one, two = await store.get("s"), await store.get("s")
        one.set("list", [1, 2])
        one.add_message("user", "x")
        assert two.get("list") == ([1], True)
        assert two.entry_count == 0

    async def test_its_revision_tells_of_each_commit(self, store):
        session = await store.create(id="s")
        before = await store.revision("s")
        session.add_message("user", "hi")
        await store.save(session)
        assert await store.revision("s") == before + 1 == session.revision
        with pytest.raises(SessionNotFound):
            await store.revision("nobody")

    async def test_a_session_made_elsewhere_is_added_whole(self, store):
        session = Session(id="mine")
        say(session, 3)
        session.set("k", "v")
        await store.add(session)
        back = await store.get("mine")
        assert texts(back.window) == texts(session.window)
        assert back.state == {"k": "v"}
        with pytest.raises(SessionExists):
            await store.add(Session(id="mine"))

    async def test_one_that_a_store_keeps_already_can_not_be_added(self, store):
        session = await said(store, 1)
        await store.delete("s")
        with pytest.raises(StoreError, match="fork"):
            await store.add(session)

    async def test_a_session_that_no_store_made_can_not_be_saved(self, store):
        session = Session(id="mine")
        with pytest.raises(SessionNotFound):
            await store.save(session)


class TestSaving:
    async def test_what_was_saved_is_there(self, store):
        session = await said(store, 3)
        session.update_summary("so far")
        session.set("k", {"deep": [None, 1.5, True]})
        await store.save(session)
        back = await store.get("s")
        assert texts(back.window) == ["message 0", "message 1", "message 2"]
        assert (back.summary, back.state) == ("so far", {"k": {"deep": [None, 1.5, True]}})
        assert (back.turns, back.title, back.updated_at) == (1, "message 0", session.updated_at)

    async def test_a_loaded_session_goes_on(self, store):
        await said(store, 3)
        for text in ("four", "five"):
            session = await store.load("s")
            session.add_message("user", text)
            await store.save(session)
        back = await store.get("s")
        assert texts(back.window)[2:] == ["message 2", "four", "five"]
        assert [entry.seq for entry in back.window] == [1, 2, 3, 4, 5]

    async def test_entries_come_back_as_they_were(self, store):
        session = await store.create(id="s")
        session.add_entry(Entry.tool_call("t", {"a": 1}, call_id="c"))
        session.add_entry(Entry.tool_result("t", {"r": [1]}, "broke", call_id="c"))
        session.add_entry(Entry.thinking("hm"))
        session.add_entry(Entry(type="future", content={"x": 1}, metadata={"m": 2}))
        await store.save(session)
        kept = [entry.to_dict() for entry in (await store.get("s")).window]
        assert kept == [entry.to_dict() for entry in session.window]

    @pytest.mark.parametrize("text", STRANGE, ids=ascii)
    async def test_any_text_survives(self, store, text):
        session = await store.create(id="s", metadata={"note": text})
        session.add_message("user", text)
        session.set("k", text)
        session.update_summary(text)
        await store.save(session)
        for back in (await store.get("s"), await store.load("s")):
            assert texts(back.window) == [text]
            assert (back.get("k")[0], back.summary, back.metadata["note"]) == (text, text, text)

    async def test_a_very_long_text_survives(self, store):
        session = await store.create(id="s")
        long = "0123456789" * 100_000
        session.add_message("user", long)
        session.add_message("assistant", "short")
        await store.save(session)
        assert texts((await store.load("s")).window) == [long, "short"]
        assert texts(await store.entries("s", after=1)) == ["short"]

    async def test_saving_nothing_new_is_no_commit(self, store):
        session = await said(store, 1)
        revision = session.revision
        await store.save(session)
        assert session.revision == (await store.get("s")).revision == revision

    async def test_the_second_of_two_writers_is_told(self, store):
        await said(store, 1)
        one, two = await store.get("s"), await store.get("s")
        one.add_message("user", "first")
        two.add_message("user", "second")
        await store.save(one)
        with pytest.raises(StoreConflict):
            await store.save(two)
        assert texts((await store.get("s")).window) == ["message 0", "first"]

    async def test_of_two_writers_at_once_one_wins(self, store):
        await said(store, 1)
        outcomes = []

        async def write(session, text):
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

    async def test_one_object_may_be_saved_by_many_at_once(self, store):
        session = await store.create(id="s")
        async with anyio.create_task_group() as group:
            for number in range(20):
                session.add_message("user", str(number))
                group.start_soon(store.save, session)
        back = await store.get("s")
        assert texts(back.window) == [str(number) for number in range(20)]

    async def test_nothing_is_revived_after_a_delete(self, store):
        session = await said(store, 1)
        await store.delete("s")
        await store.delete("s")
        session.add_message("user", "late")
        with pytest.raises(SessionNotFound):
            await store.save(session)
        with pytest.raises(SessionNotFound):
            await store.get("s")
        assert await infos(store) == []

    async def test_a_deleted_id_can_be_used_again(self, store):
        await said(store, 3)
        await store.delete("s")
        await store.create(id="s")
        assert (await store.get("s")).entry_count == 0


class TestWindow:
    async def test_a_load_has_the_window_only(self, store):
        await said(store, 30, keep=4)
        session = await store.load("s")
        assert texts(session.window) == [f"message {number}" for number in range(26, 30)]
        assert session.entries_between(0, 26) == []
        assert (session.entry_count, session.last_seq, session.pending_seq) == (30, 30, 26)

    async def test_a_get_has_everything(self, store):
        await said(store, 30, keep=4)
        session = await store.get("s")
        assert len(session.history()) == 30
        assert len(session.window) == 4
        assert len(session.pending) == 26

    async def test_what_is_pending_can_be_read(self, store):
        session = await said(store, 30, keep=4)
        session.update_summary("the first ten", seq=10)
        await store.save(session)
        back = await store.load("s")
        pending = await store.entries("s", after=back.covered_seq, upto=back.pending_seq)
        assert [entry.seq for entry in pending] == list(range(11, 27))

    async def test_a_reset_leaves_an_empty_history(self, store):
        session = await said(store, 5)
        session.reset_history()
        await store.save(session)
        for back in (await store.load("s"), await store.get("s")):
            assert (back.entry_count, back.window, back.epoch) == (0, (), 1)
        assert await store.entries("s") == []
        session.add_message("user", "again")
        await store.save(session)
        assert texts((await store.load("s")).window) == ["again"]

    async def test_what_was_taken_back_is_in_no_view(self, store):
        session = await said(store, 4)
        session.undo()
        session.add_message("user", "instead")
        await store.save(session)
        expected = ["message 0", "message 1", "instead"]
        for back in (await store.load("s"), await store.get("s")):
            assert texts(back.window) == expected
        assert texts(await store.entries("s")) == expected

    async def test_a_window_that_is_no_tail_is_the_same_after_a_load(self, store):
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

    async def test_a_fork_can_be_added(self, store):
        session = await said(store, 6, keep=2)
        fork = (await store.get("s")).fork(3)
        await store.add(fork)
        back = await store.get(fork.id)
        assert texts(back.history()) == ["message 2", "message 1", "message 0"]
        assert (await store.get("s")).entry_count == session.entry_count


class TestOwed:
    async def test_what_waits_and_what_is_unsent_comes_back(self, store):
        session = await store.create(id="s")
        say(session, 2)
        for name in ("m3", "m4"):
            session.hold(Entry.message("user", f"to {name}", metadata={"message_id": name}))
        session.owe(2)
        await store.save(session)
        back = await store.load("s")
        assert texts(back.waiting) == ["to m3", "to m4"]
        assert back.unsent == (2,)
        info = (await infos(store))[0]
        assert (info.waiting, info.unsent) == (2, 1)

    async def test_a_message_takes_its_turn_in_one_commit(self, store):
        session = await store.create(id="s")
        session.hold(Entry.message("user", "later"))
        await store.save(session)
        back = await store.load("s")
        back.add_entry(back.waiting[0])
        back.arrived(7)  # of which nobody knew
        await store.save(back)
        again = await store.load("s")
        assert (texts(again.window), again.waiting) == (["later"], ())


class TestEntries:
    async def test_they_come_in_pages(self, store):
        await said(store, 25, keep=2)
        seqs, after = [], 0
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
        self, store, after, upto, limit, expected
    ):
        await said(store, 5)
        found = await store.entries("s", after=after, upto=upto, limit=limit)
        assert [entry.seq for entry in found] == expected

    async def test_every_place_of_a_long_history_is_found(self, store):
        session = await store.create(id="s")
        for number in range(600):
            session.add_message("user", f"{number} " + "x" * (number * 37 % 3000))
            if number % 7 == 0:
                session.set("k", "y" * (number % 900))
                await store.save(session)
        await store.save(session)
        for after in (0, 1, 77, 300, 301, 555, 598, 599):
            assert [e.seq for e in await store.entries("s", after=after, limit=1)] == [after + 1]


SECRET = "the secret is xyzzy"


def everything_in(store, folder):
    """All that a store has, as text: of a folder every byte that can be read, or unsealed."""
    kept = getattr(getattr(store, "database", None), "_rows", None)
    files = [path.read_text(errors="replace") for path in folder.rglob("*") if path.is_file()]
    return "\n".join(files) + ("" if kept is None else repr(kept))


class TestErasing:
    async def with_secret(self, store, *, keep=None):
        session = await store.create(id="s")
        session.add_entry(Entry.message("user", SECRET, metadata={"message_id": "m1"}))
        say(session, 5)
        if keep is not None:
            session.trim_if_needed(1, keep)
        await store.save(session)
        return session

    async def test_the_words_are_gone_from_all_that_is_stored(self, store, tmp_path):
        session = await self.with_secret(store)
        session.update_summary(f"They said {SECRET}.", seq=0)
        await store.save(session)
        session.update_summary("They spoke.")
        assert session.title == SECRET
        await store.erase(session, [1])
        assert "xyzzy" not in everything_in(store, tmp_path)
        assert "xyzzy" not in (await store.get("s")).dump()

    async def test_the_others_stay_as_they_were_and_keep_their_numbers(self, store):
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
    async def test_the_session_goes_on_after_it(self, store, keep):
        session = await self.with_secret(store, keep=keep)
        await store.erase(session, [1, 5])
        session.add_message("user", "later")
        await store.save(session)
        for again in (await store.load("s"), await store.get("s")):
            assert again.messages == session.messages
            assert again.last_seq == 7
        assert texts(await store.entries("s", after=5)) == ["message 4", "later"]

    async def test_an_object_from_before_can_not_bring_them_back(self, store):
        session = await self.with_secret(store)
        other = await store.load("s")
        await store.erase(session, [1])
        other.add_message("user", "more")
        with pytest.raises(StoreConflict):
            await store.save(other)
        assert "xyzzy" not in str(await store.entries("s"))

    async def test_an_object_that_is_behind_erases_nothing(self, store):
        session = await self.with_secret(store)
        other = await store.load("s")
        session.add_message("user", "more")
        await store.save(session)
        with pytest.raises(StoreConflict):
            await store.erase(other, [1])
        assert (await store.get("s")).title == SECRET

    async def test_what_is_not_saved_yet_is_saved_without_them(self, store, tmp_path):
        session = await store.create(id="s")
        session.add_message("user", SECRET)
        session.add_message("assistant", "noted")
        await store.erase(session, [1])
        assert "xyzzy" not in everything_in(store, tmp_path)
        assert [entry.type for entry in await store.entries("s")] == ["erased", "message"]

    async def test_what_was_taken_back_is_erased_too(self, store, tmp_path):
        session = await self.with_secret(store)
        session.add_message("user", "and plugh")
        await store.save(session)
        session.undo()
        await store.erase(session, [7])
        assert "plugh" not in everything_in(store, tmp_path)
        assert (await store.get("s")).last_seq == 7

    async def test_a_summary_that_tells_of_them_goes_and_all_waits_for_a_new_one(self, store):
        session = await self.with_secret(store, keep=2)
        session.update_summary("Of 3.", seq=3, ledger=[{"kind": "id", "text": "A-1", "seq": 3}])
        await store.save(session)
        epoch = session.epoch
        await store.erase(session, [2])
        again = await store.load("s")
        assert (again.summary, again.ledger, again.covered_seq) == ("", (), 0)
        assert again.pending_seq == 3
        assert again.epoch > epoch

    async def test_a_summary_that_does_not_reach_so_far_stays(self, store):
        session = await self.with_secret(store, keep=2)
        session.update_summary("Of 3.", seq=3)
        await store.erase(session, [5])
        again = await store.load("s")
        assert (again.summary, again.covered_seq) == ("Of 3.", 3)

    async def test_a_deleted_one_is_not_found(self, store):
        session = await self.with_secret(store)
        await store.delete("s")
        with pytest.raises(SessionNotFound):
            await store.erase(session, [1])

    async def test_every_place_of_a_long_history_is_found_after_it(self, store):
        session = await said(store, 300, keep=20)
        await store.erase(session, range(100, 200))
        for after in (0, 99, 150, 199, 298):
            (entry,) = await store.entries("s", after=after, limit=1)
            assert entry.seq == after + 1
        assert len((await store.load("s")).window) == 20


class TestExpiry:
    async def test_it_is_strictly_after_the_moment(self, store, clock):
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

    async def test_only_a_sliding_one_is_extended(self, store, clock):
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
    async def test_without_a_time_to_live_it_never_ends(self, store, clock, ttl):
        await store.create(id="s", ttl=ttl)
        clock.advance(10**9)
        assert await store.delete_expired() == 0
        assert (await store.get("s")).id == "s"

    async def test_what_expired_is_removed_and_counted(self, store, clock):
        for number in range(5):
            await store.create(id=f"s{number}", ttl=10 if number % 2 else None)
        clock.advance(11)
        assert await store.delete_expired() == 2
        assert await store.delete_expired() == 0
        assert sorted(info.id for info in await infos(store)) == ["s0", "s2", "s4"]

    async def test_the_id_of_an_expired_one_is_free(self, store, clock):
        await store.create(id="s", ttl=1, metadata={"n": 1})
        clock.advance(2)
        await store.create(id="s", metadata={"n": 2})
        assert (await store.get("s")).metadata == {"n": 2}

    async def test_a_sweep_removes_what_expired_until_the_store_is_closed(self, store, clock):
        await store.create(id="s", ttl=100)
        naps = []

        async def sleep(seconds):
            naps.append(seconds)
            clock.advance(seconds)
            if len(naps) > 2:
                assert await infos(store) == []
                await store.close()
            await anyio.lowlevel.checkpoint()

        with anyio.fail_after(5):
            await sweep(store, every_seconds=300, sleep=sleep)
        assert naps[:3] == [300, 300, 300]

    async def test_r2_12_in_async_with_a_store_sweeps_by_itself(self, store, clock):
        swept = anyio.Event()

        def hear(event):
            if isinstance(event, SessionsCounted) and event.expired == 1:
                swept.set()

        store.sweep_seconds = 0.001
        with hearing(hear), anyio.fail_after(5):
            async with store as entered:
                assert entered is store
                await store.create(id="s", ttl=100)
                clock.advance(101)
                await swept.wait()

    async def test_leaving_async_with_closes_the_store_and_wraps_no_error(self, tmp_path):
        with pytest.raises(SessionNotFound):
            async with JsonlStore(tmp_path) as store:
                await store.get("s")
        with pytest.raises(StoreError, match="closed"):
            await store.get("s")

    async def test_what_is_cancelled_in_async_with_ends(self):
        with anyio.move_on_after(0.01) as scope:
            async with InMemoryStore():
                await anyio.sleep_forever()
        assert scope.cancelled_caught

    async def test_b2_8_a_sweep_tells_what_there_is_and_what_expired(self, store, clock, heard):
        session = await store.create(id="lasting")
        say(session, 6)
        session.trim_if_needed(1, 2)
        await store.save(session)
        await store.create(id="gone", ttl=100)

        async def sleep(seconds):
            clock.advance(seconds)
            if len(heard) > 1:
                await store.close()
            await anyio.lowlevel.checkpoint()

        with anyio.fail_after(5):
            await sweep(store, expired=7, sleep=sleep)
        counts = {"entries": 6, "pending": 4}
        assert heard[:2] == [
            SessionsCounted(sessions=2, expired=7, **counts),
            SessionsCounted(sessions=1, expired=1, **counts),
        ]


class TestListing:
    async def test_the_last_active_comes_first(self, store, clock):
        for name in ("a", "b", "c"):
            clock.advance(1)
            await store.create(id=name)
        clock.advance(1)
        session = await store.load("a")
        session.add_message("user", "hi")
        await store.save(session)
        assert [info.id for info in await infos(store)] == ["a", "c", "b"]

    async def test_it_tells_a_session_at_a_glance(self, store):
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


PLAIN = {name: STORES[name] for name in ("in_memory", "jsonl", "sqlite", "postgres", "redis")}


@pytest.mark.parametrize("store", PLAIN.values(), ids=PLAIN.keys(), indirect=True)
class TestManySessions:
    async def crowd(self, store, clock, count):
        async def create(numbers):
            for number in numbers:
                await store.create(id=f"s{number}")

        await create([0])
        async with anyio.create_task_group() as group:
            for first in range(1, 9):
                group.start_soon(create, range(first, count, 8))
        clock.advance(1)

    @pytest.mark.slow
    async def test_ten_thousand_are_listed_each_once_and_the_last_active_first(self, store, clock):
        await self.crowd(store, clock, 10_000)
        for name in ("s17", "s9999"):
            session = await store.load(name)
            session.set("k", 1)
            await store.save(session)
            clock.advance(1)
        with anyio.fail_after(20):
            names = [info.id for info in await infos(store)]
        assert names[:2] == ["s9999", "s17"]
        assert sorted(names) == sorted(f"s{number}" for number in range(10_000))

    async def test_what_becomes_active_during_a_listing_is_listed_once(self, store, clock):
        await self.crowd(store, clock, 1_000)
        names = []
        async for info in store.list():
            names.append(info.id)
            if len(names) == 3:
                for name in ("s1", "s500", "s998"):
                    session = await store.load(name)
                    session.set("k", 1)
                    await store.save(session)
        assert sorted(names) == sorted(f"s{number}" for number in range(1_000))


class TestRaces:
    async def test_a_delete_in_the_middle_of_commits_leaves_nothing(self, store):
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

    async def save(self, store, session, text):
        session.add_message("user", text)
        with suppress(SessionNotFound):
            await store.save(session)

    async def test_a_session_that_expires_while_it_is_loaded_is_whole_or_not_found(
        self, store, clock
    ):
        session = await store.create(id="s", ttl=10)
        say(session, 30)
        await store.save(session)
        found = []

        async def read():
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

    async def test_a_sweep_spares_the_successor_of_what_expired(self, store, clock):
        for number in range(8):
            await store.create(id=f"s{number}", ttl=10)
        clock.advance(11)
        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(lambda name: store.create(id=name), f"s{number}")
                group.start_soon(store.delete_expired)
        assert len(await infos(store)) == 8
        assert (await store.load("s7")).entry_count == 0

    async def test_a_save_and_an_erase_at_once_are_one_behind_the_other(self, store, tmp_path):
        session = await store.create(id="s")
        session.add_message("user", SECRET)
        await store.save(session)
        async with anyio.create_task_group() as group:
            group.start_soon(self.save, store, session, "before")
            group.start_soon(store.erase, session, [1])
            group.start_soon(self.save, store, session, "behind")
        assert texts(await store.entries("s", after=1)) == ["before", "behind"]
        assert "xyzzy" not in everything_in(store, tmp_path)


class TestKeys:
    @pytest.mark.parametrize("key", ["a", "A", "a:b", "a/b", "..", ".", "x" * 500, *STRANGE])
    async def test_a_key_means_what_it_was_last_bound_to(self, store, key):
        assert await store.bound(key) is None
        await store.bind(key, "one")
        await store.bind(key, "two")
        assert await store.bound(key) == "two"
        assert await store.bound(key + "?") is None


LASTING = {name: made for name, made in STORES.items() if name != "in_memory"}


class TestClosing:
    async def test_r2_13_one_in_memory_goes_on_after_it_was_closed(self, clock):
        store = InMemoryStore(clock=clock)
        session = await said(store, 1)
        await store.close()
        await store.close()
        session.add_message("user", "late")
        await store.save(session)
        assert texts((await store.get("s")).window) == ["message 0", "late"]

    @pytest.mark.parametrize("store", LASTING.values(), ids=LASTING.keys(), indirect=True)
    async def test_closing_twice_is_fine_and_then_nothing_works(self, store):
        session = await said(store, 1)
        await store.close()
        await store.close()
        session.add_message("user", "late")
        for call in (
            store.get("s"),
            store.load("s"),
            store.entries("s"),
            store.save(session),
            store.create(),
            store.delete("s"),
            store.delete_expired(),
            store.bind("k", "s"),
            store.bound("k"),
        ):
            with pytest.raises(StoreError, match="closed"):
                await call
        with pytest.raises(StoreError, match="closed"):
            await infos(store)
