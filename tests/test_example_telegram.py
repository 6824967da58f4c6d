"""The Telegram bot among the examples, over the stand-in of Telegram."""

from functools import partial

from nanoloop.testing.channels.stage import says
from tests.examples import load, running
from tests.servers.telegram import TOKEN
from tests.stages.telegram import telegram


async def test_the_bot_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TELEGRAM_TOKEN", TOKEN)
    bot = load("telegram_bot")
    async with telegram() as stage:
        own = partial(bot.TelegramSettings, api=stage.server.url)
        monkeypatch.setattr(bot, "TelegramSettings", own)
        async with running(bot):
            ((chat, ann),) = await stage.people(1)
            await stage.say(chat, "Hello", sender=ann)
            await says(stage, chat, "You said: Hello")
