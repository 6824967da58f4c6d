"""Bursts of messages: all at once and then a kill, or each of them twice to two daemons at once."""

from collections import Counter

import anyio
import httpx2

from tests.proof.drive import Broken
from tests.proof.ledger import HEADERS, Ledger, two_daemons
from tests.proof.victims import url_in

AT_ONCE = 140


class Bursts(Ledger):
    """Who says much at once, and looks afterwards at what came of it."""

    def said(self, chat):
        mark = self.mark()
        self.sent[chat].append(mark)
        return {"text": f"{mark} hello", "message_id": f"message-{mark}"}

    async def burst(self, client):
        """Say it all at once to one daemon, and kill that with the last word that it is kept."""
        daemon = self.chance.choice(self.daemons)
        chats = [self.chats[number % len(self.chats)] for number in range(AT_ONCE)]
        async with anyio.create_task_group() as group:
            for chat in chats:
                group.start_soon(self.keep, daemon, chat, client)
        await daemon.kill()
        self.done["kills"] += 1
        await daemon.start()

    async def keep(self, daemon, chat, client):
        said = self.said(chat)
        path = f"{daemon.url}/api/sessions/{chat}/messages"
        response = await client.post(path, json=said, timeout=30)
        if response.status_code == 429:  # the chat is full: it was not taken
            self.sent[chat].remove(said["text"].split()[0])
            self.done["refused"] += 1
        elif response.status_code != 202:
            raise Broken(f"{path} said {response.status_code}: {response.text}")

    async def say_twice_to_both(self, chat, client):
        said = self.said(chat)
        async with anyio.create_task_group() as group:
            for daemon in (*self.daemons, *self.daemons):
                path = f"{daemon.url}/api/sessions/{chat}/messages"
                group.start_soon(self._post_once, path, said, client)

    async def _post_once(self, path, said, client):
        response = await client.post(path, json=said, timeout=30)
        if response.status_code != 202:
            raise Broken(f"{path} said {response.status_code}: {response.text}")
        self.done["posts"] += 1

    def report(self):
        return super().report().removesuffix(", none out of order")  # they came at once

    async def check_each_once(self):
        """That each message is in its chat once, with one answer; in what order is left open."""
        store = self.store()
        for chat in self.chats:
            wanted = Counter(m for mark in self.sent[chat] for m in (mark, f"a{mark[1:]}"))
            there = Counter(await self.marks(store, chat))
            if there != wanted:
                raise Broken(f"{chat}: lost {wanted - there}, too often {there - wanted}")
        await store.close()


async def prove_bursts(folder, store, *, bursts, chats=20, seed=1):
    """So many bursts, each with a kill at its end; raises `Broken`. Returns what to say of it."""
    ledger = Bursts(folder, url_in(folder, store), chats=chats, messages=0, seed=seed)
    async with ledger.server, two_daemons(ledger), _client() as client:
        await ledger.begin(client)
        for _ in range(bursts):
            await ledger.burst(client)
        await ledger.until_answered()
        await ledger.check_each_once()
    return ledger.report()


async def prove_ids(folder, store, *, ids, chats=50, seed=1):
    """So many messages, each posted twice to both at once: the model is asked once for each."""
    ledger = Bursts(folder, url_in(folder, store), chats=chats, messages=0, seed=seed)
    async with ledger.server, two_daemons(ledger), _client() as client:
        await ledger.begin(client)
        for begun in range(0, ids, chats):
            async with anyio.create_task_group() as group:
                for chat in ledger.chats[: ids - begun]:
                    group.start_soon(ledger.say_twice_to_both, chat, client)
        await ledger.until_answered()
        await ledger.check_each_once()
        if (calls := ledger.asked.total()) != ids:
            raise Broken(f"{calls} model calls for {ids} messages")
    return ledger.report()


def _client():
    return httpx2.AsyncClient(headers=HEADERS, limits=httpx2.Limits(max_connections=AT_ONCE))
