"""`nanoloop sessions` where it changes something: rename, fork, undo, archive, import."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nanoloop.cli.chat import key_of
from nanoloop.cli.name import find, opened
from nanoloop.cli.transcript import one_line
from nanoloop.errors import SessionError, SessionExists, SessionNotFound
from nanoloop.protocols import Store
from nanoloop.session.ids import checked_id
from nanoloop.session.imports import from_magent, from_nanobot
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings


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
