"""What goes out: whole, in order, once, whatever the platform refuses or loses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio

from nanoloop.errors import ProviderError
from nanoloop.protocols import OnText, Reply
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.testing.channels.bot import Bot
from nanoloop.testing.channels.stage import Shown, Stage, check, comes_to, needs, says


class Growing:
    """A model that says some words, waits for the test, and then means something else."""

    def __init__(self, words: str, *finals: str | Exception) -> None:
        self._words = words
        self._finals = [*finals]
        self.goes_on = anyio.Event()
        """Set by the test."""

    async def chat(self, *, on_text: OnText | None = None, **_: Any) -> Reply:
        """Say the words, then the next final text."""
        if on_text is not None:
            on_text(self._words)
        await self.goes_on.wait()
        final = self._finals.pop(0)
        if isinstance(final, Exception):
            raise final
        return Reply(text=final)

    async def close(self) -> None:
        """Nothing to let go of."""


class GoingOut:
    """The second part of the suite."""

    async def test_an_answer_grows_in_one_message(self, stage: Stage, tmp_path: Path) -> None:
        """It begins early, and ends as what was meant in the end."""
        chat, ann = (await stage.people(1))[0]
        provider = Growing("a long beginning of words", "the end")
        async with Bot(stage.platform(), tmp_path, provider=provider) as bot:
            await stage.say(chat, "go", sender=ann)
            if bot.channel.streams:
                await says(stage, chat, "a long beginning of words")
            provider.goes_on.set()
            await says(stage, chat, "the end")

    async def test_a_failure_leaves_no_half_answer(self, stage: Stage, tmp_path: Path) -> None:
        """What was shown of it becomes the apology."""
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
        """In order, and each message as long as the platform allows."""
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
        check(len(parts) > 1, "it is one message")
        check(all(limits.size(part.text) <= limits.text for part in parts), "one is too long")

    async def test_an_answer_that_grows_beyond_one_message_goes_on_in_the_next(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """And a final text that is short again leaves nothing of them."""
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
        """All comes, once and in order."""
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
        """The whole text is there in the end."""
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
        """Parts that are there already are not sent again."""
        needs(stage, "lose")
        chat, ann = (await stage.people(1))[0]
        async with Bot(stage.platform(), tmp_path):
            await stage.lose(2, taken=False)
            await stage.say(chat, "one", sender=ann)
            await says(stage, chat, "You said: one")

    async def test_what_was_taken_without_a_word_is_shown_once(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        """Where the platform knows messages by an id of ours."""
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
        """What is posted again under its id may be there with older words."""
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
        """The text comes plain."""
        needs(stage, "formatting")
        chat, ann = (await stage.people(1))[0]
        await stage.refuse_formatting()
        provider = ScriptedProvider(["some **bold** words"])
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "go", sender=ann)
            await says(stage, chat, "some **bold** words")

    async def test_typing_is_shown(self, stage: Stage, tmp_path: Path) -> None:
        """Until the answer is there."""
        needs(stage, "typing")
        chat, ann = (await stage.people(1))[0]
        provider = ScriptedProvider(held=True)
        async with Bot(stage.platform(), tmp_path, provider=provider):
            await stage.say(chat, "go", sender=ann)
            await comes_to(lambda: stage.typed(chat), wanted=True)
            provider.release()
            await says(stage, chat, "You said: go")


async def bots(stage: Stage, chat: str) -> Sequence[Shown]:
    """What the bot says in a chat."""
    return [shown for shown in await stage.shown(chat) if shown.is_bots]
