"""Sessions move from any store to any other, and are the same there."""

import anyio
import pytest

from nanoloop.cli import main
from nanoloop.errors import StoreError
from nanoloop.session.entry import utc_now
from nanoloop.stores.checking import check, problems_of
from nanoloop.stores.copying import Copied, Different, copy, digest
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.jsonl import JsonlStore
from tests.test_stores import STORES


async def lived(store, name, *, words=30):
    """A session with everything in it."""
    session = await store.create(id=name, key=f"tg:{name}", metadata={"a": [1]}, ttl=9999)
    for number in range(words):
        text = f"{name} {number} \ud800 nul\x00"
        session.add_message("assistant" if number % 2 else "user", text)
        await store.save(session)
    session.trim_if_needed(8, 4)
    session.update_summary("they talked", seq=10)
    session.set("k", {"deep": [None]})
    session.pin(session.window[0])
    session.awaiting = words
    await store.save(session)
    session.undo()
    await store.save(session)
    await store.erase(session, [3])
    await store.bind(f"tg:{name}", name)
    return await store.get(name)


PAIRS = [
    pair
    for name in STORES
    for pair in (("in_memory", name), (name, "in_memory"))
    if name not in {"in_memory", "layered"}
] + [("jsonl", "sqlite"), ("redis", "postgres")]


@pytest.fixture(params=PAIRS, ids=" to ".join)
async def stores(request):
    pair = [STORES[name](request, utc_now) for name in request.param]
    yield pair
    for store in pair:
        await store.close()


async def test_all_of_it_is_there_and_the_same(stores):
    source, target = stores
    said = [await lived(source, name) for name in ("a", "b")]
    done = await copy(source, target)
    assert done == Copied(copied=2, same=0, entries=60, keys=2)
    for session in said:
        back = await target.get(session.id)
        assert back.dump() == session.dump()
        assert (back.revision, back.awaiting) == (session.revision, session.awaiting)
        assert await target.bound(session.key) == session.id
    assert [info.id async for info in target.list()] == [info.id async for info in source.list()]


async def test_a_copied_session_goes_on(stores):
    source, target = stores
    await lived(source, "a")
    await copy(source, target)
    session = await target.load("a")
    session.add_message("user", "still here")
    await target.save(session)
    assert (await target.load("a")).window[-1].content["text"] == "still here"


async def test_an_interrupted_copy_goes_on_where_it_was(stores):
    source, target = stores
    for name in "abc":
        await lived(source, name)

    class Interrupted(Exception):
        pass

    def after_two(_, done):
        if done.copied == 2:
            raise Interrupted

    with pytest.raises(Interrupted):
        await copy(source, target, tell=after_two)
    done = await copy(source, target)
    assert (done.copied, done.same, done.entries) == (1, 2, 90)


async def test_one_that_differs_is_refused_and_left_alone(stores):
    source, target = stores
    await lived(source, "a")
    other = await target.create(id="a")
    other.add_message("user", "mine")
    await target.save(other)
    with pytest.raises(Different, match="--replace"):
        await copy(source, target)
    assert [e.content["text"] for e in (await target.get("a")).window] == ["mine"]
    await copy(source, target, replace=True)
    assert digest(await target.snapshot("a")) == digest(await source.snapshot("a"))


async def test_what_is_not_the_same_afterwards_is_told(stores):
    source, target = stores
    await lived(source, "a")
    read = target.snapshot

    async def read_wrong(name):
        told = await read(name)
        told.head["covered"] = 1
        return told

    target.snapshot = read_wrong
    with pytest.raises(StoreError, match="not the same"):
        await copy(source, target)


async def test_a_whole_session_has_no_problems(stores):
    source, _ = stores
    await lived(source, "a")
    assert [found.problems async for found in check(source)] == [()]


async def test_what_does_not_fit_is_found():
    store = InMemoryStore()
    await lived(store, "a")
    snapshot = await store.snapshot("a")
    del snapshot.entries[4]
    snapshot.head.update(covered=99, awaiting=98)
    assert list(problems_of(snapshot)) == [
        "entries 5 to 5 are missing",
        "the summary stands for entries up to 99, and there are 30",
        "entry 98 awaits an answer, and there are 30",
    ]


async def begun(data):
    """A data folder with one session."""
    store = JsonlStore(data / "sessions")
    await lived(store, "a")
    await store.close()


def test_the_command_copies_checks_and_says_so(tmp_path, capsys):
    there = f"jsonl:{tmp_path / 'there'}"
    flags = ["--data", str(tmp_path)]
    anyio.run(begun, tmp_path)
    assert main(["store", "copy", "jsonl:", there, *flags]) == 0
    assert main(["store", "copy", "jsonl:", there, *flags]) == 0
    assert main(["store", "check", there, "--json", *flags]) == 0
    said = capsys.readouterr()
    assert "copied 1 sessions; 0 were" in said.err
    assert "copied 0 sessions; 1 were" in said.err
    assert '"problems": []' in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["copy", "jsonl:", "jsonl:"], "can't be copied to itself"),
        (["copy", "jsonl:", "mysql://x"], "no place for sessions: write memory:"),
        (["check", "nowhere"], "no place for sessions"),
    ],
)
def test_a_wrong_place_is_refused(words, said, tmp_path, capsys):
    assert main(["store", *words, "--data", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err


def test_a_broken_session_is_named_and_the_exit_code_tells(tmp_path, capsys):
    anyio.run(begun, tmp_path)
    file = tmp_path / "sessions" / "a.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    broken = next(n for n, line in enumerate(lines) if b'"seq":7' in line)
    file.write_bytes(b"".join(lines[:broken] + lines[broken + 1 :]))
    assert main(["store", "check", "--data", str(tmp_path)]) == 1
    assert "a: entries 7 to 7 are missing" in capsys.readouterr().out


def test_a_database_is_brought_up_to_date(postgres_url, tmp_path, capsys):
    for said in ("the tables were made", "already"):
        assert main(["store", "migrate", postgres_url, "--data", str(tmp_path)]) == 0
        assert said in capsys.readouterr().err
    assert main(["store", "migrate", "sqlite:", "--data", str(tmp_path)]) == 0
