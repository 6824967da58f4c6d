"""A model that repeats itself is stopped, and what it repeated is not kept."""

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.channels.screen import Blocks, unshown
from nanoloop.providers.answer import AnswerLimits, Repeats
from nanoloop.providers.openai import OpenAIProvider
from tests.openai_server import Answer, OpenAIServer
from tests.stages.local_model import LONG, model_file, opened, said

LIMITS = AnswerLimits(stops_repeats=True)
SENTENCE = "I like to walk by the sea in the evening. "


def kept(text):
    """What is kept of a text that comes a character at a time."""
    repeats = Repeats()
    begins = (repeats.begin_in(piece) for piece in f"{text} ")
    begin = next((begin for begin in begins if begin is not None), None)
    return text if begin is None else text[:begin]


def test_of_the_same_five_words_four_times_the_first_are_kept():
    assert kept(f"Yes. {SENTENCE * 4}") == f"Yes. {SENTENCE}"
    assert kept(f"Yes. {SENTENCE * 3}") == f"Yes. {SENTENCE * 3}"


def test_a_single_word_over_and_over_is_a_repeat_too():
    assert kept("ha " * 40) == "ha " * 5


def test_of_the_same_line_twice_the_first_is_kept():
    once = "1. Drink a glass of water.\n2. Sleep well.\n"
    assert kept(f"{once}3. Drink a glass of water.\n4. Sleep") == once


@pytest.mark.parametrize(
    "text",
    [
        "Yes.\nNo.\nYes.\nNo.\nYes.\n",
        "".join(
            f"- {name} is one of the oldest cities of {land}, known for {what}.\n"
            for name, land, what in [
                ("Rome", "Italy", "its ruins, its fountains and its long history of emperors"),
                ("Cadiz", "Spain", "its harbour"),
                ("Plovdiv", "Bulgaria", "its theatre, which is in use to this day"),
                ("Lisbon", "Portugal", "its hills"),
            ]
        ),
        "```python\n" + "    for row in range(10):\n        print(row, end=' ')\n" * 6 + "```\n",
        "| a | b |\n|---|---|\n| 1 | 2 |\n| 1 | 2 |\n",
    ],
)
def test_lists_tables_and_code_are_left_whole(text):
    assert kept(text) == text


@given(st.lists(st.integers(), unique=True, max_size=200))
def test_words_that_all_differ_are_never_taken_for_repeats(numbers):
    text = " ".join(f"w{number}" for number in numbers)
    assert kept(text) == text


async def test_the_next_prompt_has_the_words_once():
    async with OpenAIServer(Answer(text=SENTENCE * 30), otherwise="Yes.") as server:
        provider = OpenAIProvider(model="m", base_url=server.url, limits=LIMITS)
        loop = AgentLoop(provider=provider)
        direct = DirectChannel(loop.bus)
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            first = await direct.ask("Hello?")
            await direct.ask("And?")
            loop.bus.close()
        await provider.close()
    assert first.text == SENTENCE.strip()
    assert server.requests[-1].body.decode().count(SENTENCE.strip()) == 1


async def test_the_model_is_not_listened_to_any_longer():
    endless = Answer(text=SENTENCE * 500, hold_after=60)
    async with OpenAIServer(endless) as server:
        provider = OpenAIProvider(model="m", base_url=server.url, limits=LIMITS)
        heard = []
        with anyio.fail_after(10):
            reply = await provider.chat(messages=said("Hi."), on_text=heard.append)
            await server.deserted()
        await provider.close()
    assert (reply.text, reply.finish_reason) == (SENTENCE.strip(), "length")
    assert len("".join(heard)) <= len(SENTENCE) * 4


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_model_here_that_can_not_stop_is_stopped():
    await anyio.to_thread.run_sync(model_file)
    bias = LONG["logit_bias"]
    options = {"temperature": 0, "max_tokens": 1500, "logit_bias": bias, "dry_multiplier": 0}
    async with opened(options=options) as provider:
        reply = await provider.chat(messages=said("Count from one to three."))
    assert reply.finish_reason == "length"
    assert kept(reply.text) == reply.text
    assert len(reply.text) < 4000


def test_what_is_on_the_screen_already_is_not_shown_again():
    blocks = Blocks()
    shown = blocks.feed("One line.\n\nTwo lines.\n\nTwo lines.\n\nTwo")
    assert shown + blocks.settle("One line.\n\nTwo lines.") == shown
    assert unshown("Two lines.", "Two lines. Two") == ""


def test_what_repeats_itself_and_is_not_yet_shown_never_is():
    blocks = Blocks()
    blocks.feed("Two words. Two words. Two")
    assert blocks.settle("Two words.") == "Two words."
