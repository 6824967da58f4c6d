"""The Matrix channel on a real Synapse keeps what every channel promises."""

import pytest

from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.traffic import day
from tests.stages.matrix import matrix_stage


@pytest.fixture
async def stage(synapse, tmp_path):
    async with matrix_stage(synapse, tmp_path) as stage:
        yield stage


class TestMatrix(ChannelSuite):
    """Over a proxy that cuts, loses and limits what the bot sends."""


@pytest.mark.slow
async def test_after_an_hour_of_traffic_and_faults_the_ledger_is_clean(stage, tmp_path):
    ledger = await day(stage, tmp_path, messages=60, chats=4, restarts=2)
    assert ledger.is_clean, ledger
    assert ledger.answered == ledger.said == 60


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1, 2])
async def test_after_a_day_of_traffic_and_faults_the_ledger_is_clean(stage, tmp_path, seed):
    ledger = await day(stage, tmp_path, seed=seed, messages=1500, seconds=120)
    assert ledger.is_clean, ledger
    assert ledger.answered == ledger.said
    assert ledger.faults > 10
