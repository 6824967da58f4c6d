"""`nanoloop sessions delete`, `prune` and `forget`: what goes, once someone agreed."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Collection, Sequence
from contextlib import suppress

import anyio

from nanoloop.cli import Exit
from nanoloop.cli.listing import older, table
from nanoloop.cli.name import find, opened
from nanoloop.cli.transcript import about
from nanoloop.commands import numbers
from nanoloop.errors import SessionError, SettingsError
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.parts import recall_file
from nanoloop.protocols import SessionInfo, Store
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings

# In steps: Ctrl-C at the question must find no event loop that would swallow it.


def delete(args: Namespace, settings: Settings) -> int:
    """Delete one conversation for good."""

    async def looked_up() -> tuple[str, str]:
        async with opened(settings) as store:
            session = await find(store, args.name)
            return session.id, about(session)

    session_id, what = anyio.run(looked_up)
    if not (args.yes or _is_agreed(what)):
        print("nothing was deleted", file=sys.stderr)
        return Exit.FAILED
    anyio.run(_remove, [session_id], settings)
    print(f"deleted {session_id}", file=sys.stderr)
    return Exit.DONE


def prune(args: Namespace, settings: Settings) -> int:
    """Put away what is long unused; with --archived, delete what was put away."""
    infos = anyio.run(_unused, args, settings)
    if not infos:
        print("nothing is that old", file=sys.stderr)
        return Exit.DONE
    print(table(infos))
    if args.dry_run:
        return Exit.DONE
    ids = [info.id for info in infos]
    if not args.archived:
        anyio.run(_put_away, ids, settings)
    elif args.yes or _is_agreed(f"these {len(ids)}"):
        anyio.run(_remove, ids, settings)
    else:
        print("nothing was deleted", file=sys.stderr)
        return Exit.FAILED
    print(f"{'deleted' if args.archived else 'archived'} {len(ids)}", file=sys.stderr)
    return Exit.DONE


async def _unused(args: Namespace, settings: Settings) -> list[SessionInfo]:
    async with opened(settings) as store:
        infos = [info async for info in store.list() if info.archived == args.archived]
    infos.sort(key=lambda info: info.updated_at, reverse=True)
    return older(infos[max(0, args.keep) :], args.older_than)


def _is_agreed(what: str) -> bool:
    if not (os.isatty(0) and os.isatty(2)):
        raise SettingsError("deleting is for good: say --yes where nobody can be asked")
    print(what, file=sys.stderr)
    with suppress(EOFError):
        print("Delete for good? [y/N] ", end="", file=sys.stderr, flush=True)
        return input().strip().lower() in ("y", "yes")
    return False


async def _remove(ids: Sequence[str], settings: Settings) -> None:
    async with opened(settings, read_only=False) as store:
        for session_id in ids:
            await store.delete(session_id)
            await _leave_index(store, settings, session_id)


def forget(args: Namespace, settings: Settings) -> int:
    """Erase some messages of one conversation for good."""
    seqs = numbers(args.seqs)
    if not seqs:
        raise SettingsError(f"{args.seqs!r} is no number: write 12 or 12-15, as `show` has them")

    async def looked_up() -> tuple[str, str]:
        async with opened(settings) as store:
            session = await find(store, args.name)
            if seqs[-1] > session.last_seq:
                raise SessionError(f"session {session.id!r} has no message #{seqs[-1]}")
            return session.id, f"{about(session)}: {len(seqs)} of its entries"

    session_id, what = anyio.run(looked_up)
    if not (args.yes or _is_agreed(what)):
        print("nothing was erased", file=sys.stderr)
        return Exit.FAILED
    anyio.run(_erase, session_id, seqs, settings)
    print(f"erased {args.seqs} of {session_id}", file=sys.stderr)
    return Exit.DONE


async def _erase(session_id: str, seqs: Collection[int], settings: Settings) -> None:
    async with opened(settings, read_only=False) as store:
        await Sessions(store).erase(session_id, seqs)
        await _leave_index(store, settings, session_id, seqs)


async def _leave_index(
    store: Store, settings: Settings, session_id: str, seqs: Collection[int] | None = None
) -> None:
    """Let the recall index forget too, also where recall is switched off by now."""
    if not (file := recall_file(settings)).exists():
        return
    index = Index(file)
    try:
        await Recall(store, index).forget(session_id, seqs)
    finally:
        index.close()


async def _put_away(ids: Sequence[str], settings: Settings) -> None:
    async with opened(settings, read_only=False) as store:
        sessions = Sessions(store)
        for session_id in ids:
            await sessions.archive(session_id)
