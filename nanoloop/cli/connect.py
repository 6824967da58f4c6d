"""`nanoloop connect`: checks an account on a chat platform and adds it to the settings."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from getpass import getpass
from pathlib import Path
from typing import Any

import anyio
from pydantic import SecretStr

from nanoloop import plugins
from nanoloop.channels.states import running
from nanoloop.cli import Exit, add_actions, load_settings
from nanoloop.cli.agents_file import write_agents_file
from nanoloop.cli.output import ask, say
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.files import user_folder
from nanoloop.plugins import Connected, ConnectQuestion, Plugin
from nanoloop.settings import Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.files import NAME, write
from nanoloop.settings.trust import Trust

_OPERATOR = "operator"
"""The question whose answer is added to `operators`."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop connect`: each platform with an option per question."""
    action = add_actions(parser)
    for plugin in _plugins():
        made = action(
            plugin.name,
            f"connect an account on {plugin.name.title()}; asks for missing values",
            partial(_connect, plugin),
        )
        for question in plugin.asks:
            how: dict[str, Any] = {"metavar": question.name.upper()}
            if question.is_switch:
                how = {"action": "store_const", "const": "yes"}
            made.add_argument(f"--{question.name}", help=question.help, **how)


def _plugins() -> Iterator[Plugin]:
    """Yield the channels that can be connected."""
    for name in plugins.names("channels"):
        with suppress(SettingsError):  # skip a broken plugin
            plugin = plugins.load("channels", name)
            if plugin.connect is not None:
                yield plugin


def connect(name: str, told: Mapping[str, str], settings: Settings) -> Connected:
    """Check an account with its server; raises `NanoloopError` if that fails."""
    plugin = plugins.load("channels", name)
    try:
        assert plugin.connect is not None  # noqa: S101 - checked by `_plugins`
        return anyio.run(plugin.connect, settings.channels.of(name), told)
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"{name} needs {missing.name}, which is not installed: {how_to_install(plugin.extra)}"
        ) from None


def write_connected(
    name: str, told: Mapping[str, str], done: Connected, settings: Settings, path: Path
) -> list[str]:
    """Write a connected account's settings to the file; return the keys that changed."""
    own = settings.channels.of(name)
    wanted = dict(done.settings)
    if isinstance(own, PlatformSettings):
        wanted["enabled"] = True
        if operator := told.get(_OPERATOR):
            wanted["operators"] = [*dict.fromkeys((*own.operators, operator))]
    said = {
        f"channels.{name}.{key}": value
        for key, value in wanted.items()
        if _plain(getattr(own, key, None)) != value
    }
    if said:
        Trust(os.environ).written(path, write(path, said))
    return [*said]


def _connect(plugin: Plugin, args: Namespace, settings: Settings) -> int:
    name = plugin.name
    told = _answers(plugin, args, settings.channels.of(name))
    done = connect(name, told, settings)
    path = Path(args.config) if args.config else settings.own_file or _usual_file()
    written = write_connected(name, told, done, settings, path)
    for sentence in done.says:
        say(sentence)
    say(
        f"Written to {path}: {', '.join(written)}"
        if written
        else "The settings already contain all of these values"
    )
    _see_that_it_counts(args, written, name, done)
    write_agents_file(load_settings(args))
    is_served = bool(running(settings.data))
    say("Next: restart the running daemon" if is_served else "Next: nanoloop run")
    return Exit.DONE


def _answers(plugin: Plugin, args: Namespace, own: Any) -> dict[str, str]:
    """Collect answers from options, settings or the user, in that order.

    Raise `SettingsError` if a required answer is missing.
    """
    keys = {question.name: question.name.replace("-", "_") for question in plugin.asks}
    told = {name: getattr(args, key) for name, key in keys.items() if getattr(args, key)}
    # If the user gives a password, ignore an earlier token from the settings.
    instead = {question.unless for question in plugin.asks if question.name in told}
    for name, key in keys.items():
        known = _plain(getattr(own, key, None))
        if isinstance(known, str) and known and name not in told.keys() | instead:
            told[name] = known
    can_ask = sys.stdin.isatty() and sys.stdout.isatty()
    open_ones = [each for each in plugin.asks if each.name not in told]
    for question in open_ones if can_ask else ():
        if question.asks and question.unless not in told and (answer := _asked(question)):
            told[question.name] = answer
    lacking = [
        f"--{each.name} ({each.help})"
        for each in plugin.asks
        if each.is_needed and not {each.name, each.unless} & told.keys()
    ]
    if lacking:
        raise SettingsError(f"to connect {plugin.name}, add {' and '.join(lacking)}")
    return told


def _asked(question: ConnectQuestion) -> str:
    """Ask the user a question; the answer is empty only if it is optional or input ends."""
    while True:
        try:
            line = f"{question.asks}: "
            answer = (getpass(line) if question.is_secret else ask(line)).strip()
        except EOFError:
            return ""
        if answer or not question.is_needed:
            return answer


def _see_that_it_counts(args: Namespace, written: list[str], name: str, done: Connected) -> None:
    """Raise `SettingsError` if another source of settings overrides the values written."""
    settings = load_settings(args)
    own = settings.channels.of(name)
    for key in written:
        setting = key.rpartition(".")[2]
        if setting in done.settings and _plain(getattr(own, setting)) != done.settings[setting]:
            origin = settings.origin(key)
            raise SettingsError(f"{origin} overrides the new value of {key}: remove the old one")


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return value.get_secret_value()
        case tuple():
            return list(value)
        case _:
            return value


def _usual_file() -> Path:
    return user_folder("config", os.environ) / NAME
