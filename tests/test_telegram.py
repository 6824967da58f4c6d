"""The suite of all channels over a stand-in of Telegram, polled and by webhook."""

import pytest

from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.traffic import day
from tests.stages.telegram import free_port, telegram


class Telegram(ChannelSuite):
    @pytest.mark.slow
    async def test_after_a_day_of_traffic_and_faults_the_ledger_is_clean(self, stage, tmp_path):
        ledger = await day(stage, tmp_path, seed=1, messages=200, chats=10)
        assert ledger.is_clean, ledger
        assert ledger.answered == ledger.said
        assert ledger.faults

    @pytest.mark.slow  # of a picture Telegram doesn't say that it is alone: it is waited for more
    async def test_a_file_is_a_part_of_its_message(self, stage, tmp_path):
        await super().test_a_file_is_a_part_of_its_message(stage, tmp_path)

    @pytest.mark.long
    @pytest.mark.timeout(600)
    async def test_after_a_long_day_the_ledger_is_clean(self, stage, tmp_path):
        ledger = await day(
            stage, tmp_path, seed=2, messages=5000, chats=50, restarts=10, seconds=300
        )
        assert ledger.is_clean, ledger


class TestPolling(Telegram):
    @pytest.fixture
    async def stage(self):
        async with telegram() as stage:
            yield stage


class TestWebhook(Telegram):
    @pytest.fixture
    async def stage(self):
        async with telegram(webhook_port=free_port()) as stage:
            yield stage
