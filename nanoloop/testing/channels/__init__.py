"""A test suite for the channel of any chat platform, including your own.

class TestMyPlatform(ChannelSuite):
    @pytest.fixture
    async def stage(self):
        yield MyStage()  # see `Stage`; the test run needs anyio's pytest plugin
"""

from nanoloop.testing.channels.fake import FakeChats, FakePlatform
from nanoloop.testing.channels.stage import Bot, Stage, VisibleMessage, comes_to, open_to_all
from nanoloop.testing.channels.suite import Approving, ComingIn, GoingOut, StayingUp, WhoMayTalk
from nanoloop.testing.channels.traffic import TrafficRecord, day

__all__ = [
    "Bot",
    "ChannelSuite",
    "FakeChats",
    "FakePlatform",
    "Stage",
    "TrafficRecord",
    "VisibleMessage",
    "comes_to",
    "day",
    "open_to_all",
]


class ChannelSuite(ComingIn, GoingOut, WhoMayTalk, StayingUp, Approving):
    """The whole suite; tests that need a skill which the stage lacks are skipped."""
