"""How long a program takes to import a system, and from its start to its first answer.

The quickest of a few: what else the machine does only ever adds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.bench.peers.process import ROOT, Process, model_server
from tests.bench.peers.said import MODEL
from tests.bench.peers.systems import System


def import_seconds(system: System, python: Path, repeats: int) -> float:
    """The quickest import, less what this Python takes to start."""
    with_it, without = [], []
    for _ in range(repeats + 1):  # the first one compiles
        with_it.append(_run([str(python), "-c", system.imports]))
        without.append(_run([str(python), "-c", "pass"]))
    return min(with_it) - min(without)


def first_answer_seconds(system: System, python: Path, repeats: int) -> float:
    """From the start of a process to the answer of its first turn, with a model that takes none."""
    taken = []
    with model_server() as url:
        for _ in range(repeats + 1):
            began = time.perf_counter()
            with Process(system, python, url) as process:
                process.ask("turns", chat="first", count=1, seconds=60)
                taken.append(time.perf_counter() - began)
    return min(taken)


def command_seconds(repeats: int) -> float:
    """From the start of `nanoloop chat -m` to its answer, less what importing the SDK takes."""
    taken, sdk = [], []
    command = [sys.executable, "-m", "nanoloop", "chat", "-m", "Hello."]
    with model_server() as url, tempfile.TemporaryDirectory() as home:
        own = {"OPENAI_BASE_URL": url, "NANOLOOP_MODEL": MODEL, "HOME": home}
        own |= {"XDG_DATA_HOME": f"{home}/data", "XDG_CONFIG_HOME": f"{home}/config"}
        env = {name: value for name, value in os.environ.items() if name != "OPENAI_API_KEY"} | own
        for _ in range(repeats + 1):
            sdk.append(_run([sys.executable, "-c", "import openai"]))
            began = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=env) as process:
                assert process.stdout is not None
                assert process.stdout.readline()
                taken.append(time.perf_counter() - began)
    return min(taken) - min(sdk)


def _run(command: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
    return time.perf_counter() - began
