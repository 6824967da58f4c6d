"""`kill -9` in the middle of thousands of commits: each that was acknowledged is there, whole."""

import os
import random
import signal
from collections import Counter
from contextlib import suppress

import anyio

from nanoloop.session.entry import utc_now
from nanoloop.stores.copying import problems_of
from nanoloop.stores.opening import Opening
from tests.proof.drive import Broken
from tests.proof.victims import ROOT, a_victim

SESSIONS = ("a", "b", "c")
LIVES_EACH = 10
"""Lives until new sessions are begun: a whole one is read after each."""
LINGER_SECONDS = 0.002
"""How much longer than its commits a life may last: the kill comes anywhere in what it does."""


class Committed:
    """What was acknowledged, by session."""

    def __init__(self, url):
        self._url = url
        self.acked = Counter()
        self.found = 0
        """Commits that nobody had heard of yet, and that are there whole."""

    async def check(self, names):
        store = Opening(data=ROOT, read_only=True).open(self._url)
        for name in names:
            if wrong := [each async for each in self._problems(store, name)]:
                raise Broken(f"{name}: " + "; ".join(wrong))
        await store.close()

    async def _problems(self, store, name):
        if not self.acked[name]:
            return
        snapshot = await store.snapshot(name)
        for problem in problems_of(snapshot):
            yield problem
        said = [entry.content["text"].split()[:3] for entry in snapshot.entries]
        numbers = sorted({int(number) for number, *_ in said})
        newest = numbers[-1]
        if numbers != list(range(1, newest + 1)):
            yield f"of the commits up to {newest} there are {len(numbers)}"
        if not self.acked[name] <= newest <= self.acked[name] + 1:
            yield f"{self.acked[name]} were acknowledged, and {newest} are there"
        if said != [list(map(str, each)) for number in numbers for each in parts_of(number)]:
            yield "a commit is there in part, twice or in another place"
        if snapshot.to_session(utc_now).state != {"number": newest}:
            yield "the state is another commit's"
        self.found += newest - self.acked[name]
        self.acked[name] = newest


def parts_of(number):
    """The entries of a commit: its number, which of them, of how many."""
    count = number % 3 + 1
    return [(number, part, count) for part in range(1, count + 1)]


async def prove_commits(url, commits, kills, seed=1):
    """So many commits, with so many kills in the middle of them; raises `Broken`."""
    committed, chance, killed = Committed(url), random.Random(seed), 0
    async with a_victim() as victim:
        while committed.acked.total() < commits or killed < kills:
            names = [f"{name}{killed // LIVES_EACH}" for name in SESSIONS]
            count = chance.randint(1, max(2, 2 * commits // max(kills, 1)))
            await victim.send({"store": url, "commits": names})
            await _live(victim, committed, count, chance.uniform(0, LINGER_SECONDS))
            killed += 1
            await committed.check(names)
    return (
        f"{committed.acked.total()} commits, {killed} kills in the middle of them, "
        f"{committed.found} of which cut off an acknowledgement: every commit whole, none lost"
    )


async def _live(victim, committed, count, linger_seconds):
    pid = 0
    with anyio.fail_after(40):
        while True:
            word, first, *_ = await victim.words()
            if word == "pid":
                pid = int(first)
            if word == "ended":
                if int(first) != signal.SIGKILL:
                    raise Broken(f"the process ended by itself, with {first}")
                return
            if word == "ack":
                committed.acked[first] += 1
                count -= 1
                if count == 0:
                    await anyio.sleep(linger_seconds)
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
