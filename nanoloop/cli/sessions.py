"""`nanoloop sessions`: what is stored, found, shown, exported, kept in order.

What only reads works while a daemon runs; what writes needs the data folder for itself.
"""

from __future__ import annotations

import json
import operator
import os
import re
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime, timedelta, timezone
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.amounts import age, duration, size, size_in, whole
from nanoloop.cli.chat import key_of
from nanoloop.cli.transcript import about, export, find, one_line, opened, show, stats
from nanoloop.commands import numbers
from nanoloop.errors import SessionError, SessionExists, SessionNotFound, SettingsError
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.parts import recall_file
from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.entry import rfc3339
from nanoloop.session.ids import checked_id
from nanoloop.session.imports import from_magent, from_nanobot
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions, matching, mentions
from nanoloop.settings import Settings

_Action = Callable[..., ArgumentParser]


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop sessions` takes."""
    common = ArgumentParser(add_help=False)
    for flag in ("--config", "--data", "--model", "--log-level"):
        # Taken here too, so that they may stand last; left out, those before the action count.
        common.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")

    def action(name: str, promise: str, *, named: bool = True) -> ArgumentParser:
        about = f"{promise[0].upper()}{promise[1:]}. Settings as in `nanoloop sessions --help`."
        parser = actions.add_parser(name, help=promise, description=about, parents=[common])
        if named:
            parser.add_argument(
                "name",
                metavar="NAME",
                help="its id, its key such as telegram:42, or chat's --session",
            )
        return parser

    _add_reading(action)
    _add_changing(action)
    _add_removing(action)


def run(args: Namespace) -> int:
    """Do what was asked for; raises `SessionNotFound` with the nearest names."""
    settings = load_settings(args)
    if args.action in _ASKING:
        return _ASKING[args.action](args, settings)
    anyio.run(_READING_OR_CHANGING[args.action], args, settings)
    return Exit.DONE


def _add_reading(action: _Action) -> None:
    listed = action("list", "list them, the last active first", named=False)
    listed.add_argument("--search", metavar="TEXT", help="with this in id, key or title")
    listed.add_argument("--text", metavar="WORDS", help="with a message that has these words")
    listed.add_argument("--agent", metavar="NAME", help="answered by this agent")
    listed.add_argument("--older-than", type=duration, metavar="AGE", help="unused for 30d, 12h")
    _add_where(listed)
    listed.add_argument(
        "--limit", type=partial(whole, least=1), metavar="N", help="at most so many"
    )
    listed.add_argument("--archived", action="store_true", help="those put away, no others")
    listed.add_argument("--json", action="store_true", help="one JSON array, for scripts")
    used = action("usage", "add up what all conversations have taken", named=False)
    used.add_argument("--by", choices=tuple(GROUPS), default="agent", help="(%(default)s)")
    _add_where(used)
    used.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    shown = action("show", "show a conversation")
    shown.add_argument(
        "--last", type=whole, default=20, metavar="N", help="messages; 0 is all (%(default)s)"
    )
    counted = action("stats", "count what a conversation is made of")
    counted.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    exported = action("export", "write a whole conversation to standard output")
    exported.add_argument(
        "--format", choices=("json", "yaml", "md"), default="json", help="(%(default)s)"
    )


def _add_where(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        type=condition,
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as entries>100, size>1MB, key~telegram, updated_at<30d (before that), agent= "
        "(without one); may be repeated",
    )


def _add_changing(action: _Action) -> None:
    loaded = action(
        "import", "take in a file: an export, Magent's JSON, nanobot's JSONL", named=False
    )
    loaded.add_argument("file", metavar="FILE", help="the file; - is standard input")
    renamed = action("rename", "give a conversation another title")
    renamed.add_argument("title", metavar="TITLE", help="what it is called from now on")
    forked = action("fork", "copy a conversation, whole or up to a message")
    forked.add_argument(
        "--from", dest="upto", metavar="SEQ", help="the last entry of the copy: its number or id"
    )
    for parser in (loaded, forked):
        parser.add_argument(
            "--as", dest="new_name", metavar="NAME", help="its name, for `chat --session NAME` too"
        )
    action("undo", "take back the last exchange of a conversation")
    action("archive", "put a conversation away: kept, and listed with --archived only")
    action("unarchive", "get a conversation back that was put away")


def _add_removing(action: _Action) -> None:
    deleted = action("delete", "delete a conversation for good")
    pruned = action("prune", "put away those long unused, or delete those put away", named=False)
    pruned.add_argument(
        "--older-than", type=duration, required=True, metavar="AGE", help="unused for 30d, 12h"
    )
    pruned.add_argument("--keep", type=whole, default=0, metavar="N", help="spare the newest N")
    pruned.add_argument(
        "--archived", action="store_true", help="delete, for good, those that were put away"
    )
    pruned.add_argument("--dry-run", action="store_true", help="only say which ones")
    erased = action("forget", "erase messages of a conversation for good, its summary with them")
    erased.add_argument("seqs", metavar="SEQ", help="their numbers as `show` has them: 12, 12-15")
    for parser in (deleted, pruned, erased):
        parser.add_argument("--yes", action="store_true", help="delete without asking")


async def show_list(args: Namespace, settings: Settings) -> None:
    """Print the sessions that were asked for, the last active first."""
    async with opened(settings) as store:
        infos = [info async for info in store.list() if info.archived == args.archived]
        is_empty = not infos
        infos = _chosen(infos, args)
        if args.text:
            infos = [info for info in infos if await mentions(store, info.id, args.text)]
    infos = infos[: args.limit]
    if args.json:
        print(json.dumps([_as_json(info) for info in infos], ensure_ascii=False, indent=2))
    elif infos:
        print(table(infos))
    elif is_empty:
        which = "archived session" if args.archived else "session"
        print(f"no {which} in {settings.data} yet: `nanoloop chat` begins one", file=sys.stderr)
    else:
        print("no session is like that", file=sys.stderr)


def _chosen(infos: Sequence[SessionInfo], args: Namespace) -> list[SessionInfo]:
    infos = sorted(infos, key=lambda info: info.updated_at, reverse=True)
    if args.search:
        infos = matching(infos, args.search)
    infos = [info for info in infos if all(holds(info) for holds in args.where)]
    if args.agent:
        infos = [info for info in infos if info.agent == args.agent]
    return infos if args.older_than is None else older(infos, args.older_than)


def older(infos: Iterable[SessionInfo], least: timedelta) -> list[SessionInfo]:
    """Those unused for so long."""
    before = datetime.now(timezone.utc) - least
    return [info for info in infos if info.updated_at < before]


def _as_json(info: SessionInfo) -> dict[str, object]:
    facts = asdict(info)
    return {k: rfc3339(v) if isinstance(v, datetime) else v for k, v in facts.items()}


def table(infos: Sequence[SessionInfo]) -> str:
    """A line each: when, how many, how large, which."""
    wide = max(2, *(len(info.id) for info in infos))
    head = f"{'LAST ACTIVE':15}  {'ENTRIES':>7}  {'PENDING':>7}  {'SIZE':>8}  {'ID':{wide}}  TITLE"
    return "\n".join((head, *(_row(info, wide) for info in infos)))


def _row(info: SessionInfo, wide: int) -> str:
    marks = [f"agent {info.agent}"] if info.agent else []
    marks += ["no answer yet"] if info.awaiting else []
    title = " ".join(printable(info.title).split()) + (f" ({', '.join(marks)})" if marks else "")
    counts = f"{info.entries:7}  {info.pending:7}  {size(info.size):>8}"
    return f"{age(info.updated_at):15}  {counts}  {info.id:{wide}}  {title}".rstrip()


GROUPS: dict[str, Callable[[SessionInfo], str]] = {
    "agent": lambda info: info.agent or "no agent",
    "channel": lambda info: (info.key or "").partition(":")[0] or "no channel",
    "month": lambda info: info.updated_at.strftime("%Y-%m"),
}


@dataclass(slots=True)
class Total:
    """What some sessions take together."""

    sessions: int = 0
    entries: int = 0
    size: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0

    def add(self, info: SessionInfo) -> None:
        """One more session."""
        self.sessions += 1
        for name in ("entries", "size", "tokens_in", "tokens_out", "tokens_cached"):
            setattr(self, name, getattr(self, name) + getattr(info, name))


async def usage(args: Namespace, settings: Settings) -> None:
    """Print the totals of each group, and of all."""
    async with opened(settings) as store:
        infos = [info async for info in store.list() if all(c(info) for c in args.where)]
    totals, everything = totals_of(infos, GROUPS[args.by])
    if args.json:
        groups = {name: asdict(total) for name, total in totals.items()}
        print(json.dumps({"groups": groups, "all": asdict(everything)}, indent=2))
    else:
        print(_usage_table(args.by, {**totals, "TOTAL": everything}))


def totals_of(
    infos: Iterable[SessionInfo], group: Callable[[SessionInfo], str]
) -> tuple[dict[str, Total], Total]:
    """The total of each group in order of their names, and that of all."""
    totals: dict[str, Total] = {}
    everything = Total()
    for info in infos:
        totals.setdefault(group(info), Total()).add(info)
        everything.add(info)
    return dict(sorted(totals.items())), everything


def _usage_table(by: str, totals: dict[str, Total]) -> str:
    wide = max(len(name) for name in (by, *totals))
    head = (
        f"{by.upper():{wide}}  {'SESSIONS':>8}  {'ENTRIES':>9}  {'SIZE':>8}  "
        f"{'TOKENS IN':>11}  {'CACHED':>11}  {'OUT':>11}"
    )
    return "\n".join((head, *(_usage_row(name, wide, total) for name, total in totals.items())))


def _usage_row(name: str, wide: int, total: Total) -> str:
    return (
        f"{name:{wide}}  {total.sessions:8}  {total.entries:9}  {size(total.size):>8}  "
        f"{total.tokens_in:11}  {total.tokens_cached:11}  {total.tokens_out:11}"
    )


async def rename(args: Namespace, settings: Settings) -> None:
    """Give it another title."""
    async with opened(settings, read_only=False) as store:
        session = await find(store, args.name)
        session.title = " ".join(args.title.split())
        await store.save(session)
    _tell(f"{session.id} is called {session.title!r} now")


async def fork(args: Namespace, settings: Settings) -> None:
    """Copy it, whole or up to an entry."""
    upto = int(args.upto) if args.upto and args.upto.isdigit() else args.upto
    async with opened(settings, read_only=False) as store:
        source = await find(store, args.name)
        key = await _free_key(store, args.new_name)
        try:
            made = await Sessions(store).fork(source.id, upto=upto, new_id=args.new_name, key=key)
        except ValueError as error:
            raise SessionError(str(error)) from error
        await _bind(store, made)
    _tell(f"forked {source.id} as {made.id}, with {made.entry_count} entries")


async def undo(args: Namespace, settings: Settings) -> None:
    """Take back its last exchange."""
    async with opened(settings, read_only=False) as store:
        session = await store.get((await find(store, args.name)).id)
        taken = await Sessions(store).undo(session)
    said = one_line(str(taken[0].content.get("text") or "")) if taken else ""
    _tell(f"took back {len(taken)} entries: {said}" if taken else "there is nothing to take back")


async def archive(args: Namespace, settings: Settings, *, archived: bool = True) -> None:
    """Put it away."""
    async with opened(settings, read_only=False) as store:
        session = await find(store, args.name)
        await Sessions(store).archive(session.id, archived=archived)
    _tell(f"{'archived' if archived else 'unarchived'} {session.id}")


async def unarchive(args: Namespace, settings: Settings) -> None:
    """Get it back."""
    await archive(args, settings, archived=False)


async def load(args: Namespace, settings: Settings) -> None:
    """Take in a file of ours or of the systems before."""
    try:
        session = session_in(_text_of(args.file))
    except (ValueError, TypeError) as error:
        raise SessionError(f"{args.file} is no session to import: {error}") from error
    if not session.entry_count:
        raise SessionError(f"{args.file} has no messages to import: name an export of a session")
    async with opened(settings, read_only=False) as store:
        key = await _free_key(store, args.new_name)
        if key is not None:
            session.load_dict({"id": checked_id(args.new_name), "key": key})
        await store.add(session)
        if key is not None:
            await _bind(store, session)
    _tell(f"imported {session.id}, with {session.entry_count} entries")


def _text_of(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def session_in(text: str) -> Session:
    """The session in a file of any known kind; raises ValueError or TypeError."""
    try:
        data = json.loads(text)
    except ValueError:  # several lines of JSON, or YAML
        first = _mapping_in(text.lstrip().partition("\n")[0])
        return from_nanobot(_not_ours(text, first)) if first else Session.load(text)
    if isinstance(data, Mapping) and data.get("_type") == "metadata":
        return from_nanobot(_not_ours(text, data))
    is_magents = isinstance(data, Mapping) and isinstance(data.get("messages"), list)
    return from_magent(data) if is_magents else Session.load(text)


def _mapping_in(line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


def _not_ours(text: str, first: Mapping[str, Any]) -> str:
    if "format" in first:
        raise ValueError("it is a file of a data folder: copy it into sessions/ there")
    return text


async def _free_key(store: Store, name: str | None) -> str | None:
    """The key that a new name gives; raises `SessionExists` where something has that name."""
    if name is None:
        return None
    try:
        raise SessionExists((await find(store, checked_id(name))).id)
    except SessionNotFound:
        return key_of(name)


async def _bind(store: Store, session: Session) -> None:
    """Let `chat --session` go on with it, where it was given a name."""
    if session.key is not None:
        await store.bind(session.key, session.id)


def _tell(what: str) -> None:
    print(what, file=sys.stderr)


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


_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
    "~": lambda text, part: str(part).casefold() in str(text).casefold(),
}
_FORM = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>|~)\s*(.*?)\s*", re.DOTALL)
NAMES = tuple(field.name for field in fields(SessionInfo))
_NUMBERS = {field.name for field in fields(SessionInfo) if field.type == "int"}
_TIMES = {field.name for field in fields(SessionInfo) if "datetime" in str(field.type)}
_KINDS = {
    "size": "a size such as 20kB or 1MB",
    **dict.fromkeys(_TIMES, "a date such as 2026-01-31, or an age such as 30d"),
}


@dataclass(frozen=True, slots=True)
class Condition:
    """What a session has to be like."""

    name: str
    holds: Callable[[Any, Any], bool]
    value: Any

    def __call__(self, info: SessionInfo) -> bool:
        """Whether it is; what it doesn't have is like nothing."""
        mine = getattr(info, self.name)
        if mine is None and self.value == "":  # `agent=` is whatever has none
            mine = ""
        return mine is not None and self.holds(mine, self.value)


def condition(text: str) -> Condition:
    """The condition that was typed; raises `ArgumentTypeError` saying how to write it."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no condition: write it as entries>100 or agent=cook")
    name, sign, value = match.groups()
    if name not in NAMES:
        near = get_close_matches(name, NAMES, n=1)
        advice = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise ArgumentTypeError(f"a session has no {name!r}: {advice}")
    try:
        return Condition(name, _OPERATORS[sign], _read(name, value))
    except (ValueError, ArgumentTypeError):
        kind = _KINDS.get(name, "a whole number")
        raise ArgumentTypeError(f"{name} is compared with {kind}, not with {value!r}") from None


def _read(name: str, value: str) -> Any:
    if name == "size":
        return size_in(value)
    if name in _NUMBERS:
        return int(value)
    if name in _TIMES:
        if value[-1:].isalpha():  # so long ago: what is less was before that
            return datetime.now(timezone.utc) - duration(value)
        day = date.fromisoformat(value)
        return datetime(day.year, day.month, day.day, tzinfo=timezone.utc)
    return value in {"true", "yes", "1"} if name == "archived" else value


_READING_OR_CHANGING = {
    "list": show_list,
    "show": show,
    "stats": stats,
    "export": export,
    "usage": usage,
    "import": load,
    "rename": rename,
    "fork": fork,
    "undo": undo,
    "archive": archive,
    "unarchive": unarchive,
}
_ASKING = {"delete": delete, "prune": prune, "forget": forget}
