"""A hostile model server against the daemon, while twenty other chats talk to a sane one.

python -m tests.hostile [--seconds 60] [--mode NAME …] [--short] [--summary]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from anyio.abc import TaskGroup

from tests.hostile import answers, transport
from tests.hostile.chats import GONE, SANE, SANE_MODE, Attack, Neighbours, SummaryAttack
from tests.hostile.mode import MODES, Mode
from tests.hostile.process import Daemon, a_daemon, a_server

assert answers
assert transport
MEDIAN_GOAL = 2.0
LAG_GOAL = 0.1
MEMORY_GOAL = 60.0
STORE_GOAL = 1.0
"""Megabytes for each answer."""
FILES_GOAL = 10.0
"""Megabytes that a log of commits may take before it is written back."""
NEIGHBOUR_MEGABYTES = 0.005
"""What a turn of theirs may take of the files, an index of its words included."""
SENT_GOAL = 15_000_000
"""Bytes of a request behind the mode."""
TOO_MUCH = 400.0
"""Megabytes with which it is killed: the machine has other work."""
TRIES = 3
"""How often a mode is run for a time that is missed: what else the machine does only ever adds."""
WARM_SECONDS = 4
SLICE_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How long everything takes."""

    slices: int
    """How often the hostile chat begins anew, with a rest behind each."""
    slice_seconds: float
    rest_seconds: float
    first_seconds: float
    call_seconds: float
    at_once: int = 1
    """Modes that are tried at a time."""
    quick_at_once: int = 1
    attack: type[Attack] = Attack

    @property
    def patience(self) -> float:
        """Seconds after which something must have come of a question."""
        return self.call_seconds + 1


SHORT = Plan(
    slices=1,
    slice_seconds=1,
    rest_seconds=0.3,
    first_seconds=0.8,
    call_seconds=1.5,
    at_once=3,
    quick_at_once=8,
)


@dataclass
class Seen:
    """What was seen of one mode."""

    mode: Mode
    ratio: float = 1.0
    lag: float = 0.0
    memory: float = 0.0
    store: float = 0.0
    files: float = 0.0
    sent: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    is_lost: bool = False
    """Whether the daemon has to be started anew."""

    @property
    def missed(self) -> list[str]:
        """Goals of time that a busy machine may have missed."""
        missed = []
        if self.ratio > MEDIAN_GOAL:
            missed.append(f"neighbours took {self.ratio:.1f} times as long")
        if self.lag > LAG_GOAL:
            missed.append(f"the loop was gone for {self.lag * 1e3:.0f} ms")
        return missed

    @property
    def all_wrong(self) -> list[str]:
        wrong = [*self.missed, *self.wrong]
        if self.memory > MEMORY_GOAL:
            wrong.append(f"{self.memory:.0f} MB more memory")
        if self.store > STORE_GOAL:
            wrong.append(f"{self.store:.1f} MB more in the store for each answer")
        answers = self.outcomes.total() + 2  # and two more behind it
        if self.files > FILES_GOAL + STORE_GOAL * answers:
            wrong.append(f"{self.files:.1f} MB more in the files")
        if self.sent > SENT_GOAL:
            wrong.append(f"{self.sent / 1e6:.1f} MB in the request behind it")
        return wrong

    @property
    def is_violation(self) -> bool:
        """Whether something is wrong that was not known."""
        return bool(self.all_wrong) and not self.mode.known

    def line(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(self.outcomes.items())) or "none"
        figures = (
            f"x{self.ratio:.2f} lag {self.lag * 1e3:3.0f} ms {self.memory:+4.0f} MB "
            f"{self.store * 1e3:6.1f} kB/answer {self.sent / 1e3:6.1f} kB sent"
        )
        known = [self.mode.known] if self.mode.known and self.all_wrong else []
        wrong = "".join(f"\n     - {what}" for what in [*known, *self.all_wrong])
        word = "BAD " if self.is_violation else "odd " if self.all_wrong else "ok  "
        return f"{word} {self.mode.name:42} {figures}  {kinds}{wrong}"


class Siege:
    """All modes, a few at a time, against one daemon as long as it lives."""

    def __init__(self, plan: Plan, folder: Path, group: TaskGroup, sane: str, hostile: str) -> None:
        self._plan = plan
        self._folder = folder
        self._group = group
        self._options = (
            f"--sane={sane}",
            f"--hostile={hostile}",
            f"--first-seconds={plan.first_seconds}",
            f"--call-seconds={plan.call_seconds}",
            *(["--summary"] if plan.attack is SummaryAttack else []),
        )
        self._lives = count(1)
        self._daemon: Daemon | None = None
        self._stack = AsyncExitStack()
        self._neighbours = Neighbours()
        self._rests: list[float] = []
        """Turns without an attack, those right before and in between."""

    async def run(self, modes: Sequence[Mode]) -> list[Seen]:
        all_seen = []
        async with self._stack:
            for batch in batches(modes, self._plan):
                for seen in await self._tried(batch):
                    tell(seen.line())
                    all_seen.append(seen)
        return all_seen

    async def _tried(self, batch: Sequence[Mode]) -> list[Seen]:
        """What was seen of each; where something is wrong with several, of each by itself."""
        all_seen = await self._seen(batch)
        is_wrong = any(seen.all_wrong for seen in all_seen)
        if is_wrong and len(batch) > 1:
            return [(await self._tried([mode]))[0] for mode in batch]
        if is_wrong:
            await self._try_again(all_seen[0])
        return all_seen

    async def _try_again(self, seen: Seen) -> None:
        tries = TRIES if seen.mode.known else 1
        while seen.missed and not seen.is_lost and tries < TRIES:
            tries += 1
            again = (await self._seen([seen.mode]))[0]
            seen.ratio = min(seen.ratio, again.ratio)
            seen.lag = min(seen.lag, again.lag)
            seen.wrong = list(dict.fromkeys([*seen.wrong, *again.wrong]))
            seen.is_lost = again.is_lost

    async def _begun(self) -> Daemon:
        if self._daemon is None:
            folder = self._folder / f"life{next(self._lives)}"
            daemon = a_daemon(folder, self._group, *self._options)
            self._daemon = await self._stack.enter_async_context(daemon)
            self._group.start_soon(self._neighbours.talk, self._daemon)
            began = time.monotonic()
            await anyio.sleep(WARM_SECONDS)
            self._rests = self._turns(began + WARM_SECONDS / 2, time.monotonic())
        return self._daemon

    async def _end(self) -> None:
        assert self._daemon is not None
        self._daemon.is_over = True
        self._daemon = None
        await self._stack.aclose()
        self._neighbours.turns.clear()

    async def _seen(self, batch: Sequence[Mode]) -> list[Seen]:
        daemon = await self._begun()
        attacks = [self._plan.attack(daemon, mode) for mode in batch]
        look, ratio = Look(daemon, self._neighbours), 1.0
        async with anyio.create_task_group() as group:
            group.start_soon(look.watch, group.cancel_scope)
            try:
                ratio = await self._attacked(attacks, look)
            except (*GONE, BaseExceptionGroup):
                look.lose("the daemon answers no more")
            group.cancel_scope.cancel()
        if look.lost:
            await self._end()
            return [Seen(attack.mode, wrong=[look.lost, *attack.wrong]) for attack in attacks]
        return [look.seen(attack, ratio, share=len(attacks)) for attack in attacks]

    async def _attacked(self, attacks: Sequence[Attack], look: Look) -> float:
        """By how much the neighbours' turns were longer during the attack."""
        plan, during, rests = self._plan, list[float](), self._rests
        async with AsyncExitStack() as stack:
            for attack in attacks:
                await stack.enter_async_context(attack.going_on())
            for _ in range(plan.slices):
                began = time.monotonic()
                await all_of(
                    [partial(each.ask_for, plan.slice_seconds, plan.patience) for each in attacks]
                )
                rested = time.monotonic()
                await anyio.sleep(plan.rest_seconds)
                during += self._turns(began, rested)
                self._rests = self._turns(rested, time.monotonic())
                rests += self._rests
            await all_of([attack.end for attack in attacks])
            look.note()
            await all_of([attack.read for attack in attacks])
        return median(during) / median(rests) if during and rests else 1.0

    def _turns(self, began: float, ended: float) -> list[float]:
        return [t.seconds for t in self._neighbours.turns if began <= t.began < ended]


class Look:
    """What a batch of modes does to the daemon."""

    def __init__(self, daemon: Daemon, neighbours: Neighbours) -> None:
        self._daemon = daemon
        self._neighbours = neighbours
        self._before = daemon.resident()
        self._stored = daemon.stored()
        self._began = time.monotonic()
        self.lost = ""
        """Why the daemon has to be started anew."""
        self._memory = self._lag = 0.0
        neighbours.failures.clear()
        del neighbours.turns[:-1000]
        daemon.stalls.clear()
        daemon.forget_peak()

    async def watch(self, scope: anyio.CancelScope) -> None:
        """Kill it before it takes the machine with it."""
        more = 0.0
        while not self._daemon.is_over and more < TOO_MUCH:
            await anyio.sleep(0.05)
            more = self._daemon.resident() - self._before
        self.lose(f"{more:.0f} MB more memory, and killed" if more > TOO_MUCH else "it died")
        scope.cancel()

    def note(self) -> None:
        """Note what it took up to here: whoever then reads it all pays for that."""
        self._memory = self._daemon.peak() - self._before
        self._lag = max((own for _, own in self._daemon.stalls), default=0.0)

    def lose(self, why: str) -> None:
        self.lost = self.lost or why
        self._daemon.kill()

    def seen(self, attack: Attack, ratio: float, *, share: int) -> Seen:
        daemon = self._daemon
        failures = Counter(failure[:200] for failure in self._neighbours.failures)
        return Seen(
            attack.mode,
            ratio=ratio,
            lag=self._lag,
            memory=self._memory / share,
            store=daemon.size_of(attack.name) / max(1, len(attack.outcomes)),
            files=self._grown() / share,
            sent=attack.sent,
            outcomes=Counter(outcome.kind for outcome in attack.outcomes),
            wrong=[
                *attack.wrong,
                *[f"{word} is in the log" for word in sorted(daemon.leaked())],
                *[f"{n} turns of neighbours failed: {why}" for why, n in failures.items()],
            ],
        )

    def _grown(self) -> float:
        """Megabytes of the files, without what the neighbours may take of them."""
        turns = sum(turn.began > self._began for turn in self._neighbours.turns)
        return self._daemon.stored() - self._stored - turns * NEIGHBOUR_MEGABYTES


async def all_of(tasks: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Do these side by side."""
    async with anyio.create_task_group() as group:
        for task in tasks:
            group.start_soon(task)


def batches(modes: Sequence[Mode], plan: Plan) -> Iterator[Sequence[Mode]]:
    """Modes to be tried at a time: one, or in a short run several."""
    known = [mode for mode in modes if mode.known]
    quick = [mode for mode in modes if mode.is_quick and not mode.known]
    others = [mode for mode in modes if not mode.is_quick and not mode.known]
    for alike, size in ((quick, plan.quick_at_once), (others, plan.at_once), (known, 1)):
        for begin in range(0, len(alike), size):
            yield alike[begin : begin + size]


def tell(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - this is a command


async def besiege(modes: Sequence[Mode], plan: Plan) -> list[Seen]:
    sane = ("tests/openai_server.py", "--text", SANE, "--delay-seconds", "0.05")
    with tempfile.TemporaryDirectory() as folder:
        async with (
            a_server(*sane) as sane_url,
            a_server("-m", "tests.servers.hostile_server") as hostile_url,
            anyio.create_task_group() as group,
        ):
            siege = Siege(plan, Path(folder), group, sane_url.strip(), hostile_url.strip())
            seen = await siege.run(modes)
            group.cancel_scope.cancel()
    return seen


def chosen(names: Sequence[str]) -> list[Mode]:
    """The modes with these in their names, or all."""
    modes = [mode for mode in MODES.values() if mode.name != SANE_MODE]
    return [m for m in modes if any(name in m.name for name in names)] if names else modes


def plan_of(args: Any) -> Plan:
    attack = SummaryAttack if args.summary else Attack
    if args.short:
        return replace(SHORT, attack=attack)
    slices = max(1, round(args.seconds / SLICE_SECONDS))
    seconds = args.seconds / slices
    return Plan(
        slices=slices,
        slice_seconds=seconds * 0.8,
        rest_seconds=seconds * 0.2,
        first_seconds=5,
        call_seconds=10,
        quick_at_once=4,
        attack=attack,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="of each mode")
    parser.add_argument("--mode", nargs="*", default=[], help="only those with this in their names")
    parser.add_argument("--short", action="store_true", help="three minutes in all, for CI")
    parser.add_argument("--summary", action="store_true", help="it makes the summaries instead")
    args = parser.parse_args()
    began = time.monotonic()
    seen = anyio.run(
        besiege, chosen(args.mode), plan_of(args), backend_options={"use_uvloop": True}
    )
    bad = [one for one in seen if one.is_violation]
    minutes = (time.monotonic() - began) / 60
    tell(f"{len(seen)} modes in {minutes:.1f} minutes, {len(bad)} with a violation")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
