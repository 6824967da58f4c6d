"""The first question of all: who shall answer? What a person chooses, as settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from getpass import getpass
from typing import NamedTuple

from pydantic import SecretStr

from nanoloop.cli.amounts import size
from nanoloop.cli.local import EXTRA, can_run
from nanoloop.cli.servers import MOST_SHOWN, Server, models_at, running, served_by
from nanoloop.models.catalogue import CATALOGUE, Model
from nanoloop.models.part import PREFIX
from nanoloop.providers.vendors import VENDORS, split
from nanoloop.settings import Settings
from nanoloop.settings.problems import http_address
from nanoloop.settings.vendors import ServerSettings as Configured
from nanoloop.settings.vendors import keyed_vendors, lacking, own_of, server_of

Said = Mapping[str, str]
"""What the settings file is to say."""
_BYTES_A_MINUTE = 50_000_000 / 8 * 60
_MODELS_SHOWN = 4


class _Choice(NamedTuple):
    """A line of the menu, and what follows where it is taken; None is another try."""

    line: str
    follow: Callable[[], Said | None]


def ask(settings: Settings, servers: Sequence[Server] | None = None) -> Said | None:
    """What the person chose, or None where they left."""
    found = running() if servers is None else servers
    keyed = [server_of(settings, word) for word in keyed_vendors(settings)]
    choices = [
        *(_local(model, settings) for model in CATALOGUE),
        _Choice("a hosted model, with a key", partial(_with_key, settings)),
        _Choice("a server, by its address", partial(_with_address, settings)),
        *(_server(server) for server in found),
        *(_keyed(server) for server in keyed),
    ]
    print("No model is set yet. Who shall answer? (Times to fetch are for 50 Mbit/s.)\n")
    for number, choice in enumerate(choices, start=1):
        print(f"  {number}  {choice.line}")
    print()
    try:
        return _taken(choices)
    except EOFError:
        return print("\n")


def _taken(choices: Sequence[_Choice]) -> Said:
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

    def follow() -> Said | None:
        if can_run():
            return {"model": f"{PREFIX}{model.name}"}
        return print(EXTRA)

    return _Choice(line, follow)


def _server(server: Server) -> _Choice:
    shown = ", ".join(server.models[:_MODELS_SHOWN])
    more = ", …" if len(server.models) > _MODELS_SHOWN else ""
    line = f"{server.name}, which runs here: {shown}{more}"
    return _Choice(
        line, lambda: {"base_url": server.url, "model": _one_of(server.models, server.models[0])}
    )


def _keyed(server: Configured) -> _Choice:
    line = f"{server.vendor.title}, with the key that is set"

    def follow() -> Said | None:
        listed = [model.removeprefix(f"{server.word}:") for model in served_by(server)]
        if not listed:
            return print(f"{server.vendor.title} lists no models: check the key.")
        return {"model": f"{server.word}:{_one_of(listed[:MOST_SHOWN], listed[0])}"}

    return _Choice(line, follow)


def _with_key(settings: Settings) -> Said | None:
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


def _with_address(settings: Settings) -> Said:
    url = _address()
    key = getpass("Key (not shown; Enter where it wants none): ").strip()
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
