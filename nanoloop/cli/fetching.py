"""Downloads models while showing the progress."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio

from nanoloop.cli.amounts import size
from nanoloop.cli.output import say
from nanoloop.models.catalogue import Model
from nanoloop.models.download import DownloadProgress, Tell, fetch, part_of
from nanoloop.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

_WAITING = "another process is downloading it; waiting"
_MEASURED_SECONDS = 1.0
_MEGABYTE = 1e6
_MINUTE = 60


def fetch_model(model: Model, settings: Settings) -> Path:
    """Return the path of a model's file, downloading it if necessary.

    Raise `ModelError` if that fails.
    """
    if (path := settings.models / model.file).exists():
        return path
    shown = _bar if sys.stderr.isatty() else _lines
    resumed_by = f"nanoloop model get {model.typed or model.name}"
    with resumable(resumed_by), shown(model) as tell:
        # In its own event loop, so that Ctrl-C ends the download at once.
        return anyio.run(partial(fetch, model, settings.models, hub=settings.local.hub, tell=tell))


@contextmanager
def resumable(command: str) -> Iterator[None]:
    """If the block is interrupted, print the command that resumes the download."""
    try:
        yield
    except KeyboardInterrupt:
        _say(f"stopped; the partial download is kept: `{command}` resumes it")
        raise


class DownloadRate:
    """Measures how fast a file downloads."""

    def __init__(self) -> None:
        self.is_known = anyio.Event()
        self.bytes_a_second: float | None = None
        """The measured rate; None until enough data has arrived."""
        self._first: tuple[float, int] | None = None

    def tell(self, made: DownloadProgress) -> None:
        """Update the rate with a progress report."""
        if made.step != "fetching":
            return
        now = time.monotonic()
        if self._first is None:
            self._first = now, made.done
        began, done = self._first
        if now - began > _MEASURED_SECONDS and made.done - done > _MEGABYTE:
            self.bytes_a_second = (made.done - done) / (now - began)
            self.is_known.set()


def said_first(model: Model, settings: Settings, rate: float | None) -> list[str]:
    """Return lines about a download: its size, duration and destination, and how to undo it."""
    whole, part = model.size_bytes or 0, part_of(settings.models / model.file)
    here = part.stat().st_size if part.exists() else 0
    facts = [size(whole)]
    if here * 100 >= whole:
        facts.append(f"{here * 100 // whole} % of it already downloaded")
    if rate:
        how_long = duration((whole - here) / rate)
        facts.append(f"about {how_long} at {rate / _MEGABYTE:.1f} MB/s")
    return [
        f"Downloading a model for this machine: {model.name}, {', '.join(facts)}.",
        f"  It is stored in {settings.models}",
        f"  To remove it: nanoloop model remove {model.name}",
        "  To stop: Ctrl-C; `nanoloop` resumes it. To use a key or server: nanoloop setup",
        "",
        "Meanwhile, here is what nanoloop does:",
        "",
    ]


def duration(seconds: float) -> str:
    """Format a number of seconds for display, for example as `40 seconds` or `3 minutes`."""
    if seconds < 2 * _MINUTE:
        return f"{max(1, round(seconds))} seconds"
    return f"{seconds / _MINUTE:.0f} minutes"


def progress_bar() -> Progress:
    """Create a bar that shows how much of a file has arrived, and how fast."""
    from rich import progress  # noqa: PLC0415 - slow, and only wanted here
    from rich.console import Console  # noqa: PLC0415 - as above

    return progress.Progress(
        progress.SpinnerColumn("line"),
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
    )


def on_bar(progress: Progress, model: Model) -> Tell:
    """Return a callback that shows this model's progress on the bar."""
    task = progress.add_task(model.name, total=model.size_bytes)

    def tell(made: DownloadProgress) -> None:
        what = {"waiting": f"{model.name}: {_WAITING}", "checking": f"{model.name}: checking"}
        about = what.get(made.step, model.name)
        progress.update(task, description=about, completed=made.done, total=made.total)

    return tell


@contextmanager
def _bar(model: Model) -> Iterator[Tell]:
    with progress_bar() as progress:
        yield on_bar(progress, model)


@contextmanager
def _lines(model: Model) -> Iterator[Tell]:
    """Print a line whenever another tenth of the file has arrived."""
    said = set()

    def say_once(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            _say(f"{model.name}: {sentence}")

    def tell(made: DownloadProgress) -> None:
        if made.step == "waiting":
            say_once(_WAITING)
        elif made.step == "fetching" and made.total and (tenths := made.done * 10 // made.total):
            say_once(f"{tenths * 10} % of {size(made.total)}")

    _say(f"fetching {model.name}" + (f" ({size(model.size_bytes)})" if model.size_bytes else ""))
    yield tell


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show a spinner and the elapsed time while the block runs."""
    from rich.console import Console  # noqa: PLC0415 - slow, and only wanted here
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415 - as above

    columns = (SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(what, total=None)
        yield


def _say(sentence: str) -> None:
    say(f"nanoloop: {sentence}", err=True)
