"""Puts the parts together in one task group and stops them in order.

The only place that picks concrete classes.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, runtime_checkable

import anyio
from anyio.abc import TaskGroup, TaskStatus

from nanoloop.agents import Agent, Agents
from nanoloop.bus.in_process import InProcessBus
from nanoloop.channels.web.attachments import Attachments
from nanoloop.channels.web.pictures import Pictures
from nanoloop.errors import SettingsError, how_to_install, place_of
from nanoloop.events import Announce, ChannelFailed, ChannelStarted, Event, silent
from nanoloop.loop import AgentLoop
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.memory.summarizer import Summarizer
from nanoloop.models.naming import file_of, is_local
from nanoloop.protocols import Channel, Provider, Seal, Store, Tool
from nanoloop.settings import AgentSettings, Settings
from nanoloop.settings.local import context_tokens, suited
from nanoloop.settings.problems import DEFAULT_AGENT, Problem, Refused
from nanoloop.stores.opening import Opening
from nanoloop.stores.place import default_url
from nanoloop.stores.sweep import sweep
from nanoloop.telemetry import Telemetry
from nanoloop.tools.calculator import calculator
from nanoloop.tools.clock import clock
from nanoloop.tools.recall import make_recall_tool

if TYPE_CHECKING:
    from nanoloop.channels.web.callers import Token
    from nanoloop.channels.web.channel import WebChannel

TOKEN_LENGTH = 16
"""Characters that a token of the web has at least: nobody guesses it."""
TOOLS: Mapping[str, Tool] = {"clock": clock, "calculator": calculator}


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
    ) -> None:
        self.loop = loop
        self.telemetry = telemetry
        self._store = store
        self.provider = provider
        self._chat = chat
        self._channels: list[Channel] = []
        self._channel_scope = anyio.CancelScope()
        self.stopped_by: signal.Signals | None = None
        """The signal that ended it, if one did."""
        self.on_hangup: Callable[[], None] | None = None
        """What SIGHUP is for; without it, it ends the process at once."""

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

        With `chat`, the key of one chat, it serves that one and ends when its channels do. Left
        out, `telemetry` writes to standard error.
        """
        settings = suited(settings)
        log = settings.log
        telemetry = telemetry or Telemetry(level=log.level, format=log.format)
        store = make_store(settings, telemetry)
        provider = with_pictures(settings, provider or make_provider(settings, telemetry))
        loop = make_loop(settings, provider, store, telemetry)
        return cls(loop=loop, store=store, provider=provider, telemetry=telemetry, chat=chat)

    def add(self, channel: Channel) -> None:
        """Serve this channel too."""
        self._channels.append(channel)
        self.loop.bus.attach(channel)

    async def run(self) -> None:
        """Serve until told to stop; what was durable stays so, however it ends."""
        try:
            # First of all: it takes the store's lock, and fails where another process has it.
            expired = await self._store.delete_expired()
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch_signals, group.cancel_scope.cancel, name="signals")
                watch = partial(sweep, expired=expired, announce=self.telemetry)
                group.start_soon(watch, self._store, name="sweep")
                await group.start(self._run_loop, group.cancel_scope.cancel, name="loop")
                group.start_soon(self._serve, group, name="serve")
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await self.provider.close()
                finally:
                    await self._store.close()

    def stop(self) -> None:
        """Take nothing more in; what runs is finished, up to its deadlines."""
        for channel in self._channels:
            if isinstance(channel, _Lasting):
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
                    where = lasting if isinstance(channel, _Lasting) else group
                    where.start_soon(self._run_channel, channel, name=f"channel {channel.name}")
            if self._chat is None:  # a daemon goes on until it is told to stop
                await anyio.sleep_forever()
        self.stop()

    async def _run_channel(self, channel: Channel) -> None:
        self.telemetry(ChannelStarted(channel=channel.name))
        try:
            await channel.run(self.loop.bus)
        except Exception as error:
            about = f"{type(error).__name__} at {place_of(error)}"
            self.telemetry(ChannelFailed(channel=channel.name, error=about))
            if self._chat is not None:
                raise  # there is nothing else to serve


@runtime_checkable
class _Lasting(Protocol):
    """A channel that goes on sending after it was told to stop, until the loop has ended."""

    def take_no_more(self) -> None:
        """Acknowledge nothing that comes in from now on."""
        ...


def make_store(
    settings: Settings, telemetry: Telemetry, *, url: str | None = None, read_only: bool = False
) -> Store:
    """The store that these settings name, or one at another URL with all else as they say."""
    opening = Opening(
        data=settings.data,
        durability=settings.store.durability,
        seal=make_seal(settings),
        timeout_seconds=settings.store.timeout_seconds,
        cached_sessions=settings.store.cached_sessions,
        read_only=read_only,
        announce=telemetry,
    )
    return opening.open(url or settings.store.url or default_url(settings.data))


def make_web(settings: Settings, app: App) -> WebChannel:
    """The page and the API, as these settings want them, for `app.add`."""
    # An extra of its own, and too much to load where nobody serves it.
    try:
        from nanoloop.channels.web.channel import Place, WebChannel  # noqa: PLC0415 - as above
        from nanoloop.channels.web.desk import Limits, Shop  # noqa: PLC0415 - as above
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"the web needs the package {missing.name}: {how_to_install('web')}"
        ) from missing

    web, loop = settings.channels.web, app.loop
    channel = WebChannel(
        Shop(
            bus=loop.bus,
            sessions=loop.sessions,
            agents=loop.agents,
            summarizer=loop.summarizer,
            runner=loop,
            recall=loop.recall,
            keep=settings.message_buffer_min,
            model=settings.model,
            snapshot=app.telemetry.snapshot,
            announce=app.telemetry,
            provider=app.provider,
        ),
        attachments=make_attachments(settings),
        place=Place(
            host=web.host,
            port=web.port,
            hosts=web.hosts,
            origins=web.origins,
            grace_seconds=settings.loop.shutdown_turns_seconds,
        ),
        tokens=make_tokens(settings),
        limits=Limits(
            requests_per_minute=web.requests_per_minute,
            message_bytes=web.message_bytes,
            upload_bytes=web.upload_bytes,
            streams=web.streams,
        ),
    )
    app.telemetry.listeners.append(channel.hear)
    return channel


def make_channels(settings: Settings, app: App) -> list[Channel]:
    """The chat platforms that these settings want, for `app.add`; raises `SettingsError`."""
    # Only who serves one needs what serves them.
    from nanoloop.channels.platform.making import make_channel, wanted  # noqa: PLC0415 - as above

    attachments = make_attachments(settings)
    return [
        make_channel(
            name, own, folder=settings.data, attachments=attachments, announce=app.telemetry
        )
        for name, own in wanted(settings)
    ]


def make_tokens(settings: Settings) -> list[Token]:
    """Who may use the web, and which sessions they see; raises `SettingsError`."""
    from nanoloop.channels.web.callers import Caller, Token  # noqa: PLC0415 - as above

    tokens = []
    for name, own in settings.channels.web.tokens.items():
        key = f"channels.web.tokens.{name}"
        secret = own.token.get_secret_value() if own.token else ""
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name):
            raise SettingsError(f"{key} is no name for a token: use a-z, A-Z, 0-9, _ and -")
        if len(secret) < TOKEN_LENGTH:
            less = f"{key}.token has less than {TOKEN_LENGTH} characters"
            text = f"{less}: `openssl rand -hex 24` makes one"
            where = settings.origin(f"{key}.token")
            raise Refused([Problem(text=text, origin=where if where.kind != "default" else None)])
        caller = Caller(name=name, patterns=own.sessions or (f"web:{name}.*",))
        tokens.append(Token(caller=caller, secret=secret))
    return tokens


def with_pictures(settings: Settings, provider: Provider) -> Provider:
    """The provider, shown the images that were uploaded to the web, wherever a chat goes on."""
    return Pictures(provider, make_attachments(settings))


def make_attachments(settings: Settings) -> Attachments:
    """Where uploaded files are kept."""
    limit = settings.channels.web.uploads_bytes
    return Attachments(settings.data / "attachments", limit_bytes=limit, seal=make_seal(settings))


def make_seal(settings: Settings) -> Seal | None:
    """What seals the store's files, where these settings have a key for it."""
    if settings.store.encryption_key is None:
        return None
    from nanoloop.stores.encryption import FernetSeal  # noqa: PLC0415 - an extra of its own

    return FernetSeal(settings.store.encryption_key.get_secret_value())


def make_provider(settings: Settings, announce: Announce = silent) -> Provider:
    """The provider that these settings name."""
    if is_local(settings.model):
        return make_local_provider(settings, announce)
    from nanoloop.providers.openai import OpenAIProvider  # noqa: PLC0415 - it takes 0.3 s

    key = settings.api_key
    return OpenAIProvider(
        model=settings.model,
        api_key=key.get_secret_value() if key else None,
        base_url=settings.base_url,
        connect_timeout_seconds=settings.provider.connect_timeout_seconds,
        first_token_timeout_seconds=settings.provider.first_token_timeout_seconds,
        call_timeout_seconds=settings.provider.call_timeout_seconds,
        max_retries=settings.provider.max_retries,
        options=settings.provider.options,
    )


def make_local_provider(settings: Settings, announce: Announce) -> Provider:
    """A model file that runs on this machine."""
    from nanoloop.providers.local.provider import LocalProvider  # noqa: PLC0415 - an extra

    return LocalProvider(
        file_of(settings.model, settings.models),
        model=settings.model,
        context_tokens=context_tokens(settings),
        answer_tokens=settings.local.answer_tokens,
        parallel=settings.local.parallel,
        threads=settings.local.threads,
        options=settings.provider.options,
        call_timeout_seconds=settings.provider.call_timeout_seconds,
        announce=announce,
    )


def make_loop(
    settings: Settings, provider: Provider, store: Store, telemetry: Telemetry
) -> AgentLoop:
    """The loop with its bus, its summariser, its recall and its agents."""
    recall = make_recall(settings, store, telemetry)

    def announce(event: Event) -> None:
        telemetry(event)
        if recall is not None:
            recall.hear(event)

    return AgentLoop(
        provider=provider,
        agents=make_agents(settings, recall),
        store=store,
        bus=InProcessBus(
            inbound_limit=settings.bus.inbound_limit,
            outbound_limit=settings.bus.outbound_limit,
            send_timeout_seconds=settings.bus.send_timeout_seconds,
            announce=telemetry,
        ),
        summarizer=make_summarizer(settings, _in_background(provider), store, telemetry),
        recall=recall,
        message_buffer_limit=settings.message_buffer_limit,
        message_buffer_min=settings.message_buffer_min,
        context_tokens=settings.context_tokens,
        context_limit=settings.context_limit,
        handover=settings.handover,
        handover_limit=settings.handover_limit,
        max_concurrent_turns=settings.loop.max_concurrent_turns,
        lane_limit=settings.loop.lane_limit,
        open_sessions=settings.loop.open_sessions,
        with_time=settings.include_time,
        answer_unanswered=settings.loop.on_unanswered == "answer",
        shutdown_turns_seconds=settings.loop.shutdown_turns_seconds,
        shutdown_summaries_seconds=settings.loop.shutdown_summaries_seconds,
        announce=announce,
    )


def make_summarizer(
    settings: Settings, provider: Provider, store: Store, telemetry: Telemetry
) -> Summarizer:
    """The summariser that these settings describe."""
    return Summarizer(
        provider,
        settings.summary_model,
        store=store,
        max_words=settings.summary.max_words,
        timeout_seconds=settings.summary.timeout_seconds,
        batch_chars=settings.summary.batch_chars,
        retry_seconds=settings.summary.retry_seconds,
        retry_limit_seconds=settings.summary.retry_limit_seconds,
        fallback_model=settings.summary.fallback_model,
        breaker_seconds=settings.summary.breaker_seconds,
        daily_tokens=settings.summary.daily_tokens,
        idle_seconds=settings.summary.idle_seconds,
        ledger_items=settings.summary.ledger_items,
        ledger_chars=settings.summary.ledger_chars,
        reuse_prefix=settings.summary.reuse_prefix,
        announce=telemetry,
    )


def _in_background(provider: Provider) -> Provider:
    """The provider as work is done that can wait, where it tells the two apart."""
    apart = getattr(provider, "in_background", None)
    return provider if apart is None else apart()


def make_recall(settings: Settings, store: Store, telemetry: Telemetry) -> Recall | None:
    """What finds again what was said, where these settings want it."""
    if not settings.recall.enabled:
        return None
    # Sealed files say nothing without their key, and an index of all words would say it for them.
    is_kept = settings.store.url != "memory:" and settings.store.encryption_key is None
    index = Index(recall_file(settings) if is_kept else None)
    return Recall(store, index, announce=telemetry)


def recall_file(settings: Settings) -> Path:
    """Where the recall index is, where one is kept."""
    return settings.data / "recall.sqlite"


def make_agents(settings: Settings, recall: Recall | None = None) -> Agents:
    """The agents that these settings describe, the one for all among them."""
    tools = TOOLS if recall is None else {**TOOLS, "recall": make_recall_tool(recall)}
    terminal = settings.channels.terminal.agent
    return Agents(
        make_agent(settings, AgentSettings(), tools=tools),
        {name: make_agent(settings, own, name, tools) for name, own in settings.agents.items()},
        by_channel={} if terminal is None else {"terminal": terminal},
    )


def make_agent(
    settings: Settings,
    own: AgentSettings,
    name: str = DEFAULT_AGENT,
    tools: Mapping[str, Tool] = TOOLS,
) -> Agent:
    """An agent; what its own settings leave out is as for all."""
    return Agent(
        name,
        prompt=settings.prompt if own.prompt is None else own.prompt,
        model=own.model,
        tools=[
            _tool(settings, name, tool, tools)
            for tool in (tools if own.tools is None else own.tools)
        ],
        max_steps=own.max_steps or settings.turn.max_steps,
        tool_timeout_seconds=own.tool_timeout_seconds or settings.tools.timeout_seconds,
        tool_result_chars=settings.tools.result_chars,
        message_buffer_limit=own.message_buffer_limit,
        message_buffer_min=own.message_buffer_min,
    )


def _tool(settings: Settings, agent: str, name: str, tools: Mapping[str, Tool]) -> Tool:
    if name in tools:
        return tools[name]
    key = f"agents.{agent}.tools"
    near = get_close_matches(name, tools, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"the tools are {', '.join(tools)}"
    raise SettingsError(f"{settings.origin(key)}: {key} names no tool with {name!r}: {advice}")
