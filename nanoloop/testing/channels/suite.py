"""Base classes with the tests that every channel must pass."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from nanoloop.agents import Agent
from nanoloop.channels.kit.access import Pairing
from nanoloop.errors import ProviderError
from nanoloop.events import ChannelRefused
from nanoloop.protocols import OnText, Reply, ToolCall
from nanoloop.providers.scripted import Line, ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.settings.channels import PlatformSettings
from nanoloop.testing.channels.stage import (
    Bot,
    Stage,
    VisibleMessage,
    answers,
    check,
    comes_to,
    needs,
    open_to_all,
    says,
)
from nanoloop.tools.function import tool


class ComingIn:
    """The first part of the suite: incoming messages."""

    async def test_a_message_is_answered(self, stage: Stage, tmp_path: Path) -> None:
        """The answer appears in the message's chat and nowhere else."""
        (chat, ann), (other, _) = await stage.people(2)
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "You said: hello")
            await says(stage, other)

    async def test_what_was_said_while_it_was_down_is_answered(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The messages are answered in the order in which they were sent."""
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
        """The answer to another message shows that no second answer to this one is coming."""
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
        """No message is lost or answered too early."""
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider):
            for text in ("one", "two", "three"):
                await stage.say(chat, text, sender=ann)
            await provider.asked()
            provider.release()
            await says(stage, chat, "You said: one", "You said: two", "You said: three")

    async def test_a_burst_becomes_one_turn(self, stage: Stage, tmp_path: Path) -> None:
        """The turn contains all messages of the burst."""
        chat, ann = (await stage.people(1))[0]
        rules = open_to_all(burst_seconds=0.3)
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
        """Only the new text is answered."""
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
        """Platforms report such edits, for example when a link preview is added."""
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
        """This holds while the message waits and while its answer is being written."""
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
        """The model is told about the file."""
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
    """Wait until this many messages of a chat are waiting for their turn."""

    async def look() -> int:
        return bot.loop.waiting(f"{bot.channel.name}:{chat}")

    await comes_to(look, count)


class Growing:
    """A model that streams some words, waits for the test, and then gives another answer."""

    def __init__(self, words: str, *finals: str | Exception) -> None:
        self._words = words
        self._finals = [*finals]
        self.goes_on = anyio.Event()
        """Set by the test to let the model continue."""

    async def chat(self, *, on_text: OnText | None = None, **_: Any) -> Reply:
        """Stream the words, wait, and return the next final text."""
        if on_text is not None:
            on_text(self._words)
        await self.goes_on.wait()
        final = self._finals.pop(0)
        if isinstance(final, Exception):
            raise final
        return Reply(text=final)

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


class GoingOut:
    """The second part of the suite: answers."""

    async def test_an_answer_grows_in_one_message(self, stage: Stage, tmp_path: Path) -> None:
        """The message appears early and ends with the final text."""
        chat, ann = (await stage.people(1))[0]
        provider = Growing("a long opening sentence", "the end")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.say(chat, "go", sender=ann)
            if bot.channel.streams:
                await says(stage, chat, "a long opening sentence")
            provider.goes_on.set()
            await says(stage, chat, "the end")

    async def test_a_failure_leaves_no_half_answer(self, stage: Stage, tmp_path: Path) -> None:
        """The part that was already shown is replaced with the apology."""
        chat, ann = (await stage.people(1))[0]
        provider = Growing("half an", ProviderError("no more words"))
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.say(chat, "go", sender=ann)
            if bot.channel.streams:
                await says(stage, chat, "half an")
            provider.goes_on.set()
            told = f"{ENGLISH['model_down']} {ENGLISH['kept']} (incident "
            await comes_to(
                lambda: bots(stage, chat),
                lambda shown: len(shown) == 1 and shown[0].text.startswith(told),
            )

    async def test_a_long_answer_is_split_and_nothing_of_it_is_lost(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The messages are in order and no longer than the platform allows."""
        chat, ann = (await stage.people(1))[0]
        limits = stage.platform().limits
        words = [f"word{number}" for number in range(limits.text // 3)]
        provider = ScriptedProvider([" ".join(words)], otherwise="done")
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "go", sender=ann)
            parts = await comes_to(
                lambda: bots(stage, chat),
                lambda parts: " ".join(part.text for part in parts).split() == words,
            )
        check(len(parts) > 1, "the answer is a single message")
        check(
            all(limits.size(part.text) <= limits.text for part in parts),
            "one of the messages is too long",
        )

    async def test_an_answer_that_grows_beyond_one_message_goes_on_in_the_next(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """If the final text is short again, the extra messages are deleted."""
        chat, ann = (await stage.people(1))[0]
        size = stage.platform().limits.text
        provider = Growing("word " * (size // 3), "short")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.say(chat, "go", sender=ann)
            if bot.channel.streams:
                await comes_to(lambda: bots(stage, chat), lambda parts: len(parts) > 1)
            provider.goes_on.set()
            await says(stage, chat, "short")

    async def test_a_rate_limit_only_delays(self, stage: Stage, tmp_path: Path) -> None:
        """All answers arrive once and in order."""
        needs(stage, "limit")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.limit(2, seconds=0.1)
            await stage.say(chat, "one", sender=ann)
            await stage.say(chat, "two", sender=ann)
            await says(stage, chat, "You said: one", "You said: two")

    async def test_a_rate_limit_slows_an_answer_that_grows_and_spoils_nothing(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """In the end, the complete text arrives."""
        needs(stage, "limit")
        chat, ann = (await stage.people(1))[0]
        provider = Growing("a beginning", "the end")
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.limit(1, seconds=0.1)
            await stage.say(chat, "go", sender=ann)
            provider.goes_on.set()
            await says(stage, chat, "the end")

    async def test_what_is_lost_on_the_way_is_sent_again(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Messages that have already arrived are not sent again."""
        needs(stage, "lose")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.lose(2, taken=False)
            await stage.say(chat, "one", sender=ann)
            await says(stage, chat, "You said: one")

    async def test_what_was_taken_without_a_word_is_shown_once(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """This requires a platform that recognises messages by the bot's ids."""
        needs(stage, "lose", "ids")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.lose(1, taken=True)
            await stage.say(chat, "one", sender=ann)
            await says(stage, chat, "You said: one")
            await stage.say(chat, "two", sender=ann)
            await says(stage, chat, "You said: one", "You said: two")

    async def test_a_beginning_that_was_taken_without_a_word_becomes_the_whole(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """A message posted again under its id may already be there, with an older text."""
        needs(stage, "lose", "ids")
        chat, ann = (await stage.people(1))[0]
        provider = Growing("a beginning", "the end")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.lose(1, taken=True)
            await stage.say(chat, "go", sender=ann)
            if bot.channel.streams:
                await says(stage, chat, "a beginning")
            provider.goes_on.set()
            await says(stage, chat, "the end")

    async def test_formatting_that_is_refused_is_left_out(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The text arrives unformatted."""
        needs(stage, "formatting")
        chat, ann = (await stage.people(1))[0]
        await stage.refuse_formatting()
        provider = ScriptedProvider(["some **bold** words"])
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "go", sender=ann)
            await says(stage, chat, "some **bold** words")

    async def test_typing_is_shown(self, stage: Stage, tmp_path: Path) -> None:
        """Typing is shown until the answer arrives."""
        needs(stage, "typing")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "go", sender=ann)
            await comes_to(lambda: stage.typed(chat), wanted=True)
            provider.release()
            await says(stage, chat, "You said: go")


async def bots(stage: Stage, chat: str) -> Sequence[VisibleMessage]:
    """Return the bot's messages in a chat."""
    return [shown for shown in await stage.shown(chat) if shown.is_bots]


PAID, OTHERWISE = "It is paid.", "I hear you."


class Till:
    """A tool that asks before it pays."""

    def __init__(self) -> None:
        self.paid = 0

        @tool(approve="always")
        async def pay(to: str) -> str:
            """Pay somebody."""
            self.paid += 1
            return f"paid {to}"

        self._tool = pay

    def bot(self, stage: Stage, folder: Path, *lines: Line) -> Bot:
        """Return a bot with this tool, whose model says these lines first."""
        provider = ScriptedProvider(lines, otherwise=OTHERWISE)
        return Bot(stage.platform(), folder, provider=provider, agent=Agent(tools=[self._tool]))


def asks() -> Reply:
    """Return a model's reply that calls the tool."""
    return Reply(tool_calls=(ToolCall(id="c", name="pay", arguments='{"to": "Eve"}'),))


class Approving:
    """The part of the suite about approvals: commands and replies answer, and nothing else."""

    async def test_a_question_is_answered_by_a_command(self, stage: Stage, tmp_path: Path) -> None:
        """The call runs once, on the first yes."""
        chat, ann = (await stage.people(1))[0]
        till = Till()
        async with till.bot(stage, tmp_path, asks(), PAID):
            await stage.say(chat, "Pay!", sender=ann)
            await said(stage, chat, 1)
            await stage.say(chat, "/yes 1", sender=ann)
            await said(stage, chat, 2)
            await stage.say(chat, "/yes 1", sender=ann)
            shown = await said(stage, chat, 3)
        check(shown[1].text == PAID, f"the bot said {shown[1].text!r}")
        check("already" in shown[2].text, f"the bot said {shown[2].text!r}")
        check(till.paid == 1, f"it was paid {till.paid} times")

    async def test_a_reply_of_one_word_answers_a_question(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The word is one for yes, in whatever case."""
        needs(stage, "replies")
        chat, ann = (await stage.people(1))[0]
        till = Till()
        async with till.bot(stage, tmp_path, asks(), PAID):
            await stage.say(chat, "Pay!", sender=ann)
            question = (await said(stage, chat, 1))[0]
            await stage.say(chat, "Okay.", sender=ann, reply_to=question.id)
            shown = await said(stage, chat, 2)
        check(shown[1].text == PAID, f"the bot said {shown[1].text!r}")

    async def test_a_reply_answers_after_a_restart(self, stage: Stage, tmp_path: Path) -> None:
        """Which message was the question is stored."""
        needs(stage, "replies")
        chat, ann = (await stage.people(1))[0]
        till = Till()
        async with till.bot(stage, tmp_path, asks()):
            await stage.say(chat, "Pay!", sender=ann)
            question = (await said(stage, chat, 1))[0]
        async with till.bot(stage, tmp_path, "Then not."):
            await stage.say(chat, "no", sender=ann, reply_to=question.id)
            shown = await said(stage, chat, 2)
        check((shown[1].text, till.paid) == ("Then not.", 0), f"the bot said {shown[1].text!r}")

    async def test_no_other_word_answers_a_question(self, stage: Stage, tmp_path: Path) -> None:
        """Not a word without a reply, a reply to another message, or a quoted question."""
        needs(stage, "replies")
        chat, ann = (await stage.people(1))[0]
        till = Till()
        async with till.bot(stage, tmp_path, asks()):
            await stage.say(chat, "Pay!", sender=ann)
            question = (await said(stage, chat, 1))[0]
            copy = await stage.say(chat, question.text, sender=ann)
            await said(stage, chat, 2)
            await stage.say(chat, "yes", sender=ann)
            await stage.say(chat, "yes", sender=ann, reply_to=copy)
            await stage.say(chat, f"> {question.text}\n\nyes", sender=ann, reply_to=copy)
            await stage.say(chat, "yes, but why?", sender=ann, reply_to=question.id)
            shown = await said(stage, chat, 6)
        check({one.text for one in shown[1:]} == {OTHERWISE}, f"the bot said {shown[1:]}")
        check(till.paid == 0, f"it was paid {till.paid} times")

    async def test_in_a_group_only_the_person_who_asked_answers(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Somebody else is told so."""
        needs(stage, "group", "replies")
        (_, ann), (_, bob) = await stage.people(2)
        group, till = stage.group, Till()
        async with till.bot(stage, tmp_path, asks(), PAID):
            await stage.say(group, stage.naming("Pay!"), sender=ann)
            question = (await said(stage, group, 1))[0]
            await stage.say(group, "yes", sender=bob, reply_to=question.id)
            refusal = (await said(stage, group, 2))[1]
            check("Only the person" in refusal.text, f"Bob was told {refusal.text!r}")
            await stage.say(group, "yes", sender=ann, reply_to=question.id)
            shown = await said(stage, group, 3)
        check(shown[2].text == PAID, f"the bot said {shown[2].text!r}")
        check(till.paid == 1, f"it was paid {till.paid} times")


async def said(stage: Stage, chat: str, count: int) -> Sequence[VisibleMessage]:
    """Wait until a chat shows this many of the bot's messages, and return them."""
    return await comes_to(partial(bots, stage, chat), lambda shown: len(shown) == count)


class StayingUp:
    """The last part of the suite: lost connections and restarts."""

    async def test_a_lost_connection_comes_back_and_nothing_is_missed(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Messages sent meanwhile are answered too."""
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
        """The answer is sent over the next connection."""
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
        """The answer is given once, complete; waiting messages are answered too."""
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
        """The answer is sent before anything that follows."""
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
        """The other chat is answered while the first one has to wait."""
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
        """The refusal is reported once, and the bot continues with its other channels."""
        needs(stage, "token")
        await stage.refuse_token()
        async with Bot(stage.platform(), tmp_path) as bot:
            await comes_to(lambda: _happened(bot, "channel_refused"), wanted=True)
            check(bot.channel.state.name == "refused", f"the state is {bot.channel.state}")
        refusals = [event for event in bot.events if isinstance(event, ChannelRefused)]
        check(len(refusals) == 1, f"it was reported {len(refusals)} times")
        check(refusals[0].reason, "the report gives no reason")


async def _waiting(bot: Bot, chat: str) -> int:
    return bot.loop.waiting(f"{bot.channel.name}:{chat}")


async def _happened(bot: Bot, name: str) -> bool:
    return any(event.name() == name for event in bot.events)


class WhoMayTalk:
    """The third part of the suite: access."""

    async def test_a_stranger_gets_a_code_and_may_talk_once_it_is_approved(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Until then, the model receives nothing."""
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider()
        async with Bot(stage.platform(), tmp_path, provider=provider, rules=PlatformSettings()):
            await stage.say(chat, "hello", sender=ann)
            said = (await answers(stage, chat, 1))[0]
            code = re.search(r"[A-Z2-9]{8}", said)
            check(code and not provider.count, f"the bot said {said}")
            check(Pairing(tmp_path).approve(code[0] if code else ""), "the code is not valid")
            await stage.say(chat, "now", sender=ann)
            await says(stage, chat, said, "You said: now")

    async def test_an_allow_list_lets_in_whom_it_names(self, stage: Stage, tmp_path: Path) -> None:
        """People are identified by the platform's id, and nobody else gets access."""
        (chat, ann), (other, bob) = await stage.people(2)
        rules = PlatformSettings(users=(ann,), pairing=False)
        async with Bot(stage.platform(), tmp_path, rules=rules):
            await stage.say(other, "hello", sender=bob)
            refused = await answers(stage, other, 1)
            check(bob in refused[0], "Bob isn't told his id")
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "You said: hello")

    async def test_who_says_too_much_has_to_wait(self, stage: Stage, tmp_path: Path) -> None:
        """All messages are kept until it is their turn."""
        chat, ann = (await stage.people(1))[0]
        provider, rules = ScriptedProvider(), open_to_all(per_minute=2)
        async with Bot(stage.platform(), tmp_path, provider=provider, rules=rules) as bot:
            for text in ("one", "two", "three", "four"):
                await stage.say(chat, text, sender=ann)
            await comes_to(partial(_waiting, bot, chat), 2)
            await says(stage, chat, "You said: one", "You said: two")
        check(
            len(provider.calls) == len(("one", "two")),
            f"the model was asked {provider.count} times",
        )

    async def test_a_group_is_answered_where_it_names_the_bot(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The mention is removed, and each message, including earlier ones, has its author."""
        needs(stage, "group")
        (_, ann), (_, bob) = await stage.people(2)
        provider = ScriptedProvider(otherwise="yes")
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(stage.group, "it is late", sender=bob)
            await stage.say(stage.group, stage.naming("is it?"), sender=ann)
            await says(stage, stage.group, "yes")
        asked = str(provider.calls[0].messages[-1]["content"])
        check(provider.count == 1, f"the model was asked {provider.count} times")
        said = re.findall(r"^\[(overheard from|from) .+ #(\w+)\] (.+)$", asked, re.MULTILINE)
        texts = [("overheard from", "it is late"), ("from", "is it?")]
        check([(how, text) for how, _, text in said] == texts, f"the model was asked {asked!r}")
        check(
            len({handle for _, handle, _ in said}) == len(texts),
            "Ann and Bob are treated as one person",
        )

    async def test_a_group_is_answered_where_it_answers_the_bot(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """The reply need not mention the bot."""
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
        """The rules decide, and changes to them take effect at once."""
        needs(stage, "group")
        (chat, ann), _ = await stage.people(2)
        provider = ScriptedProvider(otherwise="yes")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            bot.channel.access.rules = open_to_all(groups="never")
            await stage.say(stage.group, stage.naming("is it?"), sender=ann)
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "yes")
            bot.channel.access.rules = open_to_all(groups="always")
            await stage.say(stage.group, "is it?", sender=ann)
            await says(stage, stage.group, "yes")

    async def test_only_an_operator_begins_a_group_anew(self, stage: Stage, tmp_path: Path) -> None:
        """Everyone may use a command that changes nothing."""
        needs(stage, "group")
        (_, ann), (_, bob) = await stage.people(2)
        rules = open_to_all(operators=(ann,), groups="always")
        async with Bot(stage.platform(), tmp_path, rules=rules):
            await stage.say(stage.group, "/new", sender=bob)
            await answers(stage, stage.group, 1)
            await stage.say(stage.group, "/new", sender=ann)
            said = await answers(stage, stage.group, 2)
        check("operator" in said[0], f"Bob was told {said[0]!r}")
        check("new conversation" in said[1], f"Ann was told {said[1]!r}")

    async def test_a_bot_is_not_answered(self, stage: Stage, tmp_path: Path) -> None:
        """Messages from bots are ignored, whatever they say."""
        needs(stage, "bots")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.say(chat, "hello, I am a bot", sender=ann, is_bot=True)
            await stage.say(chat, "hello", sender=ann)
            await says(stage, chat, "You said: hello")

    async def test_a_thread_is_a_conversation_of_its_own(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """If the rules say so, threads share the chat's conversation."""
        needs(stage, "threads")
        (_, ann), _ = await stage.people(2)
        provider = ScriptedProvider(otherwise="yes")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            first = await stage.say(stage.group, stage.naming("apples"), sender=ann)
            await provider.asked()
            await stage.say(stage.group, stage.naming("pears"), sender=ann, thread=first)
            await provider.asked(2)
            check(
                "apples" not in str(provider.calls[1].messages[1:]),
                "the thread contains the chat's messages",
            )
            bot.channel.access.rules = open_to_all(threads="shared")
            await stage.say(stage.group, stage.naming("plums"), sender=ann, thread=first)
            await provider.asked(3)
            check(
                "apples" in str(provider.calls[2].messages[1:]),
                "the thread lacks the chat's messages",
            )
