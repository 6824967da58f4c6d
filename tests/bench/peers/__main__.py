"""nanoloop beside its peers, in one run on one machine, against one model server.

    python -m tests.bench.peers [--short] [--only NAME ...] [--venvs FOLDER] [--plots FOLDER]

Each peer has a virtual environment of its own, made on first use, and a process of its own. All are
set up as they recommend for chats that last, with about 50 messages in the window; streaming and
tracing are off where they can be. The model server answers at once, from its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path

from tests.bench.peers import neighbours, starts, tables
from tests.bench.peers.measures import SHORT, Bench, Found, Plan
from tests.bench.peers.process import ROOT, model_server, rate
from tests.bench.peers.systems import (
    SYSTEMS,
    NotInstalled,
    System,
    installed_bytes,
    python_of,
    versions,
)
from tests.bench.report import Report, machine, say

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "nanoloop-peers"


def there(names: list[str], folder: Path) -> dict[str, tuple[System, Path]]:
    """The systems that can be played, each with its Python; the others are named."""
    found = {}
    for system in SYSTEMS:
        if names and system.name not in names:
            continue
        try:
            found[system.name] = system, python_of(system.venv, folder)
        except NotInstalled as why:
            say(f"missing: {system.name} can't be installed here: {why}")
        else:
            say(f"{system.name}: {versions(system, folder)}")
    return found


def begin(bench: Bench, systems: dict[str, tuple[System, Path]], folder: Path) -> None:
    """Starts and sizes."""
    say("... starts")
    for name, (system, python) in systems.items():
        repeats, found = bench.plan.starts, bench.found[name]
        found["import"] = starts.import_seconds(system, python, 3 * repeats)
        found["first"] = starts.first_answer_seconds(system, python, repeats)
        found["installed"] = installed_bytes(system, folder)
    for name, (system, _) in systems.items():
        if system.is_ours:
            bench.found[name]["command"] = starts.command_seconds(bench.plan.starts)
            return


def draw(results: Path, folder: Path, venvs: Path) -> None:
    """Pictures of the results, by a library that has a virtual environment of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        python = python_of("plots", venvs)
    except NotInstalled as why:
        say(f"no plots: {why}")
        return
    command = [str(python), "-m", "tests.bench.plots", str(results), str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    say(f"plots are in {folder}")


def keep(found: Found, args: argparse.Namespace) -> None:
    """Write and draw what was measured, where that is wanted."""
    if not (args.results or args.plots):
        return
    results = (args.results or args.plots / "results.json").resolve()
    results.parent.mkdir(parents=True, exist_ok=True)
    results.write_text(json.dumps(found))
    if args.plots:
        draw(results, args.plots.resolve(), args.venvs.resolve())


def main() -> None:
    """Measure, print, draw; end with 1 where a goal was missed in a full run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="few turns: to see that it works")
    parser.add_argument("--only", nargs="+", default=[], choices=[each.name for each in SYSTEMS])
    parser.add_argument("--venvs", type=Path, default=CACHE, help="where the peers are installed")
    parser.add_argument("--plots", type=Path, help="draw them into this folder")
    parser.add_argument("--results", type=Path, help="write all that was measured, as JSON")
    args = parser.parse_args()

    report = Report("nanoloop beside its peers: one durable turn, window of 50, no model time")
    systems = there(args.only, args.venvs.resolve())
    with model_server() as url:
        say(f"the model server alone: {rate(url):,.0f} answers a second")
    bench = Bench(systems, SHORT if args.short else Plan())
    begin(bench, systems, args.venvs)
    bench.all()
    found = {name: facts for name, facts in bench.found.items() if name not in bench.broken}
    keep(found, args)
    kinds = neighbours.measured(bench.plan) if not args.short else {}
    tables.tell(report, found, bench.plan)
    neighbours.tell(report, kinds)
    tables.judge(report, found, bench.plan)
    neighbours.judge(report, kinds, tables.GOAL_SUMMARY_MS, tables.GOAL_STALL_MS)
    say(machine())
    if not args.short:  # a few turns show that it works, and are too few to judge by
        report.end()


if __name__ == "__main__":
    main()
