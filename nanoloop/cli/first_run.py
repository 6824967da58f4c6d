"""Finds the model for a command: the configured one, or one that is found or chosen now."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from nanoloop.cli.fetching import busy, fetch_model
from nanoloop.cli.output import ask, say
from nanoloop.cli.servers import (
    MOST_SHOWN,
    RunningServer,
    models_at,
    models_of_vendor,
    running_servers,
    usual_places,
)
from nanoloop.errors import ModelError, ProviderError, SettingsError, how_to_install
from nanoloop.files import user_folder
from nanoloop.models.catalogue import (
    FROM_HUB,
    PREFIX,
    SMALLEST,
    WORTHWHILE,
    Address,
    Model,
    file_of,
    find,
    is_local,
)
from nanoloop.models.download import has_answer, part_of
from nanoloop.parts import make_models, make_provider
from nanoloop.providers.local.child import free_bytes
from nanoloop.providers.vendors import VENDORS, split
from nanoloop.settings import Settings
from nanoloop.settings.files import NAME, write
from nanoloop.settings.problems import http_address
from nanoloop.settings.trust import Trust
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
{}. To choose one: nanoloop setup. To run one on this machine: nanoloop chat --local
To use a hosted one: export OPENAI_API_KEY=... To use your own server:
export OPENAI_BASE_URL=http://localhost:11434/v1 NANOLOOP_MODEL=... To see a demo: nanoloop demo"""
_WAYS = """
Two ways to get a model; run `nanoloop` afterwards:
  a server on this machine, such as Ollama:  ollama pull qwen3:4b
  a hosted model, with a key:                nanoloop setup"""


def add_local(parser: ArgumentParser) -> None:
    """Add the option `--local`, which overrides the model in the settings."""
    parser.add_argument(
        "--local",
        metavar="NAME",
        nargs="?",
        const="",
        help="use a model on this machine and download it if needed; without NAME, the best one",
    )


def settings_with_model(args: Namespace, *, can_ask: bool) -> Settings | None:
    """Return settings with a usable model; if there is none, show a message and return None."""
    if args.local is not None:
        args.model = f"{PREFIX}{(args.local or _best_local(args)).removeprefix(PREFIX)}"
    settings = load_settings(args)
    # A user who named a vendor has already chosen, and needs to know which key is missing.
    can_ask = can_ask and not split(settings.model)[0]
    if can_ask and (not settings.has_model or _is_only_a_key(settings)):
        try:
            return set_up(args, settings)
        except NoModel as none:
            say(f"nanoloop: {none}", err=True)
            return None
    if not settings.has_model:
        say(f"nanoloop: {no_model(settings)}", err=True)
        return None
    fetch_local_models(settings)
    return settings


def _best_local(args: Namespace) -> str:
    models, why_not = worthwhile(load_settings(args))
    if not models:
        raise SettingsError(f"{why_not} To try a tiny one: --local {SMALLEST.name}")
    return models[0].name


def no_model(settings: Settings) -> str:
    """Explain why these settings have no usable model, and how to get one."""
    if settings.origin("model").kind == "default":
        keyed = keyed_vendors(settings)
        so = (
            f" (but there is a key for {keyed[0]}: export NANOLOOP_MODEL={keyed[0]}:...)"
            if keyed
            else ""
        )
        return _HOW.format(f"no model is set{so}")
    if split(settings.model)[0]:
        [problem] = [each for each in unaskable(settings) if each.keys == ("model",)]
        return str(problem)
    return _HOW.format(f"neither a key nor a server is set for model {settings.model!r}")


def _is_only_a_key(settings: Settings) -> bool:
    """Return whether only a key, perhaps meant for other programs, is set in the environment."""
    is_ours = settings.origin("api_key").name.startswith("NANOLOOP_")
    is_found = settings.origin("api_key").kind == "env" and not is_ours
    said = (settings.origin(key).kind for key in ("model", "base_url"))
    return is_found and set(said) == {"default"}


class NoModel(Exception):
    """No model was chosen; the text lists the other options."""


Chosen = Mapping[str, str]
"""The settings to write to the file for the chosen model."""


def set_up(args: Namespace, settings: Settings) -> Settings:
    """Choose and save a model, and return the new settings; raise `NoModel` if there is none."""
    return write_down(args, find_model(settings), settings)


def write_down(args: Namespace, said: Chosen, settings: Settings) -> Settings:
    """Save the choice to the settings file, and return the new settings."""
    path = Path(args.config) if args.config else settings.own_file or _usual_file()
    Trust(os.environ).written(path, write(path, said))
    say(f"Written to {path}. To choose another model: nanoloop setup\n")
    return _loaded(args, said)


def _usual_file() -> Path:
    return user_folder("config", os.environ) / NAME


def _loaded(args: Namespace, said: Mapping[str, str]) -> Settings:
    """Reload the settings; raises `SettingsError` if another source overrides the choice."""
    args.model = None
    settings = load_settings(args)
    found = dict(values(settings))
    for key, value in said.items():
        if _plain(found.get(key)) != value:
            origin = settings.origin(key)
            raise SettingsError(f"{origin} overrides your choice: remove it")
    return settings


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else value


# Looking for models, and testing them


_CHECK = [{"role": "user", "content": "Say hello."}]
_CHECK_TOKENS = 16
_CHECK_SECONDS = 60
_TRIED = 3
"""How many of a server's models are tried until one answers."""


class _Choice(NamedTuple):
    """A menu entry and its action; the action returns None to show the menu again."""

    line: str
    follow: Callable[[], Chosen | None]
    is_verified: bool = False


def find_model(
    settings: Settings, servers: Sequence[RunningServer] | None = None, *, always_asks: bool = False
) -> Chosen:
    """Return the settings for a model that has just answered, or that is on this machine.

    Look for available models, and ask only if there is a choice. Raise `NoModel` if there is no
    model.
    """
    if servers is None:
        servers = running_servers(usual_places(settings))
    keyed = _keyed_servers(settings)
    able = [server for server in servers if server.models]
    for server in servers:
        if not server.models:
            say(f"{server.name} runs but has no chat model: `ollama pull qwen3:4b`")
    if always_asks or len(able) + len(keyed) > 1:
        return _from_menu(settings, able, keyed)
    try:
        if able and (said := _first_verified(settings, able[0])):
            return said
        if keyed and _is_key_welcome(keyed[0]) and (said := _with_vendors_key(settings, keyed[0])):
            return said
    except EOFError:
        raise NoModel(no_model(settings)) from None
    if able or keyed:
        return _from_menu(settings, [], [])
    return _own_model(settings)


def _told(why_not: str) -> Chosen | None:
    """Say why this model can't be chosen, and return None."""
    say(why_not)
    return None


def _keyed_servers(settings: Settings) -> list[Configured]:
    words = keyed_vendors(settings)
    if settings.api_key and settings.base_url is None and "openai" not in words:
        words.insert(0, "openai")  # the general key is OpenAI's by default
    return [server_of(settings, word) for word in words]


def _first_verified(settings: Settings, server: RunningServer) -> Chosen | None:
    for model in server.models[:_TRIED]:
        if said := _verified(
            settings, _of_server(settings, server, model), on=f"{server.name}, on this machine"
        ):
            return said
    return None


def _of_server(settings: Settings, server: RunningServer, model: str) -> Chosen:
    if server.place.word:
        return {"model": model}
    return {"base_url": server.place.url, "model": model} | no_key(settings)


def no_key(settings: Settings) -> dict[str, str]:
    """Return the setting that keeps an existing key from being sent to a new address."""
    return {"api_key": ""} if settings.api_key else {}


def _is_key_welcome(server: Configured) -> bool:
    question = f"{server.key_name} is set. Use {server.vendor.title} with it? [Y/n] "
    return ask(question).strip().lower() in ("", "y", "yes")


def _with_vendors_key(settings: Settings, server: Configured, **also: str) -> Chosen | None:
    """Contact the vendor for the first time; return settings for a model that answers."""
    with busy(f"asking {server.vendor.title} for its models"):
        listed = models_of_vendor(server)
    usual = f"openai:{Settings.model_fields['model'].default}"
    if server.word == "openai" and (usual in listed or not listed):
        listed = [usual, *(model for model in listed if model != usual)]
    if not listed:
        return _told(
            f"{server.vendor.title} does not list any models: check the key and the network."
        )
    return _verified(settings, {**also, "model": listed[0]}, on=server.vendor.title)


def _verified(settings: Settings, said: Chosen, *, on: str) -> Chosen | None:
    """Return the choice if its model answers a request; otherwise say why not and return None."""
    name = split(said["model"])[1]
    started = time.monotonic()
    try:
        with busy(f"asking {name} ({on})"):
            ask_once(with_said(settings, said))
    except (ProviderError, SettingsError) as error:
        return _told(f"{name} ({on}) can't be used: {error}")
    say(f"{name} ({on}) answered in {time.monotonic() - started:.1f} seconds.")
    return said


def ask_once(settings: Settings) -> None:
    """Send one test request to the model; raises `ProviderError` or `SettingsError` if it fails."""
    anyio.run(_answer, settings)


async def _answer(settings: Settings) -> None:
    models = make_provider(settings)
    limited = models.with_options({"max_tokens": _CHECK_TOKENS}) if models.with_options else models
    try:
        with anyio.fail_after(_CHECK_SECONDS):
            await limited.chat(messages=_CHECK)
    except TimeoutError:
        raise ProviderError(f"no answer within {_CHECK_SECONDS} seconds") from None
    finally:
        await models.close()


def with_said(settings: Settings, said: Chosen) -> Settings:
    """Return the settings as they will be once this choice is in the file."""
    update: dict[str, Any] = {}
    for key, value in said.items():
        *_, word, name = ("", "", *key.split("."))
        if key.startswith("providers."):
            own = own_of(settings, word).model_copy(update={name: SecretStr(value)})
            update["providers"] = {**settings.providers, word: own}
        else:
            update[key] = SecretStr(value) if key == "api_key" else value
    # Other models in the settings are left out, because only this one is tested.
    return settings.model_copy(update={"summary_model": None, "agents": {}, **update})


# A menu, if there is a choice


def _from_menu(
    settings: Settings, servers: Sequence[RunningServer], keyed: Sequence[Configured]
) -> Chosen:
    tried = [(server, _first_verified(settings, server)) for server in servers]
    choices = [
        *(_server(settings, server, said) for server, said in tried),
        *(_keyed(settings, server) for server in keyed),
        *_local_choices(settings),
        _Choice("a hosted model, with a key", partial(_with_key, settings)),
        _Choice("a server, by its address", partial(_with_address, settings)),
    ]
    best = next((n for n, choice in enumerate(choices, 1) if choice.is_verified), None)
    say("\nWhich model should be used?\n")
    for number, choice in enumerate(choices, start=1):
        say(f"  {number}  {choice.line}")
    say()
    try:
        return _taken(choices, best)
    except EOFError:
        say("\n")
        raise NoModel(no_model(settings)) from None


def _taken(choices: Sequence[_Choice], best: int | None) -> Chosen:
    enter = f"Enter for {best}, " if best else ""
    while True:
        said = ask(f"1 to {len(choices)} ({enter}Ctrl-D to quit): ").strip() or str(best or "")
        if said not in map(str, range(1, len(choices) + 1)):
            say(f"{said!r} is not one of them." if said else "Type one of the numbers.")
        elif chosen := choices[int(said) - 1].follow():
            return chosen


_MODELS_SHOWN = 4


def _server(settings: Settings, server: RunningServer, verified: Chosen | None) -> _Choice:
    names = [split(model)[1] for model in server.models]
    more = ", …" if len(names) > _MODELS_SHOWN else ""
    line = f"{server.name}, running on this machine: {', '.join(names[:_MODELS_SHOWN])}{more}"

    def follow() -> Chosen | None:
        usual = split((verified or {}).get("model", server.models[0]))[1]
        name = _one_of(names, usual)
        word = server.place.word
        said = _of_server(settings, server, f"{word}:{name}" if word else name)
        return verified if said == verified else _verified(settings, said, on=server.name)

    return _Choice(line, follow, is_verified=verified is not None)


def _keyed(settings: Settings, server: Configured) -> _Choice:
    line = (
        f"{server.vendor.title}, with the key in {server.key_name} (not sent until you choose it)"
    )
    return _Choice(line, partial(_with_vendors_key, settings, server))


def _local_choices(settings: Settings) -> Iterator[_Choice]:
    models, why_not = worthwhile(settings)
    for model in models[:1]:
        is_here = (settings.models / model.file).exists()
        effort = "already here" if is_here else f"{size(model.size_bytes or 0)} to download"
        line = f"{model.name} on this machine ({effort}): {model.about}"
        # The user has chosen this model, so no demo is played.
        yield _Choice(line, partial(_fetched, model, settings), is_verified=is_here)
    if not models:
        yield _Choice("a model on this machine", partial(_told, why_not))


def _fetched(model: Model, settings: Settings) -> Chosen | None:
    try:
        fetch_model(model, settings)
    except ModelError as error:
        return _told(f"{model.name} is not available: {error}")
    return {"model": f"{PREFIX}{model.name}"}


_KEYS = {
    "sk-ant-": "anthropic",
    "sk-or-": "openrouter",
    "sk-": "openai",
    "gsk_": "groq",
    "AIza": "gemini",
    "xai-": "xai",
    "fw_": "fireworks",
}
"""The vendors that keys belong to, by prefix."""
_ADDRESS = re.compile(r"https?://|localhost\b|[\w.-]+:\d+\b|\S+\.\S+/", re.IGNORECASE)
_LEAST_KEY = 8


def _with_key(settings: Settings) -> Chosen | None:
    key = getpass("Key (not shown): ").strip()
    if problem := what_is_wrong_with_key(key):
        return _told(problem)
    word = next((word for sign, word in _KEYS.items() if key.startswith(sign)), "")
    if word:
        name = f"providers.{word}.api_key"
        server = server_of(with_said(settings, {name: key}), word)
        return _with_vendors_key(with_said(settings, {name: key}), server, **{name: key})
    return _with_key_for(settings, key, ask("Model, such as mistral:NAME: ").strip())


def what_is_wrong_with_key(key: str) -> str | None:
    """Return why this can't be a key, or None if it may be one."""
    if not key:
        return "No key was entered."
    if _ADDRESS.match(key):
        return "That is an address, not a key: choose `a server, by its address`."
    if not key.isascii() or len(key.split()) > 1 or len(key) < _LEAST_KEY:
        return "That is not a key: copy the whole key from your vendor's page."
    return None


def _with_key_for(settings: Settings, key: str, model: str) -> Chosen | None:
    word, name = split(model)
    if word == "local":
        return _told("A model on this machine needs no key.")
    if not word:
        return _told(f"Whose key is it? Write the vendor before the model: {', '.join(_hosted())}.")
    if word not in VENDORS:
        return _told(f"{word} has its own settings: write them in [providers.{word}].")
    said = {f"providers.{word}.api_key": key, "model": model}
    if lacks := lacking(with_said(settings, said), model):
        return _told(f"{model}: {lacks}.")
    return _verified(settings, said, on=VENDORS[word].title) if name else None


def _hosted() -> list[str]:
    return [f"{word}:NAME" for word, vendor in VENDORS.items() if vendor.keys]


def _with_address(settings: Settings) -> Chosen | None:
    url = _address()
    key = getpass("Key (not shown; Enter if it needs none): ").strip()
    models = models_at(url, key or None)
    if not models:
        say(f"{url} does not list its models: check the address, or continue.")
    model = _one_of(models, models[0] if models else settings.model)
    said = {"base_url": url, "model": model} | ({"api_key": key} if key else no_key(settings))
    return _verified(settings, said, on=url)


def _address() -> str:
    while True:
        typed = ask("Address, such as http://localhost:11434/v1: ").strip()
        try:
            return http_address(typed)
        except ValueError as error:
            say(f"{typed!r} is {error}")


def _one_of(models: Sequence[str], usual: str) -> str:
    """Ask for a model's name, accepting any name because lists may be incomplete."""
    if len(models) == 1:
        return models[0]
    if models:
        say(f"Its models: {', '.join(models[:MOST_SHOWN])}")
    return ask(f"Model (Enter for {usual}): ").strip() or usual


# A model on this machine


EXTRA = f"a model on this machine needs xllamacpp: {how_to_install('local')}"
_TINY = f"{SMALLEST.name} is tiny; to talk: nanoloop chat --local"
_HUB_SECONDS = 3.0
_DISK_BESIDE = 200_000_000
"""How many bytes of disk space to leave free for other programs."""


def can_run() -> bool:
    """Return whether the package that runs models is installed."""
    return find_spec("xllamacpp") is not None


def worthwhile(settings: Settings) -> tuple[list[Model], str]:
    """Return the useful models that this machine has room for, or the reason why there are none."""
    if not can_run():
        return [], f"No model can run on this machine yet: {EXTRA}"
    here = [model for model in WORTHWHILE if (settings.models / model.file).exists()]
    least = min(WORTHWHILE, key=lambda model: model.running_bytes)
    memory = free_bytes()
    if memory < least.running_bytes:
        return [], (
            f"The smallest model worth talking to needs {size(least.running_bytes)} of memory, "
            f"and only {size(memory)} is free."
        )
    if here:
        return here, ""
    room = free_room(settings.models)
    begun = [model for model in WORTHWHILE if part_of(settings.models / model.file).exists()]
    needed = (least.size_bytes or 0) + _DISK_BESIDE
    if not begun and room < needed:
        return [], (
            f"The smallest model worth talking to needs {size(needed)} on the disk, and only "
            f"{size(room)} is free in {settings.models}."
        )
    return begun or _by_hub(settings), ""


def free_room(folder: Path) -> int:
    """Return the free space on a folder's disk; the folder might not exist yet."""
    there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free


def _by_hub(settings: Settings) -> list[Model]:
    """Return the downloadable models, with the hub's models first if the hub answers in time."""
    others = [model for model in WORTHWHILE if model is not FROM_HUB]
    [source] = FROM_HUB.sources
    if isinstance(source, Address) and settings.local.hub:
        with busy("looking for a model hub"):
            asked = partial(has_answer, source, settings.local.hub, seconds=_HUB_SECONDS)
            if anyio.run(asked):
                return [FROM_HUB, *others]
    return others


def _own_model(settings: Settings) -> Chosen:
    """Download a useful model for this machine while the demo plays, and return its settings."""
    from nanoloop.cli.demo import fetch_first_model, play_alone  # noqa: PLC0415 - rarely played

    say("No model server runs on this machine, and no key for a hosted model is set.")
    models, why_not = worthwhile(settings)
    if not models:
        say(f"{why_not}\nInstead, here is a demo of what nanoloop does:\n")
        play_alone()
        raise NoModel(f"no model is set. {why_not}{_WAYS}")
    if (settings.models / models[0].file).exists():
        say(f"{models[0].name} is already on this machine and will be used.")
        return {"model": f"{PREFIX}{models[0].name}"}
    try:
        model = fetch_first_model(models, settings, load=partial(_load_ahead, settings))
    except ModelError as error:
        raise NoModel(f"{error}{_WAYS}") from None
    return {"model": f"{PREFIX}{model.name}"}


def _load_ahead(settings: Settings, model: Model) -> None:
    """Start loading the chosen model; if that fails, the first request reports the error."""
    with suppress(SettingsError):
        make_models(with_said(settings, {"model": f"{PREFIX}{model.name}"})).load_ahead()


def fetch_local_models(settings: Settings) -> None:
    """Download the missing files of local models; naming such a model counts as consent."""
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
        say(_TINY, err=True)
