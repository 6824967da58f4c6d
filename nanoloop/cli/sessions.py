"""`nanoloop sessions`: what is stored, listed, shown, exported, deleted.

All but `delete` only read, so that they work while a daemon runs.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timezone
from difflib import get_close_matches
from textwrap import indent

import anyio

from nanoloop.app import make_store
from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.chat import CHANNEL, key_of
from nanoloop.errors import SessionNotFound, SettingsError
from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.chat import result_text
from nanoloop.session.entry import MESSAGE, TOOL_CALL, TOOL_RESULT, Entry, rfc3339
from nanoloop.session.ids import id_for_key
from nanoloop.session.session import Session
from nanoloop.session.window import message_count
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

_SHOWN = 20
_LINE_SHOWN = 200
"""Characters of a tool's call or result that `show` has room for."""
_READ = 200
"""Entries that `show` reads at a time, from the newest on."""
_KILO = 1000
_AGES = ((86400 * 2, 86400, "days"), (3600 * 2, 3600, "hours"), (60 * 2, 60, "minutes"))


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop sessions` takes."""
    common = ArgumentParser(add_help=False)
    for flag in ("--config", "--data", "--model", "--log-level"):
        # Taken here too, so that they may stand last; left out, those before the action count.
        common.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")

    def action(name: str, promise: str) -> ArgumentParser:
        about = f"{promise[0].upper()}{promise[1:]}. Settings as in `nanoloop sessions --help`."
        return actions.add_parser(name, help=promise, description=about, parents=[common])

    listed = action("list", "list them, the last active first")
    listed.add_argument("--json", action="store_true", help="one JSON array, for scripts")
    shown = action("show", "show a conversation")
    shown.add_argument(
        "--last", type=int, default=_SHOWN, metavar="N", help="messages; 0 is all (%(default)s)"
    )
    exported = action("export", "write a whole conversation to standard output")
    exported.add_argument(
        "--format", choices=("json", "yaml", "md"), default="json", help="(%(default)s)"
    )
    deleted = action("delete", "delete a conversation for good")
    deleted.add_argument("--yes", action="store_true", help="without asking")
    for parser_with_name in (shown, exported, deleted):
        parser_with_name.add_argument(
            "name", metavar="NAME", help="its id, its key such as telegram:42, or chat's --session"
        )


def run(args: Namespace) -> int:
    """Do what was asked for; raises `SessionNotFound` with the nearest names."""
    settings = load_settings(args)
    if args.action == "delete":
        return _delete(args, settings)
    work = {"list": _list, "show": _show, "export": _export}[args.action]
    anyio.run(work, args, settings)
    return Exit.DONE


@asynccontextmanager
async def _opened(settings: Settings, *, read_only: bool = True) -> AsyncIterator[Store]:
    telemetry = Telemetry(level="warning", format=settings.log.format)
    store = make_store(settings, telemetry, read_only=read_only)
    try:
        yield store
    finally:
        await store.close()


# Which one


class _NoSuchName(SessionNotFound):
    """Nothing stored has this name."""

    def __init__(self, name: str, near: Sequence[str]) -> None:
        super().__init__(name)
        self._near = near

    def __str__(self) -> str:
        near = " or ".join(map(repr, self._near))
        hint = f"did you mean {near}?" if near else "`nanoloop sessions list` shows what there is"
        return f"no session {self.session_id!r}: {hint}"


async def find(store: Store, name: str) -> Session:
    """The session with this id; else the one a key has now; else the one `chat --session` means."""
    async for session_id in _candidates(store, name):
        with suppress(SessionNotFound):
            return await store.load(session_id)
    names = [known async for info in store.list() for known in _names(info)]
    raise _NoSuchName(name, get_close_matches(name, names, n=3))


async def _candidates(store: Store, name: str) -> AsyncIterator[str]:
    yield name
    for key in (name, key_of(name)):
        yield await store.bound(key) or id_for_key(key)


def _names(info: SessionInfo) -> Iterator[str]:
    yield info.id
    if info.key is not None and info.key.startswith(f"{CHANNEL}:"):
        yield info.key.removeprefix(f"{CHANNEL}:")


# list


async def _list(args: Namespace, settings: Settings) -> None:
    async with _opened(settings) as store:
        infos = [info async for info in store.list()]
    if args.json:
        print(json.dumps([_as_json(info) for info in infos], ensure_ascii=False, indent=2))
    elif infos:
        print(_table(infos))
    else:
        print(f"no session in {settings.data} yet: `nanoloop chat` begins one", file=sys.stderr)


def _as_json(info: SessionInfo) -> dict[str, object]:
    facts = asdict(info)
    return {k: rfc3339(v) if isinstance(v, datetime) else v for k, v in facts.items()}


def _table(infos: Sequence[SessionInfo]) -> str:
    wide = max(2, *(len(info.id) for info in infos))
    head = f"{'LAST ACTIVE':15}  {'ENTRIES':>7}  {'PENDING':>7}  {'SIZE':>8}  {'ID':{wide}}  TITLE"
    return "\n".join((head, *(_row(info, wide) for info in infos)))


def _row(info: SessionInfo, wide: int) -> str:
    marks = [f"agent {info.agent}"] if info.agent else []
    marks += ["no answer yet"] if info.awaiting else []
    title = " ".join(printable(info.title).split()) + (f" ({', '.join(marks)})" if marks else "")
    counts = f"{info.entries:7}  {info.pending:7}  {size(info.size):>8}"
    return f"{age(info.updated_at):15}  {counts}  {info.id:{wide}}  {title}".rstrip()


def age(moment: datetime) -> str:
    """How long ago that was, roughly."""
    seconds = (datetime.now(timezone.utc) - moment).total_seconds()
    for least, unit, name in _AGES:
        if seconds >= least:
            return f"{seconds // unit:.0f} {name} ago"
    return "just now"


def size(count: int) -> str:
    """Bytes as one says them: 950 B, 1.2 kB, 3.4 MB."""
    number = float(count)
    for unit in ("B", "kB", "MB"):
        if number < _KILO:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _KILO
    return f"{number:.1f} GB"


# show


async def _show(args: Namespace, settings: Settings) -> None:
    async with _opened(settings) as store:
        session = await find(store, args.name)
        entries = await _newest(store, session, count=args.last)
    left_out = session.entry_count - len(entries)
    blocks = [_about(session)]
    if session.summary:
        blocks.append(
            f"Summary of the first {session.covered_seq} entries\n{_set_in(session.summary)}"
        )
    if left_out > 0:
        blocks.append(f"... entries before this: {left_out}; `--last 0` shows all")
    print("\n\n".join((*blocks, *filter(None, map(_shown, entries)))))


async def _newest(store: Store, session: Session, *, count: int) -> list[Entry]:
    """The entries from the last so many messages on; all of them for 0."""
    if count <= 0:
        return await store.entries(session.id)
    entries: list[Entry] = []
    before = session.last_seq
    while message_count(entries) < count and before > 0:
        after = max(0, before - _READ)
        entries = await store.entries(session.id, after=after, upto=before) + entries
        before = after
    messages = [index for index, entry in enumerate(entries) if entry.type == MESSAGE]
    return entries[messages[-count:][0] :] if messages else entries


def _about(session: Session) -> str:
    facts = [f"session {session.id}"]
    facts += [f"agent {session.agent}"] if session.agent else []
    facts += [f"{session.entry_count} entries", f"begun {_local(session.created_at)}"]
    facts += [f"last active {age(session.updated_at)}"]
    title = " ".join(printable(session.title).split())
    return "\n".join(filter(None, (title, ", ".join(facts))))


def _shown(entry: Entry) -> str:
    """An entry for people; thoughts and unknown types are left out."""
    if entry.type == MESSAGE:
        said = str(entry.content.get("text") or "")
        return f"{_local(entry.timestamp)}  {entry.role}\n{_set_in(said)}"
    if entry.type == TOOL_CALL:
        given = json.dumps(entry.content.get("parameters"), ensure_ascii=False, default=str)
        return _set_in(_one_line(f"-> {entry.content.get('tool', '')} {given}"))
    return _set_in(_one_line(f"<- {result_text(entry)}")) if entry.type == TOOL_RESULT else ""


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LINE_SHOWN else f"{text[:_LINE_SHOWN]}..."


def _set_in(text: str) -> str:
    return indent(printable(text.strip()), "  ")


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


# export


async def _export(args: Namespace, settings: Settings) -> None:
    async with _opened(settings) as store:
        session = await store.get((await find(store, args.name)).id)
    print((session.to_markdown() if args.format == "md" else session.dump(args.format)).rstrip())


# delete


def _delete(args: Namespace, settings: Settings) -> int:
    # In three steps: Ctrl-C at the question must find no event loop that would swallow it.
    session = anyio.run(_looked_up, args, settings)
    if not (args.yes or _is_agreed(session)):
        print("nothing was deleted", file=sys.stderr)
        return Exit.FAILED
    anyio.run(_remove, session.id, settings)
    print(f"deleted {session.id}", file=sys.stderr)
    return Exit.DONE


async def _looked_up(args: Namespace, settings: Settings) -> Session:
    async with _opened(settings) as store:
        return await find(store, args.name)


def _is_agreed(session: Session) -> bool:
    if not (os.isatty(0) and os.isatty(2)):
        raise SettingsError("deleting is for good: say --yes where nobody can be asked")
    print(_about(session), file=sys.stderr)
    with suppress(EOFError):
        print("Delete it for good? [y/N] ", end="", file=sys.stderr, flush=True)
        return input().strip().lower() in ("y", "yes")
    return False


async def _remove(session_id: str, settings: Settings) -> None:
    async with _opened(settings, read_only=False) as store:
        await store.delete(session_id)
