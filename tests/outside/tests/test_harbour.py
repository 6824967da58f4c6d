"""What this package adds keeps what nanoloop's own parts promise."""

import json

import pytest
from harbour.channel import BOT, NAMED, Pigeonhole, append
from harbour.provider import Harbour
from harbour.store import Cupboard
from harbour.tool import TideSettings, make

from nanoloop import Agent
from nanoloop.stores.store import DatabaseStore
from nanoloop.testing import PlantedFacts, trial
from nanoloop.testing.channels import ChannelSuite, VisibleMessage, day
from nanoloop.testing.stores import StoreSuite


@pytest.fixture
def anyio_backend():
    return "asyncio"


class FolderStage:
    """The people of the chats, who write into the files too."""

    group = "#quay"
    skills = frozenset({"bots", "group"})

    def __init__(self, folder):
        self._folder = folder / "box"
        self._data = folder
        self._folder.mkdir()

    def platform(self):
        return Pigeonhole(self._folder, self._data)

    async def people(self, count):
        names = ["ann", "bob", *(f"person{number}" for number in range(2, count))][:count]
        return [(name, name) for name in names]

    def naming(self, text):
        return f"{NAMED} {text}"

    async def say(self, chat, text, *, sender, reply_to=None, is_bot=False, **_):
        said = self.naming(text) if reply_to else text
        file = self._folder / f"{chat}.jsonl"
        return append(file, said, sender="bot of others" if is_bot else sender)

    async def shown(self, chat):
        return [
            VisibleMessage(id=said["id"], text=said["text"], is_bots=said["sender"] == BOT)
            for said in self._said(chat)
        ]

    def _said(self, chat):
        file = self._folder / f"{chat}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def stage(tmp_path):
    return FolderStage(tmp_path)


class TestChannel(ChannelSuite):
    """As far as the platform goes."""


async def test_after_a_day_of_traffic_the_ledger_is_clean(stage, tmp_path):
    ledger = await day(stage, tmp_path, messages=60, chats=3)
    assert ledger.is_clean, ledger


class TestStore(StoreSuite):
    """All of it."""

    @pytest.fixture
    async def store(self, clock, tmp_path):
        made = DatabaseStore(Cupboard(tmp_path / "cupboard.json"), clock=clock)
        yield made
        await made.close()


async def test_the_summariser_keeps_what_matters_and_loses_nothing():
    report = await trial(Harbour(None, "gist"), facts=PlantedFacts())
    assert report.is_lossless
    assert report.survival > 0.8


async def test_the_provider_calls_the_tool():
    agent = Agent("pilot", provider=Harbour(None, "talk"), tools=[make(TideSettings(metres=3))])
    assert await agent.ask("What is the tide at Brest?") == "Ahoy! 3.0 m at Brest"
