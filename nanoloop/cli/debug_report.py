"""`nanoloop debug-report`: writes everything stored about a conversation to one file."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import anyio

from nanoloop import __version__
from nanoloop.channels.states import running
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.amounts import size
from nanoloop.cli.config import as_json, values
from nanoloop.cli.output import say
from nanoloop.cli.transcript import find, opened
from nanoloop.errors import NanoloopError, SessionDamaged
from nanoloop.files import file_name
from nanoloop.protocols import Store
from nanoloop.session.entry import rfc3339, utc_now
from nanoloop.session.session import Session
from nanoloop.settings import Settings
from nanoloop.settings.secrets import MASK, secrets_in
from nanoloop.stores.copying import problems_of, taken

_ABOUT = f"""\
Everything that is stored about one conversation, written by `nanoloop debug-report`.
It contains every message in full, with the ids of chats and people: read it before you share it.
Keys, tokens and passwords in the settings, and anything that looks like one, appear as {MASK}.
Files that were sent are listed but not included.
nanoloop: versions, and the machine.
settings: each setting with its value, and where the value came from.
daemon: the process that serves this data folder, its channels, and the latest failures.
conversation: its keys, its position (head), its summary, memory, state and queue (sections),
every entry of its log, and what is wrong with it (problems).
"""
_PACKAGES = ("anyio", "openai", "pydantic", "structlog", "uvloop", "starlette", "xllamacpp")
_SECRET_NAME = re.compile(
    r"(api|access|private|encryption)_?key|secret|passw|credential|authorization|^(\w+_)?token$",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(?:sk|pk|gh[a-z]|github_pat|xox[a-z]|xapp|syt|glpat|hf|AIza)[-_][\w-]{12,}"
    r"|(?<=//)[^/@\s\"]+(?=@)"
    r"|\b\d{6,}:[\w-]{30,}"
    r"|(?<=Bearer )[\w.~+/=-]{12,}"
)
"""Matches keys in vendors' formats, logins in URLs, and bot tokens."""
_LEAST = 6
"""The minimum length of a secret to search for; a shorter text could occur anywhere."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop debug-report`."""
    parser.add_argument(
        "chat",
        metavar="CHAT",
        help="the conversation's id, its key (such as telegram:42) or its `chat --session` name",
    )
    parser.add_argument("--output", metavar="FILE", help="the file to write; it must not exist yet")


def run(args: Namespace) -> int:
    """Write the report and describe its content."""
    settings = load_settings(args)
    report, secrets = anyio.run(_report, args.chat, settings)
    text = json.dumps(report, indent=2, ensure_ascii=True, default=str) + "\n"
    file = Path(args.output) if args.output else _usual_file(report["conversation"]["id"])
    _write(file, text)
    entries = len(report["conversation"]["entries"])
    say(f"Wrote {file} ({size(len(text))}, readable only by you)")
    say(
        f"It contains all {entries} entries of this conversation in full, its summary, memory and "
        f"queue, the settings without secrets, versions, and the state of the channels. {secrets} "
        "values that are or look like secrets were masked. Read it before you share it."
    )
    return Exit.DONE


async def _report(chat: str, settings: Settings) -> tuple[dict[str, Any], int]:
    """Return the whole report, and how many secrets were masked in it."""
    async with opened(settings) as store:
        try:
            session = await find(store, chat)
            conversation = await _conversation(store, session)
        except SessionDamaged as damaged:
            conversation = {"id": chat, "keys": [], "entries": [], "problems": [str(damaged)]}
    masked = _Masked(settings)
    told = {
        "about": _ABOUT.splitlines(),
        "written_at": rfc3339(utc_now()),
        "nanoloop": _versions(),
        "settings": json.loads(as_json(settings)),
        "processes": _processes(settings, {conversation["id"], *conversation["keys"]}),
        "conversation": conversation,
    }
    return {name: masked(value) for name, value in told.items()}, masked.count


async def _conversation(store: Store, session: Session) -> dict[str, Any]:
    """Return the session as it is stored; if the store can't show that, as it was loaded."""
    whole: Any = store
    if not hasattr(store, "snapshot"):
        return {"id": session.id, "keys": [], **(await store.get(session.id)).to_dict()}
    snapshot = await taken(whole, session.id)
    if isinstance(snapshot, str):
        return {"id": session.id, "keys": [], "entries": [], "problems": [snapshot]}
    bound = [key async for key, name in whole.bindings() if name == session.id]
    return {
        "id": session.id,
        "keys": sorted({*bound, *filter(None, [session.key])}),
        "head": snapshot.head,
        "sections": snapshot.sections,
        "entries": [entry.to_dict() for entry in snapshot.entries],
        "problems": [*problems_of(snapshot)],
    }


def _versions() -> dict[str, str]:
    found = {"nanoloop": __version__, "python": sys.version, "on": platform.platform()}
    return found | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _processes(settings: Settings, names: set[str]) -> list[dict[str, Any]]:
    """Return the state of each process in the data folder, with the failures in these sessions."""
    return [
        {**asdict(found), "failures": [asdict(f) for f in found.failures if f.where in names]}
        for found in running(settings.data)
    ]


class _Masked:
    """Masks secrets from the settings, and anything that looks like a secret."""

    def __init__(self, settings: Settings) -> None:
        known = {one for _, value in values(settings) for one in secrets_in(value)}
        longest_first = sorted((one for one in known if len(one) >= _LEAST), key=len, reverse=True)
        exactly = [re.escape(one) for one in longest_first]
        self._secret = re.compile("|".join((*exactly, _SECRET_VALUE.pattern)))
        self.count = 0

    def __call__(self, value: Any) -> Any:
        match value:
            case str():
                text, count = self._secret.subn(MASK, value)
                # A masked URL would match again, but must not be counted again.
                self.count += count if text != value else 0
                return text
            case Mapping():
                return {str(name): self._named(str(name), inner) for name, inner in value.items()}
            case list() | tuple():
                return [self(inner) for inner in value]
            case datetime():
                return rfc3339(value)
            case _:
                return value

    def _named(self, name: str, value: Any) -> Any:
        if isinstance(value, str) and value and _SECRET_NAME.search(name):
            self.count += value != MASK
            return MASK
        return self(value)


def _usual_file(session_id: str) -> Path:
    return Path(f"debug-report-{file_name(session_id)}-{utc_now():%Y%m%d-%H%M%S}.json")


def _write(file: Path, text: str) -> None:
    """Write a file that only its owner can read; raises `ReportExists` if it exists."""
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ReportExists(f"{file} already exists: choose another name with --output") from None
    with os.fdopen(fd, "w", encoding="utf-8") as out:
        out.write(text)


class ReportExists(NanoloopError):
    """The report's file already exists and is not replaced."""
