"""A payment server that drops replies, and a daemon that is killed: each order is paid once.

One half of the payments hands the call's id on as an idempotency key. For the other half, the
server is asked whether it took the payment.
"""

import json
import random
import re
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import httpx2

from nanoloop.session.chat import results_by_call
from nanoloop.stores.opening import Opening
from tests.openai_server import Answer, OpenAIServer
from tests.proof.approvals import LOOK_SECONDS, People
from tests.proof.drive import Broken
from tests.proof.ledger import HEADERS, START_SECONDS, Daemon, daemon_environment
from tests.proof.victims import ROOT, url_in
from tests.servers.server import free_port

MODULE = '''
import os
from http.client import HTTPConnection

from nanoloop import current_call, tool

PORT = int(os.environ["PAYMENTS"])


def ask(method, path):
    there = HTTPConnection("127.0.0.1", PORT, timeout=5)
    try:
        there.request(method, path)
        reply = there.getresponse()
        return reply.status, reply.read().decode()
    finally:
        there.close()


@tool(idempotent=True)
def pay(order: str) -> str:
    """Pay an order."""
    return ask("POST", f"/{current_call().call}/{order}")[1]


def taken(call: str) -> str | None:
    """What the server has of a call; it is asked until it answers."""
    for attempt in range(20):
        try:
            status, text = ask("GET", f"/{call}")
        except OSError:
            continue
        return text if status == 200 else None
    raise ConnectionError("the server does not answer")


@tool(settle=taken)
def send(order: str) -> str:
    """Pay an order."""
    return ask("POST", f"/{current_call().call}/{order}")[1]
'''
TOOLS = ("pay", "send")
CHATS = 10
"""So many pay at a time."""
SAID_TWICE = 0.1
ORDERED = re.compile(r"buy (o[0-9]+) (\w+)")


class Model:
    """Asks for a payment, and again while it fails."""

    def __init__(self):
        self.tried = Counter()

    def talk(self, request):
        messages = request.json["messages"]
        *_, question = (m["content"] for m in messages if m["role"] == "user")
        if (found := ORDERED.fullmatch(question)) is None:  # a summary is due
            return "They buy."
        order, tool = found.groups()
        results = [m["content"] for m in messages if m["role"] == "tool"]
        if f"paid {order}" in results:
            return f"done {order}"
        self.tried[order] += 1
        # A note keeps the requests of a turn apart: four equal ones in a row are refused.
        call = (f"{order}-{self.tried[order]}", tool, json.dumps({"order": order}))
        also = (f"{order}-t{self.tried[order]}", "clock", "{}")
        return Answer(tool_calls=(call, also) if self.tried[order] % 2 else (call,))


@asynccontextmanager
async def payment_server(ledger, port, seed):
    command = [sys.executable, "-m", "tests.servers.payments", str(ledger), str(port), str(seed)]
    process = await anyio.open_process(command, cwd=ROOT, stdout=None, stderr=None)
    try:
        with anyio.fail_after(START_SECONDS):
            while True:
                with suppress(OSError):
                    await (await anyio.connect_tcp("127.0.0.1", port)).aclose()
                    break
                await anyio.sleep(LOOK_SECONDS)
        yield
    finally:
        process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()
            await process.aclose()


class Shop:
    """Chats that order payments, one after the other, and what became of them."""

    def __init__(self, folder, url, *, payments, kills, seed):
        self.folder, self.url = Path(folder), url
        self.payments, self.kills = payments, kills
        self.chance = random.Random(seed)
        self.seed = seed
        self.model = Model()
        self.server = OpenAIServer(otherwise=self.model.talk, keep=1)
        self.port = free_port()
        self.ledger = self.folder / "payments"
        self.ledger.touch()
        tools = self.folder / "data" / "tools"
        tools.mkdir(parents=True, mode=0o700)
        tools.parent.chmod(0o700)
        (tools / "mine.py").write_text(MODULE)
        self.orders = iter(range(payments))
        self.chats = {}
        """The orders of each chat."""
        self.killed = 0
        self.is_done = False

    def environment(self):
        return {
            **daemon_environment(self.folder, self.url, self.server.url),
            "PAYMENTS": str(self.port),
            "NANOLOOP_TOOLS__FUNCTIONS": json.dumps({name: f"mine:{name}" for name in TOOLS}),
        }

    async def order(self, people):
        """Order payments in one chat until none is left."""
        chat = await self.begun(people)
        self.chats[chat] = []
        for number in self.orders:
            order = f"o{number}"
            self.chats[chat].append(order)
            said = f"buy {order} {TOOLS[number % 2]}"
            await people.say(chat, said, f"buy-{order}")
            if self.chance.random() < SAID_TWICE:
                await people.say(chat, said, f"buy-{order}")
            await people.hear(chat, f"done {order}")

    async def begun(self, people):
        while True:
            with suppress(httpx2.HTTPError):
                return await people.begin()
            await anyio.sleep(LOOK_SECONDS)

    async def kill(self, daemon):
        """Kill the daemon behind so many payments each; it may be in the middle of others."""
        share = self.payments / (self.kills + 1)
        for number in range(self.kills):
            while len(self.paid) < (number + 1) * share and not self.is_done:  # noqa: ASYNC110 - above
                await anyio.sleep(LOOK_SECONDS)
            await daemon.kill()
            self.killed += 1
            await daemon.start()

    @property
    def paid(self):
        """The orders that the server has taken, in the order in which it did."""
        return [line.split()[1] for line in self.ledger.read_text().splitlines()]

    async def check(self):
        wanted = {f"o{number}" for number in range(self.payments)}
        paid = Counter(self.paid)
        wrong = [f"{order} is paid {times} times" for order, times in paid.items() if times != 1]
        wrong += [f"{order} is not paid" for order in wanted - paid.keys()]
        store = Opening(data=ROOT, read_only=True).open(self.url)
        for chat, orders in self.chats.items():
            known = paid_in(list(await store.entries(chat)))
            if known != Counter(orders):
                lost = [f"{o} has {known[o]} results" for o in orders if known[o] != 1]
                wrong.append(f"the log of {chat} differs from the ledger: {lost}")
        await store.close()
        if wrong:
            raise Broken("\n".join(wrong[:20]))
        if self.killed != self.kills:
            raise Broken(f"only {self.killed} kills of {self.kills}; this proves nothing")


def paid_in(entries):
    """How often a conversation has it that each order was paid."""
    return Counter(
        entries[call].content["parameters"]["order"]
        for call, result in results_by_call(entries).items()
        if entries[call].content["tool"] in TOOLS
        and str(entries[result].content.get("result", "")).startswith("paid ")
    )


async def prove_payments(folder, store, *, payments=2000, kills=200, seed=1):
    """So many payments and kills; raises `Broken`. Returns what to say of it."""
    shop = Shop(folder, url_in(folder, store), payments=payments, kills=kills, seed=seed)
    async with (
        shop.server,
        payment_server(shop.ledger, shop.port, seed),
        httpx2.AsyncClient(headers=HEADERS) as client,
    ):
        daemon = Daemon(folder, shop.environment())
        try:
            await daemon.start()
            people = People(daemon, client)
            async with anyio.create_task_group() as group:
                group.start_soon(shop.kill, daemon)
                async with anyio.create_task_group() as buying:
                    for _ in range(CHATS):
                        buying.start_soon(shop.order, people)
                shop.is_done = True
        finally:
            with anyio.CancelScope(shield=True):
                await daemon.kill()
    await shop.check()
    again = sum(times - 1 for times in shop.model.tried.values())
    return (
        f"{payments} payments, {shop.killed} kills, {again} calls asked for again: "
        "each order is in the ledger once, and the log agrees"
    )
