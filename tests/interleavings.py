"""Every interleaving: the real code of two processes on one store, one step at a time.

Each call of the store, of the model, of a tool and of the channel waits at a gate. Whenever all
tasks of all processes wait, there is a choice: which gate opens, whether the next thing is said,
whether a process looks around, dies, or sleeps for so long that it is taken for dead. `explore`
goes through the choices: each run begins anew and repeats those that lead to where it branches off.
What a process is at depends on nothing but what it has heard, so a state is known by the rows of
the store and by what each process was told at its gates; a run ends where another one has been.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime, timezone
from functools import partial
from itertools import count
from unittest.mock import patch

from nanoloop import Agent, AgentLoop, Inbound, tool
from nanoloop.bus import InProcessBus
from nanoloop.errors import StoreError
from nanoloop.memory.summarizer import Summarizer
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.approvals import APPROVED
from nanoloop.session.entry import APPROVAL, TOOL_RESULT, Entry, utc_now
from nanoloop.session.queue import AMENDMENT
from nanoloop.sessions import Sessions
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.stores.snapshot import is_visible
from nanoloop.testing.trial import coverage_of

KEY = "test:a"
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
NEVER_SECONDS = 1e9
SLEPT_SECONDS = 60
MOST_STEPS = 500
"""After so many a run goes round in circles."""

STEPS_OF_PAYING = 3
"""It is asked for twice, and then there is an answer."""
STEPS_OF_ORDERING = 2
"""It is asked for once, and once a person has answered there is an answer."""
LOOKS_AT_LAST = 2
"""After so many looks around that change nothing all is done that is ever done."""
MOST_ROUNDS = 10_000
"""After so many rounds of the event loop something in it goes round in circles."""

_who = ContextVar("who", default="-")
_world = ContextVar("world")


@tool
async def pay(what: str) -> str:
    """Pay for it."""
    await _world.get().pay(what)
    return "paid"


@tool(approve="always")
async def order(what: str) -> str:
    """Order it."""
    await _world.get().order(what)
    return "ordered"


PAYING = Agent(tools=[pay, order])


class Wrong(AssertionError):
    """Something that must always hold does not; with the steps that lead there."""


@dataclass(frozen=True)
class Item:
    """Something that happens once: said to a process, or done by a writer beside them."""

    to: str
    """`A`, `B`, or `W` for a command line that gives the chat's conversation this title."""
    text: str
    edits: str = ""
    again: bool = False
    """Whether it is the platform's second delivery of the same."""

    @property
    def is_message(self):
        """Whether it is to be answered."""
        return self.to != "W" and not self.text.startswith("/") and not self.edits

    def inbound(self):
        return Inbound(
            channel="test",
            chat="a",
            text=self.text,
            message_id=self.text,
            edits=self.edits or None,
        )


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What happens, and how much may go wrong."""

    items: tuple[Item, ...]
    before: int = 0
    """Messages that A has answered already."""
    crashes: int = 1
    sleeps: int = 0
    """How often a process is taken for dead, and goes on."""
    looks: int = 0
    """How often each process looks around by itself; once more after each death and sleep."""
    confirms: bool = False
    limit: int = 20
    """With more messages the window is cut, and what leaves it is folded into the summary."""
    keep: int = 6


@dataclass
class Figures:
    """What was explored."""

    states: int = 0
    executions: int = 0
    steps: int = 0
    crashes: int = 0
    sleeps: int = 0
    conflicts: int = 0
    repeats: int = 0
    folds: int = 0
    endings: int = 0
    left: int = 0
    """Branches that nobody went down."""

    def __iadd__(self, other):
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
        return self

    def __str__(self):
        return ", ".join(f"{getattr(self, each.name)} {each.name}" for each in fields(self))


# Where everything waits


@dataclass(eq=False)
class Gate:
    """A call that waits to be made."""

    who: str
    label: str
    number: int
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def __str__(self):
        return f"{self.who} {self.label}"


class Gates:
    """All calls that wait, oldest first."""

    def __init__(self):
        self.waiting = []
        self.is_open, self.is_over = True, False
        self.heard = {}
        """What each process has heard, as one number."""
        self._count = Counter()

    async def passing(self, label, call):
        """Do this when the gate opens; what comes of it is all that the process hears."""
        who = _who.get()
        self._count[who] += 1
        gate = Gate(who, label, self._count[who])
        if not self.is_open and not self.is_over:
            self.waiting.append(gate)
            try:
                await gate.event.wait()
            finally:
                if gate in self.waiting:  # it was cancelled, as by /stop
                    self.waiting.remove(gate)
        if self.is_over:
            raise StoreError("this run has ended")
        try:
            result = await call()
        except Exception as error:
            self.note(who, gate.number, label, repr(error))
            raise
        self.note(who, gate.number, label, told(result))
        return result

    def note(self, who, *heard):
        self.heard[who] = hash((self.heard.get(who), *heard))

    def open(self, gate):
        self.waiting.remove(gate)
        gate.event.set()

    def forget(self, who):
        """Nothing of this process ever goes on."""
        self.waiting = [gate for gate in self.waiting if gate.who != who]
        self.heard[who] = "dead"


class GatedDatabase:
    """The rows that all share, as one process calls them."""

    def __init__(self, rows, gates, figures):
        self._rows, self._gates, self._figures = rows, gates, figures

    def __getattr__(self, name):
        method = getattr(self._rows, name)
        if name in {"owing", "glances", "names", "bindings"}:
            return partial(self._listed, name, method)
        return partial(self._called, name, method)

    async def _called(self, name, method, *args, **named):
        done = await self._gates.passing(name, partial(method, *args, **named))
        if name == "commit" and done != args[0].revision:
            self._figures.conflicts += 1
        return done

    async def _listed(self, name, method, *args, **named):
        async def all_of():
            return [each async for each in method(*args, **named)]

        for each in await self._gates.passing(name, all_of):
            yield each


class Chat:
    """A channel that remembers what was sent."""

    name, streams = "test", False

    def __init__(self, world):
        self._world = world
        self.confirms = world.scenario.confirms

    async def run(self, bus):
        pass

    async def send(self, item):
        async def sent():
            self._world.sent.append((item.kind, item.id if item.kind == "answer" else item.text))

        await self._world.gates.passing(f"send {item.kind}", sent)


_LARGE = 1_000_000_000
_PASSING = {"commit", "updated_at", "created_at", "expires_at", "timestamp", "age", "pid"}
"""The names of what says when, or is chance."""


def told(value):
    """A value without times and chance, to be compared."""
    if isinstance(value, Mapping):
        return tuple((name, told(each)) for name, each in value.items() if name not in _PASSING)
    if is_dataclass(value):
        names = [each.name for each in fields(value) if each.name not in _PASSING]
        return tuple(told(getattr(value, name)) for name in names)
    if isinstance(value, set | frozenset):
        return tuple(sorted(map(str, value)))
    if isinstance(value, list | tuple):
        return tuple(map(told, value))
    if isinstance(value, float | datetime) or (isinstance(value, int) and value > _LARGE):
        return None
    return value


# The world


class Process:
    """A daemon of its own: its cache, its workers, its watch and its memory of what it has sent."""

    def __init__(self, world, who):
        self.who = who
        self._world = world
        store = world.store()
        bus = InProcessBus()
        bus.attach(Chat(world))
        provider = ScriptedProvider(otherwise=world.answer, keep_calls=0)
        self.loop = AgentLoop(
            provider=provider,
            store=store,
            bus=bus,
            agent=PAYING,
            summarizer=Summarizer(ScriptedProvider(otherwise=world.fold, keep_calls=0)),
            message_buffer_limit=world.scenario.limit,
            message_buffer_min=world.scenario.keep,
        )
        self.loop.nodes.me = who
        self.is_looking = False

    async def run(self):
        await self.loop.run()
        raise Wrong(f"{self.who} has ended by itself")

    async def hand_in(self, index, item):
        outcome = await self.loop.bus.hand_in(item.inbound())
        self._world.acknowledge(index, outcome)

    async def look(self):
        """What its beat and its watch do every now and then."""
        self.is_looking = True
        await self.loop.nodes.beat()
        await self.loop._chats.look()
        await self.loop._chats.take_up_summaries()
        self.is_looking = False

    def sleep(self):
        """Be silent for so long that others take it for dead."""
        self.loop.nodes._looked_at -= SLEPT_SECONDS


class World:
    """One run: the rows, the processes, and what has come of it so far."""

    def __init__(self, scenario, figures):
        self.scenario, self.figures = scenario, figures
        self.gates = Gates()
        self.rows = InMemoryStore().database
        self.tasks = []
        self.living = {}
        self.asked = 0
        """How often the model was asked for an answer."""
        self.paid = Counter()
        self.ordered = Counter()
        self.sent = []
        self.outcomes = {}
        self.steps = []
        self._next = 0
        self._again = []
        """Items to deliver once more: nobody said that they were kept."""
        self._given = {}
        """To whom each item was handed in last."""
        self.orders = set()
        """Pairs of items of which the first was there first."""
        self._crashes, self._sleeps = scenario.crashes, scenario.sleeps
        self._looks = Counter()
        self._counts = {}
        self.failed = None

    # What the processes are made of

    def store(self):
        store = InMemoryStore()
        store.database = GatedDatabase(self.rows, self.gates, self.figures)
        return store

    async def answer(self, messages, tools, model):
        last = max(i for i, each in enumerate(messages) if each["role"] == "user")
        asked = str(messages[last]["content"])
        results = [each for each in messages[last:] if each["role"] == "tool"]
        if "pay" in asked and len(results) < STEPS_OF_PAYING - 1:  # once more, as models do
            call = ToolCall(id=f"{asked} {len(results)}", name="pay", arguments='{"what": "it"}')
            reply = Reply(tool_calls=(call,))
        elif asked.startswith("order") and not results:
            call = ToolCall(id=asked, name="order", arguments='{"what": "it"}')
            reply = Reply(tool_calls=(call,))
        else:
            reply = Reply(text=f"re: {asked}")

        async def said():
            self.asked += 1
            return reply

        return await self.gates.passing("ask", said)

    async def fold(self, messages, tools, model):
        async def said():
            self.figures.folds += 1
            return Reply(text="Summed up.")

        return await self.gates.passing("fold", said)

    async def pay(self, what):
        async def paid():
            self.paid[what] += 1

        await self.gates.passing("pay", paid)
        await self.gates.passing("paid", _nothing)

    async def order(self, what):
        async def ordered():
            self.ordered[what] += 1

        await self.gates.passing("order", ordered)
        await self.gates.passing("ordered", _nothing)

    def fresh_time(self):
        """What an id is made of: for each process its own count."""
        who = _who.get()
        numbers = self._counts.setdefault(who, count(ord(who[0]) << 16))  # in short ids too
        return next(numbers)

    # Beginning and end of a run

    async def begin(self):
        _world.set(self)
        for who in ("A", "B"):
            await self.start(who)
        for number in range(self.scenario.before):
            self._spawn("A", self.living["A"].loop.bus.hand_in(Item("A", f"b{number}").inbound()))
            await self.settle()
        self.gates.is_open = False
        self.gates.heard.clear()
        self._looks = Counter(dict.fromkeys("AB", self.scenario.looks))

    async def start(self, who):
        self.living[who] = process = Process(self, who)
        self._spawn(who, process.run())
        await self.settle()
        process.loop._chats.watch_over(lambda _: True)

    def _spawn(self, who, work):
        before = _who.set(who)
        self.tasks.append(asyncio.get_running_loop().create_task(work))
        _who.reset(before)

    async def settle(self):
        """Let everything go on until all of it waits."""
        ready = asyncio.get_running_loop()._ready
        await asyncio.sleep(0)
        rounds = 0
        while ready:
            rounds += 1
            if rounds > MOST_ROUNDS:
                raise Wrong("it comes to no rest")
            await asyncio.sleep(0)
        for task in self.tasks:
            if task.done() and not task.cancelled() and task.exception():
                raise Wrong(f"a task has failed: {task.exception()!r}") from task.exception()

    async def finish(self):
        """Have all that is left done, without further crashes."""
        self.steps.append("all goes on")
        rounds = 0
        while rounds < LOOKS_AT_LAST:
            before = self.rows_now(), len(self.sent), dict(self.outcomes)
            self.gates.is_open = True
            for gate in list(self.gates.waiting):
                self.gates.open(gate)
            await self.settle()
            if not self.living:
                await self.start("C")
            while self._again or self._next < len(self.scenario.items):
                self.do(next(c for c in self.choices() if c.startswith("say ")))
                await self.settle()
            for process in self.living.values():
                self._spawn(process.who, process.look())
                await self.settle()
            is_still = before == (self.rows_now(), len(self.sent), self.outcomes)
            rounds = rounds + 1 if is_still else 0

    # Choices

    def choices(self):
        """What may happen next, by name; the first one is what happens if nothing goes wrong."""
        names = [f"gate {index} {gate}" for index, gate in enumerate(self.gates.waiting)]
        if self._again:
            names.append(f"say {self._again[0]}")
        elif self._next < len(self.scenario.items):
            names.append(f"say {self._next}")
        for who in self.living:
            if self._looks[who] and not self.living[who].is_looking:
                names.append(f"look {who}")
            if self._crashes and self.gates.heard.get(who):
                names.append(f"crash {who}")
            if self._sleeps and self.gates.heard.get(who):
                names.append(f"sleep {who}")
        return names

    @property
    def is_quiet(self):
        """Whether no process has died or slept."""
        left = self.scenario.crashes, self.scenario.sleeps
        return (self._crashes, self._sleeps) == left

    def do(self, choice):
        word, what, *_ = choice.split()
        getattr(self, f"_{word}")(what)

    def _gate(self, index):
        gate = self.gates.waiting[int(index)]
        self.steps.append(str(gate))
        self.gates.open(gate)

    def _say(self, number):
        number = int(number)
        if self._again:
            self._again.pop(0)
            self.orders = {pair for pair in self.orders if pair[0] != number}
        else:
            self._next += 1
        item = self.scenario.items[number]
        who = item.to if item.to in {*self.living, "W"} else next(iter(self.living), None)
        if who is None:  # nobody is there: it is said again to the next one that is
            self._again.append(number)
            self._again.sort()
            return
        self.steps.append(f"{who} hears {item.text!r}")
        self.gates.note(who, "hears", number)
        self.orders |= {
            (other, number)
            for other, given in self._given.items()
            if other != number and (given == who or other in self.outcomes)
        }
        self._given[number] = who
        if who == "W":
            self._spawn("W", self._rename(number, item.text))
        else:
            self._spawn(who, self.living[who].hand_in(number, item))

    async def _rename(self, number, title):
        sessions = Sessions(self.store())
        await sessions.rename(await sessions.current(KEY), title)
        self.acknowledge(number, "kept")

    def acknowledge(self, number, outcome):
        if outcome not in {"kept", "repeated"}:
            raise Wrong(f"{self.scenario.items[number].text!r} was {outcome}")
        self.figures.repeats += outcome == "repeated"
        self.outcomes[number] = outcome

    def _look(self, who):
        self.steps.append(f"{who} looks around")
        self._looks[who] -= 1
        self.gates.note(who, "looks")
        self._spawn(who, self.living[who].look())

    def _crash(self, who):
        self.steps.append(f"{who} dies")
        self.figures.crashes += 1
        self._crashes -= 1
        del self.living[who]
        self.gates.forget(who)
        self._gone(who)
        lost = (n for n, given in self._given.items() if given == who and n not in self.outcomes)
        self._again = sorted({*self._again, *lost})

    def _sleep(self, who):
        self.steps.append(f"{who} sleeps")
        self.figures.sleeps += 1
        self._sleeps -= 1
        self.gates.note(who, "sleeps")
        self.living[who].sleep()
        self._gone(who)

    def _gone(self, who):
        self.rows._nodes.pop(who, None)
        for other in self.living:
            self._looks[other] += 1

    # What there is

    def rows_now(self):
        return told(vars(self.rows))

    def state(self):
        """All that decides what may happen from here on, and what is checked."""
        return hash(
            (
                self.rows_now(),
                frozenset(self.gates.heard.items()),
                (self._next, *self._again, -1, self._crashes, self._sleeps),
                frozenset(self._looks.items()),
                frozenset(self.orders),
                frozenset(self.paid.items()),
                frozenset(self.ordered.items()),
                self.asked,
                frozenset(Counter(self.sent).items()),
                frozenset(self.outcomes),
            )
        )


async def _nothing():
    return None


# What must always hold


@dataclass
class Conversation:
    """What the store has of one of the chat's conversations."""

    id: str
    head: Mapping
    title: str
    approvals: Mapping
    log: list
    """The entries that are in the present history, but for those that were taken back."""
    waiting: list

    @classmethod
    def of(cls, name, row):
        about = row.sections.get("about", {})
        return cls(
            id=name,
            head=row.head,
            title=about.get("title", ""),
            approvals=row.sections.get("approvals") or {},
            log=[entry for entry in row.entries if is_visible(row.head, entry.seq)],
            waiting=[Entry.from_dict(each) for each in row.sections.get("waiting", ())],
        )

    @property
    def questions(self):
        return [e for e in self.log if e.role == "user" and e.metadata.get("origin") != AMENDMENT]

    @property
    def answers(self):
        """Of each question what was said to it, but for what was broken off."""
        found, places = {}, {}
        for entry in self.log:
            if entry in self.questions:
                found[entry.metadata["message_id"]] = places[entry.seq] = said = []
            elif entry in self.decisions:  # from here on, its turn goes on
                said = places.get(entry.content["question"], [])
            elif found and is_answer(entry):
                said.append(entry)
        return found

    @property
    def decisions(self):
        """What people said to questions about calls."""
        return [e for e in self.log if e.type == APPROVAL and "answer" in e.content]

    @property
    def paused(self):
        """The questions that were answered with a question about a call, so far the last word."""
        places, asked = {}, None
        for entry in self.log:
            if entry in self.questions:
                asked = entry.seq
                places[asked] = False
            elif entry in self.decisions:
                asked = entry.content["question"]
                places[asked] = False
            elif entry.type == APPROVAL:
                places[asked] = True
        return {e.metadata["message_id"] for e in self.questions if places[e.seq]}


def is_answer(entry):
    is_whole = not entry.metadata.get("stopped")
    return entry.role == "assistant" and entry.type == "message" and is_whole


def conversations(world):
    """Those of the chat, in the order in which it went from one to the next."""
    found, name = [], KEY
    while name in world.rows._rows and name not in {each.id for each in found}:
        found.append(Conversation.of(name, world.rows._rows[name]))
        name = found[-1].head.get("moved")
    return found


@dataclass
class Places:
    """Where each message of the chat is."""

    asked: dict = field(default_factory=dict)
    """The conversation and the number of each that has its place in a log."""
    waiting: dict = field(default_factory=dict)
    """The conversation and the place in the line of each that waits."""

    @classmethod
    def of(cls, found):
        places = cls()
        for number, conversation in enumerate(found):
            for entry in conversation.questions:
                name = entry.metadata["message_id"]
                if name in places.asked:
                    raise Wrong(f"{name!r} is asked twice")
                places.asked[name] = number, entry.seq
            for place, entry in enumerate(conversation.waiting):
                places.waiting.setdefault(entry.metadata["message_id"], (number, place))
        return places


def check(world):
    """Raise `Wrong` where something does not hold that holds at any instant."""
    found = conversations(world)
    places = Places.of(found)
    _check_kept(world, found, places)
    _check_order(world, places)
    for conversation in found:
        for name, said in conversation.answers.items():
            if len(said) > 1:
                raise Wrong(f"{name!r} has {len(said)} answers")
        _check_coverage(world, conversation.id)
    _check_approved(world, found)
    if sum(world.paid.values()) > sum("pay" in each.text for each in world.scenario.items):
        raise Wrong("it was paid twice")
    for (kind, what), times in Counter(world.sent).items():
        if kind == "error":
            raise Wrong(f"the chat is told {what!r}")
        if kind == "answer" and times > 1 and world.is_quiet:
            raise Wrong("an answer was sent twice")


def _check_approved(world, found):
    """Nothing runs without a yes in the log, and nothing runs twice."""
    given = sum(e.content["answer"] == "yes" for each in found for e in each.decisions)
    if sum(world.ordered.values()) > given:
        raise Wrong(f"{world.ordered} ran and {given} were approved")


def _check_decided(found):
    """Each yes and each no has come to something, and each question was put to the chat."""
    for each in found:
        for approval in each.approvals.get("open", ()):
            if (approval["state"], approval["is_told"]) != ("asked", True):
                raise Wrong(f"an approval is left: {approval}")
        results = [e for e in each.log if e.type == TOOL_RESULT and APPROVED in e.metadata]
        numbers = [e.metadata[APPROVED] for e in results]
        decided = [e.content["number"] for e in each.decisions]
        if len(set(numbers)) < len(numbers) or not set(decided) <= set(numbers):
            raise Wrong(f"{decided} were decided and {numbers} have a result")


def _check_kept(world, found, places):
    there = places.asked.keys() | places.waiting.keys()
    texts = {
        str(entry.content.get("text")) for each in found for entry in (*each.log, *each.waiting)
    }
    for number in world.outcomes:
        item = world.scenario.items[number]
        if item.is_message and item.text not in there:
            raise Wrong(f"{item.text!r} was acknowledged and is nowhere")
        before = {world.scenario.items[a].text for a, b in world.orders if b == number}
        is_behind = item.edits in before
        if item.edits and is_behind and not any(item.text in text for text in texts):
            raise Wrong(f"{item.text!r} was acknowledged and is nowhere")


def _check_order(world, places):
    items = world.scenario.items
    said = {(items[first].text, items[second].text) for first, second in world.orders}
    for first, second in world.orders:
        one, other = items[first].text, items[second].text
        if (other, one) in said:  # one of them came twice
            continue
        asked = places.asked.get(one), places.asked.get(other)
        waits = places.waiting.get(one), places.waiting.get(other)
        if all(asked) and asked[1] < asked[0]:
            raise Wrong(f"{other!r} was asked before {one!r}")
        if waits[0] and asked[1] and not asked[0]:
            raise Wrong(f"{other!r} has overtaken {one!r}, which waits")
        if all(waits) and waits[1] < waits[0]:
            raise Wrong(f"{other!r} waits before {one!r}")
        if one.startswith("/new") and asked[1]:
            _check_left(world, places, first, asked[1][0])


def _check_left(world, places, command, conversation):
    """What came before /new is in an earlier conversation than what came behind it."""
    items = world.scenario.items
    for earlier in (a for a, b in world.orders if b == command):
        asked = places.asked.get(items[earlier].text)
        if asked and asked[0] >= conversation:
            raise Wrong(f"{items[command].text!r} has not ended the conversation before it")


def _check_coverage(world, name):
    row = world.rows._rows[name]
    store = InMemoryStore()
    session = store._snapshot(row.stored(0), after=0).to_session(utc_now)
    if violations := coverage_of(session).violations:
        raise Wrong(f"{name}: {'; '.join(violations)}")


def check_end(world):
    """Raise `Wrong` where something is left undone though all has gone on for long enough."""
    check(world)
    items = world.scenario.items
    found = conversations(world)
    if missing := [each.text for number, each in enumerate(items) if number not in world.outcomes]:
        raise Wrong(f"nobody has acknowledged {missing}")
    for name, row in world.rows._rows.items():
        owed = {each: row.head.get(each) for each in ("awaiting", "waiting", "unsent")}
        if any(owed.values()):
            raise Wrong(f"{name} still owes {owed}")
    answers = {name: said for each in found for name, said in each.answers.items()}
    paused = {name for each in found for name in each.paused}
    unanswered = [name for name, said in answers.items() if not said and name not in paused]
    _check_decided(found)
    if len(unanswered) > sum(each.text == "/stop" for each in items):
        raise Wrong(f"{unanswered} have no answer")
    if len(found) != 1 + len({each.text for each in items if each.text.startswith("/new")}):
        raise Wrong(f"there are {len(found)} conversations")
    _check_asked(world)
    titles = [each.text for each in items if each.to == "W"]
    if titles and titles[-1] not in {each.title for each in found}:
        raise Wrong(f"none has the title {titles[-1]!r}")
    sent = {what for kind, what in world.sent if kind == "answer"}
    if world.scenario.confirms or world.is_quiet:
        asked = [
            [e for e in each.log if e.type == APPROVAL and "asks" in e.content] for each in found
        ]
        for said in (*answers.values(), *asked):
            if any(entry.id not in sent for entry in said):
                raise Wrong("an answer was never sent")


def _check_asked(world):
    """The model is asked again only where something has happened to a question or a process."""
    items, scenario = world.scenario.items, world.scenario
    steps = {each.text: STEPS_OF_PAYING if "pay" in each.text else 1 for each in items}
    steps |= {text: STEPS_OF_ORDERING for text in steps if text.startswith("order")}
    questions = sum(steps[text] for text in {each.text for each in items if each.is_message})
    mishaps = scenario.crashes - world._crashes + sum(bool(each.edits) for each in items)
    # Who slept is taken for dead until the next beat, whatever it begins until then.
    asleep = questions * (scenario.sleeps - world._sleeps)
    most = scenario.before + questions + mishaps * max(steps.values()) + asleep
    if world.asked > most:
        raise Wrong(f"the model was asked {world.asked} times and not {most}")


# Going through them


def explore(scenario, *, most=None, seed=0):
    """Go through all choices, or so many states of them; raises `Wrong`, with the way there."""
    figures, seen, branches = Figures(), set(), [()]
    chance = random.Random(seed)
    with Still():
        while branches and (most is None or len(seen) < most):
            # Anywhere: what is left out is then of all kinds.
            index = chance.randrange(len(branches))
            branches[index], branches[-1] = branches[-1], branches[index]
            world = World(scenario, figures)
            asyncio.run(_run(world, branches.pop(), seen=seen, branches=branches, chance=chance))
            figures.executions += 1
    figures.states, figures.left = len(seen), len(branches)
    return figures


async def _run(world, prefix, *, seen, branches, chance):
    with patch("nanoloop.session.entry.time_ns", world.fresh_time):
        try:
            await world.begin()
            taken = list(prefix)
            for choice in prefix:
                world.do(choice)
                await world.settle()
            while True:
                check(world)
                state = world.state()
                if state in seen:
                    return
                seen.add(state)
                world.figures.steps += 1
                choices = world.choices()
                usual = [each for each in choices if not each.startswith(("crash", "sleep"))]
                # One of them, by chance, so that also those runs differ that are not all.
                step = chance.choice(usual) if usual else None
                branches += [(*taken, each) for each in choices if each != step]
                if step is None:
                    break
                if len(taken) > MOST_STEPS:
                    raise Wrong("it goes round in circles")
                taken.append(step)
                world.do(step)
                await world.settle()
            world.figures.endings += 1
            await world.finish()
            check_end(world)
        except AssertionError as wrong:
            steps = "\n  ".join(world.steps)
            raise Wrong(f"{wrong}\n  {steps}\n{world.sent}") from wrong
        finally:
            world.gates.is_over = True


def _in_no_thread(call):
    async def called(*args, **named):
        return call(*args, **named)

    return called


class Still:
    """No time passes, and nothing is left to chance."""

    def __enter__(self):
        self._stack = ExitStack()
        zero = type("Zero", (), {"getrandbits": staticmethod(lambda _: 0)})()
        clock = type("Clock", (datetime,), {"now": classmethod(lambda *_: NOW)})
        for name, value in {
            "nanoloop.nodes.BEAT_SECONDS": NEVER_SECONDS,
            "nanoloop.nodes.LOOK_SECONDS": NEVER_SECONDS,
            "nanoloop.writing.BETWEEN_TRIES_SECONDS": (0, 0),
            "nanoloop.stores.store.first_revision": lambda: 1,
            "nanoloop.stores.store.wrap": _in_no_thread,
            "nanoloop.session.entry._random": zero,
            "nanoloop.sessions.datetime": clock,
        }.items():
            self._stack.enter_context(patch(name, value))

    def __exit__(self, *_):
        self._stack.close()
