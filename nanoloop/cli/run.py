"""`nanoloop run`: the daemon, on all channels, until it is told to stop."""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from io import TextIOBase
from typing import TextIO, cast

import anyio

from nanoloop.app import App
from nanoloop.channels.pipe import PipeChannel
from nanoloop.channels.states import States
from nanoloop.cli import Exit, garbage, load_settings, loop_options
from nanoloop.cli.first_run import add_local, settle
from nanoloop.cli.reload import Reload
from nanoloop.parts import make_channels, make_web
from nanoloop.protocols import Channel
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

CHAT = "default"
"""The conversation of standard input; plain `nanoloop chat` has the same one."""

_HOW = """
Standard input is a chat too, unless channels.terminal.enabled is false: a prompt in a terminal,
where leaving it stops the daemon, and a message a line from a pipe or a file, whose end stops
nothing. In the background and as a service (/dev/null) only the other channels are served.
SIGTERM and SIGINT let running turns finish; a second one ends at once. Both lose nothing: a line is
taken from a pipe when the one before is answered, and what is not taken stays there.

SIGHUP reads the settings again where no terminal is: prompts and agents, who may talk and how much,
and the log's level change at once; the log says what needs a restart."""


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop run` takes: hardly more than settings."""
    parser.description = f"{parser.description}\n{_HOW}"
    add_local(parser)


def run(args: Namespace) -> int:
    """Serve until told to stop."""
    settings = settle(args, can_ask=_is_in_foreground())
    if settings is None:
        return Exit.NOT_CONFIGURED
    anyio.run(_serve, settings, partial(load_settings, args), backend_options=loop_options())
    return Exit.DONE


async def _serve(settings: Settings, load: Callable[[], Settings]) -> None:
    stream = cast("TextIO", _StandardError())
    log = settings.log
    app = App.of(settings, telemetry=Telemetry(level=log.level, format=log.format, stream=stream))
    found = (_standard_input(app, settings), _web(app, settings), *make_channels(settings, app))
    channels = [channel for channel in found if channel is not None]
    for channel in channels:
        app.add(channel)
    if stream.isatty():  # otherwise every line of it is JSON, and `loop_started` says the same
        names = ", ".join(channel.name for channel in channels) or "no channel: none is set up"
        print(f"nanoloop serves {names}; its data is in {settings.data}", file=sys.stderr)
    if not _is_in_foreground():  # there a hangup is the terminal's end
        app.on_hangup = Reload(app, settings, channels=channels, load=load)
    states = States(settings.data)
    app.telemetry.listeners.append(states.hear)
    app.beside.append(states.keep)
    garbage.look_seldom()
    try:
        await app.run()
    finally:
        states.end()


def _web(app: App, settings: Settings) -> Channel | None:
    """The page and the API, where the settings want them here too."""
    if not settings.channels.web.enabled:
        return None
    web = make_web(settings, app)
    web.bind()
    return web


def _standard_input(app: App, settings: Settings) -> Channel | None:
    """The chat at the other end of standard input, if anyone can be there."""
    if not settings.channels.terminal.enabled:
        return None
    if _is_in_foreground():
        from nanoloop.cli.prompt import Prompt  # noqa: PLC0415 - a service needs no prompt

        return Prompt(app=app, settings=settings, chat=CHAT)
    return PipeChannel(chat=CHAT) if _is_fed() else None


def _is_in_foreground() -> bool:
    """Whether this process has a terminal and may read it; in the background that would halt it."""
    if not (os.isatty(0) and os.isatty(1)):
        return False
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # no terminal that controls jobs: nothing is in its background
        return True


def _is_fed() -> bool:
    """Whether standard input is a pipe or a file, and no device such as /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:  # it is closed
        return False


class _StandardError(TextIOBase):
    """Standard error as it is at each moment: above the prompt while there is one."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()
