"""Run the app's parts in one task group, and stop them in order."""

from __future__ import annotations

import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus
from anyio.to_thread import run_sync

from nanoloop.errors import StoreError, place_of
from nanoloop.events import (
    ChannelFailed,
    ChannelHeld,
    ChannelStarted,
    Observer,
    announce,
    hearing,
)
from nanoloop.files import refusal
from nanoloop.loop import AgentLoop
from nanoloop.parts import (
    former_files,
    make_installation,
    make_loop,
    make_provider,
    make_sampling,
    make_servers,
    make_store,
    renew_agents,
    with_pictures,
)
from nanoloop.protocols import Channel, Provider, Store
from nanoloop.providers.models import Models
from nanoloop.settings import Settings
from nanoloop.settings.vendors import suited
from nanoloop.stores.installation import Installation
from nanoloop.stores.sweep import sweep
from nanoloop.telemetry import Telemetry
from nanoloop.tools.servers import ToolServers


class App:
    """A running installation: the loop with its store, provider and channels."""

    def __init__(
        self,
        *,
        loop: AgentLoop,
        store: Store,
        provider: Provider,
        telemetry: Telemetry,
        chat: str | None = None,
        installation: Installation | None = None,
    ) -> None:
        """Create the app; `run` raises `StoreNotOurs` if the store isn't this installation's."""
        self.loop = loop
        self.telemetry = telemetry
        self._store = store
        self.provider = provider
        self._chat = chat
        self._installation = installation
        self._channels: list[Channel] = []
        self._begun: dict[str, str] = {}
        """For each started channel, the bug that stopped it, or "" if it still works."""
        self._held: set[str] = set()
        """The channels whose account is in use by another process."""
        self._channel_scope = anyio.CancelScope()
        self.stopped_by: signal.Signals | None = None
        """The signal that stopped the app, or None."""
        self.observers: list[Observer] = [telemetry]
        if installation is not None:
            self.observers.append(installation.hear)
        """Observers that receive every event, from before the store opens until it is closed."""
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Other tasks to run for as long as the loop runs."""
        self.tool_servers: ToolServers | None = None
        """The servers whose tools the agents have."""
        self.former_files: Sequence[Path] = ()
        """Plaintext files left by earlier runs, removed before any message is answered."""
        self.stopping: list[Callable[[], None]] = []
        """Functions to call as soon as the app is told to stop."""
        self.on_hangup: Callable[[], None] | None = None
        """The function to call on SIGHUP; without one, SIGHUP ends the process at once."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        provider: Provider | None = None,
        chat: str | None = None,
        telemetry: Telemetry | None = None,
    ) -> Self:
        """Build the app that these settings describe.

        `chat` is the key of the only chat to serve; the app then ends when its channels do. Without
        `telemetry`, the app logs to standard error.
        """
        settings = suited(settings)
        log = settings.log
        telemetry = telemetry or Telemetry(level=log.level, format=log.format)
        store = make_store(settings)
        models = provider or make_provider(settings)
        provider = with_pictures(settings, models)
        servers = make_servers(settings)
        loop = make_loop(settings, provider, store, servers)
        app = cls(
            loop=loop,
            store=store,
            provider=provider,
            telemetry=telemetry,
            chat=chat,
            installation=make_installation(settings),
        )
        app.former_files = former_files(settings)
        servers.changed = partial(renew_agents, settings, loop, servers)
        servers.sampling = make_sampling(settings, provider, servers)
        app.tool_servers = servers
        app.beside.append(servers.run)
        if isinstance(models, Models):
            app.beside.append(models.load)  # while the app starts
        return app

    def add(self, channel: Channel) -> None:
        """Serve this channel as well."""
        self._channels.append(channel)
        self.loop.bus.attach(channel)

    @property
    def states(self) -> Mapping[str, tuple[str, str]]:
        """The state of each started channel, with the reason for any problem."""
        return {
            channel.name: self._state_of(channel)
            for channel in self._channels
            if channel.name in self._begun
        }

    def _state_of(self, channel: Channel) -> tuple[str, str]:
        if why := self._begun[channel.name]:
            return "failed", why
        return ("waiting", HELD) if channel.name in self._held else _state(channel)

    async def run(self) -> None:
        """Run until told to stop, then close everything; stored data is kept."""
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(hearing(observer))
            await self._run()

    async def _run(self) -> None:
        try:
            if self._installation is not None:  # before anything is written to the wrong store
                await self._installation.enter(self._store)
            # First of all, so that nothing starts if the store is not writable.
            expired = await self._store.delete_expired()
            await run_sync(self._remove_former_files)
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_signals, group.cancel_scope.cancel, name="signals")
                watch = partial(sweep, expired=expired)
                group.start_soon(watch, self._store, name="sweep")
                await group.start(self._run_loop, group.cancel_scope.cancel, name="loop")
                group.start_soon(self._serve, group, name="serve")
                for work in self.beside:
                    group.start_soon(work, name="beside the loop")
        finally:
            with anyio.CancelScope(shield=True):
                await self.close()

    def _remove_former_files(self) -> None:
        for file in self.former_files:
            try:
                file.unlink(missing_ok=True)
            except OSError as error:
                said = "holds what was said in plain text, and can't be removed"
                raise StoreError(f"{file} {said}: {refusal(error)}") from error

    async def close(self) -> None:
        """Close the provider and the store.

        Needed only if the app never runs; safe to call twice.
        """
        try:
            await self.provider.close()
        finally:
            await self._store.close()

    def stop(self) -> None:
        """Accept no more messages, but let running work finish within its deadlines."""
        for tell in self.stopping:
            tell()
        for channel in self._channels:
            if hasattr(channel, "take_no_more"):
                channel.take_no_more()
        self._channel_scope.cancel()
        self.loop.bus.close()

    async def _watch_signals(self, stop_now: Callable[[], None]) -> None:
        on_hangup = self.on_hangup
        hangup = () if on_hangup is None else (signal.SIGHUP,)
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, *hangup) as signals:
            async for number in signals:
                if on_hangup is not None and number == signal.SIGHUP:
                    on_hangup()
                    continue
                if self.stopped_by is not None:
                    stop_now()
                self.stopped_by = number
                self.stop()

    async def _run_loop(self, ended: Callable[[], None], *, task_status: TaskStatus[None]) -> None:
        await self.loop.run(task_status=task_status)
        ended()

    async def _serve(self, lasting: TaskGroup) -> None:
        with self._channel_scope:
            if self._chat is not None:
                await self.loop.recover_chat(self._chat)
            else:
                # Before new messages are accepted, so that the oldest question is answered first.
                await self.loop.recover()
            async with anyio.create_task_group() as group:
                for channel in self._channels:
                    where = lasting if hasattr(channel, "take_no_more") else group
                    where.start_soon(self._run_channel, channel, name=f"channel {channel.name}")
            if self._chat is None:  # a daemon runs until it is told to stop
                await anyio.sleep_forever()
        self.stop()

    def _waits(self, channel: Channel, is_held: bool) -> None:
        if is_held:
            self._held.add(channel.name)
            announce(ChannelHeld(channel=channel.name))
        else:
            self._held.discard(channel.name)

    async def _run_channel(self, channel: Channel) -> None:
        self._begun[channel.name] = ""
        serve = partial(channel.run, self.loop.bus)
        account = getattr(channel, "account", "")
        try:
            announce(ChannelStarted(channel=channel.name, **_place(channel)))
            if account:
                waits = partial(self._waits, channel)
                await self.loop.nodes.holding(account, serve, waits=waits)
            else:
                await serve()
        except Exception as error:
            about = f"{type(error).__name__} at {place_of(error)}"
            self._begun[channel.name] = about
            announce(ChannelFailed(channel=channel.name, error=about))
            if self._chat is not None:
                raise  # there is nothing else to serve


def _place(channel: Channel) -> dict[str, str]:
    """Return a channel's address and token file, if it has them, but never a secret."""
    if not hasattr(channel, "bind"):
        return {}
    file = getattr(channel, "token_file", None)
    return {"address": channel.bind(), **({"token_file": str(file)} if file else {})}


HELD = "another process uses this account: the channel will start here when that process ends"


def _state(channel: Channel) -> tuple[str, str]:
    """Return the channel's connection state and the reason for it."""
    state = getattr(channel, "state", "running")
    return str(state), getattr(state, "reason", "")
