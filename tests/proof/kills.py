"""`kill -9` at every step of a message's and a summary's life, and what is in the store then."""

import itertools
import json
import os
import random
import signal
from collections import Counter
from contextlib import suppress

import anyio

from nanoloop.session.head import id_for_key
from nanoloop.stores.opening import Opening
from nanoloop.testing.trial import coverage
from tests.openai_server import Answer, OpenAIServer
from tests.proof.drive import Broken
from tests.proof.marks import marks_in, marks_of, newest_mark
from tests.proof.models import number_of
from tests.proof.victims import ROOT, a_victim

CHATS = ("a", "b")
MESSAGES_A_LIFE = 4
POINTS = (
    "event window_trimmed",
    "event summary_started",
    "summary asked",
    "digested",
    "before digest",
    "half digest",
    "after digest",
    "event summary_committed",
    "half user",
    "after user",
    "before ack",
    "event turn_started",
    "answer asked",
    "piece",
    "half call",
    "after call",
    "tool",
    "event tool_finished",
    "half result",
    "after result",
    "half answer",
    "after answer",
    "sending",
    "sent",
    "torn user",
    "torn answer",
    "torn call",
    "torn result",
    "torn digest",
    "any time",
    "any time",
    "any time",
)
"""`half` ends in the first line of a commit, `torn` in its last: the lines before are whole."""


class Killer:
    """The chats and the model's server, which survive; and the process, which does not."""

    def __init__(self, url, seed):
        self.url = url
        self.chance = random.Random(seed)
        self._numbers = itertools.count(1)
        self.sent = []
        """Mark and chat of each message, as they were first sent."""
        self.acked = set()
        self.answers = Counter()
        self.digests = {}
        """What each summary call was handed, by its number."""
        self.committed = set()
        """The summary calls whose digests were found in the store."""
        self.killed = Counter()
        self.survived = 0
        self._unacked = []
        self._point = ""
        self._asks = 0
        self._pid = 0
        self.server = OpenAIServer(otherwise=self._say, keep=1)

    # The model

    def _say(self, request):
        messages = request.json["messages"]
        if request.json["model"] == "digester":
            self._maybe_kill("summary asked")
            number = len(self.digests) + 1
            self.digests[number] = marks_in(messages[-1]["content"])
            return f"S{number} stands for {len(self.digests[number])} things."
        self._maybe_kill("answer asked")
        mark = newest_mark(messages)
        if messages[-1]["role"] != "tool" and "look" in json.dumps(messages[-1]):
            calls = [
                (f"{mark}{i}", "look", json.dumps({"mark": f"c{mark[1:-1]}.{i}z"})) for i in "01"
            ]
            return Answer(text="", tool_calls=tuple(calls))
        return f"a{mark[1:]} is the answer"

    def _maybe_kill(self, point):
        if self._point == point:
            self._asks -= 1
            if self._asks == 0:
                self._kill()

    def _kill(self):
        with suppress(ProcessLookupError):  # it came to its end in the same moment
            os.kill(self._pid, signal.SIGKILL)

    # Lives

    async def live(self, victim, point, *, messages=MESSAGES_A_LIFE):
        """One life of the process, ended at this point if it comes to it."""
        said = [self._new() for _ in range(messages - len(self._unacked))]
        recent = self.sent[-10:]
        again = [self.chance.choice(recent)] if recent and self.chance.random() < 0.3 else []
        count = self.chance.randint(1, 3)
        self._point, self._asks = point, count
        given = [*self._unacked, *again, *said]
        self.sent += said
        await victim.send(
            {
                "url": self.server.url,
                "store": self.url,
                "at": point,
                "count": count,
                "messages": given,
            }
        )
        status = await self._hear(victim, point)
        self._point = ""
        if status == signal.SIGKILL:
            self.killed[point] += 1
        elif status == 0:
            self.survived += 1
        else:
            raise Broken(f"the process ended by itself, with {status}, on its way to {point!r}")
        self._unacked = [item for item in self.sent if item[0] not in self.acked]

    def _new(self):
        mark = f"m{next(self._numbers)}z"
        chat = self.chance.choice(CHATS)
        return (mark, chat, f"{mark} {'look please' if self.chance.random() < 0.4 else 'hello'}")

    async def _hear(self, victim, point):
        with anyio.fail_after(40):
            async with anyio.create_task_group() as group:
                while True:
                    word, first, *_ = await victim.words()
                    if word == "pid":
                        self._pid = int(first)
                        if point == "any time":
                            group.start_soon(self._kill_later)
                    if word == "ack":
                        self.acked.add(first)
                    if word == "sent":
                        self.answers[first] += 1
                    if word == "ended":
                        group.cancel_scope.cancel()
                        return int(first)

    async def _kill_later(self):
        await anyio.sleep(self.chance.uniform(0.005, 0.15))
        self._kill()

    # What is in the store

    async def check(self, *, at_the_end=False):
        store = Opening(data=ROOT, read_only=True).open(self.url)
        wrong = []
        for chat in CHATS:
            session_id = id_for_key(f"test:{chat}")
            marks = [mark for mark, where, _ in self.sent if where == chat and mark in self.acked]
            if marks:
                wrong += [f"{chat}: {w}" async for w in self._session(store, session_id, marks)]
        if at_the_end:
            left = [i.id async for i in store.list() if i.pending or i.awaiting or i.waiting]
            wrong += [f"{name} has work left" for name in left]
            wrong += [f"{m} was never taken" for m, _, _ in self.sent if m not in self.acked]
        wrong += [f"{mark} was sent {n} answers" for mark, n in self.answers.items() if n > 1]
        await store.close()
        if at_the_end and not self.committed:
            wrong.append("no digest was ever committed: this proves nothing")
        if wrong:
            raise Broken("\n".join(wrong[:20]))

    async def _session(self, store, session_id, acked):
        report = await coverage(store, session_id)
        for violation in report.violations:
            yield violation
        marks = [mark for entry in report.log for mark in marks_of(entry)]
        light = await store.load(session_id)
        waiting = [mark for entry in light.waiting for mark in marks_of(entry)]
        said = [mark for mark in marks + waiting if mark[0] == "m"]
        if len(set(said)) != len(said):
            yield "a message is kept twice"
        if lost := set(acked) - set(said):
            yield f"{sorted(lost)} were acknowledged and are not kept"
        answered = [mark for mark in marks if mark[0] in "ma"]
        for first, second in zip(answered[::2], answered[1::2], strict=False):
            if first[1:] != second[1:] or (first[0], second[0]) != ("m", "a"):
                yield f"{first} is followed by {second}"
                break
        if len(answered) % 2 and not light.awaiting:
            yield f"{answered[-1]} has no answer, and nobody knows"
        for violation in self._digested(report, number_of(light.summary)):
            yield violation

    def _digested(self, report, newest):
        """The digest stands for what its call was handed, behind what earlier ones stand for."""
        left = [mark for entry in report.covered for mark in marks_of(entry)]
        if newest and (not left or not self._ends_with(left, newest)):
            yield f"the digest covers other entries than call {newest} was handed"
        for number in range(newest, 0, -1):
            if self._ends_with(left, number):
                self.committed.add(number)
                del left[-len(self.digests[number]) :]
        if left:
            yield f"{left} are covered, and no digest was ever made of them"

    def _ends_with(self, marks, number):
        handed = self.digests[number]
        return handed and marks[-len(handed) :] == handed


async def prove(url, kills, seed=1, points=POINTS):
    """Kill so many times, restart each time; raises `Broken`. Returns what to say of it."""
    killer = Killer(url, seed)
    async with killer.server, a_victim() as victim:
        for point in itertools.cycle(points):
            if killer.killed.total() >= kills:
                break
            await killer.live(victim, point)
            await killer.check()
        await killer.live(victim, "never", messages=0)
        await killer.live(victim, "never", messages=0)
        await killer.check(at_the_end=True)
    where = ", ".join(f"{point} {count}" for point, count in killer.killed.most_common())
    return (
        f"{killer.killed.total()} kills ({where}; {killer.survived} lives ended well), "
        f"{len(killer.sent)} messages, {len(killer.digests)} summary calls, "
        f"{len(killer.committed)} of them committed: none lost, none double"
    )
