"""Whoever has old backups, today's key and today's keys file reads no word of an erased person."""

import json
import shutil
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from random import Random

import anyio
import pytest
from cryptography.fernet import Fernet

from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import Exit, main
from nanoloop.context import build_messages
from nanoloop.errors import NotReadable, SessionNotFound
from nanoloop.intake import user_entry
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.memory.writer import PROMPT
from nanoloop.messages import Attachment, Inbound, Quote, Speaker
from nanoloop.parts import (
    KEYS_FILE,
    make_attachments,
    make_folder_sealing,
    make_loop,
    make_store,
    open_store,
    recall_file,
)
from nanoloop.protocols import Reply
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.digest import Digest
from nanoloop.session.entry import Entry, utc_now
from nanoloop.session.speech import ERASED_WORDS, quotes_of, speaker_of
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings
from nanoloop.stores.copying import seal_all
from nanoloop.stores.encryption import KeySeal
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.keys import KeysFile
from nanoloop.stores.postgres import PostgresStore
from nanoloop.stores.redis import RedisStore
from nanoloop.stores.sqlite import SqliteStore
from nanoloop.testing.channels.stage import comes_to
from tests.attack.test_disk import PostgresRows, RedisRows
from tests.stages.command_line import ROOT

KEY = Fernet.generate_key().decode()
EVE = Speaker(id="3", name="Quokkaname", platform="chat")
ANN = Speaker(id="1", name="Ann", platform="chat")
BOB = Speaker(id="2", name="Bob", platform="chat")
EVES, ANNS, BOBS = "quokkafort", "wombatina", "numbatbay"
CANARIES = (EVES, EVE.name.lower())
WORD = {EVE: EVES, ANN: ANNS, BOB: BOBS}
ID, PERSON, ANNS_ACCOUNT = "direct:g", ("chat", "3"), ("chat", "1")
URLS = pytest.mark.parametrize("url", ["sqlite:", "jsonl:"])


WORDS = (
    *("said", "what", "who", "when", "it is", "heard", "quoted", "waits", "look", "file", "name"),
    *("so", "told", "alone", "kept", "last", "answer", "chat", "group"),
)


def settings_in(folder, url="sqlite:", **more):
    return Settings(data=folder, store={"url": url, "encryption_key": KEY, **more})


def said(speaker, text, *quotes, number=0, **more):
    quoted = tuple(Quote(text=text, speaker=by, kind=kind) for kind, by, text in quotes)
    given = {"channel": "direct", "chat": "g", "group": True, "message_id": f"m{number}", **more}
    return Inbound(text=text, speaker=speaker, sender=speaker.name, quotes=quoted, **given)


async def turn(store, session, question, *answer):
    session.awaiting = session.add_entry(user_entry(question)).seq
    session.hear(ID, question.message_id)
    await store.save(session)
    for entry in answer:
        session.add_entry(entry)
    session.awaiting = 0
    await store.save(session)


def answers(text):
    return Entry.message("assistant", text)


@URLS
async def test_a_large_result_of_a_persons_turn_is_gone_too(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    store, files = make_store(settings), make_attachments(settings)
    session = await store.create(id=ID, key=ID)
    kept = await files.keep(EVES.encode(), owner=ID, name="r.txt", mime_type="text/plain")
    stored = {"attachments": [{"kind": "file", "ref": f"attachment:{kept.id}"}]}
    result = Entry.tool_result("look", "the beginning", call_id="c", metadata=stored)
    call = Entry.tool_call("look", {}, call_id="c")
    await files.refer(ID, [kept.id])
    await turn(store, session, said(EVE, EVES, number=1), call, result, answers(EVES))
    await store.close()
    backup(settings.data, tmp_path / "old")
    await erase(settings)
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    assert [await reads(each, kept.id) for each in (settings, old)] == [set(), set()]


async def told(settings):
    """A group in which three talk, with all that is made of it, and a file."""
    store, files = make_store(settings), make_attachments(settings)
    kept = await files.keep(EVES.encode(), owner="e", name=f"{EVES}.txt", mime_type="text/plain")
    await chatted(store, Attachment(kind="file", ref=f"attachment:{kept.id}", text=EVES))
    await files.refer(ID, [kept.id])
    await store.close()
    return kept.id


async def chatted(store, *came):
    session = await store.create(id=ID, key=ID)
    call = Entry.tool_call("look", {"for": EVES}, call_id="c")
    result = Entry.tool_result("look", EVES, call_id="c")
    first = said(EVE, f"It is {EVES}", number=1, attachments=came)
    await turn(store, session, first, call, result, answers(f"So {EVES}"))
    seen = [("overheard", EVE, f"{EVES} heard"), ("overheard", ANN, f"{ANNS} heard")]
    await turn(store, session, said(BOB, BOBS, *seen, number=2), answers(f"{EVES} {BOBS}"))
    quotes = [("quote", EVE, f"{EVES} quoted"), ("forward", BOB, f"{BOBS} forwarded")]
    await turn(store, session, said(ANN, ANNS, *quotes, number=3), answers(EVES))
    await turn(store, session, said(BOB, f"{BOBS} alone", number=4), answers(f"{BOBS} kept"))
    await turn(store, session, said(ANN, f"{ANNS} last", number=5), answers(f"{ANNS} kept"))
    session.pin(session.window[0])
    session.trim_if_needed(4, 3)
    fact = {"kind": "name", "text": EVES, "who": EVE.name, "seq": 1, "count": 1}
    session.update_summary(f"{EVES} {ANNS} {BOBS}", seq=session.pending_seq, ledger=[fact])
    session.note_resize({"seq": 4}, Digest(value={"told": EVES}, seq=4))
    session.hold(user_entry(said(EVE, f"{EVES} waits", number=6)))
    session.hold(user_entry(said(BOB, f"{BOBS} waits", ("quote", EVE, EVES), number=7)))
    await store.save(session)


def backup(folder, to):
    shutil.copytree(folder, to, ignore=shutil.ignore_patterns("secret-keys"))


def restored(folder, keys_of):
    shutil.copytree(keys_of / "secret-keys", folder / "secret-keys", dirs_exist_ok=True)
    return folder


async def erase(settings, finish=True, person=PERSON):
    store = make_store(settings)
    sessions = Sessions(store)
    await sessions.erase_speaker(ID, person)
    if finish:
        await sessions.finish_erasing(await sessions.open(ID))
    await store.close()


async def everything(settings, file_id=""):
    """All that can be read of a data folder with today's keys, and its bytes."""
    store, files = make_store(settings), make_attachments(settings)
    whole = await store.snapshot(ID)
    session = await store.get(ID)
    parts = [session.part(name) for name in whole.sections]
    shown = [info.title async for info in store.list()]
    found = [repr(whole), repr(parts), repr(shown), repr(await store.entries(ID))]
    if file_id:
        found += [repr(await files.about(file_id)), repr(await files.data(file_id))]
    await store.close()
    for path in settings.data.rglob("*"):
        found += [path.name, path.read_bytes().decode("latin1") if path.is_file() else ""]
    return "\n".join(found).lower()


async def reads(settings, file_id=""):
    """The words of which of the three are there."""
    there = await everything(settings, file_id)
    return {word for word in (*CANARIES, ANNS, BOBS) if word in there}


async def texts(settings):
    store = make_store(settings)
    entries = await store.entries(ID)
    await store.close()
    return [entry.content["text"] for entry in entries if "text" in entry.content]


@URLS
async def test_nothing_of_an_erased_person_opens_in_any_copy_and_the_others_words_are_whole(
    tmp_path, url
):
    settings = settings_in(tmp_path / "data", url)
    file_id = await told(settings)
    backup(settings.data, tmp_path / "old")
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    assert await reads(old, file_id) == {*CANARIES, ANNS, BOBS}
    before = await texts(settings)
    await erase(settings)
    restored(tmp_path / "old", settings.data)
    for each in (settings, old):
        assert await reads(each, file_id) == {ANNS, BOBS}, each.data
        assert await texts(each) == [text for text in before if EVES not in text]


@URLS
async def test_what_was_made_of_several_peoples_words_is_pending_again(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    await told(settings)
    backup(settings.data, tmp_path / "old")
    await erase(settings)
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    for each in (settings, old):
        store = make_store(each)
        session = await store.load(ID)
        assert (session.summary, session.ledger, session.memo, session.title) == ("", (), {}, "")
        assert session.covered_seq == 0
        covered = {*range(1, session.covered_seq + 1)}
        pending = {*range(session.covered_seq + 1, session.pending_seq + 1)}
        window = {entry.seq for entry in session.window}
        assert covered | pending | window == {*range(1, session.last_seq + 1)}
        assert not covered & pending
        assert not pending & window
        assert [entry.content["text"] for entry in session.waiting] == [f"{BOBS} waits"]
        assert session.pins == ()
        await store.close()


def overhearing(speaker, text, at):
    """A message that comes now, with what was heard before it."""
    quote = Quote(text=text, speaker=speaker, kind="overheard", time=at)
    return replace(said(BOB, BOBS, number=97), quotes=(quote,))


@asynccontextmanager
async def running(settings, model=None):
    """A loop as a daemon runs it, with all that an earlier process left taken up."""
    store = make_store(settings)
    loop = make_loop(settings, model or ScriptedProvider([], otherwise="Noted."), store)
    DirectChannel(loop.bus)
    await store.delete_expired()
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        await loop.recover()
        yield loop
        loop.bus.close()
    await store.close()


async def is_at_rest(loop):
    return not (loop.lanes or loop.summarizer.running or loop.recall.running)


@URLS
async def test_what_an_erased_person_said_before_is_not_taken_again_and_what_follows_is(
    tmp_path, url
):
    settings = settings_in(tmp_path / "data", url)
    await told(settings)
    backup(settings.data, tmp_path / "old")
    await erase(settings)
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    before = utc_now() - timedelta(hours=1)
    again = [
        said(EVE, f"It is {EVES}", number=1, time=before),
        said(EVE, f"{EVES} unheard", number=98, time=before),
        said(BOB, f"{BOBS} unheard", ("quote", EVE, EVES), number=99, time=before),
        overhearing(EVE, EVES, before),
    ]
    for each in (settings, old):
        async with running(each) as loop:
            outcomes = [await loop.bus.hand_in(message) for message in again]
            await comes_to(lambda: is_at_rest(loop), True)
            assert outcomes == ["repeated", "repeated", "kept", "kept"]
            assert await reads(each) == {ANNS, BOBS}
            assert await loop.bus.hand_in(said(EVE, "thylacine", number=100)) == "kept"
            await comes_to(lambda: is_at_rest(loop), True)
        assert await reads(each) == {ANNS, BOBS, EVE.name.lower()}
        assert f"{BOBS} unheard" in await texts(each)
        assert "thylacine" in await texts(each)


@URLS
async def test_a_fold_that_was_asked_for_before_is_dropped(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    await told(settings)
    store, theirs = make_store(settings), make_store(settings)
    late = await store.load(ID)
    epoch, sessions = late.epoch, Sessions(store)
    await Sessions(theirs).erase_speaker(ID, PERSON)

    def fold(session):
        return session.update_summary(EVES, seq=session.pending_seq, epoch=epoch)

    assert await sessions.change(late, fold) is False
    assert await reads(settings) == {ANNS, BOBS}
    await theirs.close()
    await store.close()


class Gated:
    """A model that answers when it is let, and keeps what it is asked."""

    def __init__(self):
        self.asked, self.folded = [], []
        self.may_answer = anyio.Event()

    async def chat(self, *, messages, **_):
        if messages[0]["content"] == PROMPT:  # for a summary
            self.folded.append(repr(messages).lower())
            return Reply(text="A talk.")
        self.asked.append(repr(messages).lower())
        number = len(self.asked)
        await self.may_answer.wait()
        return Reply(text=f"answer {number}")

    async def close(self):
        pass


@pytest.mark.slow
@URLS
async def test_an_answer_that_was_begun_with_those_words_is_begun_again_without(tmp_path, url):
    settings, model = settings_in(tmp_path / "data", url), Gated()
    await told(settings)
    async with running(settings, model) as loop:
        await comes_to(lambda: so(len(model.asked)), 1)  # Eve's message waited
        assert EVES in model.asked[0]
        await erase(settings)  # as a command does it beside the daemon
        await comes_to(lambda: so(len(model.asked)), 2)
        model.may_answer.set()
        await comes_to(lambda: is_at_rest(loop), True)
        model.may_answer = anyio.Event()
        asked = len(model.asked)
        quote = ("quote", ANN, ANNS)
        await loop.bus.hand_in(said(BOB, f"{BOBS} asks", quote, number=200))
        await comes_to(lambda: so(len(model.asked)), asked + 1)
        await erase(settings, person=ANNS_ACCOUNT)
        await comes_to(lambda: so(len(model.asked)), asked + 2)
        model.may_answer.set()
        await comes_to(lambda: is_at_rest(loop), True)
    assert not {"answer 1", f"answer {asked + 1}"} & {*await texts(settings)}
    for request in (*model.asked[1:], *model.folded):
        assert not any(canary in request for canary in CANARIES)
    assert ANNS not in model.asked[-1]
    assert {f"{BOBS} asks", f"answer {asked + 2}"} <= {*await texts(settings)}
    assert await reads(settings) == {BOBS}


async def so(value):
    return value


@URLS
async def test_a_digest_that_told_of_an_erased_message_opens_in_no_copy_either(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    await told(settings)
    backup(settings.data, tmp_path / "old")
    store = make_store(settings)
    sessions = Sessions(store)
    await sessions.finish_erasing(await sessions.erase(ID, [1]))
    await store.close()
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    for each in (settings, old):
        store = make_store(each)
        session = await store.load(ID)
        assert (session.summary, session.ledger, session.memo, session.title) == ("", (), {}, "")
        assert session.covered_seq == 0
        await store.close()


@URLS
async def test_a_deleted_session_opens_in_no_copy(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    file_id = await told(settings)
    backup(settings.data, tmp_path / "old")
    store = make_store(settings)
    await Sessions(store).delete(ID)
    await store.close()
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    for each in (settings, old):
        store, files = make_store(each), make_attachments(each)
        for look in (store.load, store.get, store.entries, store.revision):
            with pytest.raises(SessionNotFound):
                await look(ID)
        assert [info.id async for info in store.list()] == []
        assert await files.data(file_id) is None
        session = await store.create(id=ID, key=ID)  # the chat goes on
        session.add_message("user", "anew")
        await store.save(session)
        assert [entry.content["text"] for entry in await store.entries(ID)] == ["anew"]
        await store.close()


async def test_the_keys_of_an_expired_session_are_destroyed_too(tmp_path):
    settings = settings_in(tmp_path / "data")
    store = open_store(settings)
    session = await store.create(id=ID, ttl=10)
    session.add_message("user", EVES)
    await store.save(session)
    backup(settings.data, tmp_path / "old")
    store.clock = lambda: utc_now() + timedelta(days=1)
    assert await store.delete_expired() == 1
    await store.close()
    old = make_store(settings_in(restored(tmp_path / "old", settings.data)))
    with pytest.raises(SessionNotFound):
        await old.load(ID)
    await old.close()


@URLS
async def test_no_question_about_an_erased_person_finds_anything(tmp_path, url):
    settings = settings_in(tmp_path / "data", url)
    await told(settings)
    backup(settings.data, tmp_path / "old")
    await erase(settings)
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    asked = [f"{word} {more}".strip() for word in CANARIES for more in ("", *WORDS)]
    assert len(asked) == 40
    for each in (settings, old):
        store = make_store(each)
        recall = Recall(store)
        for words in asked:
            found = repr([(h.entry, h.before, h.after) for h in await recall.search(ID, words)])
            assert not any(canary in found.lower() for canary in CANARIES), words
        assert [hit.seq for hit in await recall.search(ID, f"{BOBS} alone")]
        request = repr(build_messages("", await store.entries(ID))).lower()
        assert not any(canary in request for canary in CANARIES)
        quoting = [e for e in await store.entries(ID) if ERASED_WORDS in repr([*quotes_of(e)])]
        assert [speaker_of(entry) for entry in quoting] == [BOB, ANN]
        assert request.count(ERASED_WORDS) == len(quoting)
        await store.close()


class Disk:
    """What somebody reads of a database on a server, and writes back later."""

    def __init__(self, test, rows):
        self._rows = rows(test)
        self.folder = test.getfixturevalue("tmp_path")

    def open(self):
        keys = KeySeal(KEY, keys_file=self.folder / "store.keys")
        if isinstance(self._rows, PostgresRows):
            return PostgresStore(self._rows.url, schema=self._rows.schema, seal=keys)
        return RedisStore(self._rows.url, seal=keys)

    async def read(self):
        return await self._rows.read()

    async def write(self, rows):
        await self._rows.write(rows)


async def words_in(store):
    """The words of which of the three open there, or lie there in plain text."""
    whole, session = await store.snapshot(ID), await store.get(ID)
    parts = [session.part(name) for name in whole.sections]
    there = repr((whole, parts, await store.entries(ID))).lower()
    return {word for word in (*CANARIES, ANNS, BOBS) if word in there}


@pytest.mark.slow
@pytest.mark.parametrize("rows", [PostgresRows, RedisRows])
async def test_rows_that_were_copied_from_a_server_open_for_no_erased_person(request, rows):
    disk = Disk(request, rows)
    store = disk.open()
    await chatted(store)
    old = await disk.read()
    assert await words_in(store) == {*CANARIES, ANNS, BOBS}
    sessions = Sessions(store)
    await sessions.erase_speaker(ID, PERSON)
    await sessions.finish_erasing(await sessions.open(ID))
    assert await words_in(store) == {ANNS, BOBS}
    await store.close()
    await disk.write(old)
    store = disk.open()
    assert await words_in(store) == {ANNS, BOBS}
    await store.delete(ID)
    await store.close()
    await disk.write(old)
    store = disk.open()
    with pytest.raises(SessionNotFound):
        await store.load(ID)
    await store.close()


# Whatever was said, trimmed and folded


PEOPLE = (EVE, ANN, BOB)


def lived(random, session):
    """A random history: who says what, quotes whom, what is cut, folded and taken back."""
    for number in range(random.randrange(2, 14)):
        speaker, other = random.choice(PEOPLE), random.choice(PEOPLE)
        kind = random.choice(["quote", "forward", "overheard"])
        quotes = [(kind, other, WORD[other])] if random.random() < 0.5 else []
        session.add_entry(user_entry(said(speaker, WORD[speaker], *quotes, number=number)))
        if random.random() < 0.8:
            session.add_entry(answers(WORD[speaker]))
        if random.random() < 0.4:
            session.trim_if_needed(random.randrange(1, 5), 1)
            seq = random.randint(session.covered_seq, session.pending_seq)
            session.update_summary(" ".join(WORD.values()), seq=seq)
        if random.random() < 0.1:
            session.reset_history()
    if random.random() < 0.5:
        speaker = random.choice(PEOPLE)
        session.hold(user_entry(said(speaker, WORD[speaker], number=50)))


def own_words(entries):
    """Each person's own messages, by their place."""
    return {
        entry.seq: entry.content["text"]
        for entry in entries
        if entry.role == "user" and speaker_of(entry) != EVE
    }


@pytest.mark.parametrize("seed", range(12))
async def test_after_any_history_all_is_covered_and_the_others_words_are_whole(tmp_path, seed):
    random, settings = Random(seed), settings_in(tmp_path / "data", "jsonl:")
    store = open_store(settings)
    session = await store.create(id=ID, key=ID)
    for _ in range(random.randrange(1, 4)):
        lived(random, session)
        await store.save(session)
    before = own_words((await store.snapshot(ID)).entries)
    await store.close()
    backup(settings.data, tmp_path / "old")
    await erase(settings)
    old = settings_in(restored(tmp_path / "old", settings.data), "jsonl:")
    for each in (settings, old):
        assert not await reads(each) & {*CANARIES}
        store = open_store(each)
        session = await store.load(ID)
        assert own_words((await store.snapshot(ID)).entries) == before
        whole = [entry.seq for entry in await store.entries(ID)]
        covered = [seq for seq in whole if seq <= session.covered_seq]
        pending = [seq for seq in whole if session.covered_seq < seq <= session.pending_seq]
        assert covered + pending + [entry.seq for entry in session.window] == whole
        assert not covered or session.summary
        await store.close()


# Killed in the middle of it


class Victims:
    """Processes that are killed while they erase."""

    def __init__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.erasing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )

    def erase(self, **job):
        """Whether it was killed before it was done."""
        print(json.dumps({**job, "key": KEY}), file=self._process.stdin, flush=True)
        return self._process.stdout.readline().split() == ["ended", "-9"]

    def close(self):
        self._process.communicate()


@pytest.fixture(scope="module")
def victims():
    victims = Victims()
    yield victims
    victims.close()


async def start(settings):
    """What every start does before anything is answered."""
    store = make_store(settings)
    await store.delete_expired()
    await Sessions(store).finish_all_erasing()
    await store.close()


async def kill_at(writes, tmp_path, victims, url, what):
    """Kill it before each of these writes, and start again; returns whether it was erased."""
    await told(settings_in(tmp_path / "before", url))
    outcomes = []
    for number in writes:
        folder = tmp_path / "data"
        shutil.copytree(tmp_path / "before", folder)
        settings = settings_in(folder, url)
        is_killed = victims.erase(count=number, folder=str(folder), url=url, what=what)
        await start(settings)
        shutil.copytree(tmp_path / "before", tmp_path / "old")
        old = settings_in(restored(tmp_path / "old", folder), url)
        try:
            found = [await reads(settings), await reads(old)]
            left = {ANNS, BOBS}
        except SessionNotFound:
            found, left = [await opens(settings), await opens(old)], False
        assert found in ([{*CANARIES, ANNS, BOBS}] * 2, [left] * 2), number
        outcomes.append(found[0] == left)
        shutil.rmtree(folder)
        shutil.rmtree(tmp_path / "old")
        if not is_killed:
            break
    return outcomes


async def opens(settings):
    store = make_store(settings)
    try:
        await store.load(ID)
    except SessionNotFound:
        return False
    finally:
        await store.close()
    return True


ERASINGS = pytest.mark.parametrize(
    ("what", "url"), [(w, url) for w in ("speaker", "delete") for url in ("sqlite:", "jsonl:")]
)


@pytest.mark.slow
@ERASINGS
async def test_a_kill_leaves_all_of_it_or_nothing_in_every_copy(tmp_path, victims, url, what):
    outcomes = await kill_at(range(1, 1000, 11), tmp_path, victims, url, what)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


@pytest.mark.long
@ERASINGS
async def test_a_kill_before_any_write_leaves_all_of_it_or_nothing(tmp_path, victims, url, what):
    outcomes = await kill_at(range(1, 1000), tmp_path, victims, url, what)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {False, True}


async def test_what_is_said_before_the_keys_are_destroyed_is_kept(tmp_path, monkeypatch):
    settings = settings_in(tmp_path / "data")
    await told(settings)
    with monkeypatch.context() as killed:
        killed.setattr(KeysFile, "destroy", lambda *_, **__: None)
        await erase(settings, finish=False)
    store = open_store(settings)
    session = await store.load(ID)
    session.add_entry(user_entry(said(EVE, "thylacine", number=100)))
    await store.save(session)
    await store.close()
    await start(settings)
    assert "thylacine" in await texts(settings)
    assert await reads(settings) == {ANNS, BOBS, EVE.name.lower()}


async def test_the_rows_of_a_deleted_session_go_with_the_next_sweep(tmp_path, monkeypatch):
    settings = settings_in(tmp_path / "data")
    await told(settings)
    store = open_store(settings)
    with monkeypatch.context() as killed:
        killed.setattr(store.database, "delete", anyio.sleep)  # which is cut off
        with pytest.raises(TypeError):
            await store.delete(ID)
    assert [name async for name in store.names()] == [ID]
    assert await store.delete_expired() == 0
    assert [name async for name in store.names()] == []
    await store.close()


# Without the keys file


def harm(path, how, tmp_path):
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut short":
        path.write_bytes(b"".join(data.splitlines(keepends=True)[:-1]))
    elif how == "another store's":
        other = KeySeal(KEY, keys_file=tmp_path / "other.keys")
        other.keys_file.begin()
        shutil.copy(tmp_path / "other.keys", path)
    else:
        path.write_bytes(data[:20] + b"\0" * 43 + data[63:])


@URLS
@pytest.mark.parametrize("how", ["missing", "cut short", "another store's", "overwritten"])
async def test_without_its_keys_file_a_store_does_not_start_and_nothing_is_written(
    tmp_path, url, how
):
    settings = settings_in(tmp_path / "data", url)
    await told(settings)
    path = settings.data / KEYS_FILE
    whole = path.read_bytes()
    harm(path, how, tmp_path)
    before = hashes_of(settings.data)
    with pytest.raises(NotReadable, match=r"keys file.*nothing was written"):
        make_attachments(settings)
    store = open_store(settings)
    for call in (store.load(ID), store.create(id="t"), store.bind("k", "s"), store.check_seal()):
        with pytest.raises(NotReadable, match=r"keys file.*nothing was written"):
            await call
    await store.close()
    assert hashes_of(settings.data) == before
    path.write_bytes(whole)
    assert await reads(settings) == {*CANARIES, ANNS, BOBS}


def hashes_of(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): sha256(file.read_bytes()).digest() for file in files}


# Beside: what is not sealed, and what was sealed before


@URLS
async def test_without_a_key_a_persons_words_leave_the_store_all_the_same(tmp_path, url):
    settings = Settings(data=tmp_path / "data", store={"url": url})
    await told(settings)
    await erase(settings)
    assert await reads(settings) == {ANNS, BOBS}


@URLS
async def test_what_only_waits_leaves_the_store_without_a_trace_too(tmp_path, url):
    settings = Settings(data=tmp_path / "data", store={"url": url})
    store = make_store(settings)
    session = await store.create(id=ID, key=ID)
    session.add_entry(user_entry(said(ANN, ANNS)))
    session.hold(user_entry(said(EVE, EVES, number=1)))
    session.hold(user_entry(said(BOB, BOBS, ("quote", EVE, EVES), number=2)))
    await store.save(session)
    await store.close()
    await erase(settings)
    assert await reads(settings) == {ANNS, BOBS}


@URLS
async def test_an_index_on_the_disk_is_made_anew_with_the_others_words(tmp_path, url):
    settings = Settings(data=tmp_path / "data", store={"url": url})
    await told(settings)
    store, index = make_store(settings), Index(recall_file(settings))
    recall = Recall(store, index)
    await recall.catch_up(await store.load(ID))
    sessions = Sessions(store, recall=recall)
    await sessions.erase_speaker(ID, PERSON)
    await sessions.finish_erasing(await sessions.open(ID))
    assert {hit.seq for hit in await recall.search(ID, BOBS)} >= {5, 7}
    index.close()
    await store.close()
    assert await reads(settings) == {ANNS, BOBS}


@URLS
async def test_what_an_earlier_version_sealed_gets_keys_of_its_own_when_it_is_sealed_again(
    tmp_path, url
):
    settings = settings_in(tmp_path / "data", url)
    place = tmp_path / "data" / ("sessions.sqlite" if url == "sqlite:" else "sessions")
    former = (SqliteStore if url == "sqlite:" else JsonlStore)(place, seal=KeySeal(KEY))
    session = await former.create(id=ID, key=ID)
    session.add_entry(user_entry(said(EVE, EVES)))
    await former.save(session)
    await former.close()
    store = open_store(settings)
    session = await store.load(ID)
    session.add_entry(user_entry(said(BOB, BOBS)))
    await store.save(session)
    assert not (settings.data / KEYS_FILE).exists()  # nobody was told of it yet
    assert "backups keep erased messages" in store.sealing.record.advice
    await seal_all(store)
    assert (await seal_all(store)).same == 1
    await store.close()
    backup(settings.data, tmp_path / "old")
    await erase(settings)
    old = settings_in(restored(tmp_path / "old", settings.data), url)
    assert [await reads(settings), await reads(old)] == [{BOBS}, {BOBS}]


async def test_another_master_key_wraps_the_keys_anew_and_rewrites_no_message(tmp_path):
    settings = settings_in(tmp_path / "data")
    await told(settings)
    new = Fernet.generate_key().decode()
    both = Settings(data=settings.data, store={"encryption_key": f"{new},{KEY}"})
    store = open_store(both)
    before = [entry.content for entry in (await store.database.whole(ID)).entries]
    await seal_all(store)
    assert [entry.content for entry in (await store.database.whole(ID)).entries] == before
    await store.close()
    for _ in make_folder_sealing(both).reseal():
        pass
    last = Settings(data=settings.data, store={"encryption_key": new})
    assert await reads(last) == {*CANARIES, ANNS, BOBS}


def test_the_command_erases_one_person_everywhere_and_names_those_who_spoke(
    tmp_path, monkeypatch, capsys
):
    settings = settings_in(tmp_path / "data")
    anyio.run(told, settings)
    monkeypatch.setenv("NANOLOOP_DATA", str(settings.data))
    monkeypatch.setenv("NANOLOOP_STORE__ENCRYPTION_KEY", KEY)
    monkeypatch.chdir(tmp_path)
    forget = ["sessions", "forget"]
    assert main([*forget, ID, "--speaker", "chat:9", "--yes"]) == Exit.FAILED
    assert "chat:1 (Ann), chat:2 (Bob), chat:3 (Quokkaname)" in capsys.readouterr().err
    for wrong in (["--speaker", "chat:3"], [ID, "--everywhere"], [ID, "1", "--speaker", "chat:3"]):
        assert main([*forget, *wrong, "--yes"]) == Exit.USAGE
    assert main([*forget, "--speaker", "chat:3", "--everywhere", "--yes"]) == Exit.DONE
    assert "erased everything that chat:3 said in 1 conversations" in capsys.readouterr().err
    assert anyio.run(reads, settings) == {ANNS, BOBS}
    assert main([*forget, "--speaker", "chat:3", "--everywhere", "--yes"]) == Exit.DONE
    assert "said nothing" in capsys.readouterr().err
