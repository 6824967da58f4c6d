"""`nanoloop check`: whether all that a daemon needs is right, and the next step if it isn't."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import anyio

from nanoloop import plugins
from nanoloop.attachments import is_pillow_here
from nanoloop.channels.kit.channel import PlatformChannel, make_channel, wanted
from nanoloop.channels.kit.platform import Heard, Refused
from nanoloop.channels.screen import printable
from nanoloop.channels.states import running
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.first_run import no_model
from nanoloop.cli.transcript import opened
from nanoloop.errors import NanoloopError, ProviderError, how_to_install, place_of
from nanoloop.files import refusal
from nanoloop.models.catalogue import file_of, is_local
from nanoloop.parts import make_attachments, make_models, make_transcriber
from nanoloop.protocols import Reply, Store
from nanoloop.providers.models import Models
from nanoloop.providers.vendors import VENDORS, split
from nanoloop.settings import Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.vendors import lacking, models_of
from nanoloop.stores.place import default_url, path_of, shown

CONNECT_SECONDS = 30.0
_SHOWN = 40
"""Characters of an answer."""
_ONE_TOKEN = {"max_tokens": 1, "thinking": None}
"""Thinking doesn't go with so short an answer; a provider calls the limit as its server does."""
_LIMIT = re.compile(r"max_(completion_|output_)?tokens|output limit")
"""In the words of a server that is there, knows key and model, and refuses so short an answer."""
_HOW = """
Each model is asked for one token, and each chat platform is connected to; if a daemon runs, it
says how they stand."""


class Check(NamedTuple):
    """One thing that was looked at."""

    what: str
    is_well: bool
    says: str


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop check` takes: hardly more than settings."""
    parser.description = f"{parser.description}\n{_HOW}"


def run(args: Namespace) -> int:
    """Look at all of it; 0 only if all is well."""
    settings = load_settings(args)
    code = anyio.run(_check, settings)
    return code if settings.has_model else Exit.NOT_CONFIGURED


async def _check(settings: Settings) -> Exit:
    code = Exit.DONE
    async for found in look(settings):
        mark = "ok   " if found.is_well else "WRONG"
        print(printable(f"{mark}  {found.what}: {found.says}"), flush=True)
        code = code if found.is_well else Exit.FAILED
    return code


async def look(settings: Settings) -> AsyncIterator[Check]:
    """Everything that can be looked at, one after the other."""
    file = settings.file or "no file: the defaults, the environment and flags"
    yield Check("settings", is_well=True, says=str(file))
    for found in await _models(settings):
        yield found
    yield await _store(settings)
    yield _pictures()
    async for found in _channels(settings):
        yield found


async def _models(settings: Settings) -> list[Check]:
    """What came of asking each model, all of them asked at once, in the order of the settings."""
    keys: dict[str, list[str]] = {}
    for key, model in models_of(settings):
        keys.setdefault(model, []).append(key)
    found: dict[str, Check] = {}

    async def ask(model: str, models: Models) -> None:
        is_well, says = await _model(model, settings, models)
        found[model] = Check(", ".join(keys[model]), is_well=is_well, says=says)

    models = make_models(settings)
    try:
        async with anyio.create_task_group() as group:
            for model in keys:
                group.start_soon(ask, model, models, name=f"check {model}")
    finally:
        with suppress(Exception):  # a plugin's; all that matters was asked
            await models.close()
    return [found[model] for model in keys]


async def _model(model: str, settings: Settings, models: Models) -> tuple[bool, str]:
    """Whether it can be asked, and what to say of it."""
    if lacks := lacking(settings, model):
        return False, no_model(settings) if model == settings.model else f"{model}: {lacks}"
    if is_local(model):
        path = file_of(model, settings.models)
        is_here = path.exists()
        return is_here, str(path) if is_here else f"{path} is missing: `nanoloop model list`"
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            return True, await _answer(model, models)
    except TimeoutError:
        return False, f"{model} did not answer within {CONNECT_SECONDS:.0f} s"
    except NanoloopError as error:
        return False, f"{model}: {error}"
    except Exception as error:  # noqa: BLE001 - a plugin's; its text may hold anything
        return False, f"{model}: {type(error).__name__} at {place_of(error)}"


async def _answer(model: str, models: Models) -> str:
    """What it answers; raises as its provider does."""
    begin = time.monotonic()
    try:
        reply = await _one_token(model, models)
    except ProviderError as error:
        if not _LIMIT.search(str(error)):
            raise
        return f"{model} answers, and wants more than one token"
    seconds = time.monotonic() - begin
    said = json.dumps(" ".join(reply.text.split())[:_SHOWN], ensure_ascii=False)
    return f"{model} answers {said} in {seconds:.1f} s"


async def _one_token(model: str, models: Models) -> Reply:
    """What the model answers in one token; raises `NanoloopError`."""
    provider, (word, name) = models.provider_of(model), split(model)
    fitted = getattr(provider, "with_options", None)
    if fitted is not None and (word in VENDORS or not word):
        provider = fitted(_ONE_TOKEN)
    return await provider.chat(messages=[{"role": "user", "content": "Say: ok"}], model=name)


async def _store(settings: Settings) -> Check:
    url = settings.store.url or default_url(settings.data)
    where, path = shown(url, settings.data), path_of(url, settings.data)
    try:
        async with opened(settings) as store:
            count = len([info async for info in store.list()])
            if path is None:
                await _try_to_keep(store)
            else:
                _try_to_write(path)
    except NanoloopError as error:
        return Check("store", is_well=False, says=str(error))
    except OSError as error:
        return Check("store", is_well=False, says=f"{where}: {refusal(error)}")
    return Check("store", is_well=True, says=f"{count} sessions in {where}")


async def _try_to_keep(store: Store) -> None:
    """Raise `StoreError` if a server takes no sessions; nothing is left behind."""
    # Cut off in between, it leaves by itself.
    session = await store.create(ttl=60)
    await store.delete(session.id)


def _try_to_write(path: Path) -> None:
    """Raise `OSError` if sessions could not be written there; nothing is left behind."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if there == path and path.is_file():
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        there = path.parent
    with TemporaryFile(dir=there):
        """It may be made."""


def _pictures() -> Check:
    says = "each is read to its end, and loses what its camera wrote into it"
    if not is_pillow_here():
        says = (
            "only the beginning of each is looked at, and the place that its camera wrote into it "
            f"stays there, for want of Pillow: {how_to_install('pictures')}"
        )
    return Check("pictures", is_well=True, says=says)


async def _channels(settings: Settings) -> AsyncIterator[Check]:
    daemon = running(settings.data)
    for name, own in settings.channels.of_plugins.items():
        if isinstance(own, PlatformSettings) and own.enabled and own.lacks:
            says = f"it has no {' and no '.join(own.lacks)}: set it in [channels.{name}]"
            yield Check(name, is_well=False, says=says)
    for name, _ in wanted(settings):
        if plugins.load("channels", name).takes_program:
            continue  # it connects to nothing
        if daemon is None or name not in daemon.channels:
            yield await _connected(name, settings)
        else:
            there = daemon.channels[name]
            says = f"{there.state} in process {daemon.pid} {there.reason}".strip()
            yield Check(name, is_well=there.state == "connected", says=says)


async def _connected(name: str, settings: Settings) -> Check:
    """What becomes of connecting: nothing that is heard is taken."""
    own = dict(wanted(settings))[name]
    attachments = make_attachments(settings)
    try:
        make_transcriber(settings)  # or the daemon won't start
        channel = make_channel(name, own, folder=settings.data, attachments=attachments)
    except (NanoloopError, OSError) as error:
        return Check(name, is_well=False, says=str(error))
    if not isinstance(channel, PlatformChannel):
        return Check(name, is_well=True, says="it is there; it can't be tried out")
    return await _tried(channel)


async def _tried(channel: PlatformChannel) -> Check:
    says = f"it did not connect within {CONNECT_SECONDS:.0f} s"
    is_up = anyio.Event()
    try:
        with anyio.move_on_after(CONNECT_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(channel.platform.listen, _hear_nothing, is_up.set)
                await is_up.wait()
                group.cancel_scope.cancel()
    except* Refused as refused:
        says = str(refused.exceptions[0])
    except* Exception as failed:  # noqa: BLE001 - whatever a library raises is said
        says = f"it does not connect: {type(failed.exceptions[0]).__name__}"
    if not is_up.is_set():
        return Check(channel.name, is_well=False, says=says)
    return _open_or_closed(channel)


async def _hear_nothing(*_: Heard) -> None:
    await anyio.sleep_forever()


def _open_or_closed(channel: PlatformChannel) -> Check:
    advice = channel.access.closed
    if advice is None:
        return Check(channel.name, is_well=True, says="it connects")
    return Check(channel.name, is_well=False, says=f"it connects, but nobody may talk: {advice}")
