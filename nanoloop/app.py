"""Puts the parts together in one task group and stops them in order."""

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
    make_store,
    with_pictures,
)
from nanoloop.protocols import Channel, Provider, Store
from nanoloop.providers.models import Models
from nanoloop.settings import Settings
from nanoloop.settings.vendors import suited
from nanoloop.stores.installation import Installation
from nanoloop.stores.store import sweep
from nanoloop.telemetry import Telemetry


class App:
    """A loop with its store, its provider and its channels, from start to stop."""

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
        """With an installation, it serves only that one's store; `run` raises `StoreNotOurs`."""
        self.loop = loop
        self.telemetry = telemetry
        self._store = store
        self.provider = provider
        self._chat = chat
        self._installation = installation
        self._channels: list[Channel] = []
        self._begun: dict[str, str] = {}
        """The bug that ended each started channel, or "" if none did."""
        self._held: set[str] = set()
        """The channels whose account another process holds."""
        self._channel_scope = anyio.CancelScope()
        self.stopped_by: signal.Signals | None = None
        """The signal that ended it, if any."""
        self.observers: list[Observer] = [telemetry]
        if installation is not None:
            self.observers.append(installation.hear)
        """Observers of everything that happens, from before its store opens until it is closed."""
        self.beside: list[Callable[[], Coroutine[Any, Any, None]]] = []
        """Other tasks that run as long as the loop does."""
        self.former_files: Sequence[Path] = ()
        """Files of earlier runs with words in plain text; removed before anything is answered."""
        self.stopping: list[Callable[[], None]] = []
        """Called as soon as it is told to stop."""
        self.on_hangup: Callable[[], None] | None = None
        """Called on SIGHUP; without it, SIGHUP ends the process at once."""

    @classmethod
    def of(
        cls,
        settings: Settings,
        *,
        provider: Provider | None = None,
        chat: str | None = None,
        telemetry: Telemetry | None = None,
    ) -> Self:
        """The app that these settings describe.

        With `chat`, the key of one chat, it serves that chat and ends when its channels do. Without
        `telemetry` it logs to standard error.
        """
        settings = suited(settings)
        log = settings.log
        telemetry = telemetry or Telemetry(level=log.level, format=log.format)
        store = make_store(settings)
        models = provider or make_provider(settings)
        provider = with_pictures(settings, models)
        loop = make_loop(settings, provider, store)
        app = cls(
            loop=loop,
            store=store,
            provider=provider,
            telemetry=telemetry,
            chat=chat,
            installation=make_installation(settings),
        )
        app.former_files = former_files(settings)
        if isinstance(models, Models):
            app.beside.append(models.load)  # while the rest starts
        return app

    def add(self, channel: Channel) -> None:
        """Serve this channel too."""
        self._channels.append(channel)
        self.loop.bus.attach(channel)

    @property
    def states(self) -> Mapping[str, tuple[str, str]]:
        """The state of each started channel, with the reason if something is wrong."""
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
        """Serve until told to stop; what was durable stays durable, however it ends."""
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(hearing(observer))
            await self._run()

    async def _run(self) -> None:
        try:
            if self._installation is not None:  # before anything is written to the wrong one
                await self._installation.enter(self._store)
            # First of all: where the store can't be written to, nothing begins.
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
        """Close the provider and the store, for callers that never run it; safe to call twice."""
        try:
            await self.provider.close()
        finally:
            await self._store.close()

    def stop(self) -> None:
        """Accept nothing more; running work is finished within its deadlines."""
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
                # Before anything new is heard: what was said first is answered first.
                await self.loop.recover()
            async with anyio.create_task_group() as group:
                for channel in self._channels:
                    where = lasting if hasattr(channel, "take_no_more") else group
                    where.start_soon(self._run_channel, channel, name=f"channel {channel.name}")
            if self._chat is None:  # a daemon goes on until it is told to stop
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
    """Where a channel listens that is served on an address, and where its token is; no secret."""
    if not hasattr(channel, "bind"):
        return {}
    file = getattr(channel, "token_file", None)
    return {"address": channel.bind(), **({"token_file": str(file)} if file else {})}


HELD = "another process serves its account: it will open here when that one ends"


def _state(channel: Channel) -> tuple[str, str]:
    """The state of its connection, if it has one."""
    state = getattr(channel, "state", "running")
    return str(state), getattr(state, "reason", "")
