"""The model that answers a command: the one that is set, else the one a person chooses now."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from nanoloop.cli import load_settings
from nanoloop.cli.config import values
from nanoloop.cli.local import make_ready
from nanoloop.errors import SettingsError
from nanoloop.models.catalogue import SMALLEST
from nanoloop.models.part import PREFIX
from nanoloop.providers.vendors import split
from nanoloop.settings import Settings
from nanoloop.settings.sources import NAME, user_folder, write
from nanoloop.settings.vendors import keyed_vendors, unaskable

_HOW = """\
{}. On this machine, without a key: nanoloop chat --local
With a key for a hosted one: export OPENAI_API_KEY=... With a server, say your own:
export OPENAI_BASE_URL=http://localhost:11434/v1 NANOLOOP_MODEL=... To look first: nanoloop demo"""


def add_local(parser: ArgumentParser) -> None:
    """The flag that takes a model on this machine, whatever the settings say."""
    parser.add_argument(
        "--local",
        metavar="NAME",
        nargs="?",
        const=SMALLEST.name,
        help="a model on this machine, fetched where it is missing (%(const)s; see `model list`)",
    )


def settle(args: Namespace, *, can_ask: bool) -> Settings | None:
    """The settings with a model that can be asked; None, once said, where there is none."""
    if args.local is not None:
        args.model = f"{PREFIX}{args.local.removeprefix(PREFIX)}"
    settings = load_settings(args)
    # Whoever names a vendor has chosen already: they want to hear which key is missing.
    can_ask = can_ask and not split(settings.model)[0]
    found = settings if settings.has_model else _chosen(args, settings) if can_ask else None
    if found is None:
        print(f"nanoloop: {no_model(settings)}", file=sys.stderr)
    else:
        make_ready(found)
    return found


def no_model(settings: Settings) -> str:
    """What these settings lack so that a model can be asked, and the ways to one."""
    if settings.origin("model").kind == "default":
        keyed = keyed_vendors(settings)
        so = f" (but a key for {keyed[0]}: export NANOLOOP_MODEL={keyed[0]}:...)" if keyed else ""
        return _HOW.format(f"no model is set{so}")
    if split(settings.model)[0]:
        [problem] = [each for each in unaskable(settings) if each.keys == ("model",)]
        return str(problem)
    return _HOW.format(f"neither a key nor a server is set for model {settings.model!r}")


def _chosen(args: Namespace, settings: Settings) -> Settings | None:
    from nanoloop.cli.choice import ask  # noqa: PLC0415 - once in a lifetime

    said = ask(settings)
    if said is None:
        return None
    path = Path(args.config) if args.config else settings.file or _usual_file()
    write(path, said)
    print(f"Written to {path}; to choose anew, take {' and '.join(said)} out of it\n")
    return _loaded(args, said)


def _usual_file() -> Path:
    return user_folder("config", os.environ) / NAME


def _loaded(args: Namespace, said: Mapping[str, str]) -> Settings:
    """The settings as they are now; what was chosen a moment ago has to be in force."""
    args.model = None
    settings = load_settings(args)
    found = dict(values(settings))
    for key, value in said.items():
        if _plain(found.get(key)) != value:
            origin = settings.origin(key)
            raise SettingsError(f"{origin} is stronger than what you chose: take it away")
    return settings


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value
