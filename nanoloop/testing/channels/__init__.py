"""What every channel over a chat platform promises: one suite, for ours and for yours.

class TestMyPlatform(ChannelSuite):
    @pytest.fixture
    async def stage(self):
        yield MyStage()  # see `Stage`; the test run needs anyio's pytest plugin
"""

from nanoloop.testing.channels.bot import OPEN, Bot
from nanoloop.testing.channels.coming_in import ComingIn
from nanoloop.testing.channels.fake import FakePlatform
from nanoloop.testing.channels.fake_chats import FakeChats
from nanoloop.testing.channels.going_out import GoingOut
from nanoloop.testing.channels.stage import Shown, Stage, comes_to
from nanoloop.testing.channels.staying_up import StayingUp
from nanoloop.testing.channels.traffic import Ledger, day
from nanoloop.testing.channels.who_may_talk import WhoMayTalk

__all__ = [
    "OPEN",
    "Bot",
    "ChannelSuite",
    "FakeChats",
    "FakePlatform",
    "Ledger",
    "Shown",
    "Stage",
    "comes_to",
    "day",
]


class ChannelSuite(ComingIn, GoingOut, WhoMayTalk, StayingUp):
    """All of it; a test that needs what a stage can't do is skipped."""
