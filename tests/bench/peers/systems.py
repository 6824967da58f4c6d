"""The systems that are compared, and what of them is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import Distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REQUIREMENTS = Path(__file__).parent / "requirements"


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """How to play one system."""

    name: str
    play: str
    packages: tuple[str, ...]
    """What it is made of; the first is the system itself."""
    imports: str
    """What a program with one chat imports."""
    venv: str = ""
    """The requirements file, and the folder of the virtual environment; empty: that of this run."""
    place: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_peer(self) -> bool:
        """Whether it is somebody else's framework."""
        return bool(self.venv)

    @property
    def is_ours(self) -> bool:
        """Whether it is nanoloop."""
        return self.play == "nanoloop"


def nanoloop(name: str, **place: str) -> System:
    """nanoloop with one kind of store."""
    packages = ("nanoloop-agent",)
    return System(
        name=name, play="nanoloop", packages=packages, imports="import nanoloop", place=place
    )


SYSTEMS = (
    nanoloop("nanoloop-jsonl", store="jsonl"),
    nanoloop("nanoloop-sqlite", store="sqlite"),
    nanoloop("nanoloop-sqlite-fsync", store="sqlite", durability="fsync"),
    System(name="bare", play="bare", packages=("openai",), imports="import openai"),
    System(
        name="openai-agents",
        play="openai_agents",
        packages=("openai-agents", "openai"),
        imports="from agents import Agent, Runner, SQLiteSession",
        venv="openai-agents",
    ),
    System(
        name="pydantic-ai",
        play="pydantic_ai",
        packages=("pydantic-ai-slim", "openai"),
        imports="from pydantic_ai import Agent; import pydantic_ai.models.openai",
        venv="pydantic-ai-slim",
    ),
    System(
        name="strands",
        play="strands",
        packages=("strands-agents", "openai"),
        imports="from strands import Agent; import strands.models.openai",
        venv="strands-agents",
    ),
    System(
        name="langgraph",
        play="langgraph",
        packages=("langgraph", "langmem", "langgraph-checkpoint-sqlite", "langchain-openai"),
        imports="import langgraph.graph, langmem.short_term, langchain_openai",
        venv="langgraph",
    ),
    System(
        name="nanobot",
        play="nanobot",
        packages=("nanobot-ai", "openai"),
        imports="from nanobot.nanobot import Nanobot",
        venv="nanobot-ai",
    ),
)


class NotInstalled(Exception):
    """A virtual environment can't be made here."""


def python_of(venv: str, folder: Path) -> Path:
    """The Python of this virtual environment, which is made or renewed where it has to be."""
    if not venv:
        return Path(sys.executable)
    wanted = REQUIREMENTS / f"{venv}.txt"
    python = folder / venv / "bin" / "python"
    if not _has(folder / venv, wanted):
        _run(sys.executable, "-m", "venv", str(folder / venv))
        _run(str(python), "-m", "pip", "install", "--quiet", "--requirement", str(wanted))
    return python


def _has(venv: Path, wanted: Path) -> bool:
    """Whether all that is pinned is there in that version."""
    installed = installed_in(venv)
    lines = [Requirement(line) for line in wanted.read_text().splitlines()]
    return all(
        (found := installed.get(canonicalize_name(line.name)))
        and line.specifier.contains(found.version)
        for line in lines
    )


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotInstalled((done.stderr.strip() or done.stdout.strip()).splitlines()[-1])


def installed_in(venv: Path | None) -> dict[str, Distribution]:
    """What a virtual environment has, by name; None stands for that of this run."""
    paths = (
        sys.path if venv is None else [str(path) for path in venv.glob("lib/python*/site-packages")]
    )
    return {canonicalize_name(found.name): found for found in distributions(path=paths)}


def versions(system: System, folder: Path) -> str:
    """The packages of a system, with their versions."""
    installed = installed_in(folder / system.venv if system.venv else None)
    return ", ".join(f"{name} {installed[name].version}" for name in system.packages)


def installed_bytes(system: System, folder: Path) -> int:
    """The size of its packages and of all that they need."""
    installed = installed_in(folder / system.venv if system.venv else None)
    waiting = [(name, "") for name in system.packages]
    if system.venv:
        lines = (REQUIREMENTS / f"{system.venv}.txt").read_text().splitlines()
        waiting = [pair for line in lines for pair in _wanted(line, "")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen or name not in installed:
            continue
        seen.add((name, extra))
        for line in installed[name].requires or []:
            waiting += _wanted(line, extra)
    return sum(size(installed[name]) for name in {name for name, _ in seen})


def _wanted(line: str, extra: str) -> list[tuple[str, str]]:
    """The package that a line asks for, plain and with each extra; none if it is not for us."""
    wanted = Requirement(line)
    if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
        return []
    return [(canonicalize_name(wanted.name), each) for each in ("", *wanted.extras)]


def size(found: Distribution) -> int:
    """Bytes of a package's files, without what Python compiles from them."""
    paths = [Path(str(file.locate())) for file in found.files or [] if file.suffix != ".pyc"]
    if found.name == "nanoloop-agent":  # perhaps installed from its folder
        paths = [*(Path(__file__).parents[3] / "nanoloop").rglob("*")]
        paths = [path for path in paths if path.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())
