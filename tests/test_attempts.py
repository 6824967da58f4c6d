"""What is tried again, and when."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.providers.attempts import LONGEST_SECONDS, PATIENCE_SECONDS, pause, pause_after


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 529])
def test_a_server_that_is_busy_or_in_trouble_is_asked_again(status):
    assert pause_after(status, {}, tried=0) > 0


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 413, 422])
def test_a_refusal_stays_one(status):
    assert pause_after(status, {}, tried=0) is None


def test_a_server_may_say_itself_whether_to_ask_again():
    assert pause_after(500, {"x-should-retry": "false"}, tried=0) is None
    assert pause_after(400, {"x-should-retry": "true"}, tried=0) > 0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "7"}, 7),
    ],
)
def test_the_wait_is_the_one_that_is_asked_for(headers, seconds):
    assert pause_after(429, headers, tried=0) == pytest.approx(seconds)


def test_a_date_is_a_wait_too():
    then = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert pause_after(429, {"retry-after": then}, tried=0) == pytest.approx(30, abs=3)


@pytest.mark.parametrize("said", [str(PATIENCE_SECONDS + 1), "inf", "1e999"])
def test_who_asks_for_too_long_a_wait_is_not_waited_for(said):
    assert pause_after(429, {"retry-after": said}, tried=0) is None


@given(st.text())
def test_nonsense_is_no_wait_of_its_own(said):
    wait = pause_after(429, {"retry-after": said}, tried=0)
    assert wait is None or 0 < wait <= PATIENCE_SECONDS


@given(st.integers(0, 10_000))
def test_waits_grow_up_to_a_bound_and_are_not_all_the_same(tried):
    assert 0 < pause(tried=tried) <= LONGEST_SECONDS
    assert len({pause(tried=tried) for _ in range(8)}) > 1
    assert pause(tried=tried + 2) > pause(tried=tried) * 0.7
