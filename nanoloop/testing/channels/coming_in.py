"""What comes in: each message answered once, in order, as it was said last."""

from __future__ import annotations

from pathlib import Path

from nanoloop.channels.platform.rules import Rules
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.bot import OPEN, Bot
from nanoloop.testing.channels.stage import Stage, check, comes_to, needs, says


class ComingIn:
    """The first part of the suite."""

    async def test_a_message_is_answered(self, stage: Stage, tmp_path: Path) -> None:
        """In its chat, and nowhere else."""
        (chat, ann), (other, _) = await stage.people(2)
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "You said: hello")
            await says(stage, other)

    async def test_what_was_said_while_it_was_down_is_answered(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """In the order in which it was said."""
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "one", sender=ann)
            await says(stage, chat, "You said: one")
        await stage.say(chat, "two", sender=ann)
        await stage.say(chat, "three", sender=ann)
        async with Bot(stage.platform(), tmp_path):
            await says(stage, chat, "You said: one", "You said: two", "You said: three")

    async def test_a_message_that_is_delivered_twice_is_answered_once(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """A further one shows that nothing else was on its way."""
        needs(stage, "repeat")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "one", sender=ann)
            await stage.repeat()
            await says(stage, chat, "You said: one")
            await stage.repeat()
            await stage.say(chat, "two", sender=ann)
            await says(stage, chat, "You said: one", "You said: two")

    async def test_messages_during_an_answer_wait_in_order(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """None is lost, none comes too early."""
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider):
            for text in ("one", "two", "three"):
                await stage.say(chat, text, sender=ann)
            await provider.asked()
            provider.release()
            await says(stage, chat, "You said: one", "You said: two", "You said: three")

    async def test_a_burst_becomes_one_turn(self, stage: Stage, tmp_path: Path) -> None:
        """With all that was said in it."""
        chat, ann = (await stage.people(1))[0]
        rules = Rules(users=OPEN.users, burst_seconds=0.3)
        provider = ScriptedProvider(otherwise="all at once")
        async with Bot(stage.platform(), tmp_path, provider=provider, rules=rules):
            for text in ("one", "two", "three"):
                await stage.say(chat, text, sender=ann)
            await says(stage, chat, "all at once")
        asked = [message["content"] for message in provider.calls[0].messages]
        check(asked[-3:] == ["one", "two", "three"], f"the model was asked {asked}")

    async def test_an_edit_of_a_waiting_message_changes_what_is_asked(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Only what it says now is answered."""
        needs(stage, "edit")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.say(chat, "one", sender=ann)
            await provider.asked()
            second = await stage.say(chat, "tow", sender=ann)
            await waits(bot, chat, 1)
            await stage.edit(chat, second, "two", sender=ann)
            await stage.say(chat, "three", sender=ann)
            await waits(bot, chat, 2)
            provider.release()
            await says(stage, chat, "You said: one", "You said: two", "You said: three")

    async def test_an_edit_that_changes_nothing_is_passed_over(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Platforms tell of such, when a link gets its picture for example."""
        needs(stage, "edit")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider()
        async with Bot(stage.platform(), tmp_path, provider=provider):
            message = await stage.say(chat, "one", sender=ann)
            await says(stage, chat, "You said: one")
            await stage.edit(chat, message, "one", sender=ann)
            await stage.say(chat, "two", sender=ann)
            await says(stage, chat, "You said: one", "You said: two")
        asked = [message["content"] for message in provider.calls[-1].messages]
        check(not any("changed" in str(text) for text in asked), f"the model was told {asked}")

    async def test_a_message_that_is_taken_back_is_not_answered(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """While it waits, and while its answer is under way."""
        needs(stage, "delete")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            first = await stage.say(chat, "one", sender=ann)
            await provider.asked()
            second = await stage.say(chat, "two", sender=ann)
            await stage.say(chat, "three", sender=ann)
            await waits(bot, chat, 2)
            await stage.delete(chat, second, sender=ann)
            await stage.delete(chat, first, sender=ann)
            await provider.asked(2)
            provider.release()
            await says(stage, chat, "You said: three")

    async def test_a_file_is_a_part_of_its_message(self, stage: Stage, tmp_path: Path) -> None:
        """The model is told of it."""
        needs(stage, "files")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(otherwise="seen")
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "look", sender=ann, files={"notes.txt": b"tea"})
            await says(stage, chat, "seen")
        asked = str(provider.calls[0].messages[-1]["content"])
        check("look" in asked, f"the model was asked {asked}")
        check("notes.txt" in asked, f"the model was asked {asked}")


async def waits(bot: Bot, chat: str, count: int) -> None:
    """Wait until so many messages of a chat wait for their turn."""

    async def look() -> int:
        return bot.loop.waiting(f"{bot.channel.name}:{chat}")

    await comes_to(look, count)
