"""A process that is killed while it erases: it forks a child for each kill.

A line of JSON on standard input says what to do, in which folder, and before which of its writes
the child dies; `ended 9` on standard output says how it ended.
"""

import importlib
import json
import os
import signal
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

import anyio

from nanoloop.channels.direct import DirectChannel
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.parts import make_loop, make_store, recall_file
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings

NEEDED = (
    "anyio._backends._asyncio",
    "nanoloop.stores.jsonl.store",
    "nanoloop.stores.opening",
    "nanoloop.stores.sqlite",
)
CHANGING = {"os.rename", "os.remove", "os.truncate", "os.link", "os.rmdir", "os.mkdir"}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
connect, write = sqlite3.connect, os.write


class Death:
    """Kills the process before its n-th write to a disk."""

    def __init__(self, count):
        self._left = count

    def comes_nearer(self):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hear(self, event, args):
        is_open = event == "open" and isinstance(args[2], int) and args[2] & WRITING
        if event in CHANGING or is_open:
            self.comes_nearer()

    def connect(self, *args, **options):
        connection = connect(*args, **options)
        connection.set_trace_callback(self._trace)
        return connection

    def _trace(self, statement):
        if not statement.lstrip().startswith(("SELECT", "BEGIN", "--")):
            self.comes_nearer()

    def write(self, fd, data):
        self.comes_nearer()
        half = len(data) // 2
        write(fd, data[:half])
        self.comes_nearer()
        return half + write(fd, data[half:])


async def erase(folder, url, what):
    settings = Settings(data=folder, store={"url": url})
    store, index = make_store(settings), Index(recall_file(settings))
    sessions = Sessions(store, recall=Recall(store, index))
    if what == "forget":
        session = await sessions.erase("direct:s", [1, 2])
        await sessions.finish_erasing(session)
    else:
        await sessions.delete("direct:s")
    index.close()
    await store.close()


async def erase_person(folder, url, key):
    """As `nanoloop sessions forget --speaker` does it."""
    settings = Settings(data=folder, store={"url": url, "encryption_key": key})
    store = make_store(settings)
    sessions = Sessions(store)
    await sessions.erase_speaker("direct:g", ("chat", "3"))
    await sessions.finish_erasing(await sessions.open("direct:g"))
    await store.close()


async def delete_sealed(folder, url, key):
    settings = Settings(data=folder, store={"url": url, "encryption_key": key})
    store = make_store(settings)
    await Sessions(store).delete("direct:g")
    await store.close()


async def command(folder, url):
    """A loop in which somebody says /forget."""
    settings = Settings(data=folder, store={"url": url})
    store = make_store(settings)
    loop = make_loop(settings, ScriptedProvider(otherwise="Noted."), store)
    direct = DirectChannel(loop.bus)
    await store.delete_expired()
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        await loop.recover()
        await direct.ask("/forget 1-2", chat="s")
        loop.bus.close()
    await store.close()


def child(count, folder, url, what, key=""):
    death = Death(count)
    sqlite3.connect, os.write = death.connect, death.write
    sys.addaudithook(death.hear)
    if key:
        work = delete_sealed if what == "delete" else erase_person
        anyio.run(work, Path(folder), url, key)
    elif what == "command":
        anyio.run(command, Path(folder), url)
    else:
        anyio.run(erase, Path(folder), url, what)


def main():
    for module in NEEDED:  # once, and not in each child
        importlib.import_module(module)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            with suppress(BaseException):
                child(**job)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"ended {os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
