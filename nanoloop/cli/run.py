"""`nanoloop run`: the daemon, which serves all channels until it is told to stop."""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from io import TextIOBase
from typing import TextIO, cast

import anyio

from nanoloop.app import App
from nanoloop.channels.pipe import PipeChannel
from nanoloop.cli import Exit, collect_garbage_seldom, load_settings, loop_options
from nanoloop.cli.first_run import add_local, settings_with_model
from nanoloop.cli.output import is_dumb, say
from nanoloop.cli.reload import Reload
from nanoloop.cli.status import shown
from nanoloop.cli.watchdog import watch
from nanoloop.errors import NothingToServe
from nanoloop.parts import make_channels
from nanoloop.protocols import Channel
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

CHAT = "default"
"""The conversation on standard input, shared with plain `nanoloop chat`."""

_HOW = """
Standard input is a chat too, unless channels.terminal.enabled is false. In a terminal it is a
prompt, and leaving the prompt stops the daemon. From a pipe or a file, each line is a message, and
the daemon keeps running when the input ends. In the background and as a service (/dev/null), only
the other channels are served; if there are none, the command says so and exits.
SIGTERM and SIGINT let running turns finish; a second signal ends the process at once. Nothing is
lost either way: each line from a pipe is read only after the previous one has been answered.

A changed settings file or agent file is reloaded within seconds, or on SIGHUP if there is no
terminal. Prompts, agents, skills, your own tools, permissions, rate limits and the log level change
at once. The log says what was applied and what needs a restart."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop run`."""
    parser.description = f"{parser.description}\n{_HOW}"
    add_local(parser)


def run(args: Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_with_model(args, can_ask=_is_in_foreground() and os.isatty(1))
    if settings is None:
        return Exit.NOT_CONFIGURED
    anyio.run(
        _serve,
        settings,
        partial(load_settings, args, can_ask=False),
        backend_options=loop_options(),
    )
    return Exit.DONE


async def _serve(settings: Settings, load: Callable[[], Settings]) -> None:
    stream = cast("TextIO", _StandardError())
    log = settings.log
    telemetry = Telemetry(level=log.level, format=log.format, stream=stream)
    app, channels = built(settings, telemetry)
    for channel in channels:
        if hasattr(channel, "bind"):
            channel.bind()
    names = ", ".join(map(_shown, channels))
    if stream.isatty():  # otherwise stderr has only JSON lines, including `channel_started`
        say(f"nanoloop serves {names}; its data is in {settings.data}", err=True)
    reload = Reload(app, settings, channels=channels, load=load)
    app.beside.append(reload.keep)
    if not _is_in_foreground():  # in the foreground, a hangup means that the terminal is gone
        app.on_hangup = reload
    watch(app, settings.log.stall_seconds)
    collect_garbage_seldom()
    with shown(app, settings, "run"):
        await app.run()


def _shown(channel: Channel) -> str:
    """Return the channel's name, with its URL if it has a web page."""
    link: Callable[[], str] | None = getattr(channel, "link", None)
    return channel.name if link is None else f"{channel.name} at {link()}"


def built(settings: Settings, telemetry: Telemetry) -> tuple[App, Sequence[Channel]]:
    """Build the app with its channels; raise `SettingsError` or `NothingToServe` if that fails."""
    app = App.of(settings, telemetry=telemetry)
    found = (_standard_input(app, settings), *make_channels(settings, app))
    channels = [channel for channel in found if channel is not None]
    if not channels:
        raise NothingToServe
    for channel in channels:
        app.add(channel)
    return app, channels


def _standard_input(app: App, settings: Settings) -> Channel | None:
    """Return a channel for standard input, or None if nobody can be using it."""
    if not settings.channels.terminal.enabled:
        return None
    if _is_in_foreground() and os.isatty(1) and not is_dumb():
        from nanoloop.cli.prompt import Prompt  # noqa: PLC0415 - a service needs no prompt

        return Prompt(app=app, settings=settings, chat=CHAT)
    if _is_in_foreground() or _is_fed():
        return PipeChannel(chat=CHAT, encoding=sys.stdout.encoding)
    return None


def _is_in_foreground() -> bool:
    """Return whether this process may read from a terminal; in the background it would stop."""
    if not os.isatty(0):
        return False
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:  # without job control, nothing runs in the background
        return True


def _is_fed() -> bool:
    """Return whether standard input is a pipe or a file rather than a device such as /dev/null."""
    try:
        return not stat.S_ISCHR(os.fstat(0).st_mode)
    except OSError:  # standard input is closed
        return False


class _StandardError(TextIOBase):
    """The current standard error, which is redirected above the prompt while one is shown."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()

    def isatty(self) -> bool:
        return sys.stderr.isatty()
