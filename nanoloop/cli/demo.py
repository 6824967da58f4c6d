"""`nanoloop demo`: plays a conversation in a small window, and shows the background work.

Only the two models are scripted; the bus, loop, summariser and store are real.
"""

from __future__ import annotations

import sys
import tempfile
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING

import anyio

from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import Exit
from nanoloop.cli.fetching import (
    DownloadRate,
    busy,
    on_bar,
    progress_bar,
    resumable,
    said_first,
)
from nanoloop.cli.output import has_colours, say
from nanoloop.errors import ModelError
from nanoloop.events import Event, SummaryCommitted, SummaryStarted, WindowTrimmed, hearing
from nanoloop.loop import AgentLoop
from nanoloop.memory.summarizer import Summarizer
from nanoloop.models.catalogue import Model
from nanoloop.models.download import DownloadProgress, Tell, fetch
from nanoloop.protocols import ChatMessage
from nanoloop.providers.scripted import Line, ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.stores.jsonl.store import JsonlStore

if TYPE_CHECKING:  # slow, and only wanted for a bar
    from rich.console import RenderableType
    from rich.live import Live
    from rich.progress import Progress

LIMIT, KEEP = 12, 4
CHAT = "demo"

BEFORE = (
    (
        "I'm Mira. My brother Tom turns 30 on Saturday. He is allergic to nuts.",
        "Then it has to be a cake without nuts. What does Tom like?",
    ),
    ("Chocolate, and he hates raisins.", "Chocolate it is, and no raisins."),
    ("We are eight people.", "A round tin of 26 cm is enough for eight people."),
    ("My oven runs hot.", "Then use 165 °C instead of 180, and check it early."),
    ("What do I need to buy?", "Dark chocolate, butter, sugar, six eggs and a little flour."),
    ("When should I bake it?", "On Friday evening: it is easier to slice the next day."),
)
MEANWHILE = (
    ("Cream on top?", "Yes, whipped at the last minute, with a little vanilla."),
    ("And thirty candles?", "They will fit if you start at the edge."),
)
AFTER = (("Can I freeze the leftovers?", "Yes, in slices, for two months."),)
AT_LAST = "Remind me: what must not go into that cake?"
SUMMARY = (
    "Mira bakes a chocolate cake for her brother Tom, who turns 30 on Saturday. Tom is allergic "
    "to nuts and hates raisins. Eight guests, a tin of 26 cm, an oven that runs hot: 165 °C."
)
_SUMMARY_COLUMNS = 64
_LOOK_SECONDS = 6.0
"""How long to wait for an estimate of a model's download speed."""
_THINKING_SECONDS = 0.02


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop demo`."""
    parser.add_argument("--fast", action="store_true", help="play without pauses")


def run(args: Namespace) -> int:
    """Play the demo; its conversation is kept in a separate folder for inspection."""
    if args.data:
        Path(args.data).mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="nanoloop-demo-", dir=args.data))
    anyio.run(_whole, folder, DemoScreen(pace=0 if args.fast else 1))
    return Exit.DONE


def play_alone() -> None:
    """Play the demo without keeping its conversation."""
    anyio.run(_play_unkept)


async def _play_unkept() -> None:
    with tempfile.TemporaryDirectory(prefix="nanoloop-demo-") as folder:
        await play(Path(folder), DemoScreen(pace=1))


async def _whole(folder: Path, stage: DemoScreen) -> None:
    await play(folder, stage)
    await _end(folder, stage)


class DemoScreen:
    """Shows the conversation, with background events indented after a bar."""

    def __init__(self, *, pace: float) -> None:
        self.pace = pace
        """The factor for all pauses: 1 for normal speed, 0 for none."""
        self.committed = anyio.Event()
        """Set once the summary has been committed."""
        self._is_styled = has_colours(sys.stdout)
        self._is_speaking = False
        self._held_back: list[str] = []

    async def pause(self, seconds: float) -> None:
        """Pause long enough for people to read."""
        await anyio.sleep(seconds * self.pace)

    def line(self, text: str = "", style: str = "") -> None:
        """Print a line."""
        is_styled = bool(style and self._is_styled)
        say(f"\x1b[{style}m{text}\x1b[0m" if is_styled else text, has_style=is_styled)

    def asked(self, text: str) -> None:
        """Show the user's message; the answer follows on the next line."""
        self.line(f"you  {text}", "1")

    def spoken(self, piece: str) -> None:
        """Show a piece of the answer."""
        say(piece if self._is_speaking else f"bot  {piece}", end="")
        self._is_speaking = True

    def answered(self) -> None:
        """End the answer's line."""
        self.line()
        self.end_answer()

    def end_answer(self) -> None:
        """Show the lines that were held back during the answer."""
        self._is_speaking = False
        while self._held_back:
            self.beside(self._held_back.pop(0))

    def beside(self, text: str) -> None:
        """Show a background event, but never in the middle of an answer."""
        if self._is_speaking:
            self._held_back.append(text)
        else:
            self.line(f"       | {text}", "36")

    def hear(self, event: Event) -> None:
        """Show an event from the loop."""
        match event:
            case WindowTrimmed():
                self.beside(f"more than {LIMIT} messages: the window is trimmed to {event.kept}")
            case SummaryStarted():
                self.beside(
                    f"messages {event.first_seq} to {event.last_seq} are being summarised; nobody "
                    f"waits"
                )
            case SummaryCommitted():
                self.beside(
                    f"the summary of messages {event.first_seq} to {event.last_seq} is ready:"
                )
                for line in wrap(SUMMARY, _SUMMARY_COLUMNS):
                    self.beside(f"  {line}")
                self.committed.set()


async def play(folder: Path, stage: DemoScreen) -> None:
    """Play the conversation and store it in this folder."""
    stage.line("nanoloop demo: the models are scripted, the rest is real, nothing is sent out")
    stage.line(f"a window of at most {LIMIT} messages, trimmed to about {KEEP}", "90")
    stage.line()
    with hearing(stage.hear):
        await _first_start(folder, stage)
        await stage.pause(1)
        await _second_start(folder, stage)


async def _first_start(folder: Path, stage: DemoScreen) -> None:
    said = [answer for _, answer in (*BEFORE, *MEANWHILE, *AFTER)]
    bot = _bot(said, stage)
    # Held until `release`, to show that a slow summary delays no answer.
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
    stage.line("(the program ends here, and starts again from its files)", "90")
    stage.line()
    bot = _bot([_from_the_request], stage)
    async with _talking(folder, bot, ScriptedProvider()) as chat:
        await stage.pause(0.5)
        await _exchange(stage, chat, AT_LAST)
    stage.beside("said in message 1, which left the window: the answer comes from the summary")


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
    """Answer from the request alone, as a real model does."""
    known = " ".join(str(message.get("content")) for message in messages)
    if "allergic to nuts" not in known:
        return "I don't know: nothing in this request says so."
    return "No nuts, Tom is allergic to them. And no raisins."


def _request_of(bot: ScriptedProvider) -> str:
    request = bot.calls[-1].messages
    has_summary = SUMMARY in str(request[0]["content"])
    shown = f"the summary and {len(request) - 1} messages" if has_summary else "no summary"
    return f"that request contained {shown}, not all {2 * bot.count - 1}"


async def _end(folder: Path, stage: DemoScreen) -> None:
    store = JsonlStore(folder / "sessions", read_only=True)
    session = await store.get(f"{DirectChannel.name}:{CHAT}")
    await store.close()
    said, log = len(session.full_chat_history), next((folder / "sessions").glob("*.jsonl"))
    stage.line()
    stage.line(f"Nothing is lost: all {said} messages and the summary are in")
    stage.line(f"  {log}")
    stage.line("Look at them, or talk with a real model:")
    stage.line(f"  nanoloop sessions show {session.id} --data {folder}", "1")
    stage.line("  nanoloop chat", "1")


# A demo above the progress bar of the first download


def fetch_first_model(
    models: Sequence[Model], settings: Settings, *, load: Callable[[Model], None]
) -> Model:
    """Fetch the first of these models that is available, playing the demo meanwhile.

    First, show the size, duration and destination of the download. If the download ends before the
    demo begins, no demo is played. `load` is called as soon as the file is complete. Raise
    `ModelError` after the demo if no model could be fetched.
    """
    with resumable("nanoloop"):
        return anyio.run(_FirstFetch(models, settings, load).run)


class _FirstFetch:
    """Fetches a model while the demo plays."""

    def __init__(
        self, models: Sequence[Model], settings: Settings, load: Callable[[Model], None]
    ) -> None:
        self._models = models
        self._load = load
        self._model = models[0]
        """The model being fetched."""
        self._settings = settings
        self._is_over = anyio.Event()
        self._found: Model | None = None
        self._errors: list[ModelError] = []
        self._rate = DownloadRate()
        self._tell: Tell = self._rate.tell
        self._started = time.monotonic()

    async def run(self) -> Model:
        async with anyio.create_task_group() as group:
            group.start_soon(self._fetch, name="fetch the model")
            with busy(f"looking for {self._models[0].name}"), anyio.move_on_after(_LOOK_SECONDS):
                await self._rate.is_known.wait()
            if not self._is_over.is_set():
                for line in said_first(self._model, self._settings, self._rate.bytes_a_second):
                    say(line)
                await self._play()
            elif self._found is None:
                say(f"{self._errors[0]}\n\nInstead, here is a demo of what nanoloop does:\n")
                await _play_unkept()
        if self._found is None:
            raise self._errors[0]
        seconds = time.monotonic() - self._started
        say(f"\n{self._found.name} was ready after {seconds:.0f} seconds.\n")
        return self._found

    async def _fetch(self) -> None:
        hub = self._settings.local.hub
        for model in self._models:
            self._model = model
            try:
                await fetch(model, self._settings.models, hub=hub, tell=self._hear)
            except ModelError as error:
                self._errors.append(error)
            else:
                self._load(model)
                self._found = model
                break
        self._is_over.set()
        self._rate.is_known.set()

    def _hear(self, made: DownloadProgress) -> None:
        self._tell(made)  # replaced once there is a progress bar

    async def _play(self) -> None:
        with (
            tempfile.TemporaryDirectory(prefix="nanoloop-demo-") as folder,
            _live() as (live, progress),
        ):
            self._tell = on_bar(progress, self._model)
            await play(Path(folder), DemoAboveBar(live, progress))
            await self._is_over.wait()


class DemoAboveBar(DemoScreen):
    """The demo above a fixed progress bar; a growing answer is redrawn along with the bar."""

    def __init__(self, live: Live, progress: Progress) -> None:
        super().__init__(pace=1)
        self._live = live
        self._progress = progress
        self._growing = ""

    def spoken(self, piece: str) -> None:
        """Show a piece of the answer."""
        self._growing = f"{self._growing or 'bot  '}{piece}"
        self._is_speaking = True
        self._live.update(_stacked(self._growing, self._progress))

    def answered(self) -> None:
        """Print the finished answer above the bar."""
        line, self._growing = self._growing, ""
        self._live.update(_stacked("", self._progress))
        self.line(line)
        self.end_answer()


def _stacked(growing: str, progress: Progress) -> RenderableType:
    from rich.console import Group  # noqa: PLC0415 - slow, and only wanted here
    from rich.text import Text  # noqa: PLC0415 - as above

    return Group(Text(growing), progress) if growing else Group(Text(""), progress)


@contextmanager
def _live() -> Iterator[tuple[Live, Progress]]:
    from rich.live import Live  # noqa: PLC0415 - slow, and only wanted here

    progress = progress_bar()
    with Live(_stacked("", progress), transient=True, refresh_per_second=8) as live:
        yield live, progress
