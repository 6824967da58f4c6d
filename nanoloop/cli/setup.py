"""`nanoloop setup`: chooses the model, connects a bot, and installs the service.

Each answer can also be given as an option.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from getpass import getpass
from pathlib import Path

from pydantic import SecretStr

from nanoloop import plugins
from nanoloop.cli import Exit, is_agreed, load_settings
from nanoloop.cli.agents_file import write_agents_file
from nanoloop.cli.first_run import (
    NoModel,
    ask_once,
    fetch_local_models,
    find_model,
    no_key,
    what_is_wrong_with_key,
    with_said,
    write_down,
)
from nanoloop.cli.output import say
from nanoloop.errors import SettingsError
from nanoloop.providers.vendors import split
from nanoloop.settings import Settings
from nanoloop.settings.problems import http_address

_HOW = """
Without flags, it looks for models, asks questions, and proposes the best answer to each. With any
flag, it asks nothing and sets only what the flags say. Nothing is saved until the model has
answered a test request. A key or token that can't be valid is refused."""
_TOKENS = ("telegram", "discord")
"""Platforms whose bots need only a token; use `nanoloop connect` for the others."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop setup`, with an option for each answer."""
    parser.description = f"{parser.description}\n{_HOW}"
    parser.add_argument("--base-url", metavar="URL", help="the address of the model's server")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="the key for the model's server; - reads it from standard input",
    )
    for name in _TOKENS:
        parser.add_argument(
            f"--{name}-token", metavar="TOKEN", help=f"your {name.title()} bot's token"
        )
    parser.add_argument(
        "--service", action="store_true", help="install and start nanoloop as a service"
    )
    parser.add_argument(
        "--unverified",
        action="store_true",
        help="save the settings without testing the model first",
    )


def run(args: Namespace) -> int:
    """Run the setup; if an answer is refused, nothing is written."""
    model, args.model = args.model, None
    settings = _settings_so_far(args)
    tokens = {name: found for name in _TOKENS if (found := getattr(args, f"{name}_token"))}
    has_flags = bool(model or args.base_url or args.api_key or tokens or args.service)
    if not has_flags and not (os.isatty(0) and os.isatty(1)):
        raise SettingsError("not a terminal, so use flags such as --model: see --help")
    said: dict[str, str]
    if has_flags:
        said = _model_of_flags(args, model, settings)
    else:
        try:
            said = dict(find_model(settings, always_asks=True))
            tokens = {"telegram": token} if (token := _asked_token()) else {}
        except NoModel as none:
            say(f"nanoloop: {none}", err=True)
            return Exit.NOT_CONFIGURED
    said |= dict(_channels(tokens, settings))
    settings = write_down(args, said, settings) if said else settings
    return _ended(args, settings, is_asked=not has_flags)


def _settings_so_far(args: Namespace) -> Settings:
    """Load the settings that the answers will change; the named file might not exist yet."""
    file = args.config
    if file and not Path(file).exists():
        args.config = None
    settings = load_settings(args)
    args.config = file
    return settings


def _model_of_flags(args: Namespace, model: str | None, settings: Settings) -> dict[str, str]:
    said = {}
    if args.base_url:
        try:
            said["base_url"] = http_address(args.base_url)
        except ValueError as error:
            raise SettingsError(f"--base-url {args.base_url!r} is {error}") from None
        if settings.origin("api_key").kind == "file":
            said |= no_key(settings)
    if model:
        said["model"] = model
    if args.api_key:
        key = sys.stdin.readline().strip() if args.api_key == "-" else args.api_key.strip()
        if problem := what_is_wrong_with_key(key):
            raise SettingsError(f"--api-key: {problem}")
        word = split(model or settings.model)[0]
        said[f"providers.{word}.api_key" if word else "api_key"] = key
    if said and not args.unverified:
        trial = with_said(settings, said)
        fetch_local_models(trial)
        ask_once(trial)
    return said


def _asked_token() -> str:
    try:
        return getpass("Your Telegram bot's token, from @BotFather (Enter: none): ").strip()
    except EOFError:
        say()
        return ""


def _channels(tokens: Mapping[str, str], settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings for bots; raises `SettingsError` if a token can't be valid."""
    for name, token in tokens.items():
        plugin = plugins.load("channels", name)
        own = settings.channels.of(name).model_copy(update={"token": SecretStr(token)})
        plugin.make(own, settings.data)
        yield f"channels.{name}.token", token


def _ended(args: Namespace, settings: Settings, *, is_asked: bool) -> int:
    from nanoloop.cli import service  # noqa: PLC0415 - rarely needed

    is_wanted = args.service or (
        is_asked
        and is_agreed(
            "Run nanoloop as a service, now and at each login?",
            nobody_there=SettingsError("can't ask without a terminal: use --service"),
        )
    )
    if is_wanted:
        service.install(settings)
    else:
        if agents := write_agents_file(settings):
            say(f"Wrote {agents}, for anyone who helps you with the bot")
        say("Next: nanoloop (to talk), nanoloop run (to serve all channels), nanoloop doctor")
    return Exit.DONE
