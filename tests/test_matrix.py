"""The Matrix channel on a real Synapse: the suite of all channels, and what only Matrix has."""

import pytest

from nanoloop.testing.channels import ChannelSuite
from tests.conftest import running
from tests.matrix_stage import matrix_stage
from tests.servers.synapse import Synapse


@pytest.fixture(scope="session")
def synapse():
    yield from running(Synapse)


@pytest.fixture
async def stage(synapse, tmp_path):
    async with matrix_stage(synapse, tmp_path) as stage:
        yield stage


class TestMatrix(ChannelSuite):
    """What every channel promises."""
