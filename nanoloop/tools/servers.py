"""MCP servers as sources of tools; each server has a task that keeps it connected."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from nanoloop.errors import (
    BadArguments,
    LoginWanted,
    ServerGone,
    SettingsError,
    ToolError,
    ToolTimeout,
)
from nanoloop.events import Event, announce
from nanoloop.protocols import ChatMessage, Effect, Reply, ToolSpec
from nanoloop.tools.listing import (
    Accepted,
    ListedPrompt,
    ListedTool,
    Listing,
    name_for_model,
    visible,
)
from nanoloop.tools.logins import ServerLogins, login_wanted
from nanoloop.tools.prompts import PromptText, ServerPrompt
from nanoloop.tools.toolbox import ToolSource, chosen

if TYPE_CHECKING:
    from nanoloop.tools.mcp import ServerConnection

AskModel = Callable[[str, Sequence[ChatMessage]], Awaitable[Reply]]
"""Asks the model for the server with this name; raises `ToolError` if that is not possible."""
READ_RESOURCE = "read_resource"
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 60.0
USEFUL_SECONDS = 10.0
"""A server is restarted at once if its connection lasted this long, or served a call."""
LOOK_SECONDS = 2.0
"""How often to check whether withheld tools were accepted or somebody has logged in."""
_NAMES = 10
"""How many tools a log line names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerStarted(Event):
    """A tool server is connected; `tools` is how many of its tools models are told about."""

    server: str
    tools: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerFailed(Event):
    """A tool server can't be reached; nanoloop keeps trying. Its tools fail with this reason."""

    level: ClassVar = "warning"
    server: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLoginNotStored(Event):
    """A renewed login to a tool server could not be stored; this process keeps using it."""

    level: ClassVar = "warning"
    server: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsLeftOut(Event):
    """Some of a server's tools can't be used, for example because they lack a proper schema."""

    level: ClassVar = "warning"
    server: str
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsWithheld(Event):
    """Some of a server's tools are new or have changed; the operator may accept them."""

    level: ClassVar = "warning"
    server: str
    tools: tuple[str, ...]
    advice: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerPlace:
    """Where to find a server, and how to use it."""

    name: str
    command: tuple[str, ...] = ()
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    auth: Literal["", "oauth", "client_credentials"] = ""
    """How to log in at the url: as a person, using a browser, or as a machine."""
    client_id: str = ""
    client_secret: str = field(default="", repr=False)
    issuer: str = ""
    """The authorization server that the client is registered with."""
    env: tuple[str, ...] = ()
    """Environment variables that the server's program gets in addition to the usual ones."""
    tools: tuple[str, ...] | None = None
    """Which of the server's tools to use: names and globs, as in an agent's list; None for all."""
    timeout_seconds: float = 60.0
    """How long the server may take to start, and to answer a call."""
    sampling_tokens: int = 0
    """How many tokens of the model the server may use each day."""


# Tools of a server


class ServerTool:
    """A tool that a server runs."""

    def __init__(self, server: ToolServer, listed: ListedTool, name: str) -> None:
        self._server = server
        self.listed = listed
        self.effect: Effect = listed.effect
        self.idempotent = listed.idempotent
        self.timeout_seconds = server.tool_seconds
        self.origin = f"{server.name} {server.place.command} {server.place.url}"
        """What approvals hold for: another program or address is another tool."""
        said = f'Description by the server "{server.name}": {listed.description}'
        self.spec = ToolSpec(
            name=name,
            description=said if listed.description else f'A tool of the server "{server.name}".',
            parameters=listed.parameters,
        )

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run the tool on the server; raise `ToolError` if that fails."""
        return await self._call(arguments)

    async def resume(
        self, arguments: Mapping[str, Any], state: Mapping[str, Any], answer: Mapping[str, Any]
    ) -> Any:
        """Continue a call with the person's answer to its question; same errors as `call`."""
        mcp = import_module("nanoloop.tools.mcp")  # loaded since the server was connected
        return await self._call(arguments, mcp.going_on(state, answer))

    async def _call(
        self, arguments: Mapping[str, Any], going_on: Mapping[str, Any] | None = None
    ) -> Any:
        async def use(connection: ServerConnection) -> Any:
            return await connection.call(self.listed.name, arguments, going_on)

        may_repeat = going_on is None and (self.effect == "reads" or self.idempotent)
        return await self._server.use(use, may_repeat=may_repeat)


class ResourceTool:
    """Reads resources that a server's results link to."""

    effect: Effect = "reads"

    def __init__(self, server: ToolServer) -> None:
        self._server = server
        self.timeout_seconds = server.tool_seconds
        self.spec = ToolSpec(
            name=name_for_model(server.name, READ_RESOURCE),
            description=f'Read a resource that the server "{server.name}" has named, by its URI.',
            parameters={
                "type": "object",
                "properties": {"uri": {"type": "string"}},
                "required": ["uri"],
                "additionalProperties": False,
            },
        )

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Read the resource from the server; raise `ToolError` if that fails."""
        uri = arguments.get("uri")
        if not isinstance(uri, str) or not uri:
            raise BadArguments("argument 'uri': it is required, as a string")

        async def use(connection: ServerConnection) -> Any:
            return await connection.read(uri)

        return await self._server.use(use, may_repeat=True)


class ToolServer:
    """A tool server; only the task in `run` enters and leaves its connections."""

    def __init__(
        self,
        place: ToolServerPlace,
        accepted: Accepted,
        *,
        logins: ServerLogins | None = None,
        changed: Callable[[], object],
        sampling: Callable[[], AskModel | None] = lambda: None,
    ) -> None:
        """Create the server; `changed` is called when its tools have changed."""
        self.place = place
        self.name = place.name
        self.tool_seconds = place.timeout_seconds + FIRST_PAUSE_SECONDS  # its exceptions say more
        self.tools: dict[str, ServerTool | ResourceTool] = {}
        """The tools that models are told about, by the names that models see."""
        self.prompts: dict[str, ServerPrompt] = {}
        """The prompts that people may use, by their commands."""
        self.withheld: tuple[str, ...] = ()
        """What the operator has not accepted yet, by the server's names; `prompt …` is a prompt."""
        self.left_out: Mapping[str, str] = {}
        self.reason = ""
        """Why the server can't be used now; empty if it can be, or while a connection is tried."""
        self.last_lines: Sequence[str] = ()
        """The last lines that the server's program wrote to standard error, for the operator."""
        self._scope: anyio.CancelScope | None = None
        self._is_unwanted = False
        self._accepted = accepted
        self._logins = logins
        self._sampling = sampling
        self._changed = changed
        self._connection: ServerConnection | None = None
        self._offered = Listing()
        self._since: datetime | None = None
        self.used = 0
        """How many calls were sent to the server."""
        self._news = anyio.Event()
        with suppress(SettingsError):  # reported when the server is started
            if (known := accepted.of(self.name)) is not None:
                self._announce(known, known)

    @property
    def state(self) -> Literal["connected", "starting", "unreachable"]:
        """The server's state, in which a call would be sent, would wait, or would fail."""
        if self._connection is not None:
            return "connected"
        return "unreachable" if self.reason else "starting"

    @property
    def needs_login(self) -> bool:
        """True if the server can't be used until somebody logs in."""
        return self.reason == login_wanted(self.name)

    def report(self) -> Iterator[str]:
        """Describe the server's state to the operator, line by line; raise `SettingsError`."""
        if self.needs_login:
            yield f"server {self.reason}"
            return
        if self.state != "connected":
            yield f"server {self.name}: not reachable, {self.reason}"
            yield from (f"  it wrote: {line}" for line in self.last_lines)
            return
        yield f"server {self.name}: connected, {len(self.tools)} tools"
        yield from (f"  left out {name!r}: {why}" for name, why in self.left_out.items())
        accepted = self._accepted.of(self.name) or Listing()
        known = {_shown(each): each for each in accepted.described}
        for each in self._offered.described:
            if _shown(each) in self.withheld:
                what = _change(known.get(_shown(each)), each)
                yield f"  withheld {_shown(each)!r}, which is {what}, and says: {each.description}"
        if self.withheld:
            yield f"  to accept them: nanoloop tools accept {self.name}"

    async def settled(self) -> None:
        """Wait until the server is connected or could not be reached."""
        while self.state == "starting":
            await self._news.wait()

    # Calls

    async def use(
        self, act: Callable[[ServerConnection], Awaitable[Any]], *, may_repeat: bool
    ) -> Any:
        """Wait for the connection, then do this work with it.

        Raise `ToolError`, or `ServerGone` if the work may have been done and can't be repeated.
        """
        connection, heard = None, 0
        seconds = self.place.timeout_seconds
        with anyio.move_on_after(seconds):
            connection = await self._connected()
            heard, self.used = connection.heard, self.used + 1
            try:
                return await act(connection)
            except ServerGone as gone:
                what = f"{self.name} went away during the call: {gone}"
                raise _cut_off(what, may_repeat=may_repeat) from None
        if connection is None:
            raise ToolTimeout(f"{self.name} could not be reached within {seconds:g} s")
        if connection.heard == heard:
            connection.end("it does not answer")  # a silent program never fails by itself
        raise _cut_off(f"{self.name} did not answer within {seconds:g} s", may_repeat=may_repeat)

    async def _connected(self) -> ServerConnection:
        while self._connection is None or self._connection.why_gone:
            if self.needs_login:
                raise LoginWanted(self.reason)
            if self.reason:
                raise ToolError(f"{self.name} is not reachable since {self._time()}: {self.reason}")
            await self._news.wait()
        return self._connection

    def _time(self) -> str:
        now, since = datetime.now().astimezone(), self._since or datetime.now().astimezone()
        return f"{since:%H:%M}" if now.date() == since.date() else f"{since:%Y-%m-%d %H:%M}"

    # The task

    def stop(self) -> None:
        """Stop the server permanently."""
        self._is_unwanted = True
        if self._scope is not None:
            self._scope.cancel()

    async def run(self) -> None:
        """Keep the server connected, retrying with backoff, until it is stopped."""
        with anyio.CancelScope() as self._scope:
            if not self._is_unwanted:
                await self._run()

    async def _run(self) -> None:
        failures = 0
        while True:
            began, calls = anyio.current_time(), self.used
            before = await self._login()
            reason = await self._try()
            await checkpoint()  # the cancellation that was caught may have been our own
            lasted = anyio.current_time() - began
            was_connected, self._connection = self._connection is not None, None
            is_useful = was_connected and (self.used > calls or lasted > USEFUL_SECONDS)
            is_wanted = reason == login_wanted(self.name)
            failures = 0 if is_useful and not is_wanted else failures + 1
            self._since = self._since or datetime.now().astimezone()
            if was_connected or reason != self.reason:
                announce(ToolServerFailed(server=self.name, reason=reason))
            if failures:
                self.reason = reason
                self._tell()
                if is_wanted and self._logins is not None:
                    await self._login_changed(before)
                    continue
                pause = FIRST_PAUSE_SECONDS * 2 ** (failures - 1) if failures < 10 else math.inf  # noqa: PLR2004 - no larger number is needed
                await anyio.sleep(min(pause, LONGEST_PAUSE_SECONDS))

    async def _login(self) -> tuple[int, int] | None:
        if self._logins is None or not self.place.auth:
            return None
        return await run_sync(self._logins.stamp, self.name)

    async def _login_changed(self, before: tuple[int, int] | None) -> None:
        while await self._login() == before:  # noqa: ASYNC110 - another process decides
            await anyio.sleep(LOOK_SECONDS)

    async def _try(self) -> str:
        """Use one connection until it ends; return why it ended."""
        try:
            # Importing it takes half a second.
            mcp: Any = await run_sync(import_module, "nanoloop.tools.mcp")
        except Exception as error:  # noqa: BLE001 - whatever a package does when it is loaded
            return f"the mcp package can't be loaded ({type(error).__name__})"
        connection = mcp.ServerConnection(self.place, self._logins, self._sampling())
        try:
            with anyio.fail_after(self.place.timeout_seconds) as limit:
                async with mcp.connected(connection):
                    await self._serve(connection, limit)
        except TimeoutError:
            return f"it did not answer within {self.place.timeout_seconds:g} s"
        # Groups of errors also contain the client's own cancellations, and one server's bug must
        # not end the daemon.
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001
            return str(mcp.why(error, connection))
        finally:
            self.last_lines = tuple(connection.last_lines)
        return str(connection.why_gone)

    async def _serve(self, connection: ServerConnection, limit: anyio.CancelScope) -> None:
        await self._learn(await connection.tools())
        limit.deadline = math.inf
        self._connection = connection
        self._since, self.reason = None, ""
        announce(ToolServerStarted(server=self.name, tools=len(self.tools)))
        self._tell()
        while True:
            with anyio.move_on_after(LOOK_SECONDS if self.withheld else math.inf) as look:
                if not await connection.has_changed():
                    return
            if look.cancelled_caught:
                accepted = await run_sync(self._accepted.of, self.name)
                self._announce(accepted or Listing(), self._offered)
                continue
            with anyio.fail_after(self.place.timeout_seconds):
                listing = await connection.tools()
            await self._learn(listing)

    async def _learn(self, listing: Listing) -> None:
        if listing.left_out != self.left_out:
            self.left_out = listing.left_out
            names = tuple(map(visible, list(self.left_out)[:_NAMES]))
            announce(ToolsLeftOut(server=self.name, tools=names))
        accepted = await run_sync(self._accepted.learn, self.name, listing)
        before = self.withheld
        self._announce(accepted, listing)
        if self.withheld and self.withheld != before:
            names = tuple(map(visible, self.withheld[:_NAMES]))
            announce(ToolsWithheld(server=self.name, tools=names, advice=to_accept(self.name)))

    def _announce(self, accepted: Listing, offered: Listing) -> None:
        """Tell models about the tools that are accepted and still offered."""
        self._offered = offered
        known = {tool.name: tool.digest for tool in accepted.tools}
        names = [tool.name for tool in offered.tools]
        used = names if self.place.tools is None else chosen(self.place.tools, names)[0]
        good = [tool for tool in offered.tools if tool.digest == known.get(tool.name)]
        self.withheld = tuple(
            tool.name for tool in offered.tools if tool not in good and tool.name in used
        )
        tools: dict[str, ServerTool | ResourceTool] = {}
        for tool in sorted(good, key=lambda tool: tool.name):
            name = name_for_model(self.name, tool.name)
            if tool.name in used and name not in tools:
                tools[name] = ServerTool(self, tool, name)
        reading = ResourceTool(self)
        if offered.has_resources:
            tools.setdefault(reading.spec.name, reading)
        prompts = self._prompts(accepted, offered)
        if _listed_in(tools) != _listed_in(self.tools) or _texts(prompts) != _texts(self.prompts):
            self.tools, self.prompts = tools, prompts
            self._changed()

    def _prompts(self, accepted: Listing, offered: Listing) -> dict[str, ServerPrompt]:
        known = {prompt.digest for prompt in accepted.prompts}
        good = [prompt for prompt in offered.prompts if prompt.digest in known]
        self.withheld += tuple(_shown(each) for each in offered.prompts if each not in good)
        prompts = (ServerPrompt(self.name, each, self._prompt) for each in good)
        return {prompt.command: prompt for prompt in prompts}

    async def _prompt(self, name: str, given: Mapping[str, str]) -> Sequence[PromptText]:
        async def use(connection: ServerConnection) -> Any:
            return await connection.prompt(name, given)

        texts: Sequence[PromptText] = await self.use(use, may_repeat=True)
        return texts

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def _listed_in(tools: Mapping[str, ServerTool | ResourceTool]) -> Mapping[str, ListedTool | None]:
    return {name: getattr(tool, "listed", None) for name, tool in tools.items()}


def _texts(prompts: Mapping[str, ServerPrompt]) -> Mapping[str, ListedPrompt]:
    return {name: prompt.listed for name, prompt in prompts.items()}


def _shown(listed: ListedTool | ListedPrompt) -> str:
    """Return the name of a tool or prompt in a form that tells the two apart."""
    return f"prompt {listed.name}" if isinstance(listed, ListedPrompt) else listed.name


def _change(before: ListedTool | ListedPrompt | None, now: ListedTool | ListedPrompt) -> str:
    """Return what has changed; a person who reads only the description can't see it there."""
    if before is None:
        return "new"
    names = {"parameters": "schema", "arguments": "arguments", "description": "description"}
    there = [name for name in (*names, "effect", "idempotent") if hasattr(now, name)]
    parts = [names.get(n, "hints") for n in there if getattr(now, n) != getattr(before, n, None)]
    return f"changed ({', '.join(dict.fromkeys(parts))})" if parts else "changed"


def _cut_off(what: str, *, may_repeat: bool) -> ToolError:
    if may_repeat:
        return ToolError(f"{what}; call it again")
    return ServerGone(f"{what}; the call may or may not have taken effect")


def to_accept(server: str) -> str:
    """Return how to accept withheld tools."""
    return f"see them with `nanoloop tools`, then: nanoloop tools accept {server}"


class ToolServers:
    """All configured tool servers."""

    def __init__(
        self,
        places: Sequence[ToolServerPlace],
        *,
        folder: Path,
        logins: ServerLogins | None = None,
    ) -> None:
        """Create the collection; the folder has the file of accepted tools."""
        self._logins = logins
        self._accepted = Accepted(folder)
        self._by_name: dict[str, ToolServer] = {}
        self._news = anyio.Event()
        self.changed: Callable[[], object] = lambda: None
        """Called when a server's tools have changed."""
        self.sampling: AskModel | None = None
        """Asks the model for a server; None if no server may do that."""
        self.set_places(places)

    def __iter__(self) -> Iterator[ToolServer]:
        return iter(self._by_name.values())

    @property
    def sources(self) -> list[ToolSource]:
        """Each server with the tools that models are told about."""
        return [
            ToolSource(
                name=f"server {each.name}",
                tools=dict(each.tools),
                prompts=dict(each.prompts),
                is_budgeted=True,
            )
            for each in self
        ]

    def _made(self, place: ToolServerPlace) -> ToolServer:
        return ToolServer(
            place,
            self._accepted,
            logins=self._logins,
            changed=self._tell,
            sampling=lambda: self.sampling,
        )

    def set_places(self, places: Sequence[ToolServerPlace]) -> None:
        """Use these servers from now on; a server whose place is unchanged keeps its connection."""
        before = self._by_name
        self._by_name = {
            place.name: before[place.name]
            if place.name in before and before[place.name].place == place
            else self._made(place)
            for place in places
        }
        for server in before.values():
            if server not in self._by_name.values():
                server.stop()
        self._news.set()

    def _tell(self) -> None:
        self.changed()

    async def run(self) -> None:
        """Keep all servers connected, in parallel, until cancelled."""
        begun: set[ToolServer] = set()
        async with anyio.create_task_group() as group:
            while True:
                begun &= {*self}
                for server in self:
                    if server not in begun:
                        begun.add(server)
                        group.start_soon(server.run, name=f"tool server {server.name}")
                self._news = anyio.Event()
                await self._news.wait()

    @asynccontextmanager
    async def started(self) -> AsyncIterator[None]:
        """Run all servers during the block, which begins once each has connected or failed."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.run, name="tool servers")
            for server in self:
                await server.settled()
            try:
                yield
            finally:
                group.cancel_scope.cancel()

    def accept(self, name: str) -> Listing:
        """Accept this server's last offer; raise `SettingsError` if that fails."""
        return self._accepted.accept(name)
