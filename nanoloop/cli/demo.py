"""`nanoloop demo`: a conversation in a small window, and what happens beside it, offline.

Only the two models are played. Bus, loop, summariser and store are the real ones.
"""

from __future__ import annotations

import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import wrap

import anyio

from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import Exit
from nanoloop.events import Event, SummaryCommitted, SummaryStarted, WindowTrimmed, hearing
from nanoloop.loop import AgentLoop
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import ChatMessage
from nanoloop.providers.scripted import Line, ScriptedProvider
from nanoloop.stores.jsonl.store import JsonlStore

LIMIT, KEEP = 12, 4
CHAT = "demo"

BEFORE = (
    (
        "I'm Mira. My brother Tom turns 30 on Saturday. He is allergic to nuts.",
        "Then the cake comes without nuts. What does Tom like?",
    ),
    ("Chocolate, and he hates raisins.", "Chocolate it is, and no raisins."),
    ("We are eight people.", "For eight people a round tin of 26 cm will do."),
    ("My oven runs hot.", "Then 165 °C instead of 180, and look at it early."),
    ("What do I have to buy?", "Dark chocolate, butter, sugar, six eggs and a little flour."),
    ("When should I bake it?", "On Friday evening: it cuts better after a night."),
)
MEANWHILE = (
    ("Cream on top?", "Whipped at the last minute, with a little vanilla."),
    ("And thirty candles?", "They fit, if you begin at the rim."),
)
AFTER = (("Can I freeze what is left?", "Yes, in slices, for two months."),)
AT_LAST = "Remind me: what must not be in that cake?"
SUMMARY = (
    "Mira bakes a chocolate cake for her brother Tom, who turns 30 on Saturday. Tom is allergic "
    "to nuts and hates raisins. Eight guests, a tin of 26 cm, an oven that runs hot: 165 °C."
)
_SUMMARY_COLUMNS = 64
_THINKING_SECONDS = 0.02


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop demo` takes."""
    parser.add_argument("--fast", action="store_true", help="without pauses")


def run(args: Namespace) -> int:
    """Play it; the conversation stays in a folder of its own, to be looked at."""
    if args.data:
        Path(args.data).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="nanoloop-demo-", dir=args.data))
    anyio.run(_play, folder, DemoScreen(pace=0 if args.fast else 1))
    return Exit.DONE


class DemoScreen:
    """Shows what is said, and set in behind a bar what happens beside it."""

    def __init__(self, *, pace: float) -> None:
        self.pace = pace
        """1 for people, 0 for no pauses."""
        self.committed = anyio.Event()
        """Set once the summary is in."""
        self._is_styled = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        self._is_speaking = False
        self._held_back: list[str] = []

    async def pause(self, seconds: float) -> None:
        """Leave time to read."""
        await anyio.sleep(seconds * self.pace)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line."""
        print(f"\x1b[{style}m{text}\x1b[0m" if style and self._is_styled else text, flush=True)

    def asked(self, text: str) -> None:
        """Show what the person says; the answer's line begins."""
        self.line(f"you  {text}", "1")

    def spoken(self, piece: str) -> None:
        """Show a piece of the answer."""
        print(piece if self._is_speaking else f"bot  {piece}", end="", flush=True)
        self._is_speaking = True

    def answered(self) -> None:
        """End the answer's line."""
        self.line()
        self._is_speaking = False
        while self._held_back:
            self.beside(self._held_back.pop(0))

    def beside(self, text: str) -> None:
        """Show what no one in the chat notices; never in the middle of an answer."""
        if self._is_speaking:
            self._held_back.append(text)
        else:
            self.line(f"       | {text}", "36")

    def hear(self, event: Event) -> None:
        """Tell what happens in the loop."""
        match event:
            case WindowTrimmed():
                self.beside(f"more than {LIMIT} messages: the window is cut, {event.kept} are left")
            case SummaryStarted():
                self.beside(
                    f"a summary of {event.first_seq} to {event.last_seq} begins, nobody waits"
                )
            case SummaryCommitted():
                self.beside(
                    f"the summary is in, and stands for {event.first_seq} to {event.last_seq}:"
                )
                for line in wrap(SUMMARY, _SUMMARY_COLUMNS):
                    self.beside(f"  {line}")
                self.committed.set()


async def _play(folder: Path, stage: DemoScreen) -> None:
    stage.line("nanoloop demo: the models are played, everything else is real, nothing goes out")
    stage.line(f"a window of at most {LIMIT} messages, cut to about {KEEP}", "90")
    stage.line()
    with hearing(stage.hear):
        await _first_start(folder, stage)
        await stage.pause(1)
        await _second_start(folder, stage)
    await _end(folder, stage)


async def _first_start(folder: Path, stage: DemoScreen) -> None:
    said = [answer for _, answer in (*BEFORE, *MEANWHILE, *AFTER)]
    bot = _bot(said, stage)
    # Held until we let it go: a summary that takes its time is what there is to see.
    writer = ScriptedProvider([SUMMARY], held=True)
    async with _talking(folder, bot, writer) as chat:
        for question, _ in BEFORE:
            await _exchange(stage, chat, question)
        for question, _ in MEANWHILE:
            await _exchange(stage, chat, question)
            stage.beside("answered at once; the summary is still being written")
            await stage.pause(0.5)
        writer.release()
        await stage.committed.wait()
        for question, _ in AFTER:
            await _exchange(stage, chat, question)
        stage.beside(_request_of(bot))


async def _second_start(folder: Path, stage: DemoScreen) -> None:
    stage.line()
    stage.line("(the program ends here, and starts again from what is on disk)", "90")
    stage.line()
    bot = _bot([_from_the_request], stage)
    async with _talking(folder, bot, ScriptedProvider()) as chat:
        await stage.pause(0.5)
        await _exchange(stage, chat, AT_LAST)
    stage.beside("said in message 1, long out of the window: the answer is from the summary")


@asynccontextmanager
async def _talking(
    folder: Path, bot: ScriptedProvider, writer: ScriptedProvider
) -> AsyncIterator[DirectChannel]:
    store = JsonlStore(folder / "sessions")
    loop = AgentLoop(
        provider=bot,
        store=store,
        summarizer=Summarizer(writer, store=store),
        message_buffer_limit=LIMIT,
        message_buffer_min=KEEP,
    )
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield DirectChannel(loop.bus)
        loop.bus.close()
    await store.close()


def _bot(said: Sequence[Line], stage: DemoScreen) -> ScriptedProvider:
    return ScriptedProvider(
        said, delay_seconds=_THINKING_SECONDS, word_delay_seconds=0.035 * stage.pace
    )


async def _exchange(stage: DemoScreen, chat: DirectChannel, question: str) -> None:
    await stage.pause(0.3)
    stage.asked(question)
    await stage.pause(0.15)
    await chat.ask(question, chat=CHAT, on_text=stage.spoken)
    stage.answered()


def _from_the_request(messages: Sequence[ChatMessage], *_: object) -> str:
    """An answer from nothing but what the request says, as a real model's would be."""
    known = " ".join(str(message.get("content")) for message in messages)
    if "allergic to nuts" not in known:
        return "I don't know: nothing in this request says so."
    return "No nuts, Tom is allergic to them. And no raisins."


def _request_of(bot: ScriptedProvider) -> str:
    request = bot.calls[-1].messages
    has_summary = SUMMARY in str(request[0]["content"])
    shown = f"the summary and {len(request) - 1} messages" if has_summary else "no summary"
    return f"that request had {shown}, not all {2 * bot.count - 1}"


async def _end(folder: Path, stage: DemoScreen) -> None:
    store = JsonlStore(folder / "sessions", read_only=True)
    session = await store.get(f"{DirectChannel.name}:{CHAT}")
    await store.close()
    said, log = len(session.full_chat_history), next((folder / "sessions").glob("*.jsonl"))
    stage.line()
    stage.line(f"Nothing is lost: all {said} messages and the summary are in")
    stage.line(f"  {log}")
    stage.line("Look at them, or talk with a model of your own:")
    stage.line(f"  nanoloop sessions show {session.id} --data {folder}", "1")
    stage.line("  nanoloop chat", "1")
