"""How long a program takes to import a system, to come to its first answer, and how big it is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.bench.peers.process import ROOT, Process, model_server
from tests.bench.peers.said import MODEL
from tests.bench.peers.systems import System


def import_seconds(system: System, python: Path, repeats: int) -> float:
    """The median import, less what this Python takes to start."""
    with_it, without = [], []
    for _ in range(repeats + 1):  # the first one compiles
        with_it.append(_run([str(python), "-c", system.imports]))
        without.append(_run([str(python), "-c", "pass"]))
    return median(with_it[1:]) - median(without[1:])


def first_answer_seconds(system: System, python: Path, repeats: int) -> float:
    """From the start of a process to the answer of its first turn, with a model that takes none."""
    taken = []
    with model_server() as url:
        for _ in range(repeats + 1):
            began = time.perf_counter()
            with Process(system, python, url) as process:
                process.ask("turns", chat="first", count=1, seconds=60)
                taken.append(time.perf_counter() - began)
    return median(taken[1:])


def command_seconds(repeats: int) -> float:
    """From the start of `nanoloop chat -m` to its answer."""
    taken = []
    command = [sys.executable, "-m", "nanoloop", "chat", "-m", "Hello."]
    with model_server() as url, tempfile.TemporaryDirectory() as home:
        own = {"OPENAI_BASE_URL": url, "NANOLOOP_MODEL": MODEL, "HOME": home}
        own |= {"XDG_DATA_HOME": f"{home}/data", "XDG_CONFIG_HOME": f"{home}/config"}
        env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"} | own
        for _ in range(repeats + 1):
            began = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=env) as process:
                assert process.stdout is not None
                assert process.stdout.readline()
                taken.append(time.perf_counter() - began)
    return median(taken[1:])


def _run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    return time.perf_counter() - began
