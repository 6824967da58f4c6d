"""`nanoloop store`: copies, checks and upgrades the stores that sessions are kept in."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from secrets import token_hex
from typing import Any

import anyio
from anyio.to_thread import run_sync
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from nanoloop.cli import Exit, add_actions
from nanoloop.cli.output import say, say_json
from nanoloop.defaults import NODE_SECONDS
from nanoloop.errors import SettingsError, StoreLocked
from nanoloop.events import hearing
from nanoloop.nodes import PLACE, is_dead
from nanoloop.parts import (
    folder_sealings,
    make_installation,
    open_store,
    remove_plain_words,
)
from nanoloop.protocols import Node
from nanoloop.settings import Settings
from nanoloop.settings.secrets import shown
from nanoloop.stores.copying import Copied, Tell, check, copy, names_to_copy, seal_all
from nanoloop.stores.place import FORMS, default_url, path_of, store_url
from nanoloop.telemetry import Telemetry

_PLACE = f"{FORMS}; by default, the store in the settings"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop store`."""
    action = add_actions(parser)
    moved = action(
        "copy",
        "copy all sessions to another store and verify each; resumes if interrupted",
        _copy,
    )
    moved.add_argument("source", metavar="FROM", help=FORMS)
    moved.add_argument(
        "target", metavar="TO", help="the target store, written like FROM; it may contain sessions"
    )
    moved.add_argument(
        "--replace", action="store_true", help="overwrite sessions in the target that differ"
    )
    looked = action("check", "find broken sessions", _check)
    looked.add_argument("place", metavar="URL", nargs="?", help=_PLACE)
    looked.add_argument(
        "--json", action="store_true", help="print one JSON object per line, for scripts"
    )
    action(
        "adopt", "use the configured store, even if it is empty or another installation's", _adopt
    )
    sealed = action(
        "seal",
        "encrypt everything with the first key of store.encryption_key; resumes if interrupted",
        _seal,
    )
    sealed.add_argument("place", metavar="URL", nargs="?", help=_PLACE)
    raised = action("migrate", "create or upgrade a database's tables", _migrate)
    raised.add_argument("place", metavar="URL", nargs="?", help=_PLACE)


async def _copy(args: Namespace, settings: Settings) -> int:
    if args.source == args.target:
        raise SettingsError(f"{shown(args.source)} can't be copied to itself: name another store")
    damaged = set()

    def warn(name: str, what: str) -> None:
        damaged.add(name)
        say(f"{name}: {what}", err=True)

    async with (
        _opened(settings, args.source, read_only=True) as source,
        _opened(settings, args.target) as target,
    ):
        if _is_missing(args.source, settings):
            return Exit.NOT_FOUND
        total = len(await names_to_copy(source))
        with _telling(total) as tell:
            done = await copy(source, target, replace=args.replace, tell=tell, warn=warn)
    say(
        f"copied {done.copied} sessions; {done.same} were already there, unchanged. All "
        f"{done.entries} entries and {done.keys} keys were verified",
        err=True,
    )
    if damaged:
        say(
            f"{len(damaged)} sessions are damaged: {done.left_out} of them were not copied; the "
            "readable parts of the others were",
            err=True,
        )
    return Exit.FAILED if damaged else Exit.DONE


@contextmanager
def _telling(total: int, what: str = "copying") -> Iterator[Tell]:
    """Show the progress of a copy, and report an interruption."""
    looked_at = 0
    bar = Progress(
        TextColumn(what),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
    )
    task = bar.add_task("", total=total)

    def tell(_: str, done: Copied) -> None:
        nonlocal looked_at
        looked_at = done.copied + done.same + done.left_out
        bar.update(task, completed=looked_at)

    try:
        with bar:
            yield tell
    except anyio.get_cancelled_exc_class():  # the user pressed Ctrl-C
        say(f"stopped after {looked_at} of {total}; the same command resumes it", err=True)
        raise


def _is_missing(url: str | None, settings: Settings) -> bool:
    """Return whether the URL names a missing file or folder; if so, report it."""
    try:
        path = path_of(url or settings.store.url or default_url(settings.data), settings.data)
    except ValueError:  # an invalid URL is reported when it is opened
        return False
    if path is None or path.exists():
        return False
    say(f"nanoloop: {path} does not exist: choose an existing store", err=True)
    return True


async def _check(args: Namespace, settings: Settings) -> int:
    if _is_missing(args.place, settings):
        return Exit.NOT_FOUND
    sessions = broken = 0
    async with _opened(settings, args.place, read_only=True) as store:
        async for found in check(store):
            sessions += 1
            broken += bool(found.problems)
            if args.json:
                say_json({"id": found.id, "problems": found.problems}, indent=None)
            for problem in () if args.json else found.problems:
                say(f"{found.id}: {problem}")
        advice = getattr(getattr(getattr(store, "sealing", None), "record", None), "advice", "")
    say(f"{sessions} sessions were checked, {broken} are broken{advice}", err=True)
    return Exit.FAILED if broken else Exit.DONE


async def _seal(args: Namespace, settings: Settings) -> int:
    if settings.store.encryption_key is None:
        raise SettingsError(
            "store.encryption_key is not set: set it (NANOLOOP_STORE__ENCRYPTION_KEY) to the key "
            "to encrypt with, followed by any keys used before, separated by commas"
        )
    if _is_missing(args.place, settings):
        return Exit.NOT_FOUND
    damaged = 0

    def warn(name: str, what: str) -> None:
        nonlocal damaged
        damaged += 1
        say(f"{name}: {what}", err=True)

    async with _opened(settings, args.place) as store:
        if getattr(getattr(store, "sealing", None), "seal", None) is None:
            raise SettingsError("this store can't be encrypted: choose another with store.url")
        await _refuse_if_served(store)
        await store.delete_expired()
        total = len([name async for name in store.names()])
        with _telling(total, "sealing") as tell:
            done = await seal_all(store, tell=tell, warn=warn)
    if args.place is None:
        damaged += await run_sync(_seal_files, settings)
    if damaged:
        say(
            f"sealed {done.copied} sessions; {damaged} items can't be read and were not changed: "
            "restore or delete them, then run this again. Until then, keep all keys",
            err=True,
        )
        return Exit.FAILED
    say(
        f"sealed {done.copied} sessions; {done.same} were sealed already. Only the first key of "
        "store.encryption_key is needed from now on",
        err=True,
    )
    return Exit.DONE


async def _refuse_if_served(store: Any) -> None:
    """Raise `StoreLocked` if a running process, perhaps without the key, uses the store."""
    me = Node(id=f"seal {token_hex(8)}", place=PLACE, pid=os.getpid())
    others = await store.beat(me)
    await store.leave(me.id)
    for node in others:
        if node.id != me.id and node.age < NODE_SECONDS and not is_dead(node):
            raise StoreLocked("the store", f"process {node.pid}")


def _seal_files(settings: Settings) -> int:
    """Encrypt uploads and logins, and remove plain text from other files.

    Return the number of failures.
    """
    damaged = 0
    for file, is_well in chain.from_iterable(each.reseal() for each in folder_sealings(settings)):
        damaged += not is_well
        if not is_well:
            say(f"the content of {file} has changed since it was sealed", err=True)
    for file in remove_plain_words(settings):
        damaged += 1
        say(f"the texts in {file} can't be removed", err=True)
    return damaged


async def _migrate(args: Namespace, settings: Settings) -> int:
    async with _opened(settings, args.place) as store:
        if hasattr(store, "migrate"):
            done = await store.migrate()
        else:  # other stores are upgraded when they are opened for writing
            await store.delete_expired()
            done = "it is up to date"
    say(done, err=True)
    return Exit.DONE


async def _adopt(_: Namespace, settings: Settings) -> int:
    installation = make_installation(settings)
    if installation is None:
        raise SettingsError("sessions are in memory: set store.url first")
    async with _opened(settings, None) as store:
        await installation.adopt(store)
    say(f"{settings.data.absolute()} uses {installation.place} from now on", err=True)
    return Exit.DONE


@asynccontextmanager
async def _opened(
    settings: Settings, url: str | None, *, read_only: bool = False
) -> AsyncIterator[Any]:
    """Open the store at this URL or the configured one; raise `SettingsError` if that fails."""
    try:
        place = None if url is None else store_url(url)
    except ValueError as error:
        raise SettingsError(f"{shown(url)} is {error}") from error
    store = open_store(settings, url=place, read_only=read_only)
    with hearing(Telemetry(level="warning", format=settings.log.format)):
        try:
            yield store
        finally:
            await store.close()
