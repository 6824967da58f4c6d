from datetime import datetime, timedelta, timezone

import pytest

from nanoloop import Session
from nanoloop.events import BreakerClosed, BreakerOpened, hearing
from nanoloop.memory.schedule import FAILURES_LIMIT, Breaker, Budget, Schedule, Spent
from nanoloop.protocols import Usage


class Clock:
    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


@pytest.fixture
def clock():
    return Clock()


def opened(clock):
    breaker = Breaker("m", clock=clock)
    for _ in range(3):
        assert breaker.admit()
        breaker.failed()
    return breaker


def test_case_16_the_breaker_opens_after_three_failures_in_a_row(clock):
    breaker = opened(clock)
    assert (breaker.state, breaker.admit(), breaker.admits_at) == ("open", False, 60)


def test_a_success_in_between_begins_the_count_anew(clock):
    breaker = Breaker("m", clock=clock)
    for ending in (breaker.failed, breaker.failed, breaker.succeeded, breaker.failed):
        ending()
    assert breaker.state == "closed"


def test_case_16_after_its_rest_one_call_is_let_through(clock):
    breaker = opened(clock)
    clock.time = 60
    assert breaker.state == "half-open"
    assert [breaker.admit(), breaker.admit()] == [True, False]


def test_one_success_closes_it_and_one_failure_opens_it_again(clock):
    breaker = opened(clock)
    clock.time = 60
    breaker.admit()
    breaker.failed()
    assert (breaker.state, breaker.admits_at) == ("open", 120)
    clock.time = 120
    breaker.admit()
    assert breaker.succeeded()
    assert (breaker.state, breaker.admit(), breaker.admit()) == ("closed", True, True)


def test_a_call_that_is_never_heard_of_again_does_not_keep_it_shut_for_ever(clock):
    breaker = opened(clock)
    clock.time = 60
    assert breaker.admit()
    clock.time = 121
    assert breaker.admit()


def test_that_it_opens_and_closes_is_told_once(clock):
    heard = []
    with hearing(heard.append):
        breaker = opened(clock)
        breaker.failed()
        clock.time = 200
        breaker.admit()
        breaker.succeeded()
        breaker.succeeded()
    assert heard == [BreakerOpened(model="m", failures=3, seconds=60), BreakerClosed(model="m")]


def test_rests_grow_with_each_failure_up_to_a_limit_and_never_all_at_once(clock):
    rests, session = Schedule(clock=clock), Session()
    lengths = [rests.failed(session).until for _ in range(50)]
    for length, most in zip(lengths, [5, 10, 20, 40, 80, 160, 320, 600, 600], strict=False):
        assert most / 2 <= length <= most
    assert len({rests.failed(Session()).until for n in range(20)}) > 10
    assert rests.is_resting(session.id)
    rests.succeeded(session)
    assert not rests.is_resting(session.id)


def test_what_fails_again_and_again_is_tried_at_each_message_and_else_ever_more_seldom(clock):
    rests, session = Schedule(clock=clock), Session()
    tries = 0
    while clock.time < 7 * 24 * 3600:
        failures = rests.failed(session)
        assert failures.until - clock.time <= 600
        assert failures.until <= failures.wake_at == rests.next_due
        clock.time = failures.wake_at
        tries += 1
    assert tries < 45


def test_failures_are_remembered_of_so_many_sessions_only(clock):
    rests = Schedule(clock=clock)
    for n in range(FAILURES_LIMIT + 1):
        rests.failed(Session(id=str(n)))
    assert (rests.is_resting("0"), rests.is_resting("1")) == (False, True)


def test_a_budget_has_room_again_the_next_day():
    now = datetime(2026, 5, 1, 22, 0, tzinfo=timezone.utc)
    budget = Budget(100, now=lambda: now)
    budget.add(Usage(tokens_in=90, tokens_out=10, tokens_cached=50))
    assert not budget.has_room
    assert budget.spent_today == Spent(calls=1, tokens_in=90, tokens_out=10, tokens_cached=50)
    assert budget.seconds_to_midnight == 7200
    now += timedelta(hours=2)
    assert budget.has_room
    assert budget.spent_today == Spent()


def test_a_process_that_begins_anew_has_what_is_left_of_its_day(tmp_path):
    now = datetime(2026, 5, 1, 22, 0, tzinfo=timezone.utc)
    kept = {"kept_in": tmp_path / "data" / "spent.json", "now": lambda: now}
    Budget(100, **kept).add(Usage(tokens_in=90))
    Budget(100, **kept).add(Usage(tokens_out=10))
    assert Budget(100, **kept).spent_today == Spent(calls=2, tokens_in=90, tokens_out=10)
    assert not Budget(100, **kept).has_room
    now += timedelta(hours=2)
    assert Budget(100, **kept).has_room


def test_two_that_count_at_the_same_time_have_the_day_together(tmp_path):
    day = datetime(2026, 5, 1, tzinfo=timezone.utc)
    one, two = (Budget(100, kept_in=tmp_path / "spent.json", now=lambda: day) for _ in range(2))
    for budget in (one, two, one):
        budget.add(Usage(tokens_in=30))
    assert one.spent_today == two.spent_today == Spent(calls=3, tokens_in=90)
    two.add(Usage(tokens_in=10))
    assert not one.has_room


@pytest.mark.parametrize("text", ["", "[]", "{", '{"day": "2026-05-01", "calls": "many"}'])
def test_a_damaged_count_of_the_day_begins_anew(tmp_path, text):
    (tmp_path / "spent.json").write_text(text)
    day = datetime(2026, 5, 1, tzinfo=timezone.utc)
    assert Budget(100, kept_in=tmp_path / "spent.json", now=lambda: day).spent_today == Spent()


def test_a_disk_that_fails_stops_no_count(tmp_path):
    (tmp_path / "file").touch()
    budget = Budget(100, kept_in=tmp_path / "file" / "spent.json")
    budget.add(Usage(tokens_in=100))
    assert not budget.has_room
