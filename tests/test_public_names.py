"""What users import, they import from `nanoloop`."""

from importlib import import_module

import pytest

import nanoloop


@pytest.mark.parametrize("name", nanoloop.__all__)
def test_each_name_is_the_one_at_its_home(name):
    found = getattr(nanoloop, name)
    assert getattr(import_module(found.__module__), name) is found


def test_sessions_stores_and_a_provider_for_tests_are_among_them():
    names = {"Session", "Entry", "SessionDirectory", "SessionNotFound", "SessionExists"}
    names |= {"Store", "InMemoryStore", "JsonlStore", "ScriptedProvider", "Summarizer"}
    assert names <= set(nanoloop.__all__)


def test_another_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Sessoin'"):
        nanoloop.Sessoin  # noqa: B018 - the access is the test
