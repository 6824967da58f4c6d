"""`nanoloop doctor`: checks everything that `nanoloop run` needs, and names the next step."""

from __future__ import annotations

import errno
import json
import os
import shutil
import time
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import NamedTuple

import anyio

from nanoloop import plugins
from nanoloop.agents import Agent
from nanoloop.app import App
from nanoloop.channels.kit.channel import PlatformChannel, make_channel, wanted
from nanoloop.channels.kit.platform import Heard, Refused
from nanoloop.channels.screen import printable
from nanoloop.channels.states import RunningProcess, running
from nanoloop.cli import Exit, exit_of, load_settings
from nanoloop.cli.amounts import size
from nanoloop.cli.first_run import EXTRA, can_run, no_model
from nanoloop.cli.output import say, say_json
from nanoloop.cli.status import WELL
from nanoloop.cli.transcript import opened
from nanoloop.errors import (
    DiskRefused,
    NanoloopError,
    NoSuchModel,
    NothingToServe,
    how_to_install,
    place_of,
)
from nanoloop.files import connection_limit, make_folder, raise_open_files, refusal
from nanoloop.images import is_pillow_here
from nanoloop.models.catalogue import PREFIX, file_of, find, is_local
from nanoloop.parts import (
    make_agents,
    make_attachments,
    make_installation,
    make_models,
    make_servers,
    make_transcriber,
    recall_alone,
)
from nanoloop.protocols import LOGINS, Channel, Provider, Store
from nanoloop.providers.local.child import free_bytes
from nanoloop.settings import Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.vendors import lacking, models_of, suited
from nanoloop.stores.place import default_url, path_of, shown
from nanoloop.stores.sealing import Sealing
from nanoloop.telemetry import Telemetry

CONNECT_SECONDS = 30.0
ANSWER_SECONDS = 120.0
"""Long enough to load a model on this machine from disk first."""
LEAST_BYTES = 100_000_000
LEAST_FILES = 1024
"""If less disk space or memory than this is free, something will soon fail."""
QUESTION = "This is a test. Reply with the word ok, and nothing else."
_SHOWN = 40
"""How many characters of an answer are shown."""
_HOW = """
It builds what `nanoloop run` builds, asks each model for a short answer, connects to each chat
platform, and checks the store, ports, disk and memory. If a daemon is running, it reports the
state of its channels. Nothing is changed."""


class Check(NamedTuple):
    """The result of one check."""

    what: str
    is_well: bool
    says: str
    code: Exit = Exit.FAILED
    """The exit code to use if the check fails."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop doctor`."""
    parser.description = f"{parser.description}\n{_HOW}"
    parser.add_argument("--json", action="store_true", help="print one JSON object, for scripts")


def run(args: Namespace) -> int:
    """Run all checks; return 0 only if all of them pass."""
    return anyio.run(_examine, args)


async def _examine(args: Namespace) -> Exit:
    checks = []
    async for check in look(args):
        checks.append(check)
        if not args.json:
            mark = "ok   " if check.is_well else "WRONG"
            say(printable(f"{mark}  {check.what}: {check.says}"))
    wrong = [check for check in checks if not check.is_well]
    advice = _next_step(wrong, checks)
    if args.json:
        told = [{"what": c.what, "is_well": c.is_well, "says": c.says} for c in checks]
        say_json({"is_well": not wrong, "checks": told, "next": advice})
    else:
        say(f"next: {advice}")
    return wrong[0].code if wrong else Exit.DONE


def _next_step(wrong: Sequence[Check], checks: Sequence[Check]) -> str:
    if wrong:
        count = f"{len(wrong)} of {len(checks)} checks failed"
        return f"{count}; fix {wrong[0].what!r} first, then run `nanoloop doctor` again"
    if any(check.what == "daemon" for check in checks):
        return "nothing; a daemon is running, and `nanoloop status` shows its state"
    return "`nanoloop run` serves now; `nanoloop service install` also serves after each login"


async def look(args: Namespace) -> AsyncIterator[Check]:
    """Run the checks one after the other, as far as possible."""
    try:
        settings = load_settings(args)
    except NanoloopError as error:
        yield _wrong("settings", error)
        return
    file = settings.file or "no file; the defaults, the environment and flags are used"
    yield Check("settings", is_well=True, says=str(file))
    processes = running(settings.data)
    daemons = [process for process in processes if process.is_daemon]
    for daemon in daemons:
        says = f"process {daemon.pid} has served {settings.data} since {daemon.since}"
        yield Check("daemon", is_well=True, says=says)
    whole = _built(settings, is_served=bool(daemons))
    told: list[str] = []
    try:
        async for check in _parts(settings, whole, processes):
            told += check.says.splitlines()
            yield check
    finally:
        if whole.app is not None:
            await whole.app.close()
    if whole.failed is not None and not {*str(whole.failed).splitlines()} <= {*told}:
        what = "channels" if isinstance(whole.failed, NothingToServe) else "run"
        yield _wrong(what, whole.failed)


class Whole(NamedTuple):
    """The app and channels that `nanoloop run` would serve, or the error that prevents it."""

    app: App | None = None
    channels: Sequence[Channel] = ()
    failed: NanoloopError | OSError | None = None


def _built(settings: Settings, *, is_served: bool) -> Whole:
    if not settings.has_model:  # `run` stops here too
        return Whole()
    from nanoloop.cli.run import built  # noqa: PLC0415 - a daemon takes a while to load

    telemetry = Telemetry(level="error", format=settings.log.format)
    try:
        return Whole(*built(settings, telemetry))
    except NothingToServe as nothing:
        # A daemon started in a terminal serves its standard input.
        return Whole(failed=None if is_served else nothing)
    except (NanoloopError, OSError) as error:
        return Whole(failed=error)


async def _parts(
    settings: Settings, whole: Whole, processes: Sequence[RunningProcess]
) -> AsyncIterator[Check]:
    for found in await _models(settings, whole.app, is_served=bool(processes)):
        yield found
    yield _tools(settings)
    async for found in _servers(settings):
        yield found
    yield await _store(settings)
    yield _disk(settings)
    yield _memory()
    yield _connections()
    yield _pictures()
    async for found in _channels(settings, whole, processes):
        yield found


def _wrong(what: str, error: NanoloopError | OSError) -> Check:
    return Check(what, is_well=False, says=str(error), code=exit_of(error))


# Models


async def _models(
    settings: Settings, app: App | None = None, *, is_served: bool = False
) -> list[Check]:
    """Test all models at the same time; return the results in the order of the settings."""
    keys: dict[str, list[str]] = {}
    for key, model in models_of(settings):
        keys.setdefault(model, []).append(key)
    provider = make_models(settings) if app is None else app.provider
    found: dict[str, Check] = {}

    async def ask(model: str) -> None:
        asked = ModelToAsk(model, _agent_of(keys[model], app), is_served=is_served)
        found[model] = await _model(asked, settings, provider)
        found[model] = found[model]._replace(what=", ".join(keys[model]))

    try:
        async with anyio.create_task_group() as group:
            for model in keys:
                group.start_soon(ask, model, name=f"ask {model}")
    finally:
        if app is None:
            with suppress(Exception):  # an error in a plugin, after the models have answered
                await provider.close()
    return [found[model] for model in keys]


class ModelToAsk(NamedTuple):
    """A model to test, and the agent that uses it, or None if the model writes summaries."""

    name: str
    agent: Agent | None
    is_served: bool
    """Whether a daemon is running, which already has a local model in memory."""


def _agent_of(keys: Sequence[str], app: App | None) -> Agent | None:
    if app is None:
        return None
    agents = app.loop.agents
    names = [key.split(".")[1] for key in keys if key.startswith("agents.")]
    return agents.default if "model" in keys else agents[names[0]] if names else None


async def _model(asked: ModelToAsk, settings: Settings, provider: Provider) -> Check:
    """Send the model a test request and return the result."""
    model = asked.name
    if lacks := lacking(settings, model):
        says = no_model(settings) if model == settings.model else f"{model}: {lacks}"
        code = Exit.NOT_CONFIGURED if model == settings.model else Exit.FAILED
        return Check("", is_well=False, says=says, code=code)
    if is_local(model):
        if lacks := _lacks_here(model, settings):
            return Check("", is_well=False, says=lacks)
        if asked.is_served:
            path = file_of(model, settings.models)
            return Check(
                "", is_well=True, says=f"{path}; the daemon is using it, so it was not tested"
            )
    seconds = ANSWER_SECONDS if is_local(model) else CONNECT_SECONDS
    try:
        with anyio.fail_after(seconds):
            return Check("", is_well=True, says=await _answer(asked, provider))
    except TimeoutError:
        says = f"{model} did not answer within {seconds:.0f} s"
    except NanoloopError as error:
        says = f"{model}: {error}"
    except Exception as error:  # noqa: BLE001 - a plugin's; its text may hold anything
        says = f"{model}: {type(error).__name__} at {place_of(error)}"
    return Check("", is_well=False, says=says)


def _lacks_here(model: str, settings: Settings) -> str | None:
    """Return why a local model can't be tested, or None if it can; download nothing."""
    path = file_of(model, settings.models)
    if not can_run():
        return EXTRA
    if path.exists():
        return None
    if not model.startswith(PREFIX):
        return f"there is no model file {path}: check the path"
    try:
        return f"{path} is missing: `nanoloop model get {find(path.stem).name}` downloads it"
    except NoSuchModel as error:
        return str(error)


async def _answer(asked: ModelToAsk, provider: Provider) -> str:
    """Describe the model's answer to a request like the daemon's; raises the provider's errors."""
    begin = time.monotonic()
    agent = asked.agent
    prompt = [] if agent is None else [{"role": "system", "content": agent.prompt}]
    reply = await provider.chat(
        messages=[*prompt, {"role": "user", "content": QUESTION}],
        tools=agent.toolbox.specs or None if agent is not None else None,
        model=asked.name,
        on_text=_hear_no_text,  # streamed, as for chats, because some servers fail only then
    )
    seconds = time.monotonic() - begin
    said = json.dumps(" ".join(reply.text.split())[:_SHOWN], ensure_ascii=False)
    said = said if reply.text.strip() or not reply.tool_calls else "with a tool call"
    return f"{asked.name} answers {said} in {seconds:.1f} s"


def _hear_no_text(_: str) -> None:
    """Ignore the pieces, because the complete answer is enough."""


def _tools(settings: Settings) -> Check:
    """Check that each agent's tools can be created, even if no model is set up yet."""
    try:
        agents = make_agents(suited(settings), recall_alone(settings))
    except NanoloopError as error:
        return _wrong("tools", error)
    counts = (f"{len(agent.toolbox.specs)} for {name}" for name, agent in agents.items())
    return Check("tools", is_well=True, says=", ".join(counts))


async def _servers(settings: Settings) -> AsyncIterator[Check]:
    """Check that each tool server can be started or reached."""
    try:
        servers = make_servers(settings)
    except NanoloopError as error:
        yield _wrong("tool servers", error)
        return
    async with servers.started():
        for server in servers:
            says, *more = server.report()
            is_well = server.state == "connected" and not server.withheld
            what, _, says = says.partition(": ")
            yield Check(what, is_well=is_well, says="; ".join((says, *map(str.strip, more))))


# This machine


async def _store(settings: Settings) -> Check:
    url = settings.store.url or default_url(settings.data)
    where, path = shown(url, settings.data), path_of(url, settings.data)
    try:
        if path is not None:
            _try_to_write(path)
        async with opened(settings, read_only=path is not None) as store:
            if (installation := make_installation(settings)) is not None:
                await installation.check(store)
            count = len([info async for info in store.list() if info.id != LOGINS])
            seal = _seal_of(store)
            if path is None:
                await _try_to_keep(store)
    except NanoloopError as error:
        return _wrong("store", error)
    except OSError as error:
        return _wrong("store", DiskRefused(path, refusal(error)))
    return Check("store", is_well=True, says=f"{count} sessions in {where}{seal}")


def _seal_of(store: Store) -> str:
    """Return a suffix that says whether the store is encrypted."""
    sealing: Sealing | None = getattr(store, "sealing", None)
    if sealing is None or sealing.seal is None:
        return ""
    if sealing.is_strict:
        return f", encrypted{'' if sealing.record is None else sealing.record.advice}"
    return "; data written without this key is not encrypted with it: run `nanoloop store seal`"


async def _try_to_keep(store: Store) -> None:
    """Raise `StoreError` if a server can't store sessions; leave nothing behind."""
    # If this is interrupted, the session expires by itself.
    session = await store.create(ttl=60)
    await store.delete(session.id)


def _try_to_write(path: Path) -> None:
    """Raise `OSError` if sessions can't be written to this path; leave nothing behind."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if there == path and path.is_file():
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        there = path.parent
    if not there.is_dir():
        make_folder(path.parent)  # fails with the reason
    with TemporaryFile(dir=there):
        """A file can be created here."""


def _pictures() -> Check:
    says = "each picture is fully checked, and the camera's metadata is removed"
    if not is_pillow_here():
        says = (
            "only the start of each picture is checked, and the location stored by the camera "
            f"is kept, because Pillow is missing: {how_to_install('pictures')}"
        )
    return Check("pictures", is_well=True, says=says)


def _disk(settings: Settings) -> Check:
    folder = next(each for each in (settings.data, *settings.data.parents) if each.exists())
    free = shutil.disk_usage(folder).free
    says = f"{size(free)} free for {settings.data}"
    if free < LEAST_BYTES:
        says = f"only {says}: free some space there, or choose another folder with --data"
    return Check("disk", is_well=free >= LEAST_BYTES, says=says)


def _memory() -> Check:
    free = free_bytes()
    if not free:
        return Check("memory", is_well=True, says="the system does not report how much is free")
    says = f"{size(free)} free"
    if free < LEAST_BYTES:
        says = f"only {says}: stop other programs, or add memory"
    return Check("memory", is_well=free >= LEAST_BYTES, says=says)


def _connections() -> Check:
    files = raise_open_files()
    says = f"{files:,}, enough for {connection_limit():,} connections"
    if files < LEAST_FILES:
        says = (
            f"only {says}: raise the limit to {LEAST_FILES:,} with `ulimit -n`, or LimitNOFILE "
            f"in the unit"
        )
    return Check("open files", is_well=files >= LEAST_FILES, says=says)


# Channels


async def _channels(
    settings: Settings, whole: Whole, processes: Sequence[RunningProcess]
) -> AsyncIterator[Check]:
    for name, own in settings.channels.of_plugins.items():
        if isinstance(own, PlatformSettings) and own.enabled and own.lacks:
            says = f"not set: {', '.join(own.lacks)}; set it in [channels.{name}]"
            yield Check(name, is_well=False, says=says)
    made = {channel.name: channel for channel in whole.channels}
    for name, _ in wanted(settings):
        serving = [process for process in processes if name in process.channels]
        if serving:
            # Choose the process that is connected, as only one process can hold the account.
            best = min(serving, key=lambda process: process.channels[name].state not in WELL)
            there = best.channels[name]
            says = f"{there.state} in process {best.pid} {there.reason}".strip()
            yield Check(name, is_well=there.state in WELL, says=says)
        elif name in made:
            yield await _connected(made[name])
        elif not plugins.load("channels", name).takes_program:  # this channel needs a whole app
            yield await _connected_alone(name, settings)


async def _connected_alone(name: str, settings: Settings) -> Check:
    """Check a channel's connection when no app could be built."""
    own = dict(wanted(settings))[name]
    attachments = make_attachments(settings)
    try:
        make_transcriber(settings)  # fails if the daemon would not start
        channel = make_channel(name, own, folder=settings.data, attachments=attachments)
    except (NanoloopError, OSError) as error:
        return _wrong(name, error)
    return await _connected(channel)


async def _connected(channel: Channel) -> Check:
    """Check that a channel can connect or listen, without accepting messages."""
    if isinstance(channel, PlatformChannel):
        return await _tried(channel)
    if not (hasattr(channel, "bind") and hasattr(channel, "unbind")):
        return Check(channel.name, is_well=True, says="found; it can't be tested")
    unbind = channel.unbind
    try:
        says = f"it can listen on {channel.bind()}"
        if hasattr(channel, "callers_text"):
            says += f"; {channel.callers_text()}"
    except (NanoloopError, OSError) as error:
        return _wrong(channel.name, error)
    finally:
        unbind()
    return Check(channel.name, is_well=True, says=says)


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
    except* Exception as failed:  # noqa: BLE001 - reports whatever a library raises
        says = f"it can't connect: {type(failed.exceptions[0]).__name__}"
    if not is_up.is_set():
        return Check(channel.name, is_well=False, says=says)
    return _open_or_closed(channel)


async def _hear_nothing(*_: Heard) -> None:
    await anyio.sleep_forever()


def _open_or_closed(channel: PlatformChannel) -> Check:
    advice = channel.access.closed
    if advice is None:
        return Check(channel.name, is_well=True, says="it connects")
    return Check(
        channel.name, is_well=False, says=f"it connects, but nobody may talk to the bot: {advice}"
    )
