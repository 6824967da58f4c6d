"""The model that answers a command: the one that is set, else the one a person chooses now."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from getpass import getpass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import anyio
from pydantic import SecretStr

from nanoloop.cli import load_settings
from nanoloop.cli.amounts import size
from nanoloop.cli.config import values
from nanoloop.cli.servers import (
    MOST_SHOWN,
    RunningServer,
    models_at,
    models_of_vendor,
    running_servers,
)
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.files import user_folder
from nanoloop.models.catalogue import CATALOGUE, PREFIX, SMALLEST, Model, file_of, find, is_local
from nanoloop.models.download import DownloadProgress, Tell, fetch
from nanoloop.providers.vendors import VENDORS, split
from nanoloop.settings import Settings
from nanoloop.settings.files import NAME, write
from nanoloop.settings.problems import http_address
from nanoloop.settings.vendors import ServerSettings as Configured
from nanoloop.settings.vendors import (
    keyed_vendors,
    lacking,
    models_of,
    own_of,
    server_of,
    unaskable,
)

_HOW = """\
{}. On this machine, without a key: nanoloop chat --local
With a key for a hosted one: export OPENAI_API_KEY=... With a server, say your own:
export OPENAI_BASE_URL=http://localhost:11434/v1 NANOLOOP_MODEL=... To look first: nanoloop demo"""


_WAITING = "another process fetches it; waiting"


def add_local(parser: ArgumentParser) -> None:
    """The flag that takes a model on this machine, whatever the settings say."""
    parser.add_argument(
        "--local",
        metavar="NAME",
        nargs="?",
        const=SMALLEST.name,
        help="a model on this machine, fetched if it is missing (%(const)s; see `model list`)",
    )


def settings_with_model(args: Namespace, *, can_ask: bool) -> Settings | None:
    """The settings with a model that can be asked; None, with a message, if there is none."""
    if args.local is not None:
        args.model = f"{PREFIX}{args.local.removeprefix(PREFIX)}"
    settings = load_settings(args)
    # Anyone who names a vendor has chosen already, and wants to hear which key is missing.
    can_ask = can_ask and not split(settings.model)[0]
    found = settings if settings.has_model else _chosen(args, settings) if can_ask else None
    if found is None:
        print(f"nanoloop: {no_model(settings)}", file=sys.stderr)
    else:
        fetch_local_models(found)
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
    said = ask_for_model(settings)
    if said is None:
        return None
    path = Path(args.config) if args.config else settings.file or _usual_file()
    write(path, said)
    print(f"Written to {path}; to choose again, take {' and '.join(said)} out of it\n")
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


Chosen = Mapping[str, str]
"""Settings to write into the file."""
_BYTES_A_MINUTE = 50_000_000 / 8 * 60
_MODELS_SHOWN = 4


class _Choice(NamedTuple):
    """A line of the menu, and what follows if it is taken; None means another try."""

    line: str
    follow: Callable[[], Chosen | None]


def ask_for_model(
    settings: Settings, servers: Sequence[RunningServer] | None = None
) -> Chosen | None:
    """What the person chose, or None if they left."""
    found = running_servers() if servers is None else servers
    keyed = [server_of(settings, word) for word in keyed_vendors(settings)]
    choices = [
        *(_local(model, settings) for model in CATALOGUE),
        _Choice("a hosted model, with a key", partial(_with_key, settings)),
        _Choice("a server, by its address", partial(_with_address, settings)),
        *(_server(server) for server in found),
        *(_keyed(server) for server in keyed),
    ]
    print("No model is set yet. Which model should answer? (Download times are for 50 Mbit/s.)\n")
    for number, choice in enumerate(choices, start=1):
        print(f"  {number}  {choice.line}")
    print()
    try:
        return _taken(choices)
    except EOFError:
        return print("\n")


def _taken(choices: Sequence[_Choice]) -> Chosen:
    while True:
        said = input(f"1 to {len(choices)} (Enter is 1, Ctrl-D leaves): ").strip() or "1"
        if said not in map(str, range(1, len(choices) + 1)):
            print(f"{said!r} is none of them.")
        elif chosen := choices[int(said) - 1].follow():
            return chosen


def _local(model: Model, settings: Settings) -> _Choice:
    minutes = (model.size_bytes or 0) / _BYTES_A_MINUTE
    how_long = "under a minute" if minutes < 1 else f"{minutes:.0f} minutes"
    is_here = (settings.models / model.file).exists()
    effort = "here already" if is_here else f"{size(model.size_bytes or 0)}, {how_long}"
    line = f"{model.name} on this machine ({effort}): {model.about}"

    def follow() -> Chosen | None:
        if can_run():
            return {"model": f"{PREFIX}{model.name}"}
        return print(EXTRA)

    return _Choice(line, follow)


def _server(server: RunningServer) -> _Choice:
    shown = ", ".join(server.models[:_MODELS_SHOWN])
    more = ", …" if len(server.models) > _MODELS_SHOWN else ""
    line = f"{server.name}, which runs here: {shown}{more}"
    return _Choice(
        line, lambda: {"base_url": server.url, "model": _one_of(server.models, server.models[0])}
    )


def _keyed(server: Configured) -> _Choice:
    line = f"{server.vendor.title}, with the key that is set"

    def follow() -> Chosen | None:
        listed = [model.removeprefix(f"{server.word}:") for model in models_of_vendor(server)]
        if not listed:
            return print(f"{server.vendor.title} lists no models: check the key.")
        return {"model": f"{server.word}:{_one_of(listed[:MOST_SHOWN], listed[0])}"}

    return _Choice(line, follow)


def _with_key(settings: Settings) -> Chosen | None:
    if not (key := getpass("Key (not shown): ").strip()):
        return print("No key was typed.")
    model = _one_of((), settings.model)
    word, _ = split(model)
    if not word:
        return {"api_key": key, "model": model}
    if word == "local":
        return print("A model on this machine takes no key.")
    if word not in VENDORS:
        return print(f"What {word} takes is its package's to say: write [providers.{word}].")
    if lacks := lacking(_with(settings, word, key), model):
        return print(f"{model}: {lacks}.")
    return {f"providers.{word}.api_key": key, "model": model}


def _with(settings: Settings, word: str, key: str) -> Settings:
    own = own_of(settings, word).model_copy(update={"api_key": SecretStr(key)})
    return settings.model_copy(update={"providers": {**settings.providers, word: own}})


def _with_address(settings: Settings) -> Chosen:
    url = _address()
    key = getpass("Key (not shown; Enter if it wants none): ").strip()
    models = models_at(url, key or None)
    if not models:
        print(f"Nothing at {url} lists its models; check the address, or go on.")
    model = _one_of(models, models[0] if models else settings.model)
    return {"base_url": url, "model": model} | ({"api_key": key} if key else {})


def _address() -> str:
    while True:
        typed = input("Address, such as http://localhost:11434/v1: ").strip()
        try:
            return http_address(typed)
        except ValueError as error:
            print(f"{typed!r} is {error}")


def _one_of(models: Sequence[str], usual: str) -> str:
    """The model's name, typed; any name will do, for lists are not always whole."""
    if len(models) == 1:
        return models[0]
    if models:
        print("It has:", ", ".join(models))
    return input(f"Model (Enter is {usual}): ").strip() or usual


EXTRA = f"a model on this machine needs xllamacpp: {how_to_install('local')}"
_TINY = f"{SMALLEST.name} is tiny; to talk: nanoloop chat --local {CATALOGUE[1].name}"


def can_run() -> bool:
    """Whether what runs a model is installed."""
    return find_spec("xllamacpp") is not None


def fetch_local_models(settings: Settings) -> None:
    """Fetch the local models' files that are missing: anyone who names a model wants it."""
    models = {model for _, model in models_of(settings) if is_local(model)}
    if models and not can_run():
        raise SettingsError(EXTRA)
    for model in sorted(models):
        _fetch_if_missing(model, settings)


def _fetch_if_missing(model: str, settings: Settings) -> None:
    path = file_of(model, settings.models)
    if not path.exists():
        if not model.startswith(PREFIX):
            raise SettingsError(f"there is no model file {path}: check the path")
        fetch_model(find(path.stem), settings)
    if model == settings.model and path.stem == SMALLEST.name and sys.stderr.isatty():
        print(_TINY, file=sys.stderr)


def fetch_model(model: Model, settings: Settings) -> Path:
    """The model's file, fetched with its progress shown; raises `ModelError`."""
    if (path := settings.models / model.file).exists():
        return path
    shown = _bar if sys.stderr.isatty() else _lines
    try:
        with shown(model) as tell:
            # In an event loop of its own: Ctrl-C ends it at once, whatever it waits for.
            return anyio.run(
                partial(fetch, model, settings.models, hub=settings.local.hub, tell=tell)
            )
    except KeyboardInterrupt:
        words = f"nanoloop model get {model.typed or model.name}"
        _say(f"stopped; what came is kept: `{words}` resumes it")
        raise


@contextmanager
def _bar(model: Model) -> Iterator[Tell]:
    from rich import progress  # noqa: PLC0415 - slow, and only wanted here
    from rich.console import Console  # noqa: PLC0415 - as above

    columns = (
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(model.name, total=model.size_bytes)

        def tell(made: DownloadProgress) -> None:
            what = {"waiting": f"{model.name}: {_WAITING}", "checking": f"{model.name}: checking"}
            about = what.get(made.step, model.name)
            bar.update(task, description=about, completed=made.done, total=made.total)

        yield tell


@contextmanager
def _lines(model: Model) -> Iterator[Tell]:
    """A line for each tenth of the file, once."""
    said = set()

    def say_once(sentence: str) -> None:
        if sentence not in said:
            said.add(sentence)
            _say(f"{model.name}: {sentence}")

    def tell(made: DownloadProgress) -> None:
        if made.step == "waiting":
            say_once(_WAITING)
        elif made.step == "fetching" and made.total and (tenths := made.done * 10 // made.total):
            say_once(f"{tenths * 10} % of {size(made.total)}")

    _say(f"fetching {model.name}" + (f" ({size(model.size_bytes)})" if model.size_bytes else ""))
    yield tell


def _say(sentence: str) -> None:
    print(f"nanoloop: {sentence}", file=sys.stderr, flush=True)
