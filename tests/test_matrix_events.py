"""What an event of a Matrix room says, whoever wrote it and however."""

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.kit.platform import Place
from nanoloop.channels.matrix import MatrixSettings, make
from nanoloop.channels.matrix import homeserver as reading
from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.channels.matrix.platform import named
from nanoloop.channels.matrix.rooms import placed, rendered
from nanoloop.channels.matrix.sync import Bookmark, _arrival
from nanoloop.errors import SettingsError

ME = "@nano:example.org"
OUTER = ["body", "msgtype", "info", "user_ids", "formatted_body", "m.relates_to", "m.mentions"]
INNER = ["event_id", "rel_type", "m.in_reply_to", "m.new_content", "redacts", "membership"]
KEYS = st.sampled_from([*OUTER, *INNER])
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=20,
)


@given(ANY)
def test_nothing_that_anyone_writes_is_an_error(said):
    event = {"content": said, "origin_server_ts": said, "unsigned": said}
    content = reading.content(event)
    assert isinstance(reading.text(content, "Ann"), str)
    assert isinstance(reading.answered(content) + reading.edited(content), str)
    assert isinstance(reading.redacted(event) + reading.thread(content), str)
    assert reading.moment(event).tzinfo is not None
    assert named(content, me=ME, name="Nano")[0] in (True, False)
    assert _arrival([event], ME) is None


@pytest.mark.parametrize(
    ("body", "mention"),
    [
        ("nano: is it?", "nano"),
        ("Nano, is it?", "Nano"),
        ("@nano is it?", "@nano"),
        ("@nano:example.org is it?", "@nano:example.org"),
        ("@nano:example.org: is it?", "@nano:example.org"),
        ("The Bot: is it?", "The Bot"),
        ("is it, @nano:example.org?", "@nano:example.org"),
    ],
)
def test_a_message_names_the_bot(body, mention):
    assert named({"body": body}, me=ME, name="The Bot") == (True, mention)


@pytest.mark.parametrize(
    "body",
    [
        "nano is broken",
        "nanometres: small",
        "@nanobot is it?",
        "@nano:example.organic is it?",
        "ask @nano:example.com",
        "is it?",
    ],
)
def test_a_message_that_only_speaks_of_it_does_not(body):
    assert named({"body": body}, me=ME, name="The Bot") == (False, "")


def test_a_mention_counts_wherever_its_name_stands():
    said = {"body": "I wonder, the bot", "m.mentions": {"user_ids": [ME]}}
    assert named(said, me=ME, name="The Bot") == (True, "the bot")


def test_an_old_clients_reply_is_read_without_what_it_answers():
    relation = {"m.in_reply_to": {"event_id": "$1"}}
    body = "> <@ann:example.org> tea?\n> or coffee?\n\ntea"
    assert reading.text({"body": body, "m.relates_to": relation}) == "tea"
    assert reading.text({"body": body}) == body


def test_a_file_says_its_caption_and_not_its_name():
    file = {"msgtype": "m.image", "body": "a cat", "filename": "cat.png"}
    assert reading.text(file) == "a cat"
    assert reading.text({**file, "body": "cat.png"}) == ""


def test_what_stands_in_a_thread_for_older_clients_is_no_answer():
    relation = {"rel_type": "m.thread", "event_id": "$1", "m.in_reply_to": {"event_id": "$2"}}
    assert reading.answered({"m.relates_to": relation}) == "$2"
    assert reading.answered({"m.relates_to": {**relation, "is_falling_back": True}}) == ""


def test_an_answer_in_a_thread_names_both():
    relation = placed({}, Place("!r", "$1"), "$2")["m.relates_to"]
    assert (relation["event_id"], relation["m.in_reply_to"]) == ("$1", {"event_id": "$2"})
    assert not relation["is_falling_back"]


def test_plain_text_comes_without_html():
    assert rendered("2 < 3 & so on") is None
    assert rendered("**so**") == "<p><strong>so</strong></p>"


def test_a_picture_from_elsewhere_comes_as_a_link():
    assert rendered("![a cat](https://e.org/c.png)") == (
        '<p><a href="https://e.org/c.png">a cat</a></p>'
    )


def test_a_bookmark_outlasts_a_restart_and_belongs_to_one_account(tmp_path):
    file = tmp_path / "channels" / "matrix.json"
    bookmark = Bookmark(file)
    bookmark.belongs_to(ME)
    bookmark.to_join.append("!room")
    bookmark.move("s1")
    again = Bookmark(file)
    again.belongs_to(ME)
    assert (again.since, again.to_join) == ("s1", ["!room"])
    again.belongs_to("@other:example.org")
    assert (again.since, again.to_join) == (None, [])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"user": 1}'])
def test_a_bookmark_that_cannot_be_read_is_begun_anew(tmp_path, text):
    file = tmp_path / "matrix.json"
    file.write_text(text)
    assert Bookmark(file).since is None


async def test_what_people_say_does_not_reach_the_librarys_log():
    Homeserver("http://localhost", "token")
    assert not logging.getLogger("nio.responses").isEnabledFor(logging.ERROR)


@pytest.mark.parametrize(
    ("own", "problem"),
    [
        ({"token": "syt_1"}, "channels.matrix.homeserver is not set"),
        ({"token": "two words", "homeserver": "https://e.org"}, "is not an access token"),
    ],
)
def test_settings_that_lack_something_say_what(tmp_path, own, problem):
    with pytest.raises(SettingsError, match=problem):
        make(MatrixSettings(**own), tmp_path)


def test_where_another_process_has_read_to_is_known_once_it_is_read_again(tmp_path):
    mine, theirs = Bookmark(tmp_path / "place.json"), Bookmark(tmp_path / "place.json")
    theirs.belongs_to("@bot:here")
    theirs.move("s2")
    mine.load()
    assert mine.since == "s2"
