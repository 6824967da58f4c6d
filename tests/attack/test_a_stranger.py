"""Anyone who writes to the bot on a platform, and is not known: pairing stays open to others."""

import pytest

from nanoloop.channels.kit.access import AGAIN_SECONDS, CODES, Pairing, Person


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def pairing(clock):
    return Pairing(clock=clock)


def person(name, channel="fake"):
    return Person(channel=channel, id=name, name=name, chat=f"with-{name}", time=0)


def flood(pairing, count, of="stranger"):
    """So many strangers ask for a code."""
    for number in range(count):
        assert pairing.code_for(person(f"{of}-{number}")) is not None


def test_strangers_without_number_keep_nobody_from_asking(pairing):
    flood(pairing, CODES + 10)
    code = pairing.code_for(person("ann"))
    assert len(pairing.waiting()) == CODES
    flood(pairing, CODES - 1, of="other")
    assert pairing.approve(code).id == "ann"


def test_a_code_that_gave_way_is_replaced_as_soon_as_it_is_asked_for(pairing):
    lost = pairing.code_for(person("ann"))
    flood(pairing, CODES)
    assert pairing.approve(lost) is None
    assert pairing.approve(pairing.code_for(person("ann"))).id == "ann"


def test_codes_of_one_platform_are_safe_from_another(pairing):
    code = pairing.code_for(person("ann", channel="telegram"))
    flood(pairing, CODES + 10)
    assert pairing.approve(code, channel="telegram").id == "ann"


def test_one_stranger_has_one_code_however_often_he_asks(pairing, clock):
    told = []
    for _ in range(100):
        told.append(pairing.code_for(person("eve")))
        clock.now += AGAIN_SECONDS / 50
    assert len([code for code in told if code]) == 2
    assert len(pairing.waiting()) == 1
