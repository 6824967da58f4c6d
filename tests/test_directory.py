import json
import re

import pytest

from nanoloop import Agent
from nanoloop.directory import SessionDirectory
from nanoloop.errors import StoreError
from nanoloop.providers.scripted import ScriptedProvider


@pytest.fixture
def folder(tmp_path):
    return SessionDirectory(tmp_path / "sessions")


def talked(folder, **given):
    session = folder.create(**given)
    session.add_message("user", "Hello")
    session.add_message("assistant", "Hi there!")
    return session


def test_r3_8_the_current_session_is_the_same_until_a_reset(folder):
    assert folder.current() is folder.current()


def test_r3_9_after_a_reset_there_is_a_new_empty_one(folder):
    old = folder.current()
    old.add_message("user", "Hello")
    folder.reset()
    assert folder.current() is not old
    assert folder.current().messages == []


def test_r3_2_r3_10_r3_15_new_sessions_and_their_limits(folder):
    session = folder.create()
    assert (session.max_history, session.agent, session.messages) == (100, None, [])
    own = folder.create(max_history=50, agent="explore", id="mine")
    assert (own.max_history, own.agent, own.id) == (50, "explore", "mine")
    folder.max_history = 200
    assert folder.create().max_history == 200


def test_r3_17_ids_are_from_the_time_and_stay(folder):
    session = folder.create()
    assert re.fullmatch(r"session-\d{8}-\d{6}", session.id)
    before = session.id
    folder.save(session)
    assert session.id == before


def test_c19_ids_may_be_made_as_wanted_and_are_numbered_where_they_are_taken(tmp_path):
    folder = SessionDirectory(tmp_path, new_id=lambda: "project-x")
    folder.save(folder.create())
    other = SessionDirectory(tmp_path, new_id=lambda: "project-x")
    assert [other.create().id, other.create().id] == ["project-x-01", "project-x-02"]


def test_fix_two_sessions_of_one_second_have_two_ids(folder):
    ids = [folder.create().id for _ in range(5)]
    assert len(set(ids)) == 5
    other = SessionDirectory(folder.folder)
    folder.save(folder.create(id=ids[0]))
    assert other.create().id != ids[0]


def test_r3_24_r3_25_r3_26_saving_returns_the_path(folder, tmp_path):
    session = talked(folder)
    assert folder.save(session) == folder.folder / f"{session.id}.json"
    custom = tmp_path / "some" / "where" / "else.json"
    assert folder.save(session, custom) == custom
    assert custom.exists()


@pytest.mark.parametrize(
    ("env", "data"),
    [
        ({"NANOLOOP_DATA": "mine"}, "mine"),
        ({}, ".local/share/nanoloop"),
        ({"XDG_DATA_HOME": "x"}, "x"),
    ],
)
def test_r3_24_without_a_folder_it_is_directory_in_the_data_folder(
    tmp_path, monkeypatch, env, data
):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("NANOLOOP_DATA", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    data = tmp_path / data / ("nanoloop" if "XDG_DATA_HOME" in env else "")
    assert SessionDirectory().folder == data / "directory"
    assert not data.exists()
    assert SessionDirectory().save().parent == data / "directory"
    assert data.stat().st_mode & 0o777 == 0o700


def test_b3_5_each_scope_has_a_folder_and_a_current_session_of_its_own(folder):
    scopes = ["/home/me/work", "/home/me/play", "..", "notes.json", "Work", "work"]
    mine = [SessionDirectory(folder.folder, scope=scope) for scope in scopes]
    for each in mine:
        each.save(each.create(id="plan"))
        assert [path.stem for path in each.list_saved()] == ["plan"]
        assert each.folder.parent == folder.folder
    assert len({str(each.folder).lower() for each in mine}) == len(scopes)
    assert folder.list_saved() == []
    assert mine[0].current() is not mine[1].current()


def test_r3_24_r3_26_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = SessionDirectory("~/.chats/sessions")
    session = talked(folder)
    assert folder.save(session).parent == tmp_path / ".chats/sessions"
    assert folder.save(session, "~/other.json") == tmp_path / "other.json"
    assert folder.load("~/other.json").messages == session.messages


def test_r3_27_the_file_says_it_in_the_old_form(folder):
    data = json.loads(folder.save(talked(folder, agent="build")).read_text())
    assert data["messages"] == [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi there!"},
    ]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}", data["timestamp"])
    assert (data["agent"], data["max_history"]) == ("build", 100)


def test_r3_28_b3_2_a_session_comes_back(folder):
    session = talked(folder, agent="build", max_history=7)
    session.memo = {"k": 1}
    loaded = folder.load(folder.save(session))
    assert (loaded.id, loaded.messages) == (session.id, session.messages)
    assert (loaded.agent, loaded.max_history, loaded.memo) == ("build", 7, {"k": 1})
    assert folder.load(session.id).id == session.id


def test_fix_a_loaded_session_goes_on(folder):
    loaded = folder.load(folder.save(talked(folder)))
    loaded.add_message("user", "again")
    again = folder.load(folder.save(loaded))
    assert [message["content"] for message in again.messages] == ["Hello", "Hi there!", "again"]


def test_b3_4_a_loaded_session_may_become_the_current_one(folder):
    session = folder.switch(folder.load(folder.save(talked(folder))))
    assert folder.current() is session


def test_b3_3_with_autosave_each_answer_and_each_digest_is_saved(tmp_path):
    folder = SessionDirectory(tmp_path, autosave=True)
    session = folder.current()
    session.add_message("user", "Hello")
    assert folder.list_saved() == []
    session.add_message("assistant", "Hi there!")
    assert folder.load(session.id).messages == session.messages
    session.update_summary("They met.")
    assert folder.load(session.id).summary == "They met."
    session.memo = {"k": 1}
    assert folder.load(session.id).memo == {"k": 1}
    session.reset_history()
    session.add_message("assistant", "anew")
    assert [message["content"] for message in folder.load(session.id).messages] == ["anew"]


async def test_b3_3_what_an_agent_says_is_saved_and_a_loaded_session_too(tmp_path):
    folder = SessionDirectory(tmp_path, autosave=True)
    agent = Agent("cook", provider=ScriptedProvider(["Fine.", "Good."]))
    agent.attach_session(folder.current())
    await agent.ask("Eggs?")
    loaded = folder.load(folder.current().id)
    assert [message["content"] for message in loaded.messages] == ["Eggs?", "Fine."]
    agent.attach_session(loaded)
    await agent.ask("Flour?")
    assert len(folder.load(loaded.id).messages) == 4


def test_an_autosave_that_fails_is_told_and_the_next_one_saves_all(tmp_path, monkeypatch):
    folder = SessionDirectory(tmp_path, autosave=True)
    session = folder.current()
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.replace", _full)
        with pytest.warns(UserWarning, match="was not saved: disk full"):
            session.add_message("assistant", "one")
    session.add_message("assistant", "two")
    assert [m["content"] for m in folder.load(session.id).messages] == ["one", "two"]


def test_without_autosave_nothing_is_written_by_itself(folder):
    talked(folder)
    assert folder.list_saved() == []


def test_a_file_with_messages_only_is_read(folder):
    folder.folder.mkdir()
    file = folder.folder / "old.json"
    file.write_text('{"id": "old", "messages": [{"role": "user", "content": "Hello"}]}')
    assert folder.load(file).messages == [{"role": "user", "content": "Hello"}]


def test_messages_edited_by_hand_count(folder):
    file = folder.save(talked(folder))
    data = json.loads(file.read_text())
    data["messages"] = data["messages"][:1]
    file.write_text(json.dumps(data))
    assert [message["content"] for message in folder.load(file).messages] == ["Hello"]


def test_c30_an_unknown_agent_is_none_with_a_warning(tmp_path):
    folder = SessionDirectory(tmp_path, agents={"build"})
    file = folder.save(talked(folder, agent="ghost"))
    with pytest.warns(UserWarning, match="ghost"):
        assert folder.load(file).agent is None
    assert folder.load(folder.save(talked(folder, agent="build"))).agent == "build"


def test_r3_29_saved_sessions_are_listed(folder):
    assert folder.list_saved() == []
    files = [folder.save(talked(folder, id=name)) for name in ("b", "a")]
    assert folder.list_saved() == sorted(files)


def test_r3_30_what_is_missing_or_broken_is_an_error(folder):
    with pytest.raises(FileNotFoundError):
        folder.load(folder.folder / "missing.json")
    folder.folder.mkdir()
    for name, text in (("a", "{broken"), ("b", "\x00")):
        (folder.folder / f"{name}.json").write_text(text)
        with pytest.raises(ValueError, match="line 1 column"):
            folder.load(name)
    (folder.folder / "c.json").write_text("[]")
    with pytest.raises(TypeError):
        folder.load("c")


def test_a_file_with_its_name_of_before_is_loaded_and_renamed(folder):
    session = talked(folder, id="Room")
    former = folder.folder / "Room.json"
    folder.save(session).rename(former)
    assert folder.load("Room").messages == session.messages
    with pytest.raises(FileNotFoundError):
        folder.load("room")
    assert folder.save(session) == folder.path("Room")
    assert folder.list_saved() == [folder.path("Room")]


def made_later(folder, **given):
    """A file as a later version makes it."""
    file = folder.save(talked(folder, **given))
    data = json.loads(file.read_text())
    assert data["format"] == 1
    file.write_text(json.dumps({**data, "format": 2}))
    return file


def test_a_file_of_a_newer_format_is_refused_and_left_alone(folder):
    file = made_later(folder, id="new")
    before = file.read_text()
    with pytest.raises(StoreError, match=r"new.json has format 2, but this version supports 1"):
        folder.load("new")
    with pytest.raises(StoreError, match="format 2"):
        folder.save(talked(folder, id="new"))
    with pytest.raises(StoreError, match="format 2"):
        folder.save(talked(folder, id="old"), file)
    assert folder.prune(keep=0) == []
    assert file.read_text() == before


def test_ids_and_files_are_one_to_one_and_safe(folder):
    paths = {str(folder.path(name)).lower() for name in ("a_b", "a:b", "a.b", "a@b", "A_B")}
    assert len(paths) == 5
    for wrong in ("../x", "a/b", ""):
        with pytest.raises(ValueError, match="not a valid session id"):
            folder.create(id=wrong)


def test_a_failed_save_leaves_the_old_file(folder, monkeypatch):
    session = talked(folder)
    file = folder.save(session)
    before = file.read_text()
    session.add_message("user", "more")
    monkeypatch.setattr("pathlib.Path.replace", _full)
    with pytest.raises(OSError, match="disk full"):
        folder.save(session)
    assert file.read_text() == before
    assert list(folder.folder.iterdir()) == [file]


def _full(*_):
    raise OSError("disk full")


def test_b3_7_old_files_are_pruned_after_a_dry_run(folder):
    for name in ("a", "b", "c"):
        folder.save(talked(folder, id=name))
    assert len(folder.prune(keep=1, dry_run=True)) == 2
    assert len(folder.list_saved()) == 3
    folder.prune(keep=1)
    assert len(folder.list_saved()) == 1
