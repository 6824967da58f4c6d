"""Every event is one line and one count, and no line holds what was said."""

import io
import json
from dataclasses import dataclass, fields

import pytest

from nanoloop.events import (
    Event,
    FailureTold,
    SessionsCounted,
    TextStreamed,
    TurnFinished,
    TurnStarted,
    about,
    announce,
    hearing,
)
from nanoloop.sentences import incident_of
from nanoloop.telemetry import Telemetry

SECRET = "what was said"


@dataclass(frozen=True, slots=True, kw_only=True)
class Careless(Event):
    """A fact that carries text and may be logged; there is none in events.py."""

    text: str
    content: str


def every_event(kind=Event):
    for child in kind.__subclasses__():
        yield child
        yield from every_event(child)


# By name: a dataclass with slots is made twice, and the first one may still be about.
EVENTS = {kind.__name__: kind for kind in every_event()}


def example(kind):
    samples = {"int": 3, "float": 0.5, "bool": True, "tuple[str, ...]": ("a",)}
    values = {field.name: samples.get(str(field.type), "x") for field in fields(kind)}
    return kind(**values | {name: SECRET for name in values if name in {"text", "content"}})


def finished(**values):
    given = {"steps": 1, "tokens_in": 5, "tokens_out": 2, "tokens_cached": 0, "seconds": 0.5}
    return TurnFinished(**given | values)


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Broken(io.StringIO):
    def write(self, _):
        raise OSError("no space left")


@pytest.mark.parametrize("style", ["json", "text"])
@pytest.mark.parametrize("kind", EVENTS.values(), ids=EVENTS)
def test_each_event_is_one_line_without_what_was_said(kind, style):
    stream = io.StringIO()
    telemetry = Telemetry(level="debug", format=style, stream=stream)
    telemetry(example(kind))
    lines = stream.getvalue().splitlines()
    assert len(lines) == int(kind.logged)
    assert all(kind.name() in line for line in lines)
    assert SECRET not in stream.getvalue()
    assert telemetry.counts == {kind.name(): 1}


def test_a_line_has_the_fixed_name_level_time_and_fields():
    stream = io.StringIO()
    with about(session_id="s", turn_id="t"):
        Telemetry(format="auto", stream=stream)(finished())
    line = json.loads(stream.getvalue())
    assert (line["event"], line["level"]) == ("turn_finished", "info")
    assert (line["session_id"], line["turn_id"]) == ("s", "t")
    assert line["timestamp"].endswith("Z")
    assert line["tokens_in"] == 5


def test_a_terminal_gets_text_for_people():
    stream = Terminal()
    with about(session_id="a\nb"):
        Telemetry(stream=stream)(finished())
    assert "turn_finished" in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 1


def test_less_than_the_level_is_counted_and_not_written():
    stream = io.StringIO()
    telemetry = Telemetry(level="info", stream=stream)
    telemetry(TurnStarted(resumed=False))
    assert stream.getvalue() == ""
    assert telemetry.counts["turn_started"] == 1


def test_tokens_and_seconds_add_up():
    telemetry = Telemetry(stream=io.StringIO())
    for _ in range(2):
        telemetry(finished())
    assert telemetry.snapshot()["counts"] == {"turn_finished": 2}
    assert telemetry.snapshot()["sums"]["turn_finished.tokens_in"] == 10
    assert telemetry.snapshot()["sums"]["turn_finished.seconds"] == 1.0


def test_b2_8_counts_of_sessions_are_the_latest_and_what_expired_adds_up():
    telemetry = Telemetry(stream=io.StringIO())
    for sessions, expired in ((5, 2), (4, 1)):
        telemetry(SessionsCounted(sessions=sessions, entries=90, pending=0, expired=expired))
    assert telemetry.snapshot()["latest"]["sessions_counted.sessions"] == 4
    assert telemetry.snapshot()["latest"]["sessions_counted.entries"] == 90
    assert telemetry.snapshot()["sums"]["sessions_counted.expired"] == 3


def test_a_piece_of_an_answer_is_never_logged():
    stream = io.StringIO()
    Telemetry(level="debug", stream=stream)(example(TextStreamed))
    assert stream.getvalue() == ""


def test_a_crash_is_told_by_its_frames_and_not_by_its_message():
    stream = io.StringIO()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - it is this test's own
        raise ValueError(SECRET)
    Telemetry(stream=stream)(FailureTold(**incident_of(caught.value).facts))
    line = json.loads(stream.getvalue())
    assert line["where"].startswith("test_telemetry.py:")
    assert "test_a_crash_is_told" in line["where"]
    assert SECRET not in stream.getvalue()


def test_an_observer_that_raises_is_logged_and_the_others_hear_all_the_same():
    stream, heard = io.StringIO(), []

    def fails(_):
        raise ValueError(SECRET)

    telemetry = Telemetry(format="json", stream=stream)
    with hearing(telemetry), hearing(fails), hearing(heard.append):
        announce(finished())
    assert [event.name() for event in heard] == ["observer_failed", "turn_finished"]
    line = json.loads(stream.getvalue().splitlines()[-1])
    assert (line["event"], line["error"]) == ("observer_failed", "ValueError")
    assert SECRET not in stream.getvalue()


def test_a_log_that_cannot_be_written_stops_nothing():
    telemetry = Telemetry(stream=Broken())
    telemetry(finished())
    assert telemetry.counts["turn_finished"] == 1


def test_where_there_is_no_standard_error_all_goes_on(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    telemetry = Telemetry()
    telemetry(finished())
    assert telemetry.counts["turn_finished"] == 1
