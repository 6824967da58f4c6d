"""`nanoloop status`: shows running processes, the state of channels, and recent failures."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from nanoloop.channels.screen import printable
from nanoloop.channels.states import RunningProcess, States, running
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.output import say, say_json
from nanoloop.nodes import PLACE

if TYPE_CHECKING:
    from nanoloop.app import App
    from nanoloop.settings import Settings

WELL = ("running", "connected")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop status`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def run(args: Namespace) -> int:
    """Print the status; return 0 only if a daemon is running and all channels are healthy."""
    settings = load_settings(args)
    found = running(settings.data)
    if not any(process.is_daemon for process in found):
        say(f"no daemon serves {settings.data}: start one with `nanoloop run`", err=True)
        return Exit.FAILED
    if args.json:
        say_json(as_json(found), indent=None)
    else:
        say(as_text(found))
    return Exit.DONE if _is_well(found) else Exit.FAILED


def _is_well(found: Sequence[RunningProcess]) -> bool:
    """Return whether all channels work; waiting is fine if another process is connected."""
    channels = [each for process in found for each in process.channels.items()]
    connected = {name for name, channel in channels if channel.state in WELL}
    return all(
        channel.state in WELL or (channel.state == "waiting" and name in connected)
        for name, channel in channels
    )


def as_json(found: Sequence[RunningProcess]) -> dict[str, object]:
    """Return the oldest daemon's fields, together with a list of all processes."""
    oldest = next(process for process in found if process.is_daemon)
    return {**asdict(oldest), "processes": [asdict(process) for process in found]}


def as_text(found: Sequence[RunningProcess]) -> str:
    """Return one line per process, per channel, and per recent failure."""
    rows = [row for process in found for row in _rows(process)]
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:{wide[0]}}  {state:{wide[1]}}  {since}" for name, state, since in rows]
    failures = sorted((f for process in found for f in process.failures), key=lambda f: f.time)
    if failures:
        lines += ["", "the latest failures:"]
    lines += [f"{f.time}  incident {f.incident}  {f.where}: {f.said}" for f in failures]
    return "\n".join(map(printable, lines))


def _rows(process: RunningProcess) -> Iterator[tuple[str, str, str]]:
    is_here = process.place == PLACE
    where = "" if is_here else f" on {process.place.partition(' ')[0]}"
    holds = "".join(f", holds {account}" for account in process.holds)
    what = "daemon" if process.is_daemon else "chat"
    serves = f", {process.connections:,} connections at most" if process.connections else ""
    since = f"since {process.since} ({process.command}{holds}{serves})"
    yield what, f"process {process.pid}{where}", since
    for name, channel in process.channels.items():
        why = f": {channel.reason}" if channel.reason else ""
        yield f"  {name}", channel.state, f"since {channel.since}{why}"


@contextmanager
def shown(app: App, settings: Settings, command: str) -> Iterator[None]:
    """Make this process visible to `nanoloop status` while the block runs."""
    loop = app.loop
    states = States(
        settings.data,
        name=loop.nodes.me,
        command=command,
        channels=lambda: app.states,
        holds=lambda: loop.nodes.held,
        failures=loop.sentences.incidents.last,
    )
    app.beside.append(states.keep)
    try:
        yield
    finally:
        states.end()
