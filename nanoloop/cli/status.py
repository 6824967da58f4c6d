"""`nanoloop status`: whether the daemon runs, how each channel stands, and what failed last."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from nanoloop.channels.screen import printable
from nanoloop.channels.states import RunningChannel, running
from nanoloop.cli import Exit, load_settings

WELL = ("running", "connected")


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop status` takes."""
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


def run(args: Namespace) -> int:
    """Say how it stands; 0 only if the daemon runs and all its channels are well."""
    settings = load_settings(args)
    found = running(settings.data)
    if found is None:
        print(f"no daemon serves {settings.data}: start one with `nanoloop run`", file=sys.stderr)
        return Exit.FAILED
    print(json.dumps(asdict(found)) if args.json else as_text(found))
    is_well = all(channel.state in WELL for channel in found.channels.values())
    return Exit.DONE if is_well else Exit.FAILED


def as_text(found: RunningChannel) -> str:
    """A line for the daemon, one for each channel, and one for each of the last failures."""
    rows = [("daemon", f"process {found.pid}", f"since {found.since}")]
    for name, channel in found.channels.items():
        why = f": {channel.reason}" if channel.reason else ""
        rows.append((name, channel.state, f"since {channel.since}{why}"))
    wide = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = [f"{name:{wide[0]}}  {state:{wide[1]}}  {since}" for name, state, since in rows]
    if found.failures:
        lines += ["", "the last failures:"]
    lines += [f"{f.time}  incident {f.incident}  {f.where}: {f.said}" for f in found.failures]
    return "\n".join(map(printable, lines))
