"""`nanoloop serve`: serves the web page and the API."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio

from nanoloop.app import App
from nanoloop.cli import Exit, collect_garbage_seldom, load_settings, loop_options
from nanoloop.cli.amounts import whole
from nanoloop.cli.first_run import add_local, settings_with_model
from nanoloop.cli.output import say
from nanoloop.cli.reload import Reload
from nanoloop.cli.status import shown
from nanoloop.cli.watchdog import watch
from nanoloop.parts import make_with_program
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

_port = partial(whole, most=65535)
_HOW = """
Without a token in the settings, only this machine can connect. It needs a token too, which is
generated at the first start and is part of the printed address. To serve others, add
[channels.web.tokens.NAME] to the settings and use --host 0.0.0.0. SIGTERM and SIGINT let running
turns finish; a second signal ends the process at once."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop serve`."""
    parser.description = f"{parser.description}\n{_HOW}"
    parser.add_argument("--host", metavar="ADDRESS", help="the address to listen on (127.0.0.1)")
    parser.add_argument("--port", metavar="NUMBER", type=_port, help="the port to listen on (8765)")
    add_local(parser)


def run(args: Namespace) -> int:
    """Serve until told to stop."""
    settings = settings_with_model(args, can_ask=sys.stdin.isatty() and sys.stdout.isatty())
    if settings is None:
        return Exit.NOT_CONFIGURED

    def load() -> Settings:
        return _placed(load_settings(args, can_ask=False), args)

    anyio.run(_serve, _placed(settings, args), load, backend_options=loop_options())
    return Exit.DONE


def _placed(settings: Settings, args: Namespace) -> Settings:
    """Return the settings with the address from the command line."""
    typed: dict[str, Any] = {"host": args.host, "port": args.port}
    given = {name: value for name, value in typed.items() if value is not None}
    web = settings.channels.of("web").model_copy(update=given)
    channels = settings.channels.model_copy(update={"web": web})
    return settings.model_copy(update={"channels": channels})


async def _serve(settings: Settings, load: Callable[[], Settings]) -> None:
    log = settings.log
    app = App.of(settings, telemetry=Telemetry(level=log.level, format=log.format))
    web = make_with_program(settings, "web", app)
    web.bind()
    link = web.link()
    app.add(web)
    app.beside.append(Reload(app, settings, channels=[web], load=load).keep)
    if sys.stderr.isatty():
        say(f"nanoloop serves {link} and keeps its data in {settings.data}", err=True)
    watch(app, settings.log.stall_seconds)
    collect_garbage_seldom()
    with shown(app, settings, "serve"):
        await app.run()
