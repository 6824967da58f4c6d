"""A data folder's conversations are in one store: no other is served, and none that was emptied."""

import json

import anyio
import pytest

from nanoloop.app import App
from nanoloop.cli import Exit, main
from nanoloop.errors import StoreNotOurs
from nanoloop.events import SessionsCounted, StoreJoined, hearing
from nanoloop.parts import make_installation
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.stores.copying import copy
from nanoloop.stores.installation import KEY, Installation
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.telemetry import Telemetry

OPENED = {
    "sqlite": lambda test, name: SqliteStore(test.getfixturevalue("tmp_path") / f"{name}.sqlite"),
    "jsonl": lambda test, name: JsonlStore(test.getfixturevalue("tmp_path") / name),
    "postgres": lambda test, name: PostgresStore(test.getfixturevalue("postgres_url"), schema=name),
    "redis": lambda test, name: RedisStore(test.getfixturevalue("redis_url"), prefix=name),
}
FILLED = SessionsCounted(sessions=1, entries=0, pending=0, expired=0)


@pytest.fixture(params=OPENED.values(), ids=OPENED.keys())
async def stores(request):
    """Two of a kind, both empty."""
    pair = [request.param(request, name) for name in ("one", "two")]
    yield pair
    for store in pair:
        await store.close()


@pytest.fixture
def folder(tmp_path):
    """Makes what is known of a data folder and the place of its store, as each process does."""

    def known(place, *, name="data"):
        return Installation(tmp_path / name / "installation.json", place=place)

    return known


async def served(installation, store, *, with_session=True):
    """As a daemon of that data folder does; somebody has said something."""
    await installation.enter(store)
    if with_session:
        await store.create()
        installation.hear(FILLED)


async def test_an_empty_store_where_there_were_conversations_is_refused(stores, folder):
    one, two = stores
    await served(folder("one"), one)
    with pytest.raises(StoreNotOurs, match=r"two has no conversations, but .* were in one:"):
        await folder("two").enter(two)
    with pytest.raises(StoreNotOurs, match="one has no conversations, but there were some:"):
        await folder("one").enter(two)
    assert [key async for key in two.bindings()] == []


async def test_a_store_of_another_installation_is_refused(stores, folder):
    one, two = stores
    await served(folder("one"), one)
    await served(folder("two", name="other"), two)
    wanted = "two has conversations of another installation, and those of .* were in one:"
    with pytest.raises(StoreNotOurs, match=wanted):
        await folder("two").enter(two)
    with pytest.raises(StoreNotOurs, match="installation, and none of this data folder's:"):
        await folder("one").enter(two)


async def test_who_means_it_adopts_the_store_and_may_go_back(stores, folder):
    one, two = stores
    await served(folder("one"), one)
    await folder("two").adopt(two)
    await served(folder("two"), two)
    await served(folder("two"), two, with_session=False)
    await served(folder("one"), one)


async def test_data_folders_of_two_hosts_share_a_store_and_the_log_says_so(stores, folder, heard):
    store, _ = stores
    for _ in range(2):
        await served(folder("db"), store)
        await served(folder("db", name="another_host"), store)
    assert heard == [StoreJoined(place="db")]


async def test_a_copy_in_another_store_is_the_same_installation_s(stores, folder):
    one, two = stores
    await served(folder("one"), one)
    await copy(one, two)
    await served(folder("two"), two)
    assert known(folder)["store"] == "two"


async def test_where_nobody_has_said_anything_any_store_will_do(stores, folder):
    one, two = stores
    await served(folder("one"), one, with_session=False)
    await served(folder("two"), two)


async def test_conversations_of_an_earlier_version_are_taken_over(stores, folder):
    one, two = stores
    await one.create()
    await served(folder("one"), one)
    with pytest.raises(StoreNotOurs):
        await folder("two").enter(two)


async def test_a_store_is_recognised_at_the_cost_of_one_look(stores, folder):
    store, _ = stores
    await served(folder("one"), store)
    asked = []
    bound, store.bind = store.bound, None  # nothing is written

    async def counted(key):
        asked.append(key)
        return await bound(key)

    store.bound = counted
    await folder("one").enter(store)
    assert set(asked) == {f"{KEY}:{known(folder)['id']}"}


def known(folder):
    return json.loads(folder("one")._file.read_text())


@pytest.mark.parametrize("is_running", [True, False])
async def test_a_damaged_file_that_was_set_aside_keeps_nothing_from_starting(world, is_running):
    path = world / "sessions.sqlite"
    store = SqliteStore(path)
    one = Installation(world / "installation.json", place="here")
    with hearing(one.hear):
        await served(one, store)
        if not is_running:
            await store.close()
        for file in world.glob("sessions.sqlite*"):  # with its log, which has all of it too
            file.unlink()
        path.write_bytes(b"this is no database" * 1000)
        if is_running:
            await store.create()  # as people go on to talk
            one.hear(FILLED)
        else:
            store = SqliteStore(path)
            again = Installation(world / "installation.json", place="here")
            with hearing(again.hear):
                await served(again, store)
    await store.close()
    assert [*world.glob("sessions.sqlite.corrupt-*")]
    store = SqliteStore(path)
    await served(Installation(world / "installation.json", place="here"), store)
    await store.close()


@pytest.fixture
def world(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "nanoloop.toml").write_text('data = "data"\n')
    monkeypatch.setenv("NANOLOOP_CONFIG", "nanoloop.toml")
    return tmp_path


async def run(settings):
    """As `nanoloop run`, until it has looked at what the store has."""
    app = App.of(settings, provider=ScriptedProvider(), telemetry=Telemetry(level="error"))
    counted = anyio.Event()

    def hear(event):
        if isinstance(event, SessionsCounted):
            counted.set()

    async def stop():
        await counted.wait()
        app.stop()

    app.observers.append(hear)
    app.beside.append(stop)
    with anyio.fail_after(10):
        await app.run()


async def lost(world):
    """The database of a data folder that has had conversations is gone."""
    store = SqliteStore(world / "data" / "sessions.sqlite")
    await store.create()
    await store.close()
    settings = Settings.load(config=str(world / "nanoloop.toml"), flags={})
    await run(settings)
    for file in (world / "data").glob("sessions.sqlite*"):
        file.rename(world / file.name)
    return settings


async def test_a_daemon_refuses_it_before_it_writes_anything(world):
    settings = await lost(world)
    with pytest.raises(StoreNotOurs, match=r"no conversations, but there were some: .* adopt"):
        await run(settings)
    assert not (world / "data" / "sessions.sqlite").exists()


async def test_sessions_in_memory_belong_to_nobody(world):
    config = world / "nanoloop.toml"
    config.write_text(config.read_text() + '[store]\nurl = "memory:"\n')
    settings = Settings.load(config=str(config), flags={})
    await run(settings)
    await run(settings)
    assert not (world / "data" / "installation.json").exists()


def test_a_database_is_named_without_its_password():
    settings = Settings.of_code({"store.url": "postgresql://bot:secret@db.example/bot"})
    installation = make_installation(settings)
    assert "secret" not in installation.place
    assert installation.place == "postgresql://db.example/bot"


@pytest.mark.slow
def test_the_doctor_says_the_same_and_a_command_says_yes(world, capsys, monkeypatch):
    anyio.run(lost, world)
    with (world / "nanoloop.toml").open("a") as config:
        config.write("[channels.web]\nenabled = true\nport = 0\n")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9")
    assert main(["run"]) == Exit.USAGE
    said = capsys.readouterr().err.strip().removeprefix("nanoloop: ")
    assert "has no conversations, but there were some" in said
    assert main(["doctor"]) != Exit.DONE
    assert said in capsys.readouterr().out
    assert main(["sessions", "list"]) == Exit.DONE  # to look is allowed
    assert main(["store", "adopt"]) == Exit.DONE
    assert "from now on" in capsys.readouterr().err
    main(["doctor"])
    assert said not in capsys.readouterr().out
