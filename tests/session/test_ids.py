from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import InvalidSessionId
from nanoloop.session.head import checked_id, id_for_key, timestamp_id
from nanoloop.session.session import Session

MOMENT = datetime(2025, 2, 21, 14, 30, 15)  # noqa: DTZ001 - the wall clock, as the names have it


def test_r0_16_r1_1_an_id_is_32_hex_digits_and_new_each_time():
    ids = {Session().id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(i) == 32 and set(i) <= set("0123456789abcdef") for i in ids)


def test_r3_17_ids_from_the_time():
    assert timestamp_id(MOMENT) == "session-20250221-143015"


def test_fix_two_of_the_same_second_differ():
    taken = []
    for _ in range(3):
        taken.append(timestamp_id(MOMENT, taken=taken))
    assert taken[1:] == ["session-20250221-143015-01", "session-20250221-143015-02"]


@pytest.mark.parametrize("wrong", ["", "../x", "a/b", ".a", "a b", "a\n", "x" * 201, None, 3, "ü"])
def test_an_unsafe_id_is_refused(wrong):
    with pytest.raises(InvalidSessionId):
        checked_id(wrong)
    if wrong is not None:
        with pytest.raises(ValueError, match="not a valid session id"):
            Session(id=wrong)


@given(st.text(max_size=300))
def test_c19_every_key_has_a_safe_id(key):
    assert checked_id(id_for_key(key))


@given(st.sets(st.text("ab:/ü-_", max_size=6), min_size=2, max_size=2))
def test_c19_two_keys_never_share_an_id(keys):
    one, other = keys
    assert id_for_key(one) != id_for_key(other)
