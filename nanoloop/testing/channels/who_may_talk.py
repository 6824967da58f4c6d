"""Who may talk, and when a group is answered."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

from nanoloop.channels.platform.door import TOO_FAST
from nanoloop.channels.platform.pairing import Pairing
from nanoloop.channels.platform.rules import Rules
from nanoloop.events import SenderRefused
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.bot import OPEN, Bot
from nanoloop.testing.channels.going_out import bots
from nanoloop.testing.channels.stage import Stage, answers, check, comes_to, needs, says


class WhoMayTalk:
    """The third part of the suite."""

    async def test_a_stranger_gets_a_code_and_may_talk_once_it_is_approved(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The model hears nothing before."""
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider()
        async with Bot(stage.platform(), tmp_path, provider=provider, rules=Rules()):
            await stage.say(chat, "hello", sender=ann)
            said = (await answers(stage, chat, 1))[0]
            code = re.search(r"[A-Z2-9]{8}", said)
            check(code and not provider.count, f"it said {said}")
            check(Pairing(tmp_path).approve(code[0] if code else ""), "the code is none")
            await stage.say(chat, "now", sender=ann)
            await says(stage, chat, said, "You said: now")

    async def test_an_allow_list_lets_in_whom_it_names(self, stage: Stage, tmp_path: Path) -> None:
        """By the platform's id, and nobody else."""
        (chat, ann), (other, bob) = await stage.people(2)
        rules = Rules(users=frozenset({ann}), pairing=False)
        async with Bot(stage.platform(), tmp_path, rules=rules):
            await stage.say(other, "hello", sender=bob)
            refused = await answers(stage, other, 1)
            check(bob in refused[0], "he isn't told his id")
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "You said: hello")

    async def test_who_says_too_much_is_told_once(self, stage: Stage, tmp_path: Path) -> None:
        """And then left alone."""
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path, rules=replace(OPEN, per_minute=2)) as bot:
            for text in ("one", "two", "three", "four"):
                await stage.say(chat, text, sender=ann)
            await answers(stage, chat, 3)
            await comes_to(partial(_refused, bot), 2)
            bot.channel.rules = OPEN
            await stage.say(chat, "five", sender=ann)
            said = await answers(stage, chat, 4)
        wanted = sorted([TOO_FAST, "You said: one", "You said: two", "You said: five"])
        check(sorted(said) == wanted, f"it said {said}")

    async def test_a_group_is_answered_where_it_names_the_bot(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The name is taken out, and who said what is known, also of what was said before."""
        needs(stage, "group")
        (_, ann), (_, bob) = await stage.people(2)
        provider = ScriptedProvider(otherwise="yes")
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(stage.group, "it is late", sender=bob)
            await stage.say(stage.group, stage.naming("is it?"), sender=ann)
            await says(stage, stage.group, "yes")
        asked = str(provider.calls[0].messages[-1]["content"])
        check(provider.count == 1, f"the model was asked {provider.count} times")
        check(asked.startswith("[") and asked.endswith("is it?"), f"it was asked {asked!r}")
        check("it is late" in asked, f"it was asked {asked!r}")

    async def test_a_group_is_answered_where_it_answers_the_bot(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Without its name."""
        needs(stage, "group")
        (_, ann), _ = await stage.people(2)
        provider = ScriptedProvider(["yes", "no"])
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(stage.group, stage.naming("is it?"), sender=ann)
            await says(stage, stage.group, "yes")
            answer = (await bots(stage, stage.group))[0].id
            await stage.say(stage.group, "really?", sender=ann, reply_to=answer)
            await says(stage, stage.group, "yes", "no")

    async def test_a_group_can_be_answered_always_or_never(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """As the rules say, from one moment to the next."""
        needs(stage, "group")
        (chat, ann), _ = await stage.people(2)
        provider = ScriptedProvider(otherwise="yes")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            bot.channel.rules = replace(OPEN, groups="never")
            await stage.say(stage.group, stage.naming("is it?"), sender=ann)
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "yes")
            bot.channel.rules = replace(OPEN, groups="always")
            await stage.say(stage.group, "is it?", sender=ann)
            await says(stage, stage.group, "yes")

    async def test_only_an_operator_begins_a_group_anew(self, stage: Stage, tmp_path: Path) -> None:
        """A command that changes nothing is everyone's."""
        needs(stage, "group")
        (_, ann), (_, bob) = await stage.people(2)
        rules = replace(OPEN, operators=frozenset({ann}), groups="always")
        async with Bot(stage.platform(), tmp_path, rules=rules):
            await stage.say(stage.group, "/new", sender=bob)
            await answers(stage, stage.group, 1)
            await stage.say(stage.group, "/new", sender=ann)
            said = await answers(stage, stage.group, 2)
        check("operator" in said[0], f"Bob was told {said[0]!r}")
        check("new conversation" in said[1], f"Ann was told {said[1]!r}")

    async def test_a_bot_is_not_answered(self, stage: Stage, tmp_path: Path) -> None:
        """However it talks."""
        needs(stage, "bots")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "hello, I am a bot", sender=ann, is_bot=True)
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "You said: hello")

    async def test_a_thread_is_a_conversation_of_its_own(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Unless the rules say otherwise."""
        needs(stage, "threads")
        (_, ann), _ = await stage.people(2)
        provider = ScriptedProvider(otherwise="yes")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            first = await stage.say(stage.group, stage.naming("apples"), sender=ann)
            await provider.asked()
            await stage.say(stage.group, stage.naming("pears"), sender=ann, thread=first)
            await provider.asked(2)
            check("apples" not in str(provider.calls[1].messages[1:]), "the thread knows the chat")
            bot.channel.rules = replace(OPEN, threads="shared")
            await stage.say(stage.group, stage.naming("plums"), sender=ann, thread=first)
            await provider.asked(3)
            check("apples" in str(provider.calls[2].messages[1:]), "the thread knows no chat")


async def _refused(bot: Bot) -> int:
    return sum(isinstance(event, SenderRefused) for event in bot.events)
