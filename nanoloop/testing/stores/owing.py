"""Tests of pending work in a store: unanswered and unsent messages, and who processes them."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import pytest

from nanoloop.errors import AlreadyHeard, SessionNotFound, StoreConflict
from nanoloop.protocols import Node, Store
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.testing.stores.stage import SetClock, infos, say, texts
from nanoloop.writing import SessionWriter, erased

HEARD_SECONDS = 72 * 3600
"""The minimum time for which a store remembers a message."""


async def owed(store: Store, *, pending: bool = False) -> dict[str, tuple[int, str]]:
    """Return the sessions with pending work, each with its revision and answering process."""
    return {each.id: (each.revision, each.by) async for each in store.owing(pending=pending)}


async def both(store: Store) -> tuple[set[str], set[str]]:
    """Return the sessions with pending work for their chat, and those that need only a summary."""
    chats, all_of_them = await owed(store), await owed(store, pending=True)
    assert chats.items() <= all_of_them.items()
    return set(chats), set(all_of_them) - set(chats)


async def asked(store: Store, name: str = "s", text: str = "hi", **options: Any) -> Session:
    """Create a session with a question that awaits its answer."""
    session = await store.create(id=name, **options)
    session.add_message("user", text)
    session.awaiting = session.last_seq
    await store.save(session)
    return session


async def took(store: Store, name: str, *messages: str, chat: str = "chat") -> Session:
    """Create a session that has received these messages."""
    session = await store.create(id=name)
    for message in messages:
        session.add_message("user", message)
        session.hear(chat, message)
        await store.save(session)
    return session


def again(session: Session, message: str, chat: str = "chat") -> None:
    """Deliver a message to a session once more."""
    session.add_message("user", "again")
    session.hear(chat, message)


async def entries(store: Store, name: str = "s") -> list[str]:
    """Return the texts in a session's history."""
    return texts(await store.entries(name))


async def held(store: Store, node: Node) -> frozenset[str]:
    """Return which of the accounts that it wants this process is granted."""
    return next(each.holds for each in await store.beat(node) if each.id == node.id)


class KeepingQueues:
    """Tests of waiting messages and unsent answers."""

    async def test_what_waits_and_what_is_unsent_comes_back(self, store: Store) -> None:
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

    async def test_a_message_takes_its_turn_in_one_commit(self, store: Store) -> None:
        session = await store.create(id="s")
        session.hold(Entry.message("user", "later"))
        await store.save(session)
        back = await store.load("s")
        back.add_entry(back.waiting[0])
        back.arrived(7)  # an unknown answer
        await store.save(back)
        again = await store.load("s")
        assert (texts(again.window), again.waiting) == (["later"], ())


class TellingOwed:
    """Tests that a store knows which sessions have pending work."""

    async def test_one_that_owes_nothing_is_not_among_them(self, store: Store) -> None:
        session = await store.create(id="s")
        session.add_message("user", "hi")
        session.add_message("assistant", "hello")
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_a_question_is_owed_until_it_has_its_answer(self, store: Store) -> None:
        session = await asked(store)
        assert await owed(store) == {"s": (session.revision, "")}
        session.add_message("assistant", "hello")
        session.awaiting = 0
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_an_answer_is_owed_until_it_has_arrived(self, store: Store) -> None:
        session = await asked(store)
        session.add_message("assistant", "hello")
        session.awaiting = 0
        session.owe(2)
        await store.save(session)
        assert await both(store) == ({"s"}, set())
        session.arrived(2)
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_what_waits_is_owed_until_it_is_taken(self, store: Store) -> None:
        session = await store.create(id="s")
        entry = Entry.message("user", "hi")
        session.hold(entry)
        await store.save(session)
        assert await both(store) == ({"s"}, set())
        session.let_go_held(entry.id)
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_a_summary_is_owed_until_it_covers_what_left_the_window(
        self, store: Store
    ) -> None:
        session = await store.create(id="s")
        for number in range(9):
            session.add_message("user", str(number))
        session.trim_if_needed(1, 4)
        await store.save(session)
        assert await both(store) == (set(), {"s"})
        session.awaiting = 9
        await store.save(session)
        assert await both(store) == ({"s"}, set())
        session.awaiting = 0
        session.update_summary("some", seq=3)
        await store.save(session)
        assert await both(store) == (set(), {"s"})
        session.update_summary("all", seq=session.pending_seq)
        await store.save(session)
        assert await both(store) == (set(), set())

    async def test_it_says_whose_the_session_is_and_its_revision(self, store: Store) -> None:
        session = await asked(store)
        for name in ("process 1", "\ud800 ż\x00 'x'"):
            session.claim(name)
            await store.save(session)
            assert await owed(store) == {"s": (session.revision, name)}

    async def test_one_that_was_erased_in_is_known_as_before(self, store: Store) -> None:
        session = await asked(store)
        session.claim("me")
        await store.erase(session, [1])
        assert await both(store) == (set(), set())

    async def test_one_owes_an_erasure_until_no_copy_is_left(self, store: Store) -> None:
        writer, session = SessionWriter(store), await asked(store)
        session.awaiting = 0
        await writer.erase(session, [1])
        assert await both(store) == ({"s"}, set())
        await writer.erase(session, [1])
        await writer.change(session, partial(erased, upto=1))
        assert await both(store) == ({"s"}, set())
        await writer.change(session, partial(erased, upto=2))
        assert await both(store) == (set(), set())
        assert (await store.load("s")).erasures == 2

    async def test_a_replaced_one_owes_nothing_and_a_deleted_one_neither(
        self, store: Store
    ) -> None:
        await asked(store)
        await asked(store, "t")
        await store.create(id="s", replace=True)
        assert await both(store) == ({"t"}, set())
        await store.delete("t")
        assert await both(store) == (set(), set())

    async def test_one_that_was_made_elsewhere_is_known(self, store: Store) -> None:
        session = Session(id="s")
        session.hold(Entry.message("user", "hi"))
        await store.add(session)
        assert await both(store) == ({"s"}, set())

    async def test_one_whose_time_is_over_owes_nothing_before_the_sweep_and_after_it(
        self, store: Store, clock: SetClock
    ) -> None:
        await asked(store, ttl=10)
        clock.advance(10)
        assert await both(store) == ({"s"}, set())
        clock.advance(0.001)
        assert await both(store) == (set(), set())
        assert await store.delete_expired() == 1
        assert await both(store) == (set(), set())

    async def test_a_commit_that_came_second_changes_nothing_in_it(self, store: Store) -> None:
        await asked(store)
        one, two = await store.load("s"), await store.load("s")
        one.claim("one")
        await store.save(one)
        two.awaiting = 0
        with pytest.raises(Exception, match="is at revision"):
            await store.save(two)
        assert await owed(store) == {"s": (one.revision, "one")}

    async def test_many_are_all_there(self, store: Store) -> None:
        names = {f"s{number}" for number in range(300)}
        for name in sorted(names):
            await asked(store, name)
            await store.create(id=f"{name}-idle")
        assert await both(store) == (names, set())


class HoldingAccounts:
    """Tests that a store knows which processes are alive, and which accounts each holds."""

    async def test_of_two_that_want_one_account_one_gets_it(self, store: Store) -> None:
        got: dict[str, frozenset[str]] = {}

        async def want(name: str) -> None:
            nodes = await store.beat(Node(id=name, holds=frozenset({"x", name})))
            got[name] = next(node.holds for node in nodes if node.id == name)

        async with anyio.create_task_group() as group:
            for number in range(8):
                group.start_soon(want, f"n{number}")
        assert sorted(account for held in got.values() for account in held) == sorted(["x", *got])

    async def test_it_is_free_when_its_holder_lets_go_or_leaves(self, store: Store) -> None:
        await store.beat(Node(id="a", holds=frozenset({"x", "y"})))
        wants = Node(id="b", holds=frozenset({"x", "y"}))
        assert await held(store, wants) == frozenset()
        await store.beat(Node(id="a", holds=frozenset({"y"})))
        assert await held(store, wants) == {"x"}
        await store.leave("a")
        assert await held(store, wants) == {"x", "y"}


class RememberingMessages:
    """Tests that a store knows which messages a chat has received, in whichever session."""

    async def test_it_is_known_by_its_chat_and_its_id_once_it_is_durable(
        self, store: Store
    ) -> None:
        session = await took(store, "s", "m1")
        session.hear("chat", "m2")
        known = [(chat, name) for chat in ("chat", "other") for name in ("m1", "m2", "m3")]
        assert [await store.has_heard(*each) for each in known] == [True] + [False] * 5
        await store.save(session)
        assert await store.has_heard("chat", "m2")

    async def test_what_was_taken_is_not_taken_again_and_nothing_is_written_then(
        self, store: Store
    ) -> None:
        await took(store, "s", "m1", "m2")
        session = await store.load("s")
        again(session, "m1")
        session.claim("me")
        session.hear("chat", "m3")
        with pytest.raises(AlreadyHeard):
            await store.save(session)
        assert await entries(store) == ["m1", "m2"]
        assert (await store.load("s")).by == ""
        assert not await store.has_heard("chat", "m3")
        with pytest.raises(AlreadyHeard):
            await store.save(session)

    async def test_another_session_of_the_chat_does_not_take_it_either(self, store: Store) -> None:
        await took(store, "s", "m1")
        other = await store.create(id="t")
        again(other, "m1")
        with pytest.raises(AlreadyHeard):
            await store.save(other)
        assert await entries(store, "t") == []
        made = Session(id="u")
        again(made, "m1")
        with pytest.raises(AlreadyHeard):
            await store.add(made)
        with pytest.raises(SessionNotFound):
            await store.load("u")

    async def test_a_session_that_is_made_with_a_message_has_taken_it(self, store: Store) -> None:
        made = Session(id="s")
        again(made, "m1")
        await store.add(made)
        assert await store.has_heard("chat", "m1")

    async def test_who_comes_second_is_told_so_before_it_is_looked_at_what_it_takes(
        self, store: Store
    ) -> None:
        await took(store, "s", "m1")
        first, second = await store.load("s"), await store.load("s")
        again(first, "m2")
        again(second, "m1")
        await store.save(first)
        with pytest.raises(StoreConflict):
            await store.save(second)

    async def test_it_is_forgotten_after_72_hours(self, store: Store, clock: SetClock) -> None:
        await took(store, "s", "m1")
        clock.advance(10)
        await took(store, "t", "m2")
        clock.advance(HEARD_SECONDS - 10)
        assert await store.delete_expired() == 0
        assert await store.has_heard("chat", "m1")
        clock.advance(0.001)
        await store.delete_expired()
        known = [await store.has_heard("chat", name) for name in ("m1", "m2")]
        assert known == [False, True]
        session = await store.load("s")
        again(session, "m1")
        await store.save(session)
        assert await entries(store) == ["m1", "again"]

    async def test_it_is_known_whatever_becomes_of_the_session(self, store: Store) -> None:
        session = await took(store, "s", "m1", "m2")
        await store.erase(session, [1])
        assert await store.has_heard("chat", "m1")
        await store.create(id="s", replace=True)
        assert await store.has_heard("chat", "m2")
        await store.delete("s")
        assert await store.has_heard("chat", "m2")

    async def test_a_chat_and_an_id_are_two_things(self, store: Store) -> None:
        await took(store, "s", "bc", chat="a")
        for chat, name in (("ab", "c"), ("a\nb", "c"), ("", "abc"), ("a", "b")):
            assert not await store.has_heard(chat, name)

    async def test_of_two_that_take_one_message_at_once_one_does(self, store: Store) -> None:
        outcomes: list[Any] = []

        async def take(session: Session) -> None:
            again(session, "m1")
            try:
                await store.save(session)
            except AlreadyHeard:
                outcomes.append("repeated")
            else:
                outcomes.append("kept")

        sessions = [await store.create(id=f"s{number}") for number in range(5)]
        async with anyio.create_task_group() as group:
            for session in sessions:
                group.start_soon(take, session)
        assert sorted(outcomes) == ["kept", *["repeated"] * 4]
        assert sum([len(await entries(store, session.id)) for session in sessions]) == 1
