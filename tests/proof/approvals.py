"""`kill -9` of a daemon in each state of an approval: what ran, how often, and on whose yes.

The far side is a file, to which each call adds a line. What the daemon waits for is a named pipe or
a held answer of the model's server, so that it dies where it is meant to.
"""

import json
import os
import time
from collections import Counter, defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median

import anyio
import httpx2

from nanoloop.session.approvals import APPROVED
from nanoloop.session.chat import results_by_call
from nanoloop.session.entry import TOOL_CALL
from nanoloop.stores.opening import Opening
from tests.openai_server import Answer, OpenAIServer
from tests.proof.drive import Broken
from tests.proof.ledger import HEADERS, Daemon, daemon_environment
from tests.proof.victims import ROOT, url_in

MODULE = '''
import os
from pathlib import Path

from nanoloop import current_call, tool

HERE = Path(os.environ["HERE"])


def work(what, number):
    call = current_call()
    wait(f"before-{what}-{number}-{call.attempt}")
    with (HERE / "ledger").open("a") as ledger:
        ledger.write(f"{number} {what} {call.call} {call.attempt}\\n")
    wait(f"behind-{what}-{number}-{call.attempt}")
    return f"{what} {number} done"


def wait(name):
    if (gate := HERE / name).exists():
        gate.read_text()


@tool(approve="always")
def pay(number: int) -> str:
    """Pay."""
    return work("pay", number)


@tool(approve="always", effect="reads")
def look(number: int) -> str:
    """Look, if a person agrees."""
    return work("look", number)


@tool(effect="reads")
def glance(number: int) -> str:
    """Look, without asking."""
    return work("glance", number)
'''
STATES = ("asked", "given", "started", "finished")
KINDS = {
    "untold": "asked",
    "asked": "asked",
    "given": "given",
    "before": "started",
    "behind": "started",
    "finished": "finished",
    "answered": "finished",
    "taken": None,
}
"""At which moments the daemon is killed, and in which state the call is then.

`untold`: asked, and the chat has not been told. `before` and `behind` the line in the ledger.
`taken`: right after the yes was acknowledged, in whichever state that is; it is not sent again.
"""
MOMENTS = (
    *("untold", "given", "before", "finished", "asked", "given", "behind", "answered"),
    *("asked", "taken"),
)
WORDS = {"asked": ("yes", "no", "", "yes"), "untold": ("yes", "", "no")}
"""What is answered then, one after the other; "" is nothing at all. Otherwise it is a yes."""
INTERRUPTED = "it is unknown whether it took effect"
WAIT_SECONDS = 60
LOOK_SECONDS = 0.005


@dataclass(kw_only=True)
class Round:
    """One chat and one call that needs a yes."""

    number: int
    moment: str
    """When the daemon is killed; "" if it isn't."""
    word: str
    tool: str
    chat: str = ""
    state: str = ""
    """The state of the call when the daemon was killed."""
    seconds: float = 0.0
    """From the yes to the answer in the chat."""
    start_seconds: float = 0.0
    """How much of that the daemon took to start again."""

    @property
    def text(self):
        return f"go {self.number} {self.tool}"


@dataclass(kw_only=True)
class Till:
    """A daemon with tools that ask first, its model, its ledger and its gates."""

    folder: Path
    url: str
    held: set = field(default_factory=set)
    """The texts of which the model's server keeps the answers back."""
    kills: Counter = field(default_factory=Counter)
    rounds: list = field(default_factory=list)

    def __post_init__(self):
        self.folder = Path(self.folder)
        self.server = OpenAIServer(otherwise=self._talk, keep=1)
        self.seen = Counter()
        """How often the model was asked, by what it was asked."""
        tools = self.folder / "data" / "tools"
        tools.mkdir(parents=True, mode=0o700)
        tools.parent.chmod(0o700)
        (tools / "mine.py").write_text(MODULE)
        (self.folder / "ledger").touch()

    def environment(self):
        return {
            **daemon_environment(self.folder, self.url, self.server.url),
            "HERE": str(self.folder),
            "NANOLOOP_CHANNELS__WEB__TOKENS__ALICE__MAY_USE": "commands",
            "NANOLOOP_LOOP__MAX_CONCURRENT_TURNS": "1",
            "NANOLOOP_TOOLS__FUNCTIONS": json.dumps({n: f"mine:{n}" for n in TOOLS}),
        }

    # The model

    def _talk(self, request):
        """Ask for the calls, then tell what the approved one returned."""
        messages = request.json["messages"]
        said = [m["content"] for m in messages if m["role"] == "user"]
        word, number, *rest = said[0].split()
        if word == "wait":
            text = said[0]
        elif messages[-1]["role"] == "user":
            asked = ((f"{n}-{number}", n, f'{{"number": {number}}}') for n in (*rest, "glance"))
            return Answer(tool_calls=tuple(asked))
        else:
            text = f"told {number}"
        self.seen[text] += 1
        return Answer(text=text, held=text in self.held)

    # The far side

    def close_gate(self, name):
        os.mkfifo(self.folder / name)

    def open_gates(self):
        for gate in self.folder.glob("be*-*-*-*"):
            gate.unlink()

    @property
    def ledger(self):
        """What each call did, by the number of its round: tool, our id of the call, attempt."""
        lines = (self.folder / "ledger").read_text().splitlines()
        found = defaultdict(list)
        for number, *line in map(str.split, lines):
            found[int(number)].append(tuple(line))
        return found

    # The log

    @asynccontextmanager
    async def store(self):
        store = Opening(data=ROOT, read_only=True).open(self.url)
        try:
            yield store
        finally:
            await store.close()

    async def state(self, store, one):
        """The state of a round's call, as the log has it; "" if there is no such call yet."""
        session = await store.load(one.chat)
        mine = [each for each in session.approvals.open if each.tool == one.tool]
        if mine:
            return mine[0].state, mine[0].is_told
        entries = await store.entries(one.chat)
        is_closed = any(APPROVED in entry.metadata for entry in entries)
        return ("finished" if is_closed else ""), False

    async def until(self, holds):
        """Wait until this holds, of the processes' files."""
        with anyio.fail_after(WAIT_SECONDS):
            while not await holds():  # noqa: ASYNC110 - another process tells nobody
                await anyio.sleep(LOOK_SECONDS)

    async def until_in(self, one, wanted, *, told=True):
        """Wait until the log has a round's call in this state, and its question `told`."""
        async with self.store() as store:

            async def is_there():
                state, is_told = await self.state(store, one)
                return state == wanted and (is_told or not told)

            await self.until(is_there)

    async def until_ledger(self, one, what):
        async def is_there():
            return any(line[0] == what for line in self.ledger[one.number])

        await self.until(is_there)

    async def until_seen(self, text):
        async def is_there():
            return self.seen[text] > 0

        await self.until(is_there)


TOOLS = ("pay", "look", "glance")


class People:
    """Those who write to the daemon, and send again what it has not acknowledged."""

    def __init__(self, daemon, client):
        self._daemon = daemon
        self._client = client

    async def begin(self):
        made = await self._client.post(f"{self._daemon.url}/api/sessions", json={})
        if made.status_code != 201:
            raise Broken(f"no session could be made: {made.status_code} {made.text}")
        return made.json()["id"]

    async def say(self, chat, text, name):
        """Send it, and again until it is acknowledged."""
        said = {"text": text, "message_id": f"{name}-00000000"}
        while True:
            with suppress(httpx2.HTTPError):
                path = f"{self._daemon.url}/api/sessions/{chat}/messages"
                response = await self._client.post(path, json=said, timeout=3)
                if response.status_code == 202:
                    return
                if response.status_code not in {429, 503}:
                    raise Broken(f"{path} said {response.status_code}: {response.text}")
            await anyio.sleep(0.05)

    async def hear(self, chat, text):
        """Wait until the chat has this answer."""
        path, shown = f"{self._daemon.url}/api/sessions/{chat}/messages", []
        with anyio.move_on_after(WAIT_SECONDS):
            while True:
                with suppress(httpx2.HTTPError):
                    shown = (await self._client.get(path, timeout=3)).json()["messages"]
                    if any(m["role"] == "assistant" and m["text"] == text for m in shown):
                        return
                await anyio.sleep(LOOK_SECONDS)
        raise Broken(f"{chat} is never told {text!r}; it has {shown[-6:]}")


class Killer:
    """Plays one round after the other, with a kill in the middle of each."""

    def __init__(self, till, daemon, people):
        self._till = till
        self._daemon = daemon
        self._people = people

    async def play(self, one):
        till, people = self._till, self._people
        one.chat = await people.begin()
        if one.moment == "untold":
            till.close_gate(f"behind-glance-{one.number}-1")
        if one.moment in {"before", "behind"}:
            till.close_gate(f"{one.moment}-{one.tool}-{one.number}-1")
        if one.moment in {"finished", "answered"}:
            till.held.add(f"told {one.number}")
        await people.say(one.chat, one.text, f"go-{one.number}")
        await till.until_in(one, "asked", told=one.moment != "untold")
        if KINDS.get(one.moment) == "asked":
            if one.moment == "untold":
                await till.until_ledger(one, "glance")
            await self._kill(one)
            await till.until_in(one, "asked")  # nobody answers what they have not seen
        began = time.monotonic()
        if one.word:
            await self._decide(one)
            await people.hear(one.chat, f"told {one.number}")
        one.seconds = time.monotonic() - began

    async def _decide(self, one):
        till = self._till
        blocker = f"wait {one.number}"
        if one.moment == "given":  # there is one turn at a time, and this takes it
            till.held.add(blocker)
            other = await self._people.begin()
            await self._people.say(other, blocker, f"wait-{one.number}")
            await till.until_seen(blocker)
        await self._answer(one)
        if one.moment == "given":
            await till.until_in(one, "given")
        elif one.moment == "before":
            await till.until_in(one, "started")
        elif one.moment == "behind":
            await till.until_ledger(one, one.tool)
        elif one.moment in {"finished", "answered"}:
            await till.until_seen(f"told {one.number}")
        if one.moment == "answered":
            till.held.clear()
            till.server.release()
            await self._people.hear(one.chat, f"told {one.number}")
        if one.moment and KINDS[one.moment] != "asked":
            await self._kill(one)
            if one.moment != "taken":
                await self._answer(one)  # as after a reply that was lost

    async def _answer(self, one):
        await self._people.say(one.chat, f"/{one.word} 1", f"{one.word}-{one.number}")

    async def _kill(self, one):
        """Kill the daemon, look at the state that it leaves, and start it again."""
        till = self._till
        await self._daemon.kill()
        till.held.clear()
        till.server.release()
        till.open_gates()
        async with till.store() as store:
            one.state, is_told = await till.state(store, one)
        wanted = KINDS[one.moment]
        if wanted not in {None, one.state} or (one.moment == "untold" and is_told):
            raise Broken(f"round {one.number} was to be killed {one.moment}, and was {one.state}")
        till.kills[one.state] += 1
        began = time.monotonic()
        await self._daemon.start()
        one.start_seconds = time.monotonic() - began


def rounds_for(kills, plain):
    """The rounds: each moment in turn, and some without a kill."""
    words = {moment: iter(given * kills) for moment, given in WORDS.items()}
    tools = {moment: iter(("pay", "pay", "look") * kills) for moment in KINDS}
    numbers = count(1)
    for index in range(kills):
        moment = MOMENTS[index % len(MOMENTS)]
        word = next(words[moment]) if moment in words else "yes"
        yield Round(number=next(numbers), moment=moment, word=word, tool=next(tools[moment]))
        if index % max(1, kills // plain) == 0:
            yield Round(number=next(numbers), moment="", word="yes", tool="pay")


async def check(till, one, store):
    """What is wrong with a round, by its log and its ledger."""
    entries = list(await store.entries(one.chat))
    session = await store.load(one.chat)
    lines = till.ledger[one.number]
    calls = Counter(entry.content["tool"] for entry in entries if entry.type == TOOL_CALL)
    results = {
        entries[call].content["tool"]: entries[result].content
        for call, result in results_by_call(entries).items()
    }
    if calls != {one.tool: 1, "glance": 1}:
        yield f"the model's calls are {dict(calls)}"
    if len({name for what, name, _ in lines if what == one.tool}) > 1:
        yield "a call has two ids"
    if not results.get("glance", {}).get("success"):
        yield "the call that needs no yes has no result"
    times = sum(what == one.tool for what, *_ in lines)
    looked_at = check_approved if one.word == "yes" else check_refused
    for wrong in looked_at(one, session, times, results.get(one.tool) or {}):
        yield wrong


def check_refused(one, session, times, _):
    if times:
        yield f"it ran after {one.word or 'no answer'!r}"
    is_asked = [each.state for each in session.approvals.open] == ["asked"]
    if is_asked != (one.word == ""):
        yield "the question is lost, or still there after a no"


def check_approved(one, session, times, result):
    if session.approvals.open or session.awaiting or session.waiting or session.unsent:
        yield "work is left"
    if one.tool == "look":
        if not result.get("success") or not times:
            yield f"a call that only reads has the result {result}"
        return
    is_unknown = INTERRUPTED in str(result.get("error"))
    if is_unknown != (one.state == "started") or is_unknown == bool(result.get("success")):
        yield f"its result is {result}"
    may = {"before": {0}, "taken": {0, 1} if is_unknown else {1}}.get(one.moment, {1})
    if times not in may:
        yield f"it ran {times} times"


async def prove_approvals(folder, store, *, kills=300, plain=None):
    """Kill so many times, in each state; raises `Broken`. Returns what to say of it."""
    till = Till(folder=folder, url=url_in(folder, store))
    wrong = []
    async with till.server, httpx2.AsyncClient(headers=HEADERS) as client:
        daemon = Daemon(folder, till.environment())
        killer = Killer(till, daemon, People(daemon, client))
        try:
            await daemon.start()
            for one in rounds_for(kills, plain or max(1, kills // 10)):
                till.rounds.append(one)
                try:
                    await killer.play(one)
                except TimeoutError:  # a state that does not come
                    raise Broken(f"{one} does not end:\n{daemon.tail()}") from None
            async with till.store() as opened:
                for one in till.rounds:
                    wrong += [f"{one}: {what}" async for what in check(till, one, opened)]
        finally:
            with anyio.CancelScope(shield=True):
                await daemon.kill()
    if wrong:
        raise Broken("\n".join(wrong[:20]))
    return report(till, kills)


def report(till, kills):
    few = {state: till.kills[state] for state in STATES if till.kills[state] < kills // 5}
    if few or till.kills.total() != kills:
        raise Broken(f"too few kills in these states: {few or till.kills}; this proves nothing")
    states = ", ".join(f"{state} {till.kills[state]}" for state in STATES)
    words = Counter(one.word or "no answer" for one in till.rounds)
    told = ", ".join(f"{word} {times}" for word, times in words.most_common())
    killed = [one for one in till.rounds if one.moment == "taken"]
    return (
        f"{till.kills.total()} kills ({states}) among {len(till.rounds)} questions ({told}): "
        "none ran without a yes, none ran twice, no yes was lost, all reads have a result\n"
        f"from the yes to the answer: {seconds_of(one for one in till.rounds if not one.moment)}\n"
        f"over a kill and a restart: {seconds_of(killed)}, "
        f"of which the start takes {seconds_of(killed, 'start_seconds')}"
    )


def seconds_of(rounds, name="seconds"):
    taken = sorted(getattr(one, name) for one in rounds)
    if not taken:
        return "not measured"
    return f"p50 {median(taken):.3f} s, max {taken[-1]:.3f} s of {len(taken)}"
