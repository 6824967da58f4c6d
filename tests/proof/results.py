"""`kill -9` while tools run side by side: what one returned stays known, and none runs twice."""

import os
import random
import signal
from collections import Counter
from pathlib import Path

import anyio

from nanoloop.session.chat import results_by_call
from nanoloop.session.head import id_for_key
from nanoloop.stores.opening import Opening
from nanoloop.testing.trial import coverage
from tests.proof.drive import Broken
from tests.proof.victims import ROOT, a_victim

MOST_TOOLS = 5
LONGEST_SECONDS = 0.006
"""How long a tool takes at most that returns at all."""
MOST_SECONDS = 0.003
"""How long the kill comes at most behind the last result that it waits for."""


class Step:
    """One chat, in which the model asked for some tools when the process was killed."""

    def __init__(self, number, chance):
        self.chat = f"chat{number}"
        self.tools = {
            str(tool): chance.uniform(0, LONGEST_SECONDS)
            for tool in range(chance.randint(2, MOST_TOOLS))
        }
        self.tools[str(chance.randrange(len(self.tools)))] = None
        self.kept = set()
        """The tools whose results were durable, as far as was heard."""
        # Nobody lives on: one tool never returns.
        self.killed_behind = chance.randrange(len(self.tools))
        """Of how many results it is heard that they were kept before the kill."""
        self.kill_seconds = chance.uniform(0, MOST_SECONDS)

    async def check(self, url, ledger):
        """Look at what became of it after the restart; raises `Broken`."""
        store = Opening(data=ROOT, read_only=True).open(url)
        report = await coverage(store, id_for_key(f"test:{self.chat}"))
        await store.close()
        wrong = list(report.violations)
        first = {}
        for call, result in results_by_call(report.log).items():
            tool = str(report.log[call].content["parameters"]["tool"])
            first.setdefault(tool, report.log[result].content)
        known = {tool for tool, content in first.items() if content["success"]}
        ran = Counter(line.split()[1] for line in ledger if line.split()[0] == self.chat)
        if lost := self.kept - known:
            wrong.append(f"the results of {sorted(lost)} were kept and are not known")
        if twice := {tool for tool, times in ran.items() if times > 1}:
            wrong.append(f"{sorted(twice)} ran twice")
        if report.log[-1].role != "assistant":
            wrong.append("it has no answer")
        if wrong:
            raise Broken(f"{self.chat}: " + "; ".join(wrong))


async def prove_results(url, folder, kills, seed=1):
    """Kill so many times in the middle of a step; raises `Broken`. Returns what to say of it."""
    chance, kept, asked = random.Random(seed), 0, 0
    ledger = Path(folder, "ledger")
    async with a_victim() as victim:
        for number in range(kills):
            step = Step(number, chance)
            job = {"store": url, "chat": step.chat, "tools": step.tools, "ledger": str(ledger)}
            await victim.send(job)
            _expect(await _life(victim, step, is_killed=True), signal.SIGKILL)
            await victim.send({**job, "resumes": True})
            _expect(await _life(victim, step), 0)
            lines = ledger.read_text().splitlines() if ledger.exists() else []  # noqa: ASYNC240
            await step.check(url, lines)
            kept += len(step.kept)
            asked += len(step.tools)
    if not kept:
        raise Broken(f"no result of {asked} was kept before its kill: this proves nothing")
    return (
        f"{kills} kills among {asked} tools side by side, {kept} of which had their results kept: "
        "none of these was lost, no call ran twice"
    )


async def _life(victim, step, *, is_killed=False):
    """The status that the process ended with."""
    pid, is_asked = 0, False
    with anyio.fail_after(40):
        while True:
            word, first, *more = await victim.words()
            if word == "pid":
                pid = int(first)
            if word == "kept" and is_killed:
                step.kept.add(first)
            is_asked = is_asked or word == "asked"
            if is_killed and is_asked and len(step.kept) >= step.killed_behind:
                await anyio.sleep(step.kill_seconds)
                os.kill(pid, signal.SIGKILL)
                is_asked = False  # it is killed once
            if word == "wrong":
                raise Broken(f"{step.chat}: {' '.join([first, *more])}")
            if word == "ended":
                return int(first)


def _expect(status, wanted):
    if status != wanted:
        raise Broken(f"a process ended with {status}, not with {wanted}")
