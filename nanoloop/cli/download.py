"""A model file on its way, as a person or a log sees it: a bar on a terminal, else a few lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio

from nanoloop.cli.amounts import size
from nanoloop.models.catalogue import Model
from nanoloop.models.fetching import fetch
from nanoloop.models.part import DownloadProgress, Tell
from nanoloop.settings import Settings

_LINES = 10
"""Lines for a whole file, where there is no bar."""
_WAITING = "another process fetches it; waiting"


def fetched(model: Model, settings: Settings) -> Path:
    """The model's file, fetched in sight of whoever is there; raises `ModelError`."""
    if (path := settings.models / model.file).exists():
        return path
    shown = _bar if sys.stderr.isatty() else _lines
    try:
        with shown(model) as tell:
            # In an event loop of its own: Ctrl-C ends it at once, whatever it waits for.
            return anyio.run(
                partial(fetch, model, settings.models, hub=settings.local.hub, tell=tell)
            )
    except KeyboardInterrupt:
        _say(
            f"stopped; what came is kept: `nanoloop model get {model.typed or model.name}` goes on"
        )
        raise


@contextmanager
def _bar(model: Model) -> Iterator[Tell]:
    from rich import progress  # noqa: PLC0415 - slow, and only wanted here
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(model.name, total=model.size_bytes)

        def tell(made: DownloadProgress) -> None:
            what = {"waiting": f"{model.name}: {_WAITING}", "checking": f"{model.name}: checking"}
            about = what.get(made.step, model.name)
            bar.update(task, description=about, completed=made.done, total=made.total)

        yield tell


@contextmanager
def _lines(model: Model) -> Iterator[Tell]:
    about = f" ({size(model.size_bytes)})" if model.size_bytes else ""
    _say(f"fetching {model.name}{about}")
    yield _in_steps(model.name)


def _in_steps(name: str) -> Callable[[DownloadProgress], None]:
    said = 0
    has_waited = False

    def tell(made: DownloadProgress) -> None:
        nonlocal said, has_waited
        if made.step == "waiting" and not has_waited:
            has_waited = True
            _say(f"{name}: {_WAITING}")
        if made.step != "fetching" or not made.total:
            return
        step = made.done * _LINES // made.total
        if step > said:
            said = step
            _say(f"{name}: {step * 100 // _LINES} % of {size(made.total)}")

    return tell


def _say(sentence: str) -> None:
    print(f"nanoloop: {sentence}", file=sys.stderr, flush=True)
