"""The suite of all channels over the stand-in Slack, and a day of traffic on it."""

import pytest

from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.traffic import day
from tests.servers.slack import SlackServer
from tests.stages.slack import SlackStage


@pytest.fixture
async def stage(tmp_path):
    async with SlackServer().serving() as server:
        yield SlackStage(server, tmp_path)


class TestSlack(ChannelSuite):
    """Slack keeps what every channel promises."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "messages"), [(1, 1000), pytest.param(2, 5000, marks=pytest.mark.long)]
)
async def test_after_a_day_of_traffic_and_faults_the_ledger_is_clean(
    stage, tmp_path, seed, messages
):
    ledger = await day(stage, tmp_path, seed=seed, messages=messages)
    assert ledger.is_clean, ledger
    assert ledger.answered == ledger.said
    assert ledger.faults


@pytest.mark.slow
async def test_a_bot_that_is_killed_again_and_again_loses_nothing(stage, tmp_path):
    ledger = await day(stage, tmp_path, seed=4, messages=300, chats=5, restarts=15)
    assert ledger.is_clean, ledger
