"""The Discord bot among the examples, over the simulated Discord."""

import pytest

from nanoloop.testing.channels.stage import says
from tests.examples import load, running
from tests.servers.discord import TOKEN, DiscordServer
from tests.stages.discord import DiscordStage


@pytest.mark.slow
async def test_the_bot_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCORD_TOKEN", TOKEN)
    async with DiscordServer().serving() as server:
        stage = DiscordStage(server, tmp_path)
        ((chat, ann),) = await stage.people(1)
        async with running(load("discord_bot")):
            await stage.say(chat, "Hello", sender=ann)
            await says(stage, chat, "You said: Hello")
