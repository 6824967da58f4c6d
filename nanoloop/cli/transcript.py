"""Finds a stored conversation by its id, key or name, and shows it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from textwrap import indent

from nanoloop.channels.screen import printable
from nanoloop.cli.amounts import age
from nanoloop.cli.output import json_text, say, say_json
from nanoloop.errors import SessionNotFound
from nanoloop.events import hearing
from nanoloop.parts import make_store
from nanoloop.protocols import SessionInfo, Store
from nanoloop.session.approvals import told_of
from nanoloop.session.chat import result_text
from nanoloop.session.entry import APPROVAL, MESSAGE, TOOL_CALL, TOOL_RESULT, Entry
from nanoloop.session.export import counted
from nanoloop.session.head import id_for_key
from nanoloop.session.log import message_count
from nanoloop.session.session import Session
from nanoloop.session.speech import for_people
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from nanoloop.words import did_you_mean

TERMINAL = "terminal"
"""The name of the channel that `nanoloop chat` uses."""


@asynccontextmanager
async def opened(settings: Settings, *, read_only: bool = True) -> AsyncIterator[Store]:
    """Open the store that these settings name, and close it at the end."""
    store = make_store(settings, read_only=read_only)
    with hearing(Telemetry(level="warning", format=settings.log.format)):
        try:
            yield store
        finally:
            await store.close()


class _NoSuchName(SessionNotFound):
    """No stored session has this name."""

    def __init__(self, name: str, advice: str) -> None:
        super().__init__(name)
        self._advice = advice

    def __str__(self) -> str:
        return f"there is no session {self.session_id!r}: {self._advice}"


async def find(store: Store, name: str) -> Session:
    """Find a session by its id, its key, or the name given to `chat --session`."""
    async for session_id in _candidates(store, name):
        with suppress(SessionNotFound):
            return await store.load(session_id)
    names = [known async for info in store.list() for known in _names(info)]
    advice = did_you_mean(name, names, "`nanoloop sessions list` lists them", most=3)
    raise _NoSuchName(name, advice)


async def _candidates(store: Store, name: str) -> AsyncIterator[str]:
    yield name
    for key in (name, key_of(name)):
        yield await store.bound(key) or id_for_key(key)


def key_of(name: str) -> str:
    """Return the routing key for the conversation that `--session NAME` names."""
    return f"{TERMINAL}:{name}"


def _names(info: SessionInfo) -> Iterator[str]:
    yield info.id
    if info.key is not None and info.key.startswith(f"{TERMINAL}:"):
        yield info.key.removeprefix(f"{TERMINAL}:")


_LINE_SHOWN = 200
"""How many characters of a tool call or its result `show` prints."""
_READ = 200
"""How many entries `show` reads at a time, newest first."""


async def show(args: Namespace, settings: Settings) -> None:
    """Print a conversation's summary and its last messages."""
    async with opened(settings) as store:
        session = await find(store, args.name)
        entries = await _newest(store, session, count=args.last)
    left_out = session.entry_count - len(entries)
    blocks = [about(session)]
    if session.summary:
        blocks.append(
            f"Summary of the first {session.covered_seq} entries\n{_set_in(session.summary)}"
        )
    if left_out > 0:
        blocks.append(f"... entries before this: {left_out}; `--last 0` shows all")
    say("\n\n".join((*blocks, *filter(None, map(_shown, entries)))))


async def _newest(store: Store, session: Session, *, count: int) -> list[Entry]:
    """Return the entries of the last `count` messages, or all entries if `count` is 0."""
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


def about(session: Session) -> str:
    """Return a session's title, and a line of facts about it."""
    facts = [f"session {session.id}"]
    facts += [f"agent {session.agent}"] if session.agent else []
    facts += [f"{session.entry_count} entries", f"started {_local(session.created_at)}"]
    facts += [f"last active {age(session.updated_at)}"]
    title = " ".join(printable(session.title).split())
    return "\n".join(filter(None, (title, ", ".join(facts))))


def _shown(entry: Entry) -> str:
    """Format an entry for display; thoughts and unknown types are left out."""
    if entry.type == MESSAGE:
        said = for_people(entry)
        return f"{_local(entry.timestamp)}  #{entry.seq}  {entry.role}\n{_set_in(said)}"
    if entry.type == TOOL_CALL:
        given = json.dumps(entry.content.get("parameters"), ensure_ascii=False, default=str)
        return _set_in(one_line(f"-> {entry.content.get('tool', '')} {given}"))
    if entry.type == APPROVAL:
        return _set_in(one_line(f"?? {told_of(entry)}"))
    return _set_in(one_line(f"<- {result_text(entry)}")) if entry.type == TOOL_RESULT else ""


def one_line(text: str) -> str:
    """Put text on one line and shorten it."""
    text = " ".join(text.split())
    return text if len(text) <= _LINE_SHOWN else f"{text[:_LINE_SHOWN]}..."


def _set_in(text: str) -> str:
    return indent(printable(text.strip()), "  ")


def _local(moment: datetime) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M")


async def stats(args: Namespace, settings: Settings) -> None:
    """Print a conversation's statistics, such as the number of messages and tokens."""
    async with opened(settings) as store:
        session = await find(store, args.name)
        facts = counted(await store.entries(session.id))
    facts |= {
        "tools_used": sorted(set(facts["tools_used"])),
        "entries": session.entry_count,
        "in_window": message_count(session.window),
        "window_tokens": session.context_size(),
        "covered_by_summary": session.covered_seq,
    }
    if args.json:
        say_json(facts)
    else:
        say("\n".join((about(session), *(_fact(name, facts[name]) for name in facts))))


def _fact(name: str, value: object) -> str:
    shown = ", ".join(map(str, value)) if isinstance(value, list) else value
    return f"{name.replace('_', ' ')}: {shown}"


async def export(args: Namespace, settings: Settings) -> None:
    """Print a whole conversation in the chosen format."""
    async with opened(settings) as store:
        session = await store.get((await find(store, args.name)).id)
    if args.format == "json":
        say(json_text(session.dump()))
    else:
        say((session.to_markdown() if args.format == "md" else session.dump("yaml")).rstrip())
