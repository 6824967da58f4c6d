"""`nanoloop sessions`: find, show, export and tidy stored conversations."""

from __future__ import annotations

import json
import sys
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import anyio

from nanoloop.channels.screen import printable
from nanoloop.cli import Act, Exit, add_actions, is_agreed
from nanoloop.cli.amounts import age, duration, size, size_in, whole
from nanoloop.cli.output import say, say_json
from nanoloop.cli.transcript import about, export, find, key_of, one_line, opened, show, stats
from nanoloop.commands import numbers
from nanoloop.errors import SessionError, SessionExists, SessionNotFound, SettingsError
from nanoloop.events import Event, NumberMended, hearing
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.parts import recall_file
from nanoloop.protocols import LOGINS, SessionInfo, Store
from nanoloop.session.entry import rfc3339
from nanoloop.session.head import checked_id
from nanoloop.session.imports import from_magent, from_nanobot
from nanoloop.session.session import Session
from nanoloop.session.speech import Person, people_in
from nanoloop.sessions import Sessions, matching, mentions
from nanoloop.settings import Settings

GROUPS: Mapping[str, Callable[[SessionInfo], str]] = {
    "agent": lambda info: info.agent or "no agent",
    "channel": lambda info: (info.key or "").partition(":")[0] or "no channel",
    "month": lambda info: info.updated_at.strftime("%Y-%m"),
}
"""The ways in which `usage` can group its totals."""
_COUNTED = ("entries", "size", "tokens_in", "tokens_out", "tokens_cached")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop sessions`."""
    action = add_actions(parser)

    def named(name: str, promise: str, act: Act) -> ArgumentParser:
        one = action(name, promise, act)
        one.add_argument(
            "name",
            metavar="NAME",
            help="the conversation's id, its key (such as telegram:42) or its `chat --session` "
            "name",
        )
        return one

    _add_list(action("list", "list conversations, the most recently active first", show_list))
    _add_usage(action("usage", "add up the size and token use of all conversations", usage))
    _add_reading(named)
    _add_changing(named)
    _add_import(
        action("import", "import a file: an export, Magent's JSON or nanobot's JSONL", load)
    )
    _add_forget(
        action("forget", "erase messages or everything that one person said, for good", forget)
    )
    _add_prune(action("prune", "archive old conversations, or delete archived ones", prune))


def _add_list(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--search",
        metavar="TEXT",
        help="list only conversations with this text in their id, key or title",
    )
    parser.add_argument(
        "--text",
        metavar="WORDS",
        help="list only conversations with a message that contains these words",
    )
    parser.add_argument("--agent", metavar="NAME", help="list only conversations with this agent")
    parser.add_argument(
        "--older-than",
        type=duration,
        metavar="AGE",
        help="list only conversations unused for this long, such as 30d or 12h",
    )
    parser.add_argument(
        "--larger-than",
        type=size_in,
        metavar="SIZE",
        help="list only conversations larger than this, such as 20kB or 1.5MB",
    )
    limit = partial(whole, least=1)
    parser.add_argument("--limit", type=limit, metavar="N", help="list at most N conversations")
    parser.add_argument(
        "--archived", action="store_true", help="list the archived conversations instead"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array, for scripts")
    parser.add_argument("--where", type=_refuse_condition, help=SUPPRESS)


def _add_usage(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--by",
        choices=tuple(GROUPS),
        default="agent",
        help="print one row for each of these (%(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    parser.add_argument("--where", type=_refuse_condition, help=SUPPRESS)


def _refuse_condition(condition: str) -> NoReturn:
    raise ArgumentTypeError(
        f"conditions such as {condition!r} are no longer supported: use `sessions list` with "
        "--agent, --search, --older-than or --larger-than, or filter its --json output"
    )


def _add_reading(named: Callable[[str, str, Act], ArgumentParser]) -> None:
    named("show", "show a conversation", show).add_argument(
        "--last",
        type=whole,
        default=20,
        metavar="N",
        help="how many messages to show; 0 shows all (%(default)s)",
    )
    named("stats", "show statistics about a conversation", stats).add_argument(
        "--json", action="store_true", help="print one JSON object, for scripts"
    )
    named("export", "write a whole conversation to standard output", export).add_argument(
        "--format",
        choices=("json", "yaml", "md"),
        default="json",
        help="the format of the file (%(default)s)",
    )


def _add_changing(named: Callable[[str, str, Act], ArgumentParser]) -> None:
    named("rename", "give a conversation a new title", rename).add_argument(
        "title", metavar="TITLE", help="the new title"
    )
    forked = named("fork", "copy a conversation, all of it or up to a message", fork)
    forked.add_argument(
        "--from", dest="upto", metavar="SEQ", help="the number or id of the last entry to copy"
    )
    _add_new_name(forked)
    named("undo", "undo the last exchange in a conversation", undo)
    named("archive", "archive a conversation: keep it, but list it only with --archived", archive)
    named("unarchive", "restore an archived conversation", archive)
    deleted = named("delete", "delete a conversation for good", delete)
    _add_yes(deleted)


def _add_forget(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="the conversation, as above")
    parser.add_argument(
        "seqs",
        metavar="SEQ",
        nargs="?",
        help="the message numbers, as shown by `show`: 12 or 12-15",
    )
    parser.add_argument(
        "--speaker",
        metavar="PLATFORM:ID",
        help="instead of SEQ, erase everything that this person said, such as telegram:42; "
        "an unknown id lists everyone who spoke",
    )
    parser.add_argument(
        "--everywhere",
        action="store_true",
        help="instead of NAME, with --speaker: erase it everywhere",
    )
    _add_yes(parser)


def _add_import(parser: ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the file to import; - is standard input")
    _add_new_name(parser)


def _add_new_name(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--as",
        dest="new_name",
        metavar="NAME",
        help="the name of the new conversation, as in `chat --session NAME`",
    )


def _add_prune(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--older-than",
        type=duration,
        required=True,
        metavar="AGE",
        help="the minimum time since the last use, such as 30d or 12h",
    )
    parser.add_argument("--keep", type=whole, default=0, metavar="N", help="leave out the newest N")
    parser.add_argument(
        "--archived", action="store_true", help="delete archived conversations for good"
    )
    parser.add_argument("--dry-run", action="store_true", help="only list what would be done")
    _add_yes(parser)


def _add_yes(parser: ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="delete without asking")


async def show_list(args: Namespace, settings: Settings) -> None:
    """Print the requested sessions, most recently active first."""
    async with opened(settings) as store:
        infos = await _newest_first(store, archived=args.archived)
        is_empty = not infos
        infos = _chosen(infos, args)
        if args.text:
            infos = [info for info in infos if await mentions(store, info.id, args.text)]
    infos = infos[: args.limit]
    if args.json:
        say_json([_as_json(info) for info in infos])
    elif infos:
        say(_table(infos))
    elif is_empty:
        which = "archived session" if args.archived else "session"
        _tell(f"no {which} in {settings.data} yet: `nanoloop chat` starts one")
    else:
        _tell("no session matches")


async def _newest_first(store: Store, *, archived: bool) -> list[SessionInfo]:
    infos = [info for info in await _conversations(store) if info.archived == archived]
    return sorted(infos, key=lambda info: info.updated_at, reverse=True)


async def _conversations(store: Store) -> list[SessionInfo]:
    """Return all sessions except the internal one for logins to the page."""
    return [info async for info in store.list() if info.id != LOGINS]


def _chosen(infos: list[SessionInfo], args: Namespace) -> list[SessionInfo]:
    if args.search:
        infos = matching(infos, args.search)
    if args.agent:
        infos = [info for info in infos if info.agent == args.agent]
    if args.larger_than is not None:
        infos = [info for info in infos if info.size > args.larger_than]
    return infos if args.older_than is None else _older(infos, args.older_than)


def _older(infos: Iterable[SessionInfo], least: timedelta) -> list[SessionInfo]:
    before = datetime.now(timezone.utc) - least
    return [info for info in infos if info.updated_at < before]


def _as_json(info: SessionInfo) -> dict[str, object]:
    facts = asdict(info)
    return {k: rfc3339(v) if isinstance(v, datetime) else v for k, v in facts.items()}


def _table(infos: Sequence[SessionInfo]) -> str:
    """Return one line per session: last activity, counts, size, id and title."""
    wide = max(2, *(len(info.id) for info in infos))
    head = f"{'LAST ACTIVE':15}  {'ENTRIES':>7}  {'PENDING':>7}  {'SIZE':>8}  {'ID':{wide}}  TITLE"
    return "\n".join((head, *(_row(info, wide) for info in infos)))


def _row(info: SessionInfo, wide: int) -> str:
    marks = [f"agent {info.agent}"] if info.agent else []
    marks += ["no answer yet"] if info.awaiting else []
    title = " ".join(printable(info.title).split()) + (f" ({', '.join(marks)})" if marks else "")
    counts = f"{info.entries:7}  {info.pending:7}  {size(info.size):>8}"
    return f"{age(info.updated_at):15}  {counts}  {info.id:{wide}}  {title}".rstrip()


async def usage(args: Namespace, settings: Settings) -> None:
    """Print the totals for each group, ordered by name, and the overall total."""
    groups: dict[str, list[SessionInfo]] = defaultdict(list)
    async with opened(settings) as store:
        infos = await _conversations(store)
    for info in infos:
        groups[GROUPS[args.by](info)].append(info)
    totals = {name: _total(groups[name]) for name in sorted(groups)}
    if args.json:
        say_json({"groups": totals, "all": _total(infos)})
    else:
        say(_usage_table(args.by, totals | {"TOTAL": _total(infos)}))


def _total(infos: Sequence[SessionInfo]) -> dict[str, int]:
    sums = {name: sum(getattr(info, name) for info in infos) for name in _COUNTED}
    return {"sessions": len(infos)} | sums


def _usage_table(by: str, totals: Mapping[str, Mapping[str, int]]) -> str:
    wide = max(len(name) for name in (by, *totals))
    head = (
        f"{by.upper():{wide}}  {'SESSIONS':>8}  {'ENTRIES':>9}  {'SIZE':>8}  "
        f"{'TOKENS IN':>11}  {'CACHED':>11}  {'OUT':>11}"
    )
    rows = (
        f"{name:{wide}}  {total['sessions']:8}  {total['entries']:9}  {size(total['size']):>8}  "
        f"{total['tokens_in']:11}  {total['tokens_cached']:11}  {total['tokens_out']:11}"
        for name, total in totals.items()
    )
    return "\n".join((head, *rows))


async def rename(args: Namespace, settings: Settings) -> None:
    """Give a conversation another title."""
    async with opened(settings, read_only=False) as store:
        session = await find(store, args.name)
        await Sessions(store).rename(session, args.title)
    _tell(f"{session.id} is now called {session.title!r}")


async def fork(args: Namespace, settings: Settings) -> None:
    """Copy a conversation, whole or up to an entry."""
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
    """Undo the last exchange in a conversation."""
    async with opened(settings, read_only=False) as store:
        taken = await Sessions(store).undo(await find(store, args.name))
    said = one_line(str(taken[0].content.get("text") or "")) if taken else ""
    _tell(f"removed {len(taken)} entries: {said}" if taken else "there is nothing to undo")


async def archive(args: Namespace, settings: Settings) -> None:
    """Archive a conversation or bring it back."""
    async with opened(settings, read_only=False) as store:
        session = await find(store, args.name)
        await Sessions(store).archive(session.id, archived=args.action == "archive")
    _tell(f"{args.action}d {session.id}")


async def load(args: Namespace, settings: Settings) -> None:
    """Import a conversation from a nanoloop, Magent or nanobot file."""
    told: list[Event] = []
    try:
        with hearing(told.append):
            session = _session_in(_text_of(args.file))
    except (ValueError, TypeError) as error:
        raise SessionError(f"{args.file} can't be imported: {error}") from error
    if not session.entry_count:
        raise SessionError(f"{args.file} has no messages to import: choose an exported session")
    async with opened(settings, read_only=False) as store:
        key = await _free_key(store, args.new_name)
        if key is not None:
            session.load_dict({"id": checked_id(args.new_name), "key": key})
        await store.add(session)
        if key is not None:
            await _bind(store, session)
    _tell(f"imported {session.id}, with {session.entry_count} entries")
    for event in told:
        if isinstance(event, NumberMended):
            _tell(f"{event.number} was invalid in the file and was corrected")


def _text_of(file: str) -> str:
    return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")


def _session_in(text: str) -> Session:
    """Return the session in this text; raise ValueError or TypeError if no format fits."""
    data, first = _mapping_in(text), _mapping_in(text.lstrip().partition("\n")[0])
    if isinstance(data.get("messages"), list):
        return from_magent(data)
    if first and (not data or first.get("_type") == "metadata"):  # JSON lines
        if "format" in first:
            raise ValueError("it belongs to a data folder: copy it into sessions/ there")
        return from_nanobot(text)
    return Session.load(text)


def _mapping_in(text: str) -> Mapping[str, Any]:
    """Parse a JSON object; return an empty mapping if the text is anything else."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


async def _free_key(store: Store, name: str | None) -> str | None:
    """Return the key for a new name; raises `SessionExists` if the name is taken."""
    if name is None:
        return None
    try:
        raise SessionExists((await find(store, checked_id(name))).id)
    except SessionNotFound:
        return key_of(name)


async def _bind(store: Store, session: Session) -> None:
    """Let `chat --session` find a session by its new name, if it has one."""
    if session.key is not None:
        await store.bind(session.key, session.id)


# Deleting is split into steps, because an event loop would swallow Ctrl-C at the question.


def delete(args: Namespace, settings: Settings) -> int:
    """Delete one conversation for good."""
    session = anyio.run(_found, args.name, settings)
    if not _may_delete(args, about(session)):
        return Exit.FAILED
    anyio.run(_remove, [session.id], settings)
    _tell(f"deleted {session.id}")
    return Exit.DONE


def forget(args: Namespace, settings: Settings) -> int:
    """Erase messages from a conversation for good, or everything that one person said."""
    if args.speaker is not None or args.everywhere:
        return _forget_speaker(args, settings)
    if args.name is None or args.seqs is None:
        raise SettingsError("say what to erase: `sessions forget NAME 12`, or see --help")
    seqs = numbers(args.seqs)
    if not seqs:
        raise SettingsError(f"{args.seqs!r} is not a number: write 12 or 12-15, as shown by `show`")
    session = anyio.run(_found, args.name, settings)
    if seqs[-1] > session.last_seq:
        raise SessionError(f"session {session.id!r} has no message #{seqs[-1]}")
    if not _may_delete(args, f"{about(session)}: {len(seqs)} of its entries"):
        return Exit.FAILED
    anyio.run(_erase, session.id, seqs, settings)
    _tell(f"erased {args.seqs} of {session.id}")
    return Exit.DONE


def _forget_speaker(args: Namespace, settings: Settings) -> int:
    """Erase what one person said, in one conversation or in all."""
    if args.speaker is None or args.seqs or args.everywhere == (args.name is not None):
        raise SettingsError(
            "say who, and where: `sessions forget NAME --speaker telegram:42`, or "
            "`sessions forget --speaker telegram:42 --everywhere`"
        )
    ids, person, count = anyio.run(_spoken, args, settings)
    where = ids[0] if args.name is not None and ids else f"{len(ids)} conversations"
    who = ":".join(person)
    if not ids:
        _tell(f"{who} said nothing in any conversation")
        return Exit.DONE
    if not _may_delete(
        args, f"everything that {who} said in {where}: {count} messages, with answers"
    ):
        return Exit.FAILED
    anyio.run(_erase_speaker, ids, person, settings)
    _tell(f"erased everything that {who} said in {where}: {count} messages, with answers")
    return Exit.DONE


async def _spoken(args: Namespace, settings: Settings) -> tuple[list[str], Person, int]:
    """Return the conversations in which a person spoke, who it is, and the number of messages."""
    platform, _, account = args.speaker.partition(":")
    person, found, count = (platform, account), [], 0
    async with opened(settings) as store:
        if not hasattr(store, "words_of"):
            raise SessionError(
                "this store can't erase what one person said: erase messages instead"
            )
        whole: Any = store
        names = [name async for name in whole.names() if name != LOGINS]
        for name in [(await find(store, args.name)).id] if args.name is not None else names:
            with suppress(SessionNotFound):
                session, words = await store.load(name), await whole.words_of(name, person)
                waiting = sum(person in people_in(entry) for entry in session.waiting)
                count += len(words) + waiting
                found += [name] if len(words) + waiting else []
        if args.name is not None and not found:
            raise SessionError(await _nobody(Sessions(store), name, args.speaker))
    return found, person, count


async def _nobody(sessions: Sessions, name: str, wanted: str) -> str:
    """Say that nobody with this id spoke in the session, and name everyone who did."""
    people = await sessions.speakers(name)
    known = [f"{platform}:{i} ({who})" for (platform, i), who in sorted(people.items())]
    told = f"these people did: {', '.join(known)}" if known else "nobody with an id did"
    return f"{wanted} said nothing in session {name!r}; {told}"


def prune(args: Namespace, settings: Settings) -> int:
    """Archive conversations that have not been used for a long time, or delete archived ones."""
    infos = anyio.run(_unused, args, settings)
    if not infos:
        _tell("no conversation is that old")
        return Exit.DONE
    say(_table(infos))
    if args.dry_run:
        return Exit.DONE
    ids = [info.id for info in infos]
    if args.archived and not _may_delete(args, f"these {len(ids)}"):
        return Exit.FAILED
    anyio.run(_remove if args.archived else _archive_all, ids, settings)
    _tell(f"{'deleted' if args.archived else 'archived'} {len(ids)}")
    return Exit.DONE


async def _found(name: str, settings: Settings) -> Session:
    async with opened(settings) as store:
        return await find(store, name)


async def _unused(args: Namespace, settings: Settings) -> list[SessionInfo]:
    async with opened(settings) as store:
        infos = await _newest_first(store, archived=args.archived)
    return _older(infos[args.keep :], args.older_than)


def _may_delete(args: Namespace, what: str) -> bool:
    """Return whether the user agrees; raises `SettingsError` if there is nobody to ask."""
    nobody = SettingsError("can't ask without a terminal: add --yes to delete for good")
    if args.yes or is_agreed(f"{what}\nDelete for good?", nobody_there=nobody):
        return True
    _tell("nothing was deleted")
    return False


async def _archive_all(ids: Sequence[str], settings: Settings) -> None:
    async with opened(settings, read_only=False) as store:
        sessions = Sessions(store)
        for session_id in ids:
            await sessions.archive(session_id)


async def _remove(ids: Sequence[str], settings: Settings) -> None:
    async with _erasing(settings) as sessions:
        for session_id in ids:
            await sessions.delete(session_id)


async def _erase(session_id: str, seqs: Collection[int], settings: Settings) -> None:
    async with _erasing(settings) as sessions:
        session = await sessions.erase(session_id, seqs)
        await sessions.finish_erasing(session)


async def _erase_speaker(ids: Sequence[str], person: Person, settings: Settings) -> None:
    async with _erasing(settings) as sessions:
        for session_id in ids:
            with suppress(SessionNotFound):
                await sessions.erase_speaker(session_id, person)
                await sessions.finish_erasing(await sessions.open(session_id))


@asynccontextmanager
async def _erasing(settings: Settings) -> AsyncIterator[Sessions]:
    """Open the sessions together with any search index, even if recall is turned off."""
    file = recall_file(settings)
    index = Index(file) if file.exists() else None
    try:
        async with opened(settings, read_only=False) as store:
            recall = None if index is None else Recall(store, index)
            yield Sessions(store, recall=recall)
    finally:
        if index is not None:
            index.close()


def _tell(what: str) -> None:
    say(what, err=True)
