"""Two daemons and the command line on one store, killed and stopped at random: what is kept then.

Every message goes to one daemon or the other, and again to any of them until one has kept it.
"""

import math
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path

import anyio
import httpx2

from nanoloop.stores.opening import Opening
from tests.openai_server import Answer, OpenAIServer
from tests.proof.drive import Broken
from tests.proof.marks import marks_of, newest_mark
from tests.proof.victims import ROOT, url_in
from tests.servers.server import free_port

TOKEN = "a-token-of-alice-24-signs"
HEADERS = {"Authorization": f"Bearer {TOKEN}", "X-Nanoloop": "1"}
START_SECONDS = 60
START_LOOK_SECONDS = 0.02
TAKE_OVER_SECONDS = 10
"""After a process died, what it owed is answered within this, and what the model takes."""
MODEL_SECONDS = (0.02, 0.3)
DOWN_SECONDS = 14
"""How long one is left dead, where it is looked at who takes over."""


class Daemon:
    """`nanoloop run` on one port, started again whenever it was killed."""

    def __init__(self, folder, environment):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._environment = {**environment, "NANOLOOP_CHANNELS__WEB__PORT": str(self.port)}
        self.log = Path(folder, f"log-{self.port}")
        self.process = None
        self.is_up = anyio.Event()

    async def start(self):
        with self.log.open("ab") as log:
            self.process = await anyio.open_process(
                [sys.executable, "-m", "nanoloop", "run"],
                cwd=ROOT,
                env=self._environment,
                stdin=None,
                stdout=log,
                stderr=log,
            )
        async with httpx2.AsyncClient() as client:
            with anyio.fail_after(START_SECONDS):
                while True:
                    with suppress(httpx2.HTTPError):
                        if (await client.get(f"{self.url}/healthz")).status_code == 200:
                            break
                    if self.process.returncode is not None:
                        raise Broken(f"a daemon ended by itself:\n{self.tail()}")
                    await anyio.sleep(START_LOOK_SECONDS)
        self.is_up.set()

    async def kill(self):
        self.is_up = anyio.Event()
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.process.aclose()

    def tail(self):
        """The end of its log."""
        return self.log.read_text("utf-8", "replace")[-2000:]

    def signal(self, number):
        self.process.send_signal(number)


def daemon_environment(folder, url, model_url):
    """The settings of a daemon in this folder, as its environment."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("NANOLOOP_", "OPENAI_"))}
    return {
        **clean,
        "NANOLOOP_DATA": str(Path(folder, "data")),
        "NANOLOOP_STORE__URL": url,
        "NANOLOOP_MODEL": "a-model",
        "NANOLOOP_BASE_URL": model_url,
        "NANOLOOP_API_KEY": "a-key",
        "NANOLOOP_CHANNELS__TERMINAL__ENABLED": "false",
        "NANOLOOP_CHANNELS__WEB__ENABLED": "true",
        "NANOLOOP_CHANNELS__WEB__REQUESTS_PER_MINUTE": "100000",
        "NANOLOOP_CHANNELS__WEB__TOKENS__ALICE__TOKEN": TOKEN,
        "NANOLOOP_MESSAGE_BUFFER_LIMIT": "40",
        "NANOLOOP_MESSAGE_BUFFER_MIN": "20",
    }


class Ledger:
    """What was sent, what was kept, what the model was asked, and what became of it."""

    def __init__(self, folder, url, *, chats, messages, seed):
        self.folder, self.url = folder, url
        self.chance = random.Random(seed)
        self.chats = []
        """Their ids."""
        self.wanted = chats
        self._numbers = count(1)
        self._left = messages
        self._due = anyio.Semaphore(0)
        """So many may be said now: each kill has some of them under way."""
        self.sent = {}
        """The marks of each chat, in the order in which they were said."""
        self.kept_at = {}
        self.asked = Counter()
        self.done = Counter()
        """What was done to the processes, and by the command line."""
        self.server = OpenAIServer(otherwise=self._say, keep=1)
        self.daemons = []
        self.titles = {}

    def _say(self, request):
        mark = newest_mark(request.json["messages"])
        self.asked[mark] += 1
        seconds = self.chance.uniform(*MODEL_SECONDS)
        return Answer(text=f"a{mark[1:]} is the answer", delay_seconds=seconds)

    def environment(self):
        return daemon_environment(self.folder, self.url, self.server.url)

    # Who writes

    async def begin(self, client):
        for _ in range(self.wanted):
            made = await client.post(f"{self.daemons[0].url}/api/sessions", json={})
            if made.status_code != 201:
                raise Broken(f"no session could be made: {made.status_code} {made.text}")
            self.chats.append(made.json()["id"])
        self.sent = {chat: [] for chat in self.chats}

    async def talk(self, chat, client):
        """Say one message after the other, whatever becomes of the answers."""
        while self._left > 0:
            await self._due.acquire()
            if self._left == 0:
                return
            self._left -= 1
            mark = self.mark()
            self.sent[chat].append(mark)
            said = {"text": f"{mark} hello", "message_id": f"message-{mark}"}
            await self.post(chat, client, said)
            self.kept_at[mark] = time.monotonic()
            if self.chance.random() < 0.1:  # the same again, to any of them
                await self.post(chat, client, said)
                self.done["sent twice"] += 1

    def mark(self):
        return f"m{next(self._numbers)}z"

    async def post(self, chat, client, said):
        """Send it to one of them, and again until it is kept."""
        while True:
            daemon = self.chance.choice(self.daemons)
            with suppress(httpx2.HTTPError):
                path = f"{daemon.url}/api/sessions/{chat}/messages"
                response = await client.post(path, json=said, timeout=3)
                if response.status_code == 202:
                    return
                if response.status_code not in {429, 503}:
                    raise Broken(f"{path} said {response.status_code}: {response.text}")
            self.done["sent again"] += 1
            await anyio.sleep(0.1)

    async def write_beside(self):
        """What an administrator does meanwhile."""
        for number in count():
            chat, other = self.chance.choice(self.chats), f"other{number // 6}"
            command = (
                ("sessions", "rename", chat, f"title {number}"),
                ("sessions", "fork", chat, "--as", other),
                ("memory", "edit", chat, "--text", f"They say hello, {number}."),
                ("sessions", "archive", chat),
                ("sessions", "undo", other),
                ("sessions", "delete", other, "--yes"),
            )[number % 6]
            done = await anyio.run_process(
                [sys.executable, "-m", "nanoloop", *command],
                cwd=ROOT,
                env=self.environment(),
                check=False,
            )
            words = " ".join(command[:2])
            self.done[words if done.returncode == 0 else f"{words}, refused"] += 1
            if done.returncode and b"Traceback" in done.stderr:
                raise Broken(f"{words} failed:\n{done.stderr.decode()[-1500:]}")
            await anyio.sleep(0.5)

    # Who kills

    async def trouble(self, kills, stop_seconds):
        """Kill and stop them at random, so many times."""
        share = math.ceil(self._left / max(1, 2 * kills))
        for number in range(kills):
            self.let_talk(share)
            await anyio.sleep(self.chance.uniform(0.02, 0.6))
            self.let_talk(share)
            daemon = self.chance.choice(self.daemons)
            if stop_seconds and number % 5 == 4:
                daemon.signal(signal.SIGSTOP)
                await anyio.sleep(stop_seconds)
                daemon.signal(signal.SIGCONT)
                self.done["stops"] += 1
            else:
                await self.kill(daemon, stays_dead=number % 5 == 2)
        self.let_talk(self._left + len(self.chats))

    def let_talk(self, messages):
        for _ in range(messages):
            self._due.release()

    async def kill(self, daemon, *, stays_dead):
        died = time.monotonic()
        await daemon.kill()
        self.done["kills"] += 1
        if stays_dead:
            await anyio.sleep(DOWN_SECONDS)
            await self.expect_answers(died, daemon)
        await daemon.start()

    async def expect_answers(self, died, daemon):
        """What was kept before is answered by the other one."""
        store = self.store()
        for chat in self.chats:
            owed = [mark for mark in self.sent[chat] if self.kept_at.get(mark, died) < died]
            there = await self.marks(store, chat)
            late = [mark for mark in owed if f"a{mark[1:]}" not in there]
            if late:
                raise Broken(f"{chat}: {DOWN_SECONDS} s after {daemon.url} died {late} wait still")
        await store.close()
        self.done["take-overs seen"] += 1

    # What is there

    def store(self):
        return Opening(data=ROOT, read_only=True).open(self.url)

    async def marks(self, store, chat):
        return [m for entry in await store.entries(chat) for m in marks_of(entry)]

    async def until_answered(self):
        store = self.store()
        with anyio.fail_after(120):
            for chat in self.chats:
                wanted = 2 * len(self.sent[chat])
                while len(await self.marks(store, chat)) < wanted:  # noqa: ASYNC110 - of processes
                    await anyio.sleep(0.2)
        await store.close()

    async def check(self):
        wrong = []
        store = self.store()
        for chat in self.chats:
            wanted = [m for mark in self.sent[chat] for m in (mark, f"a{mark[1:]}")]
            if (there := await self.marks(store, chat)) != wanted:
                twice = [mark for mark, times in Counter(there).items() if times > 1]
                lost = [mark for mark in wanted if mark not in there]
                wrong.append(f"{chat}: lost {lost}, twice {twice}, or out of order: {there}")
            session = await store.load(chat)
            if session.awaiting or session.waiting or session.unsent:
                wrong.append(f"{chat} has work left")
        await store.close()
        calls, allowed = self.asked.total(), self.most_calls()
        if calls > allowed:
            again = {mark: times for mark, times in self.asked.items() if times > 1}
            wrong.append(f"{calls} model calls where {allowed} are enough: {again}")
        for daemon in self.daemons:
            log = daemon.log.read_text("utf-8", "replace")
            wrong += [f"a log says: {line}" for line in log.splitlines() if "Traceback" in line]
            wrong += [
                f"a chat was told of it: {line}"
                for line in log.splitlines()
                if "turn_failed" in line
            ]
        if wrong:
            raise Broken("\n".join(wrong[:20]))

    def most_calls(self):
        # A kill may cut off each call that is going on; it is asked again once.
        said = sum(map(len, self.sent.values()))
        return said + (self.done["kills"] + self.done["stops"]) * len(self.chats)

    def report(self):
        said = sum(map(len, self.sent.values()))
        done = ", ".join(f"{name} {times}" for name, times in self.done.most_common())
        return (
            f"{said} messages in {len(self.chats)} chats, {self.asked.total()} model calls "
            f"({self.asked.total() / max(1, said):.3f} an answer); {done}: "
            "none lost, none answered twice, none out of order"
        )


@asynccontextmanager
async def two_daemons(ledger):
    environment = ledger.environment()
    ledger.daemons = [Daemon(ledger.folder, environment) for _ in "ab"]
    try:
        async with anyio.create_task_group() as group:
            for daemon in ledger.daemons:
                group.start_soon(daemon.start)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            for daemon in ledger.daemons:
                if daemon.process is not None:
                    with suppress(ProcessLookupError):
                        daemon.process.kill()
                    await daemon.process.wait()
                    await daemon.process.aclose()


async def prove_ledger(folder, store, *, kills, chats=50, messages=1000, stop_seconds=20, seed=1):
    """Two real daemons and so many kills; raises `Broken`. Returns what to say of it."""
    ledger = Ledger(folder, url_in(folder, store), chats=chats, messages=messages, seed=seed)
    async with ledger.server, two_daemons(ledger), httpx2.AsyncClient(headers=HEADERS) as client:
        await ledger.begin(client)
        async with anyio.create_task_group() as group:
            group.start_soon(ledger.write_beside)
            async with anyio.create_task_group() as talking:
                talking.start_soon(ledger.trouble, kills, stop_seconds)
                for chat in ledger.chats:
                    talking.start_soon(ledger.talk, chat, client)
            group.cancel_scope.cancel()
        await ledger.until_answered()
    await ledger.check()
    for what, wanted in (("kills", kills // 2), ("sent twice", 1), ("sessions rename", 1)):
        if ledger.done[what] < wanted:
            raise Broken(f"only {ledger.done[what]} times: {what}; this proves nothing")
    return ledger.report()
