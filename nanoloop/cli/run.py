"""`nanoloop run`: the daemon, on all channels, until it is told to stop."""

from __future__ import annotations

import os
import re
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from functools import partial
from io import TextIOBase
from typing import Any, TextIO, cast

import anyio

from nanoloop.app import App
from nanoloop.channels.kit.channel import PlatformChannel, wanted
from nanoloop.channels.pipe import PipeChannel
from nanoloop.channels.states import States
from nanoloop.cli import Exit, collect_garbage_seldom, load_settings, loop_options
from nanoloop.cli.config import values
from nanoloop.cli.first_run import add_local, settings_with_model
from nanoloop.errors import SettingsError
from nanoloop.events import SettingsRefused, SettingsReloaded, announce
from nanoloop.parts import check_models, make_agents, make_channels
from nanoloop.protocols import Channel
from nanoloop.settings import Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.telemetry import Telemetry

CHAT = "default"
"""The conversation of standard input; plain `nanoloop chat` has the same one."""

_HOW = """
Standard input is a chat too, unless channels.terminal.enabled is false: a prompt in a terminal,
where leaving it stops the daemon, and a message a line from a pipe or a file, whose end stops
nothing. In the background and as a service (/dev/null) only the other channels are served.
SIGTERM and SIGINT let running turns finish; a second one ends at once. Both lose nothing: a line is
taken from a pipe when the one before is answered, and what is not taken stays there.

SIGHUP reads the settings again if it has no terminal: prompts and agents, who may talk and how
much, and the log's level change at once; the log says what needs a restart."""


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop run` takes: hardly more than settings."""
    parser.description = f"{parser.description}\n{_HOW}"
    add_local(parser)


def run(args: Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_with_model(args, can_ask=_is_in_foreground())
    if settings is None:
        return Exit.NOT_CONFIGURED
    anyio.run(_serve, settings, partial(load_settings, args), backend_options=loop_options())
    return Exit.DONE


async def _serve(settings: Settings, load: Callable[[], Settings]) -> None:
    stream = cast("TextIO", _StandardError())
    log = settings.log
    app = App.of(settings, telemetry=Telemetry(level=log.level, format=log.format, stream=stream))
    found = (_standard_input(app, settings), *make_channels(settings, app))
    channels = [channel for channel in found if channel is not None]
    for channel in channels:
        app.add(channel)
        if hasattr(channel, "bind"):
            channel.bind()
    if stream.isatty():  # otherwise every line of it is JSON, and `loop_started` says the same
        names = ", ".join(channel.name for channel in channels) or "no channel: none is set up"
        print(f"nanoloop serves {names}; its data is in {settings.data}", file=sys.stderr)
    if not _is_in_foreground():  # there a hangup is the terminal's end
        app.on_hangup = Reload(app, settings, channels=channels, load=load)
    incidents = app.loop.sentences.incidents
    states = States(settings.data, channels=lambda: app.states, failures=incidents.last)
    app.beside.append(states.keep)
    collect_garbage_seldom()
    try:
        await app.run()
    finally:
        states.end()


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


_RULES = "|".join(PlatformSettings.model_fields.keys() - {"enabled"})
LIVE = re.compile(rf"prompt|log\.level|agents\..*|channels\.\w+\.({_RULES})")
"""What can be changed while it runs: prompts and agents, who may talk and how much, the log."""

_OF_MODELS = ("providers", "api_key", "base_url", "model", "summary_model", "summary")
"""What the models that are asked were made of; a restart takes it over."""


class Reload:
    """Takes fresh settings over, as far as that can be done."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        channels: Iterable[Channel],
        load: Callable[[], Settings],
    ) -> None:
        self._app = app
        self._channels = [*channels]
        self._load = load
        self._settings = settings
        self._values = dict(values(settings))

    def __call__(self) -> None:
        """Read them again; what is wrong with them is told, and changes nothing."""
        try:
            fresh = self._load()
            agents = make_agents(fresh, self._app.loop.recall)
            check_models(fresh)
            self._check_agents(fresh)
        except SettingsError as error:
            announce(SettingsRefused(reason=str(error)))
            return
        self._app.loop.agents.renew(agents)
        self._app.telemetry.set_level(fresh.log.level)
        rules = dict(wanted(fresh))
        for channel in self._channels:
            own = rules.get(channel.name)
            if isinstance(channel, PlatformChannel) and isinstance(own, PlatformSettings):
                channel.access.rules = own
        self._tell(dict(values(fresh)))

    def _check_agents(self, fresh: Settings) -> None:
        """Raise `SettingsError` if an agent's model can't be asked before a restart."""
        old = {name: getattr(self._settings, name) for name in _OF_MODELS}
        try:
            check_models(fresh.model_copy(update=old))
        except SettingsError as error:
            raise SettingsError(
                f"{error}; what is set for that is taken over by a restart"
            ) from None

    def _tell(self, fresh: dict[str, Any]) -> None:
        known = self._values
        changed = sorted(
            key for key in fresh.keys() | known.keys() if fresh.get(key) != known.get(key)
        )
        taken = tuple(key for key in changed if LIVE.fullmatch(key))
        left = tuple(key for key in changed if key not in taken)
        self._values = {**fresh, **{key: known.get(key) for key in left}}
        announce(SettingsReloaded(taken=taken, left=left))
