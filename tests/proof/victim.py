"""A process that is killed: it forks a child for each job, so that imports are paid for once.

A job is a line of JSON on standard input; what the child does is told in lines on standard output:
`pid 7`, `ack m1z`, `sent m1z answer`, and at last from the parent `ended 9`.
"""

import json
import os
import signal
import sys
from pathlib import Path

import anyio

from nanoloop import Agent, AgentLoop, Inbound, Summarizer, tool
from nanoloop.bus import InProcessBus
from nanoloop.errors import SessionNotFound
from nanoloop.events import hearing
from nanoloop.messages import Delivery
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.openai import OpenAIProvider
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.head import SUMMARY
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.opening import Opening
from nanoloop.stores.snapshot import encoded
from nanoloop.stores.sqlite_file import SqliteConnector
from nanoloop.testing.trial import pair_violations
from tests.proof.commits import parts_of

DIGESTER = "digester"
LIMIT, KEEP = 4, 2
SECONDS = 30
STDOUT = 1
write = os.write


def tell(*words):
    write(STDOUT, (" ".join(words) + "\n").encode())


class Death:
    """Kills the process when a point is passed for the n-th time."""

    def __init__(self, at, count):
        self.at = at
        self._left = count
        self._held = []

    def passed(self, point):
        if point != self.at:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event):
        self.passed(f"event {event.name()}")

    def write(self, fd, data):
        """As `os.write`, for files: dies before, behind a part, or after."""
        data = bytes(data)
        held = held_in(data)
        for what in held:
            self.passed(f"before {what}")
        part = self._part(data, held)
        write(fd, data[:part])
        for what in held:
            self.passed(f"half {what}")
            self.passed(f"torn {what}")
        write(fd, data[part:])
        for what in held:
            self.passed(f"after {what}")
        return len(data)

    def _part(self, data, held):
        """Where a write is parted: in its first line, or in its last, which makes it a commit."""
        kind, _, what = self.at.partition(" ")
        if what not in held or kind not in {"half", "torn"}:
            return 0
        return data.index(b"\n") // 2 if kind == "half" else len(data) - 9

    def prepared(self, opening):
        """A connection of the SQLite store's: dies between two statements, or before the last."""
        connection = prepared(opening)
        connection.set_trace_callback(self._trace)
        return connection

    def _trace(self, statement):
        for what in self._held:
            self.passed(f"torn {what}" if statement == "COMMIT" else f"half {what}")

    async def commit(self, database, commit, now):
        """As a database's: dies before, or after."""
        self._held = held_in(b"\n".join([*commit.texts, encoded(commit.sections)]))
        self._held += ["digest"] * (SUMMARY in commit.sections)
        held = self._held
        for what in held:
            self.passed(f"before {what}")
        stood = await database.commit(commit, now=now)
        for what in held:
            self.passed(f"after {what}")
        return stood


class Watched:
    """A database whose commits are points to die at."""

    def __init__(self, database, death):
        self._database = database
        self._death = death

    def __getattr__(self, name):
        return getattr(self._database, name)

    async def commit(self, commit, *, now):
        return await self._death.commit(self._database, commit, now)


prepared = SqliteConnector._prepared


def held_in(data):
    return [what for what, sign in WRITTEN.items() if sign in data]


WRITTEN = {
    "digest": b'"name":"summary"',
    "user": b'"role":"user"',
    "answer": b'"role":"assistant"',
    "call": b'"type":"tool_call"',
    "result": b'"type":"tool_result"',
}


class Chats:
    name = "test"
    streams = True

    def __init__(self, death):
        self._death = death
        self.told = set()
        self.news = anyio.Event()

    async def run(self, bus):
        pass

    async def send(self, item):
        if not hasattr(item, "kind"):
            self._death.passed("piece")
            return
        self._death.passed("sending")
        tell("sent", item.reply_to, item.kind)
        self.told.add(item.reply_to)
        self.news.set()
        self._death.passed("sent")


class Bus(InProcessBus):
    """Tells of each message that was acknowledged."""

    def __init__(self, death):
        super().__init__()
        self._death = death

    async def deliveries(self):
        async for delivery in super().deliveries():
            yield Delivery(message=delivery.message, ack=self._telling(delivery))

    def _telling(self, delivery):
        async def ack(outcome="kept"):
            self._death.passed("before ack")
            await delivery.ack(outcome)
            tell("ack", delivery.message.message_id)

        return ack


class Digester:
    """The summary model, with a point behind each answer."""

    def __init__(self, provider, death):
        self._provider = provider
        self._death = death

    async def chat(self, **asked):
        reply = await self._provider.chat(**asked)
        self._death.passed("digested")
        return reply

    async def close(self):
        pass


def store_at(url, death):
    os.write = death.write
    SqliteConnector._prepared = lambda opening: death.prepared(opening)  # noqa: PLW0108 - for a self
    store = Opening(data=Path()).open(url)
    if not isinstance(store, JsonlStore):  # its points are in what is written
        store.database = Watched(store.database, death)
    return store


async def live(job):
    death = Death(job["at"], job["count"])

    @tool
    async def look(mark: str) -> str:
        """Find something.

        Args:
            mark: What to look for.
        """
        death.passed("tool")
        return f"r{mark[1:]} found"

    provider = OpenAIProvider(model="talker", api_key="k", base_url=job["url"], max_retries=0)
    store = store_at(job["store"], death)
    summarizer = Summarizer(Digester(provider, death), DIGESTER, store=store, batch_chars=300)
    loop = AgentLoop(
        provider=provider,
        agent=Agent(prompt="Be brief.", tools=[look]),
        store=store,
        bus=Bus(death),
        summarizer=summarizer,
        message_buffer_limit=LIMIT,
        message_buffer_min=KEEP,
        lane_limit=1000,  # none is refused: what waited for a life that was cut short waits still
    )
    chats = Chats(death)
    loop.bus.attach(chats)
    with anyio.fail_after(SECONDS), hearing(death.hear):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            await loop.recover()
            for mark, chat, text in job["messages"]:
                await loop.bus.put(Inbound(channel="test", chat=chat, text=text, message_id=mark))
            loop.bus.close()
    await provider.close()
    await store.close()


class Telling:
    """A store that tells of each result when it is durable."""

    def __init__(self, store):
        self._store = store
        self._told = set()

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def save(self, session):
        results = [entry for entry in session.window if entry.type == "tool_result"]
        await self._store.save(session)
        for result in results:
            if result.content["success"] and result.id not in self._told:
                self._told.add(result.id)
                tell("kept", result.content["result"].split()[-1])


async def step(job):
    """Have a model ask for all of these tools at once, also where it did so before a kill."""
    calls = [ToolCall(id="", name="work", arguments=f'{{"tool": {tool}}}') for tool in job["tools"]]
    said = [Reply(tool_calls=tuple(calls), finish_reason="tool_calls"), Reply(text="done")]

    @tool
    async def work(tool: int) -> str:
        """Do something that must be done once."""
        with Path(job["ledger"]).open("a") as ledger:  # noqa: ASYNC230 - a line
            ledger.write(f"{job['chat']} {tool}\n")
        seconds = job["tools"][str(tool)]
        if seconds is not None:
            await anyio.sleep(seconds)
        elif "resumes" not in job:  # else nobody had begun it before the kill
            await anyio.sleep_forever()
        return f"done {tool}"

    def answer(messages, *_):
        for problem in pair_violations(messages):
            tell("wrong", problem)
        tell("asked", str(len(messages)))
        return said.pop(0)

    store = Telling(Opening(data=Path()).open(job["store"]))
    provider = ScriptedProvider(otherwise=answer)
    loop = AgentLoop(provider=provider, agent=Agent(tools=[work]), store=store)
    loop.bus.attach(Chats(Death("never", 1)))
    with anyio.fail_after(SECONDS):
        async with anyio.create_task_group() as group:
            await group.start(loop.run)
            if "resumes" in job:
                await loop.recover()
            else:
                first = Inbound(channel="test", chat=job["chat"], text="go", message_id="m")
                await loop.bus.put(first)
            loop.bus.close()
    await store.close()


async def commit(job):
    """Commit to these sessions in turn, until the end."""
    store = Opening(data=Path()).open(job["store"])
    sessions = [await a_session(store, name) for name in job["commits"]]
    while True:
        for session in sessions:
            number = session.state.get("number", 0) + 1
            for part in parts_of(number):
                words = " ".join(map(str, part))
                session.add_message("user", f"{words} {'x' * (number * 97 % 3000)}")
            session.set("number", number)
            session.trim_if_needed(20, 5)
            if number % 5 == 0:
                session.update_summary(f"up to {number}", seq=session.pending_seq)
            await store.save(session)
            tell("ack", session.id)
            session.release()


async def a_session(store, name):
    try:
        return await store.load(name)
    except SessionNotFound:
        return await store.create(id=name)


def main():
    for line in sys.stdin:
        child = os.fork()
        if not child:
            tell("pid", str(os.getpid()))
            job = json.loads(line)
            anyio.run(step if "tools" in job else commit if "commits" in job else live, job)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        tell(
            "ended", str(os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status))
        )


if __name__ == "__main__":
    main()
