"""Connections that are lost, bots that are killed, tokens that are refused."""

from __future__ import annotations

from pathlib import Path

from nanoloop.events import ChannelRefused
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.bot import Bot
from nanoloop.testing.channels.going_out import Growing
from nanoloop.testing.channels.stage import Stage, check, comes_to, needs, says


class StayingUp:
    """The last part of the suite."""

    async def test_a_lost_connection_comes_back_and_nothing_is_missed(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """What is said meanwhile is answered too."""
        needs(stage, "cut")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "one", sender=ann)
            await says(stage, chat, "You said: one")
            await stage.cut()
            await stage.say(chat, "two", sender=ann)
            await says(stage, chat, "You said: one", "You said: two")

    async def test_a_connection_lost_during_an_answer_costs_nothing(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """It is sent over the next one."""
        needs(stage, "cut")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "one", sender=ann)
            await provider.asked()
            await stage.cut()
            provider.release()
            await says(stage, chat, "You said: one")

    async def test_a_bot_that_is_killed_during_an_answer_gives_it_after_its_start(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Once, with nothing half of it left; and what waited behind it too."""
        chat, ann = (await stage.people(1))[0]
        first = Growing("half an ans")
        async with Bot(stage.platform(), tmp_path, provider=first) as bot:
            await stage.say(chat, "one", sender=ann)
            if bot.channel.streams:
                await says(stage, chat, "half an ans")
            await stage.say(chat, "two", sender=ann)
            await comes_to(lambda: _waiting(bot, chat), 1)
        async with Bot(stage.platform(), tmp_path):
            await says(stage, chat, "You said: one", "You said: two")

    async def test_an_answer_that_could_not_be_sent_is_sent_after_a_restart(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Before what comes then."""
        needs(stage, "lose")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(["the answer"])
        await stage.lose(10_000, taken=False)
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.say(chat, "one", sender=ann)
            await comes_to(lambda: _happened(bot, "send_postponed"), wanted=True)
        await stage.lose(0, taken=False)
        await stage.say(chat, "two", sender=ann)
        async with Bot(stage.platform(), tmp_path):
            await says(stage, chat, "the answer", "You said: two")

    async def test_a_chat_that_is_limited_holds_up_no_other(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The other is answered while the first one rests."""
        needs(stage, "limit")
        (chat, ann), (other, bob) = await stage.people(2)
        async with Bot(stage.platform(), tmp_path) as bot:
            await stage.limit(1, seconds=1000)
            await stage.say(chat, "one", sender=ann)
            await comes_to(lambda: _happened(bot, "send_postponed"), wanted=True)
            await stage.say(other, "two", sender=bob)
            await says(stage, other, "You said: two")
            await says(stage, chat)

    async def test_a_refused_token_is_told_with_what_to_do(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Once, and the bot goes on with its other channels."""
        needs(stage, "token")
        await stage.refuse_token()
        async with Bot(stage.platform(), tmp_path) as bot:
            await comes_to(lambda: _happened(bot, "channel_refused"), wanted=True)
            check(bot.channel.state.name == "refused", f"it is {bot.channel.state}")
        refusals = [event for event in bot.events if isinstance(event, ChannelRefused)]
        check(len(refusals) == 1, f"there are {len(refusals)}")
        check(refusals[0].reason, "it says nothing")


async def _waiting(bot: Bot, chat: str) -> int:
    return bot.loop.waiting(f"{bot.channel.name}:{chat}")


async def _happened(bot: Bot, name: str) -> bool:
    return any(event.name() == name for event in bot.events)
