"""The suite of all channels, over a platform in memory, and a day of traffic on it."""

import pytest

from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.traffic import day


@pytest.fixture
def stage():
    return FakeChats()


class TestFake(ChannelSuite):
    """The kit over a platform that does what it is told."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "messages"),
    [(1, 600), (2, 200), (3, 200), pytest.param(4, 10_000, marks=pytest.mark.long)],
)
@pytest.mark.timeout(300)
async def test_after_a_day_of_traffic_and_faults_the_ledger_is_clean(
    stage, tmp_path, seed, messages
):
    ledger = await day(stage, tmp_path, seed=seed, messages=messages)
    assert ledger.is_clean, ledger
    assert ledger.answered == ledger.said
    assert ledger.faults
