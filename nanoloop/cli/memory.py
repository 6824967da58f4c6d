"""`nanoloop memory`: what is where in a conversation, its summary set right, who waits for one."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from argparse import SUPPRESS, ArgumentParser, Namespace
from pathlib import Path

import anyio

from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.name import find, opened
from nanoloop.cli.picture import Picture
from nanoloop.cli.transcript import about
from nanoloop.errors import SessionError
from nanoloop.settings import Settings


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop memory` takes."""
    common = ArgumentParser(add_help=False)
    for flag in ("--config", "--data", "--model", "--log-level"):
        # Taken here too, so that they may stand last; left out, those before the action count.
        common.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    shown = actions.add_parser("show", help="draw what is where", parents=[common])
    edited = actions.add_parser(
        "edit",
        help="set the summary right: in $EDITOR, with --text, or from standard input",
        parents=[common],
    )
    waiting = actions.add_parser("status", help="list who waits for a summary", parents=[common])
    for action in (shown, edited):
        action.add_argument(
            "name", metavar="SESSION", help="its id, its key such as telegram:42, or --session's"
        )
    edited.add_argument("--text", metavar="TEXT", help="the new summary")
    for action in (shown, waiting):
        action.add_argument("--json", action="store_true", help="as JSON, for scripts")


def run(args: Namespace) -> int:
    """Do what was asked for; raises `SessionNotFound` with the nearest names."""
    settings = load_settings(args)
    if args.action == "edit":
        return edit(args, settings)
    anyio.run({"show": show, "status": status}[args.action], args, settings)
    return Exit.DONE


async def show(args: Namespace, settings: Settings) -> None:
    """Draw what is where."""
    async with opened(settings) as store:
        session = await find(store, args.name)
        picture = Picture(session, await store.entries(session.id))
    if args.json:
        print(json.dumps(picture.facts(), indent=2))
        return
    summary = printable(session.summary).strip()
    print("\n\n".join(filter(None, (about(session), picture.text(), summary))))


async def status(args: Namespace, settings: Settings) -> None:
    """List the sessions that wait for a summary, the most first."""
    async with opened(settings) as store:
        infos = [info async for info in store.list() if info.pending]
    infos.sort(key=lambda info: info.pending, reverse=True)
    if args.json:
        rows = [{"id": i.id, "pending": i.pending, "entries": i.entries} for i in infos]
        print(json.dumps(rows, ensure_ascii=False, indent=2))
    elif not infos:
        print("nothing waits for a summary", file=sys.stderr)
    else:
        print(f"{'PENDING':>7}  {'ENTRIES':>7}  ID")
        print("\n".join(f"{info.pending:7}  {info.entries:7}  {info.id}" for info in infos))


# Editing, in steps: Ctrl-C in the editor must find no event loop that would swallow it.


def edit(args: Namespace, settings: Settings) -> int:
    """Put another text in the place of the summary."""
    session_id, before = anyio.run(_summary, args.name, settings)
    draft = None if args.text is not None or not os.isatty(0) else _drafted(before)
    text = draft.read_text(encoding="utf-8") if draft else _given(args)
    try:
        did_change = anyio.run(_save, session_id, before, text.strip(), settings)
    except BaseException:
        if draft is not None:
            print(f"what you wrote is in {draft}", file=sys.stderr)
        raise
    if draft is not None:
        draft.unlink()
    print(f"{'changed' if did_change else 'left'} the summary of {session_id}", file=sys.stderr)
    return Exit.DONE


def _given(args: Namespace) -> str:
    return str(args.text) if args.text is not None else sys.stdin.read()


async def _summary(name: str, settings: Settings) -> tuple[str, str]:
    async with opened(settings) as store:
        session = await find(store, name)
        return session.id, session.summary


def _drafted(before: str) -> Path:
    """A file with what the editor left."""
    fd, name = tempfile.mkstemp(prefix="nanoloop-summary-", suffix=".md")
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(before)
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        subprocess.run([*shlex.split(editor), name], check=True)  # noqa: S603 - the user's own
    except (OSError, subprocess.CalledProcessError) as error:
        Path(name).unlink()
        raise SessionError(f"{editor} failed ({error}): the summary is as it was") from error
    return Path(name)


async def _save(session_id: str, before: str, text: str, settings: Settings) -> bool:
    """Save it; raises `SessionError` where the summary is not the one that was edited any more."""
    if text == before.strip():
        return False
    async with opened(settings, read_only=False) as store:
        session = await store.load(session_id)
        if session.summary != before:
            raise SessionError("the summary was written anew meanwhile: edit that one")
        session.update_summary(text)
        await store.save(session)
    return True
