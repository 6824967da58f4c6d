from datetime import datetime, timedelta, timezone

import pytest

from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

START = datetime(2026, 1, 1, tzinfo=timezone.utc)


class Clock:
    """A clock that moves by hand."""

    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now

    def forward(self, seconds):
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock():
    return Clock()


def test_r2_1_who_it_is_and_since_when(clock):
    session = Session(id="mine", clock=clock)
    assert (session.id, session.created_at, session.updated_at) == ("mine", START, START)


def test_r2_2_state_is_got_set_and_deleted():
    session = Session()
    assert session.get("k") == (None, False)
    session.set("k", None)
    assert session.get("k") == (None, True)
    session.delete("k")
    session.delete("k")
    assert session.get("k") == (None, False)


def test_r2_9_a_life_span_is_seconds_or_a_timedelta(clock):
    in_seconds, as_delta = Session(ttl=3600), Session(ttl=timedelta(hours=1), clock=clock)
    assert as_delta.to_dict()["ttl"] == in_seconds.to_dict()["ttl"] == 3600
    clock.forward(3600)
    assert not as_delta.has_expired()
    clock.forward(0.1)
    assert as_delta.has_expired()
    assert not Session(ttl=timedelta(0)).has_expired()


@pytest.mark.parametrize("ttl", [float("inf"), 10**12, timedelta.max])
def test_r2_9_a_life_longer_than_time_has_no_end(ttl):
    session = Session(ttl=ttl)
    assert not session.has_expired()
    assert Session.load(session.dump()).dump() == session.dump()


def test_state_is_copied_in_and_out():
    session, value = Session(), {"a": [1]}
    session.set("k", value)
    value["a"].append(2)
    session.get("k")[0]["a"].append(3)
    session.state["k"]["a"].append(4)
    assert session.get("k")[0] == {"a": [1]}


CHANGES = [
    lambda s: s.set("k", 1),
    lambda s: s.delete("missing"),
    lambda s: s.add_entry(Entry.message("user", "x")),
    lambda s: s.append_message({"role": "user", "content": "x"}),
    lambda s: s.update_summary("x"),
    lambda s: s.reset_history(),
    lambda s: s.clear(),
    lambda s: s.settings.set("session.mode", "memo"),
    lambda s: setattr(s, "memo", {}),
    lambda s: setattr(s, "agent", "a"),
    lambda s: setattr(s, "title", "a"),
    lambda s: setattr(s, "max_history", 3),
    lambda s: s.load({"memo": 1}),
]


@pytest.mark.parametrize("change", CHANGES)
def test_r2_5_every_change_moves_updated_at(clock, change):
    session = Session(clock=clock)
    clock.forward(1)
    change(session)
    assert session.updated_at == clock.now


def test_r2_5_reading_is_no_change(clock):
    session = Session(clock=clock)
    session.add_message("user", "x")
    session.committed(session.changes())
    clock.forward(1)
    session.get("k")
    session.history()
    session.dump()
    session.display()
    session.stats()
    session.fork()
    session.judge_resize()
    assert session.updated_at == START
    assert session.changes() is None


def test_r2_6_expiry_is_strictly_after_its_moment(clock):
    session = Session(ttl=10, clock=clock)
    clock.forward(10)
    assert not session.has_expired()
    clock.forward(0.001)
    assert session.has_expired()


@pytest.mark.parametrize("ttl", [None, 0, -5])
def test_r2_9_without_a_ttl_it_never_expires(clock, ttl):
    session = Session(ttl=ttl, clock=clock)
    clock.forward(1e9)
    assert not session.has_expired()


@pytest.mark.parametrize(("sliding", "expired"), [(False, True), (True, False)])
def test_c22_only_sliding_extends_it(clock, sliding, expired):
    session = Session(ttl=10, sliding=sliding, clock=clock)
    clock.forward(6)
    session.set("k", 1)
    clock.forward(6)
    assert session.has_expired() is expired


def test_c22_maintenance_does_not_slide_it(clock):
    session = Session(ttl=10, sliding=True, clock=clock)
    clock.forward(6)
    session.update_summary("x")
    session.committed(session.changes())
    clock.forward(6)
    assert session.has_expired()


def test_r3_2_a_new_session(clock):
    session = Session(clock=clock)
    assert (session.messages, session.agent, session.title, session.metadata) == ([], None, "", {})


def test_r3_11_an_agent_stays_and_may_be_changed():
    session = Session(agent="build")
    session.reset_history()
    assert session.agent == "build"
    session.agent = "plan"
    assert Session.load(session.dump()).agent == "plan"


def test_the_title_is_the_first_users_words_until_it_is_renamed():
    session = Session()
    session.add_message("assistant", "hello")
    session.add_message("user", "  plan\n a trip " + "x" * 99)
    assert session.title.startswith("plan a trip x")
    assert len(session.title) == 60
    session.title = "Tokyo"
    session.add_message("user", "more")
    assert session.title == "Tokyo"


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match="takes no max_histroy"):
        Session(max_histroy=3)


def test_metadata_is_a_copy():
    session = Session(metadata={"a": [1]})
    session.metadata["a"].append(2)
    assert session.metadata == {"a": [1]}


def test_only_what_changed_is_to_be_saved():
    session = Session()
    session.committed(session.changes())
    session.set("k", 1)
    session.add_message("assistant", "a")
    changes = session.changes()
    assert (set(changes.sections), len(changes.entries)) == ({"state"}, 1)
    session.add_message("assistant", "b")
    session.committed(changes)
    assert [e.content["text"] for e in session.changes().entries] == ["b"]


def test_an_entry_that_was_reset_before_it_was_saved_is_saved_all_the_same():
    session = Session()
    session.add_message("user", "a")
    session.reset_history()
    session.add_message("user", "b")
    assert [entry.seq for entry in session.changes().entries] == [1, 2]
