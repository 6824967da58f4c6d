"""The lines on stores and saved sessions that no other test carries by their name."""

from datetime import datetime, timedelta, timezone

import anyio
import pytest

from nanoloop import (
    AgentLoop,
    InMemoryStore,
    JsonlStore,
    Session,
    SessionDirectory,
    SessionExists,
    SessionNotFound,
)
from nanoloop.channels.direct import DirectChannel
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.head import Identity
from nanoloop.sessions import Sessions
from nanoloop.stores.sweep import sweep


class Clock:
    """A clock that the test sets."""

    def __init__(self):
        self.now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)

    def __call__(self):
        return self.now

    async def sleep(self, seconds):
        self.now += timedelta(seconds=seconds)
        await anyio.lowlevel.checkpoint()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "jsonl"])
async def store(request, tmp_path, clock):
    is_memory = request.param == "memory"
    opened = InMemoryStore(clock=clock) if is_memory else JsonlStore(tmp_path, clock=clock)
    yield opened
    await opened.close()


class OtherStore:
    """A store by its interface only, no relative of ours, that counts what it is asked."""

    def __init__(self):
        self._inner = InMemoryStore()
        self.asked = []

    def __getattr__(self, name):
        self.asked.append(name)
        return getattr(self._inner, name)


async def ids(store):
    return {info.id async for info in store.list()}


# R2


async def test_r2_8_a_store_creates_gets_saves_deletes_and_closes(store):
    session = await store.create(id="s", ttl=60, metadata={"a": 1})
    session.add_message("user", "Hello")
    await store.save(session)
    kept = await store.get("s")
    assert (kept.messages, kept.metadata) == (session.messages, {"a": 1})
    await store.delete("s")
    assert (await ids(store), await store.delete_expired()) == (set(), 0)
    await store.close()
    await store.close()


async def test_r2_10_unknown_and_expired_are_told_by_a_class_of_their_own(store, clock):
    await store.create(id="s", ttl=10)
    await clock.sleep(11)
    for session_id in ("s", "unknown"):
        with pytest.raises(SessionNotFound) as raised:
            await store.get(session_id)
        assert isinstance(raised.value, KeyError)


async def test_r2_11_what_was_not_saved_is_not_kept(store):
    session = await store.create(id="s")
    session.add_message("user", "Hello")
    assert (await store.get("s")).messages == []
    await store.save(session)
    assert len((await store.get("s")).messages) == 1


async def test_r2_12_every_five_minutes_the_expired_leave(store, clock, heard):
    await store.create(id="short", ttl=10)
    await store.create(id="long", ttl=10_000)
    naps = []

    async def nap(seconds):
        naps.append(seconds)
        if len(naps) > 1:
            await store.close()
        await clock.sleep(seconds)

    with anyio.fail_after(5):
        await sweep(store, sleep=nap)
    assert naps[:2] == [300, 300]
    assert (heard[1].expired, heard[1].sessions) == (1, 1)


async def test_r2_13_closing_the_store_ends_its_sweep(store):
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: sweep(store, sleep=lambda _: anyio.sleep_forever()))
            await anyio.wait_all_tasks_blocked()
            await store.close()


async def test_r2_14_the_expired_may_be_removed_by_hand(store, clock):
    await store.create(id="short", ttl=10)
    await store.create(id="long", ttl=100)
    assert await store.delete_expired() == 0
    await clock.sleep(11)
    assert await store.delete_expired() == 1
    assert await ids(store) == {"long"}


async def test_r2_15_any_store_with_the_interface_will_do():
    store = OtherStore()
    loop = AgentLoop(provider=ScriptedProvider(["hi"]), store=store)
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        await direct.ask("Hello", chat="a")
        loop.bus.close()
    assert {"create", "save"} <= set(store.asked)
    assert len((await store.get("direct:a")).messages) == 2


# R3


def test_r3_1_a_session_has_messages_a_bound_an_id_and_an_agent():
    session = Session(about=Identity(id="mine", max_history=7, agent="poet"))
    session.add_message("user", "Hello")
    assert session.messages == [{"role": "user", "content": "Hello"}]
    assert (session.max_history, session.id, session.agent) == (7, "mine", "poet")


def test_r3_3_the_newest_is_read_first_by_history_and_at_once():
    session = Session()
    for text in ("a", "b", "c"):
        session.add_message("user", text)
    assert [entry.content["text"] for entry in session.history()] == ["c", "b", "a"]
    assert session.newest.content["text"] == "c"


def test_r3_5_a_message_is_text_or_blocks():
    session = Session()
    blocks = [
        {"type": "text", "text": "I look"},
        {"type": "tool_use", "id": "1", "name": "ls", "input": {}},
    ]
    session.add_message("user", "Hello")
    session.add_message("assistant", blocks)
    assert session.messages == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": blocks},
    ]


def test_r3_13_a_tools_result_is_added_to_its_call():
    session = Session()
    use = {"type": "tool_use", "id": "call-1", "name": "ls", "input": {}}
    session.add_message("assistant", [use])
    session.add_tool_result("call-1", "a.txt")
    block = {"type": "tool_result", "tool_use_id": "call-1", "content": "a.txt"}
    assert session.messages[-1] == {"role": "tool", "content": block}
    assert session.newest.content["tool"] == "ls"


def test_r3_19_a_summary_for_people_is_plain_text():
    session = Session()
    session.add_message("user", "Hello")
    session.add_message("assistant", "Hi there")
    assert session.display() == "Session Summary:\n\n[USER] Hello\n[ASSISTANT] Hi there"


# Where the documents disagree


async def test_c20_a_store_refuses_the_unknown_and_who_opens_chats_makes_it(store):
    with pytest.raises(SessionNotFound):
        await store.get("direct:a")
    session = await Sessions(store).current("direct:a")
    assert (await store.get(session.id)).key == "direct:a"


async def test_c20_a_broken_file_keeps_its_good_lines_and_is_set_aside(tmp_path):
    store = JsonlStore(tmp_path)
    session = await store.create(id="s")
    session.add_message("user", "good")
    await store.save(session)
    await store.close()
    (file,) = tmp_path.glob("s*.jsonl")
    good = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([good[0], b"### broken ###", *good[1:]]))
    later = JsonlStore(tmp_path)
    assert [m["content"] for m in (await later.get("s")).messages] == ["good"]
    assert any(b"### broken" in f.read_bytes() for f in tmp_path.rglob("*") if f.is_file())
    await later.close()


async def test_c23_nothing_deleted_is_revived_by_a_save(store):
    session = await store.create(id="s")
    await store.delete("s")
    session.add_message("user", "late")
    with pytest.raises(SessionNotFound):
        await store.save(session)
    assert await ids(store) == set()


async def test_c24_an_id_that_there_is_takes_a_word_to_be_replaced(store):
    session = await store.create(id="s")
    session.add_message("user", "Hello")
    await store.save(session)
    with pytest.raises(SessionExists):
        await store.create(id="s")
    assert len((await store.get("s")).messages) == 1
    await store.create(id="s", replace=True)
    assert (await store.get("s")).messages == []


def test_c28_a_line_each_of_the_last_twenty_and_tool_results_too(tmp_path):
    session = SessionDirectory(tmp_path).create()
    for number in range(30):
        session.add_message("user", f"m{number} " + "x" * 100)
    session.add_tool_result("1", "two\nlines")
    lines = session.display().split("\n")[2:]
    assert (len(lines), lines[-1]) == (20, "[TOOL] tool_result: two\\nlines")
    assert lines[0].startswith("[USER] m11 ")
    assert max(map(len, lines)) == 80
    assert len(session.display(last=2, width=0).split("\n")[2]) > 80
