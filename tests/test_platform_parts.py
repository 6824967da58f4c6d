"""The parts of the kit one by one: the connection, codes, rates, what is overheard, typing."""

from contextlib import suppress

import anyio
import pytest

from nanoloop.attachments import Attachments
from nanoloop.channels.kit.access import (
    AGAIN_SECONDS,
    CODE_SECONDS,
    AccessControl,
    Pairing,
    Person,
    Rate,
    command,
)
from nanoloop.channels.kit.connection import LONGEST_REST_SECONDS, Connection
from nanoloop.channels.kit.intake import MESSAGES, Files, Overheard, Typist
from nanoloop.channels.kit.platform import File, Heard, Limits, Place, Refused
from nanoloop.errors import SendLater
from nanoloop.events import ChannelLost, ChannelRefused, hearing
from nanoloop.settings.channels import PlatformSettings
from nanoloop.testing.faults import Gate


class Clock:
    """A clock that a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Failing:
    """A platform that connects, or not, and then fails in one way after the other."""

    name = "fake"

    def __init__(self, *ways, clock=None, holds_seconds=0):
        self._ways = [*ways]
        self._clock, self._holds_seconds = clock, holds_seconds

    async def listen(self, hear, connected):
        way = self._ways.pop(0)
        if self._holds_seconds:
            connected()
            self._clock.now += self._holds_seconds
        if way is not None:
            raise way


@pytest.fixture
def clock():
    return Clock()


def kept(platform, clock):
    """Keep a connection up until the platform refuses; returns what happened and the rests."""
    events, rests = [], []

    async def sleep(seconds):
        rests.append(seconds)

    async def keep():
        connection = Connection(platform, sleep=sleep, clock=clock)
        await connection.keep(None)
        return connection

    with hearing(events.append):
        return anyio.run(keep), events, rests


def test_rests_grow_with_each_failure_up_to_a_limit(clock):
    platform = Failing(*[OSError()] * 20, Refused("get a token"))
    _, _, rests = kept(platform, clock)
    assert all(2**n / 2 <= rest <= 2**n for n, rest in enumerate(rests[:8]))
    assert max(rests) <= LONGEST_REST_SECONDS


def test_a_connection_that_held_well_is_tried_again_at_once(clock):
    platform = Failing(*[None] * 5, Refused("get a token"), clock=clock, holds_seconds=100)
    _, _, rests = kept(platform, clock)
    assert max(rests) <= 1


def test_one_that_comes_and_goes_is_left_alone_longer_and_longer(clock):
    platform = Failing(*[None] * 8, Refused("get a token"), clock=clock, holds_seconds=1)
    _, _, rests = kept(platform, clock)
    assert rests[-1] > 60


def test_a_platform_that_says_how_long_to_rest_is_obeyed(clock):
    platform = Failing(SendLater("too many logins", seconds=77), Refused("get a token"))
    _, events, rests = kept(platform, clock)
    assert rests == [77]
    assert [event.reason for event in events if isinstance(event, ChannelLost)] == [
        "too many logins"
    ]


def test_a_refusal_is_found_in_a_group_and_ends_it(clock):
    errors = ExceptionGroup("", [OSError(), ExceptionGroup("", [Refused("get a token")])])
    connection, events, rests = kept(Failing(errors), clock)
    assert [event.reason for event in events if isinstance(event, ChannelRefused)] == [
        "get a token"
    ]
    assert (connection.state.name, connection.state.reason) == ("refused", "get a token")
    assert str(connection.state) == "refused"  # any chat may read it by /status
    assert rests == []


def test_a_library_s_words_are_not_told_as_they_may_hold_a_token(clock):
    _, events, _ = kept(Failing(OSError("https://bot:TOKEN@host"), Refused("x")), clock)
    assert "TOKEN" not in str(events)


async def test_what_is_sent_while_nothing_is_connected_is_put_off():
    connection = Connection(Failing(Refused("x")))
    await connection.keep(None)
    with pytest.raises(SendLater):
        await connection.ready()


# Codes


def person(name="1"):
    return Person(channel="fake", id=name, name=name, chat=f"with-{name}", time=0)


def test_a_code_is_good_for_an_hour(clock):
    pairing = Pairing(clock=clock)
    code = pairing.code_for(person())
    assert [waiting.id for waiting in pairing.waiting()] == ["1"]
    clock.now += CODE_SECONDS
    assert pairing.approve(code) is None
    assert pairing.waiting() == []


def test_a_name_with_half_an_emoji_gets_a_code_too(clock):
    pairing = Pairing(clock=clock)
    who = Person(channel="fake", id="1", name="Eve \ud83c", chat="with-1", time=0)
    assert pairing.approve(pairing.code_for(who)).name == "Eve ?"


def test_a_new_code_ends_the_old_one_and_comes_only_after_a_while(clock):
    pairing = Pairing(clock=clock)
    first = pairing.code_for(person())
    assert pairing.code_for(person()) is None
    clock.now += AGAIN_SECONDS
    second = pairing.code_for(person())
    assert pairing.approve(first) is None
    assert pairing.approve(second).id == "1"


def test_a_code_counts_in_its_own_channel_only(clock):
    pairing = Pairing(clock=clock)
    code = pairing.code_for(person())
    assert pairing.approve(code, channel="other") is None
    assert pairing.approve(code, channel="fake").id == "1"


def test_codes_are_not_to_be_read_in_the_file(tmp_path):
    code = Pairing(tmp_path).code_for(person())
    assert code.encode() not in (tmp_path / "pairing.sqlite").read_bytes()
    assert (tmp_path / "pairing.sqlite").stat().st_mode & 0o077 == 0


# Rates


def test_a_rate_is_counted_over_a_sliding_time(clock):
    rate = Rate(60, clock=clock)
    assert [rate.allows("ann", 2) for _ in range(3)] == [True, True, False]
    assert rate.allows("bob", 2)
    clock.now += 60
    assert rate.allows("ann", 2)
    assert Rate(60).allows("ann", None)


def test_what_is_too_fast_gets_a_time_of_its_own(clock):
    rate = Rate(60, clock=clock)
    assert [rate.early_seconds("ann", 2) for _ in range(5)] == [0, 0, 60, 60, 120]
    assert rate.early_seconds("bob", 2) == 0
    clock.now += 90
    assert [rate.early_seconds("ann", 2) for _ in range(2)] == [30, 90]
    clock.now += 1000
    assert rate.early_seconds("ann", 2) == 0
    assert rate.early_seconds("ann", 1) == 60


def test_it_is_told_once_within_the_time(clock):
    rate = Rate(60, clock=clock)
    assert [rate.is_to_be_told("ann") for _ in range(2)] == [True, False]
    clock.now += 60
    assert rate.is_to_be_told("ann")


# What is overheard


def test_only_the_newest_is_kept_of_what_is_overheard():
    overheard = Overheard()
    for number in range(MESSAGES + 5):
        overheard.keep("g", Heard(chat="g", id=str(number), sender="1", name="Ann", text="x" * 900))
    assert [heard.id for heard in overheard.take("g")] == [str(n) for n in range(5, MESSAGES + 5)]
    assert overheard.take("g") == ()


def test_what_is_delivered_twice_is_overheard_once():
    overheard = Overheard()
    for _ in range(2):
        overheard.keep("g", Heard(chat="g", id="1", sender="1", text="hello\nthere"))
    assert [heard.text for heard in overheard.take("g")] == ["hello\nthere"]


@pytest.mark.parametrize(
    ("text", "name"),
    [("/new", "new"), ("/New@bot now", "new"), ("/", None), ("//x", None), ("a /b", None)],
)
def test_a_command_is_known_as_the_loop_knows_it(text, name):
    assert command(text) == name


@pytest.mark.parametrize("place", [Place("c"), Place("c", "t"), Place("#chan", "1 2")])
def test_a_place_can_be_read_again(place):
    assert Place.of(str(place)) == place


# Typing


class Typed:
    """A platform on which typing is counted."""

    limits = Limits(typing_seconds=0.001)

    def __init__(self):
        self.gate = Gate(is_open=True)

    async def typing(self, place):
        await self.gate.passes()
        raise OSError("typing is only a courtesy")


async def test_typing_goes_on_until_the_answer_and_its_failure_costs_nothing():
    platform = Typed()
    typist = Typist(platform)
    with suppress(TimeoutError), anyio.fail_after(10):
        async with anyio.create_task_group() as group:
            typist.group = group
            typist.start("c", "1")
            typist.start("c", "2")
            await platform.gate.reached(3)
            typist.stop("c", "1")
            await platform.gate.reached(platform.gate.count + 2)
            typist.stop("c", "2")
        return
    pytest.fail("it types on")


async def test_a_file_that_is_said_to_be_too_large_is_not_fetched(tmp_path, heard):
    async def fetch():
        pytest.fail("it is fetched")

    kept = Attachments(tmp_path, limit_bytes=10)
    files = Files(channel="fake", limit_bytes=10, attachments=kept)
    attachment = await files.attachment(
        File(kind="image", name="big.png", size=11, fetch=fetch), owner="fake:a"
    )
    assert attachment.text == "(it could not be stored)"
    assert [event.reason for event in heard] == ["too large"]


@pytest.mark.parametrize("pairing", [True, False])
def test_who_may_talk_is_welcome_and_so_is_in_private_who_may_ask_for_a_code(pairing):
    people, rules = Pairing(), PlatformSettings(users=("ann",), pairing=pairing)
    people.approve(people.code_for(person("bob")))
    door = AccessControl("fake", rules=rules, pairing=people)

    def is_welcome(sender, private):
        return door.welcomes(Heard(chat="c", id="", sender=sender, private=private))

    assert is_welcome("ann", private=False)
    assert is_welcome("bob", private=False) is pairing
    assert is_welcome("eve", private=True) is pairing
    assert not is_welcome("eve", private=False)


def test_a_role_lets_its_holders_in():
    rules = PlatformSettings(roles=("staff",))
    door = AccessControl("fake", rules=rules, pairing=Pairing())
    assert door.may_talk(Heard(chat="c", id="1", sender="ann", roles=("all", "staff")))
    assert not door.may_talk(Heard(chat="c", id="1", sender="ann", roles=("all",)))
