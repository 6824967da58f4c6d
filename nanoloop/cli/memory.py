"""`nanoloop memory`: shows how a conversation is remembered, and corrects its summary."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from nanoloop import children
from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, add_actions
from nanoloop.cli.output import say, say_json
from nanoloop.cli.transcript import about, find, opened
from nanoloop.errors import SessionError
from nanoloop.session.entry import Entry
from nanoloop.session.log import message_count
from nanoloop.session.session import Session
from nanoloop.settings import Settings
from nanoloop.tokens import entry_tokens, text_tokens
from nanoloop.writing import SessionWriter


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop memory`."""
    action = add_actions(parser)
    shown = action(
        "show", "show which parts of a conversation are in the window, pending or summarised", show
    )
    edited = action(
        "edit", "correct the summary in $EDITOR, with --text, or from standard input", edit
    )
    waiting = action("status", "list conversations waiting for a summary", status)
    for each in (shown, edited):
        each.add_argument(
            "name",
            metavar="SESSION",
            help="the conversation's id, its key (such as telegram:42) or its `chat --session` "
            "name",
        )
    edited.add_argument("--text", metavar="TEXT", help="the new summary")
    for each in (shown, waiting):
        each.add_argument("--json", action="store_true", help="print JSON, for scripts")


async def show(args: Namespace, settings: Settings) -> None:
    """Print a map of a conversation's log."""
    async with opened(settings) as store:
        session = await find(store, args.name)
        picture = MemoryMap(session, await store.entries(session.id))
    if args.json:
        say_json(picture.facts())
        return
    summary = printable(session.summary).strip()
    say("\n\n".join(filter(None, (about(session), picture.text(), summary))))


async def status(args: Namespace, settings: Settings) -> None:
    """List the sessions waiting for a summary, starting with the longest backlog."""
    async with opened(settings) as store:
        infos = [info async for info in store.list() if info.pending]
    infos.sort(key=lambda info: info.pending, reverse=True)
    if args.json:
        rows = [{"id": i.id, "pending": i.pending, "entries": i.entries} for i in infos]
        say_json(rows)
    elif not infos:
        say("no conversation is waiting for a summary", err=True)
    else:
        say(f"{'PENDING':>7}  {'ENTRIES':>7}  ID")
        say("\n".join(f"{info.pending:7}  {info.entries:7}  {info.id}" for info in infos))


# Editing is split into steps, because an event loop would swallow Ctrl-C in the editor.


def edit(args: Namespace, settings: Settings) -> int:
    """Replace the summary."""
    session_id, before = anyio.run(_summary, args.name, settings)
    draft = None if args.text is not None or not os.isatty(0) else _drafted(before)
    text = draft.read_text(encoding="utf-8") if draft else _given(args)
    try:
        did_change = anyio.run(_save, session_id, before, text.strip(), settings)
    except BaseException:
        if draft is not None:
            say(f"your text is saved in {draft}", err=True)
        raise
    if draft is not None:
        draft.unlink()
    say(f"{'changed' if did_change else 'did not change'} the summary of {session_id}", err=True)
    return Exit.DONE


def _given(args: Namespace) -> str:
    try:
        return str(args.text) if args.text is not None else sys.stdin.read()
    except UnicodeDecodeError as error:
        raise SessionError("standard input is not UTF-8 text: convert it first") from error


async def _summary(name: str, settings: Settings) -> tuple[str, str]:
    async with opened(settings) as store:
        session = await find(store, name)
        return session.id, session.summary


def _drafted(before: str) -> Path:
    """Let the user edit the text, and return the edited file."""
    fd, name = tempfile.mkstemp(prefix="nanoloop-summary-", suffix=".md")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(before)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        # The user's own editor gets the whole environment.
        children.run([*shlex.split(editor), name], keeps=["*"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        Path(name).unlink()
        raise SessionError(f"{editor} failed ({error}): the summary is unchanged") from error
    return Path(name)


async def _save(session_id: str, before: str, text: str, settings: Settings) -> bool:
    """Save the summary; raises `SessionError` if it has changed since it was read."""
    if text == before.strip():
        return False

    def act(session: Session) -> None:
        if session.summary != before:
            raise SessionError("the summary was rewritten meanwhile: edit the new one")
        session.update_summary(text)

    async with opened(settings, read_only=False) as store:
        await SessionWriter(store).change(await store.load(session_id), act)
    return True


WIDTH = 60
"""The width of the bar in characters."""
SIGNS = {"summarised": "=", "pending": ".", "window": "#", "left_out": "-"}
"""The character for each place; `left_out` is for entries that a handler leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryCount:
    """The number of entries, messages and tokens in part of the log."""

    entries: int
    messages: int
    tokens: int
    first: int
    """The lowest entry number; 0 if there are no entries."""
    last: int

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> EntryCount:
        """Count these entries."""
        return cls(
            entries=len(entries),
            messages=message_count(entries),
            tokens=sum(map(entry_tokens, entries)),
            first=entries[0].seq if entries else 0,
            last=entries[-1].seq if entries else 0,
        )


class MemoryMap:
    """A session's log, divided by where each entry is now."""

    def __init__(self, session: Session, entries: Sequence[Entry]) -> None:
        shown = {entry.seq for entry in session.window}
        self._session = session
        self._places = [_place(session, entry, shown) for entry in entries]
        self.log = EntryCount.of(entries)
        self.parts = {name: EntryCount.of([*self._at(entries, name)]) for name in SIGNS}

    def _at(self, entries: Iterable[Entry], name: str) -> Iterable[Entry]:
        return (e for e, place in zip(entries, self._places, strict=True) if place == name)

    @property
    def summary_tokens(self) -> int:
        """The number of tokens in the summary's text."""
        return text_tokens(self._session.summary)

    @property
    def ledger_tokens(self) -> int:
        """The number of tokens in the ledger."""
        return sum(text_tokens(_said(item)) for item in self._session.ledger)

    def bar(self) -> str:
        """Draw the log from first to last entry; each character stands for one or more entries."""
        count = len(self._places)
        step = max(1, -(-count // WIDTH))
        return "".join(SIGNS[self._places[index]] for index in range(0, count, step))

    def text(self) -> str:
        """Format the whole map for display."""
        session = self._session
        reach = f"for all up to #{session.covered_seq}" if session.summary else "none yet"
        kept = f"{len(session.ledger)} kept word for word"
        rows = (
            f"  [{self.bar()}]",
            f"  {'  '.join(f'{SIGNS[name]} {_title(name)}' for name in self._named)}\n",
            _map_row("", "entries", "tokens", ""),
            _part_row("log", self.log),
            *(_part_row(f"  {_title(name)}", self.parts[name]) for name in self._named),
            _map_row("summary", "", self.summary_tokens, reach),
            _map_row("ledger", "", self.ledger_tokens, kept),
        )
        return "\n".join(rows)

    @property
    def _named(self) -> list[str]:
        return [name for name in SIGNS if name != "left_out" or self.parts[name].entries]

    def facts(self) -> dict[str, Any]:
        """Return the map's figures for scripts, without the text of any message."""
        session = self._session
        parts = {"log": self.log, **self.parts}
        return {
            "id": session.id,
            **{name: _facts(part) for name, part in parts.items()},
            "summary": {"tokens": self.summary_tokens, "covers_up_to": session.covered_seq},
            "ledger": {"tokens": self.ledger_tokens, "items": len(session.ledger)},
            "spent": dict(session.summary_spent),
        }


def _place(session: Session, entry: Entry, shown: set[int]) -> str:
    if entry.seq in shown:
        return "window"
    if session.is_pending(entry):
        return "pending"
    return "summarised" if entry.seq <= session.covered_seq else "left_out"


def _title(name: str) -> str:
    return name.replace("_", " ")


def _facts(part: EntryCount) -> dict[str, int]:
    return {name: getattr(part, name) for name in EntryCount.__slots__}


def _part_row(name: str, part: EntryCount) -> str:
    numbers = f"#{part.first} to #{part.last}, {part.messages} messages" if part.entries else ""
    return _map_row(name, part.entries, part.tokens, numbers)


def _map_row(name: str, count: object, tokens: object, more: str) -> str:
    return f"  {name:14}{count:>8}{tokens:>9}  {more}".rstrip()


def _said(item: Mapping[str, Any]) -> str:
    return str(item.get("near") or item["text"])
