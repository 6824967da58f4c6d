"""`nanoloop chat`: one conversation, at a prompt, for a script, or for a single question."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TextIO

import anyio

from nanoloop.app import App
from nanoloop.channels.pipe import PipeChannel
from nanoloop.cli import Exit
from nanoloop.cli.first_run import add_local, settings_with_model
from nanoloop.cli.transcript import key_of
from nanoloop.errors import SettingsError
from nanoloop.files import make_folder
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

_LOG_BYTES = 5_000_000
"""Above this size the log of interactive chats is started afresh; the previous one is kept."""


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop chat` takes."""
    parser.add_argument("-m", "--message", metavar="TEXT", help="ask this, print the answer, leave")
    parser.add_argument(
        "--session",
        metavar="NAME",
        default="default",
        help="the conversation to go on with, or to begin (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for scripts")
    add_local(parser)


def run(args: Namespace) -> int:
    """Talk until the person leaves, the text ends, or the one message is answered."""
    for flag in ("session", "message"):
        if getattr(args, flag) is not None and not getattr(args, flag).strip():
            raise SettingsError(f"--{flag} is empty: give it some text, or leave it out")
    is_for_a_person = _is_for_a_person(args)
    settings = settings_with_model(args, can_ask=is_for_a_person)
    if settings is None:
        return Exit.NOT_CONFIGURED
    talk = _at_prompt if is_for_a_person else partial(_for_script, args=args)
    return anyio.run(talk, settings, args.session)


def _is_for_a_person(args: Namespace) -> bool:
    plain = args.message is None and not args.json
    return plain and os.isatty(0) and os.isatty(1)


async def _for_script(settings: Settings, name: str, *, args: Namespace) -> int:
    channel = PipeChannel(chat=name, message=args.message, as_json=args.json, streams=os.isatty(1))
    app = App.of(settings, chat=key_of(name), telemetry=_quiet(settings))
    channel.incidents = app.loop.sentences.incidents
    app.add(channel)
    await app.run()
    return _exit_code(app, failed=channel.failed)


def _quiet(settings: Settings) -> Telemetry:
    """Warnings only, unless someone asked for a level: the answers are what is wanted."""
    is_asked_for = settings.origin("log.level").kind != "default"
    level = settings.log.level if is_asked_for else "warning"
    return Telemetry(level=level, format=settings.log.format)


async def _at_prompt(settings: Settings, name: str) -> int:
    from nanoloop.cli.prompt import Prompt  # noqa: PLC0415 - scripts need no prompt, and it is slow

    with _log_file(settings.data) as stream:
        telemetry = Telemetry(level=settings.log.level, format="json", stream=stream)
        app = App.of(settings, chat=key_of(name), telemetry=telemetry)
        app.add(Prompt(app=app, settings=settings, chat=name))
        await app.run()
    return _exit_code(app)


def _exit_code(app: App, *, failed: bool = False) -> int:
    if app.stopped_by is not None:
        return 128 + app.stopped_by  # as a shell says it: 130 for SIGINT
    return Exit.FAILED if failed else Exit.DONE


@contextmanager
def _log_file(folder: Path) -> Iterator[TextIO]:
    """Where the log goes while a prompt has the screen; for its owner's eyes, of bounded size."""
    make_folder(folder)
    path = folder / "nanoloop.log"
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "a", encoding="utf-8") as stream:
        yield stream
