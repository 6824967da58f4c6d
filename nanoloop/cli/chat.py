"""`nanoloop chat`: one conversation at a prompt, for a script, or for a single question."""

from __future__ import annotations

import os
import sys
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
from nanoloop.cli.output import is_dumb
from nanoloop.cli.status import shown
from nanoloop.cli.transcript import key_of
from nanoloop.errors import SettingsError
from nanoloop.files import make_folder, open_file
from nanoloop.models.catalogue import is_local
from nanoloop.settings import Settings
from nanoloop.stores.place import default_url, path_of
from nanoloop.telemetry import Telemetry

_LOG_BYTES = 5_000_000
"""Above this size, the log of interactive chats is rotated, keeping one older file."""


FIRST_LIMIT, FIRST_KEPT = 12, 4
"""The message window for the very first conversation with a model on this machine."""
_LEAVING_SECONDS = 3.0
"""How long to wait for an unfinished answer when the user quits; a summary gets half of that."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop chat`."""
    parser.add_argument(
        "-m", "--message", metavar="TEXT", help="send this message, print the answer and exit"
    )
    parser.add_argument(
        "--session",
        metavar="NAME",
        default="default",
        help="the conversation to continue or start (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object per line, for scripts"
    )
    add_local(parser)


def run(args: Namespace) -> int:
    """Chat until the user quits, the input ends, or the single message has been answered."""
    for flag in ("session", "message"):
        if getattr(args, flag) is not None and not getattr(args, flag).strip():
            raise SettingsError(f"--{flag} is empty: give it a value, or remove it")
    is_for_a_person = _is_for_a_person(args)
    settings = settings_with_model(args, can_ask=is_for_a_person)
    if settings is None:
        return Exit.NOT_CONFIGURED
    talk = _at_prompt if is_for_a_person else partial(_for_script, args=args)
    return anyio.run(talk, settings, args.session)


def _is_for_a_person(args: Namespace) -> bool:
    plain = args.message is None and not args.json
    return plain and os.isatty(0) and os.isatty(1) and not is_dumb()


async def _for_script(settings: Settings, name: str, *, args: Namespace) -> int:
    with _log_of_script(settings) as telemetry:
        return await _answered(settings, name, args, telemetry)


async def _answered(settings: Settings, name: str, args: Namespace, telemetry: Telemetry) -> int:
    channel = PipeChannel(
        chat=name,
        message=args.message,
        as_json=args.json,
        streams=os.isatty(1),
        encoding=sys.stdout.encoding,
    )
    app = App.of(settings, chat=key_of(name), telemetry=telemetry)
    channel.incidents = app.loop.sentences.incidents
    app.add(channel)
    with shown(app, settings, "chat"):
        await app.run()
    return _exit_code(app, failed=channel.failed)


@contextmanager
def _log_of_script(settings: Settings) -> Iterator[Telemetry]:
    """Log to the file shared by all chats, or to standard error if a log level was given."""
    log = settings.log
    if settings.origin("log.level").kind != "default":
        yield Telemetry(level=log.level, format=log.format)
        return
    with _log_file(settings.data) as stream:
        yield Telemetry(level=log.level, format="json", stream=stream)


async def _at_prompt(settings: Settings, name: str) -> int:
    from nanoloop.cli.prompt import Prompt  # noqa: PLC0415 - slow, and scripts need none

    is_first = not _has_sessions(settings)
    if is_first and is_local(settings.model):
        settings = _with_small_window(settings)
    settings = _left_at_once(settings)
    with _log_file(settings.data) as stream:
        telemetry = Telemetry(level=settings.log.level, format="json", stream=stream)
        app = App.of(settings, chat=key_of(name), telemetry=telemetry)
        app.add(Prompt(app=app, settings=settings, chat=name, is_first=is_first))
        with shown(app, settings, "chat"):
            await app.run()
    return _exit_code(app)


def _has_sessions(settings: Settings) -> bool:
    """Return whether the store may contain sessions; it is not opened to find out."""
    path = path_of(settings.store.url or default_url(settings.data), settings.data)
    return path is None or path.exists()


def _with_small_window(settings: Settings) -> Settings:
    """Reduce the window, unless it was set, so that the first summary appears within minutes."""
    small = {"message_buffer_limit": FIRST_LIMIT, "message_buffer_min": FIRST_KEPT}
    said = settings.model_fields_set
    return settings if small.keys() & said else settings.model_copy(update=small)


def _left_at_once(settings: Settings) -> Settings:
    """Shorten the wait at exit, unless it was set; unfinished work resumes next time."""
    loop = settings.loop
    if "shutdown_turns_seconds" in loop.model_fields_set:
        return settings
    soon = loop.model_copy(update={"shutdown_turns_seconds": _LEAVING_SECONDS})
    return settings.model_copy(update={"loop": soon})


def _exit_code(app: App, *, failed: bool = False) -> int:
    if app.stopped_by is not None:
        return 128 + app.stopped_by  # as shells report signals: 130 for SIGINT
    return Exit.FAILED if failed else Exit.DONE


@contextmanager
def _log_file(folder: Path) -> Iterator[TextIO]:
    """Open the log file for an interactive chat: private and limited in size."""
    with os.fdopen(_log_opened(folder), "a", encoding="utf-8") as stream:
        yield stream


def _log_opened(folder: Path) -> int:
    path = folder / "nanoloop.log"
    try:
        make_folder(folder)
        if path.exists() and path.stat().st_size > _LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
        return open_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except OSError:  # a missing log must not end the conversation
        return os.open(os.devnull, os.O_WRONLY)
