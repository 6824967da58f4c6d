"""What is measured of each system; where several are compared, they take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from tests.bench.peers.process import Broken, Process, model_server, told
from tests.bench.peers.systems import System
from tests.bench.report import say

T = TypeVar("T")
Found = dict[str, dict[str, Any]]
"""What was found of each system, by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    checkpoints: tuple[int, ...] = (10, 100, 1_000, 2_000)
    """Turns after which the time of a turn is taken."""
    rounds: int = 4
    turns: int = 20
    """In a round, one system after the other."""
    budget_seconds: float = 30
    """What a system may take to come to a checkpoint, and for one round there."""
    histories: tuple[int, ...] = (10, 10_000, 100_000)
    crowd_seconds: float = 6
    crowd_rounds: int = 2
    crowds: tuple[int, ...] = (200, 2_000)
    model_seconds: float = 0.05
    summary_seconds: float = 2
    beside_seconds: float = 3
    beside_rounds: int = 2
    idle_sessions: int = 10_000
    prompts: int = 200
    starts: int = 3


SHORT = Plan(
    checkpoints=(10, 60),
    rounds=3,
    turns=10,
    budget_seconds=5,
    histories=(10, 2_000),
    crowd_seconds=1,
    crowd_rounds=1,
    crowds=(20,),
    summary_seconds=0.2,
    beside_seconds=0.5,
    beside_rounds=1,
    idle_sessions=200,
    prompts=60,
    starts=1,
)


class Bench:
    """The systems that there are, each with its Python, and what was found of them."""

    def __init__(self, pythons: dict[str, tuple[System, Path]], plan: Plan) -> None:
        self._systems = pythons
        self.plan = plan
        self.found: Found = {name: {} for name in pythons}
        self.broken: list[str] = []

    def all(self) -> None:
        """Measure everything."""
        for measure in (
            self.turn_times,
            self.long_histories,
            self.summaries,
            self.crowded,
            self.idle,
            self.prompts,
        ):
            say(f"... {measure.__name__.replace('_', ' ')}")
            measure()

    def turn_times(self) -> None:
        """The time and the bytes of a turn, after more and more of them."""
        with model_server() as url, self._running(url) as processes:
            for turns in self.plan.checkpoints:
                say(f"    at turn {turns:,}")
                arrived = [each for each in processes if self._advance(each, turns)]
                self._interleave(arrived, turns)
            for process in processes:
                with self._noting(process.system.name):
                    grown = process.ask("memory")["bytes"]
                    self.found[process.system.name]["memory"] = grown
                    self.found[process.system.name]["start_memory"] = process.start_bytes

    def _advance(self, process: Process, turns: int) -> bool:
        """Bring the chat to so many turns; False where it takes too long."""
        name, seconds = process.system.name, self.plan.budget_seconds
        found = self.found[name].setdefault("turns", {})
        done = self.found[name].setdefault("taken", 0)
        if "stopped" in self.found[name] or turns - done <= 0:
            return "stopped" not in self.found[name]
        with self._noting(name):
            taken = process.ask("turns", chat="long", count=turns - done, seconds=seconds)["taken"]
            self.found[name]["taken"] = done + len(taken)
            if done + len(taken) < turns:
                self.found[name]["stopped"] = done + len(taken)
                found[str(done + len(taken))] = [entry(taken[-20:])]
        return "stopped" not in self.found[name] and name not in self.broken

    def _interleave(self, processes: Sequence[Process], turns: int) -> None:
        """A few turns of each, in rounds."""
        for number in range(self.plan.rounds):
            for process in rotated(processes, number):
                name = process.system.name
                with self._noting(name):
                    asked = {"count": self.plan.turns, "seconds": self.plan.budget_seconds}
                    got = process.ask("turns", chat="long", **asked)
                    self.found[name]["taken"] += len(got["taken"])
                    rounds = self.found[name]["turns"].setdefault(str(turns), [])
                    rounds.append(entry(got["taken"], got["written"], got["read"]))

    def long_histories(self) -> None:
        """nanoloop's turn with more and more messages behind it, made before the start."""
        sizes = list(self.plan.histories)
        with model_server() as url:
            for system, python in self._chosen(lambda each: each.is_ours):
                kept = self.found[system.name]["histories"] = {str(size): [] for size in sizes}
                with (
                    self._noting(system.name),
                    Process(system, python, url, histories=sizes) as process,
                ):
                    for number in range(-1, 2 * self.plan.rounds):
                        for size in rotated(sizes, number):
                            asked = {"count": self.plan.turns, "seconds": self.plan.budget_seconds}
                            got = process.ask("turns", chat=f"history{size}", **asked)
                            if number >= 0:  # the first ones warm up
                                kept[str(size)].append(
                                    entry(got["taken"], got["written"], got["read"])
                                )

    def summaries(self) -> None:
        """Turns while a summary is made at once, and while one takes long."""
        kinds = [("calm", 0), ("slow", self.plan.summary_seconds)] * self.plan.beside_rounds
        for kind, seconds in kinds:
            with model_server(summary_seconds=seconds) as url:
                for system, python in self._chosen():
                    with self._noting(system.name), Process(system, python, url) as process:
                        asked = {"warm": 20, "seconds": self.plan.beside_seconds}
                        got = process.ask("beside", **asked)
                        self.found[system.name].setdefault(kind, []).append(got)

    def crowded(self) -> None:
        """Many users, and a model that takes its time."""
        with model_server(delay_seconds=self.plan.model_seconds) as url:
            for users in self.plan.crowds:
                for number in range(self.plan.crowd_rounds):
                    chosen = [*self._chosen(lambda each: users <= 200 or not each.is_peer)]  # noqa: B023 - used at once
                    for system, python in rotated(chosen, number):
                        with self._noting(system.name), Process(system, python, url) as process:
                            got = process.ask("crowd", users=users, seconds=self.plan.crowd_seconds)
                            crowds = self.found[system.name].setdefault("crowds", {})
                            crowds.setdefault(str(users), []).append(got)

    def idle(self) -> None:
        """The memory of sessions that said one thing and went quiet."""
        with model_server() as url:
            for system, python in self._chosen(lambda each: not each.is_peer):
                with self._noting(system.name), Process(system, python, url) as process:
                    process.ask("turns", chat="first", count=20, seconds=10)
                    got = process.ask("idle", sessions=self.plan.idle_sessions)
                    self.found[system.name]["idle"] = got["bytes"]

    def prompts(self) -> None:
        """What is sent to the model, and how much of it a prefix cache would serve."""
        for system, python in self._chosen():
            with (
                model_server(record=True) as url,
                self._noting(system.name),
                Process(system, python, url) as process,
            ):
                asked = {"count": self.plan.prompts, "seconds": self.plan.budget_seconds}
                process.ask("turns", chat="long", **asked)
                self.found[system.name]["told"] = told(url)

    def _chosen(
        self, which: Callable[[System], bool] = lambda _: True
    ) -> Iterator[tuple[System, Path]]:
        for name, (system, python) in self._systems.items():
            if name not in self.broken and which(system):
                yield system, python

    @contextmanager
    def _running(self, url: str) -> Iterator[list[Process]]:
        """A process of each system, side by side."""
        with ExitStack() as stack:
            processes = []
            for system, python in self._chosen():
                with self._noting(system.name):
                    processes.append(stack.enter_context(Process(system, python, url)))
            yield processes

    @contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        """A system that breaks is named and left out from then on."""
        try:
            yield
        except Broken as why:
            say(f"broken: {name}: {why}")
            self.broken.append(name)


def entry(taken: Sequence[float], written: int = 0, read: int = 0) -> dict[str, Any]:
    """One round of turns."""
    return {"taken": list(taken), "written": written, "read": read}


def rotated(things: Iterable[T], by: int) -> list[T]:
    """The same things, beginning further on."""
    listed = list(things)
    by %= len(listed) or 1
    return listed[by:] + listed[:by]


def times(rounds: Sequence[dict[str, Any]]) -> list[float]:
    """All turns of all rounds, sorted."""
    return sorted(took for each in rounds for took in each["taken"])


def middle(rounds: Sequence[dict[str, Any]]) -> float:
    """The median turn."""
    return median(times(rounds))


def quantile(taken: Sequence[float], share: float) -> float:
    """The time that this share of the sorted ones does not exceed."""
    return taken[min(len(taken) - 1, int(share * len(taken)))]


def a_turn(rounds: Sequence[dict[str, Any]], what: str) -> float:
    """Bytes a turn."""
    return sum(each[what] for each in rounds) / len(times(rounds))
