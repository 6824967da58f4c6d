"""A dict that forgets what was set longest ago."""

import pytest

from nanoloop.bounded import BoundedDict


@pytest.fixture
def known():
    known = BoundedDict(2)
    known["a"], known["b"] = 1, 2
    return known


def test_the_oldest_is_forgotten(known):
    known["c"] = 3
    assert known == {"b": 2, "c": 3}


def test_what_is_set_again_is_the_newest(known):
    known["a"] = 5
    known["c"] = 3
    assert known == {"a": 5, "c": 3}


def test_a_default_that_is_set_counts_too(known):
    assert known.setdefault("c", 3) == 3
    assert known == {"b": 2, "c": 3}
