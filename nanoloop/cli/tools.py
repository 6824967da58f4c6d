"""`nanoloop tools`: list each agent's tools, try one, accept a server's, or log in to one."""

from __future__ import annotations

import os
import stat
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream
from anyio.to_thread import run_sync

from nanoloop.agents import Agents
from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, add_actions, load_settings
from nanoloop.cli.output import say, say_json
from nanoloop.errors import LoginFailed, SettingsError
from nanoloop.files import refusal
from nanoloop.parts import make_agents, make_logins, make_servers, recall_alone
from nanoloop.plugins import OURS
from nanoloop.protocols import Tool, ToolCall, effect_of, is_repeatable, runs_again, settle_of
from nanoloop.session.entry import fresh_id
from nanoloop.settings import Settings
from nanoloop.settings.vendors import suited
from nanoloop.skills import READ_SKILL, SkillReader
from nanoloop.tokens import text_tokens, tools_tokens
from nanoloop.tool_sources import BUILT_IN, PACKAGES, make_tools, server_places
from nanoloop.tools.call import CurrentCall, Outlet, calling
from nanoloop.tools.finding import FIND_TOOLS
from nanoloop.tools.logins import ServerLogin
from nanoloop.tools.servers import ToolServerPlace, ToolServers
from nanoloop.tools.toolbox import Toolbox, ToolSource
from nanoloop.words import did_you_mean

_HOW = """
Without an action, it lists the tools that each agent may call, with their effect (`reads` or
`writes`), the estimated tokens that they take in each request, and where they come from, and the
skills that each agent may read.
Tool servers are started for this. It shows which of their tools are new or have changed."""
_ACCEPT_HOW = """
A server's descriptions of its tools reach the model. The first ones are accepted; tools that are
new or have changed since then are withheld until you accept them."""
_LOGIN_HOW = """
It prints an address to open in a browser, and waits until somebody has logged in there. On a
machine without a browser, open the address elsewhere, and paste here the address that the browser
is sent to at the end, which begins with http://127.0.0.1. A running daemon uses the login within
seconds. A server with `auth = "client_credentials"` needs none; this tries its client's secret."""
_LOGOUT_HOW = """
The login is removed from this machine, and its server is asked to forget it."""
_CALL_HOW = """
The tool really runs, as if a model had called it, even if it writes."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop tools`."""
    parser.description = f"{parser.description}\n{_HOW}"
    parser.add_argument("--json", action="store_true", help="print JSON, for scripts")
    action = add_actions(parser, is_needed=False)
    accepted = action("accept", "accept a server's tools as they are now", accept)
    accepted.description = f"{accepted.description}{_ACCEPT_HOW}"
    accepted.add_argument("server", metavar="SERVER", help="the server's name")
    login = action("login", "log in to a tool server", log_in)
    login.description = f"{login.description}{_LOGIN_HOW}"
    login.add_argument("server", metavar="SERVER", help="the server's name")
    login.add_argument("--no-browser", action="store_true", help="only print the address")
    logout = action("logout", "log out of a tool server", log_out)
    logout.description = f"{logout.description}{_LOGOUT_HOW}"
    logout.add_argument("server", metavar="SERVER", help="the server's name")
    tried = action("call", "run a tool once, as if a model had called it", call)
    tried.description = f"{tried.description}{_CALL_HOW}"
    tried.add_argument("name", metavar="NAME", help="the tool's name")
    tried.add_argument(
        "arguments", metavar="JSON", nargs="?", default="{}", help="its arguments as a JSON object"
    )


def run(args: Namespace) -> int:
    """List each agent's tools."""
    return anyio.run(_list, args, suited(load_settings(args)))


async def _list(args: Namespace, settings: Settings) -> int:
    servers = make_servers(settings)
    async with servers.started():
        recall = recall_alone(settings)
        agents = make_agents(settings, recall, servers)
        sources = make_tools(settings, recall, servers)
        if args.json:
            say_json(
                {name: [*_rows(agents, name, sources), *_skills(agents, name)] for name in agents}
            )
            return Exit.DONE
        for name in agents:
            rows = [*_rows(agents, name, sources)]
            say(_listed(name, rows, is_default=name == agents.default.name))
            if skills := [*_skills(agents, name)]:
                say(_skills_listed(name, skills))
        for server in servers:
            say(printable("\n".join(server.report())))
    return Exit.DONE


async def log_in(args: Namespace, settings: Settings) -> int:
    """Log in to a server, as a person or with the client's own secret."""
    place = _place(args.server, server_places(settings))
    if place is None:
        return Exit.NOT_FOUND
    if not place.auth:
        text = f"{place.name} has no login: set tools.servers.{place.name}.auth to have one"
        say(f"nanoloop: {text}", err=True)
        return Exit.NOT_CONFIGURED
    logins = make_logins(settings)
    try:
        login = await _login(args, settings, place)
    except LoginFailed as failed:
        say(printable(f"nanoloop: the login to {place.name} failed: {failed}"), err=True)
        return Exit.FAILED
    async with logins.alone(place.name):
        await run_sync(logins.keep, place.name, login)
    say(f"logged in to {place.name}")
    return Exit.DONE


async def _login(args: Namespace, settings: Settings, place: ToolServerPlace) -> ServerLogin:
    from nanoloop.tools import oauth  # noqa: PLC0415 - it takes half a second to load

    if place.auth == "client_credentials":
        return await oauth.machine_login(place)

    async def show(url: str) -> None:
        say(f"open this address to log in to {place.name}:\n\n{url}\n", err=True)
        say("then paste here the address you are sent to, if the browser is elsewhere", err=True)
        if not args.no_browser:
            await open_browser(url)

    port = settings.tools.servers[place.name].redirect_port
    async with listening(port) as redirect:
        return await oauth.log_in(
            place, redirect=redirect.address, show=show, answer=redirect.answer
        )


async def log_out(args: Namespace, settings: Settings) -> int:
    """Remove a login, and ask its server to forget it."""
    logins = make_logins(settings)
    async with logins.alone(args.server):
        login = await run_sync(logins.remove, args.server)
    if login is None:
        say(printable(f"there is no login to {args.server}"), err=True)
        return Exit.NOT_FOUND
    from nanoloop.tools import oauth  # noqa: PLC0415 - as above

    is_revoked = await oauth.revoke(ToolServerPlace(name=args.server, url=login.url), login)
    more = "" if is_revoked else "; its server could not be told, and ends it in its own time"
    say(printable(f"logged out of {args.server}{more}"))
    return Exit.DONE


def _place(name: str, places: Sequence[ToolServerPlace]) -> ToolServerPlace | None:
    """Return the server with this name; if there is none, say so."""
    known = {place.name: place for place in places}
    if name not in known:
        there = f"configured servers: {', '.join(known) or 'none'}"
        advice = did_you_mean(name, [*known], there)
        say(printable(f"nanoloop: there is no tool server {name!r}: {advice}"), err=True)
    return known.get(name)


def accept(args: Namespace, settings: Settings) -> int:
    """Accept what a server says about its tools."""
    servers = make_servers(settings)
    if _place(args.server, [server.place for server in servers]) is None:
        return Exit.NOT_FOUND
    accepted = [tool.name for tool in servers.accept(args.server).tools]
    say(printable(f"accepted {len(accepted)} tools of {args.server}: {', '.join(accepted)}"))
    return Exit.DONE


def _rows(agents: Agents, agent: str, sources: Sequence[ToolSource]) -> Iterator[Mapping[str, Any]]:
    toolbox = agents[agent].toolbox
    for spec in toolbox.specs:
        tool = toolbox.tools[spec.name]
        yield {
            "name": spec.name,
            "effect": effect_of(tool),
            "asks_first": toolbox.asks_first(spec.name),
            "after_a_kill": _after_a_kill(tool),
            "repeatable": is_repeatable(tool),
            "tokens": tools_tokens([spec]),
            "source": _source_of(spec.name, sources),
        }


def _source_of(name: str, sources: Sequence[ToolSource]) -> str:
    known = (source.name for source in sources for tool in source.tools.values())
    names = (tool.spec.name for source in sources for tool in source.tools.values())
    source = dict(zip(names, known, strict=True)).get(name, PACKAGES)
    is_ours = name in {FIND_TOOLS, READ_SKILL} or name.partition("__")[0] in OURS["tools"]
    return BUILT_IN if is_ours and source == PACKAGES else source


def _skills(agents: Agents, agent: str) -> Iterator[Mapping[str, Any]]:
    reader = agents[agent].toolbox.tools.get(READ_SKILL)
    for skill in reader.skills.values() if isinstance(reader, SkillReader) else ():
        yield {
            "name": skill.name,
            "effect": "skill",
            "tokens": text_tokens(skill.line),
            "source": str(skill.folder),
        }


def _skills_listed(agent: str, rows: Sequence[Mapping[str, Any]]) -> str:
    wide = max(len(row["name"]) for row in rows)
    count, tokens = f"{len(rows)} skill{'s' * (len(rows) != 1)}", sum(row["tokens"] for row in rows)
    lines = (f"  {row['name']:{wide}}  {row['tokens']:>5}  {row['source']}" for row in rows)
    return printable("\n".join((f"{agent}: {count}, {tokens} tokens in its prompt", *lines)))


def _after_a_kill(tool: Tool) -> str:
    """Return what happens to a call that is interrupted when the process is killed."""
    if runs_again(tool):
        return "runs again"
    return "unknown" if settle_of(tool) is None else "asks"


def _listed(agent: str, rows: Sequence[Mapping[str, Any]], *, is_default: bool) -> str:
    tokens = sum(row["tokens"] for row in rows)
    count = f"{len(rows)} tool{'s' * (len(rows) != 1)}"
    head = f"{agent}{' (the default)' * is_default}: {count}, {tokens} tokens in each request"
    wide = max((len(row["name"]) for row in rows), default=0)
    lines = (
        f"  {row['name']:{wide}}  {row['effect']:6}  {row['tokens']:>5}  {_notes(row)}"
        for row in rows
    )
    return printable("\n".join((head, *lines)))


def _notes(row: Mapping[str, Any]) -> str:
    more = {"asks": "asks after a kill", "runs again": "runs again after a kill"}
    kill = more.get(row["after_a_kill"], "") if row["effect"] == "writes" else ""
    asks = "asks first" * row["asks_first"]
    return ", ".join(filter(None, (row["source"], asks, kill, "repeatable" * row["repeatable"])))


async def call(args: Namespace, settings: Settings) -> int:
    """Run one tool and print its result."""
    servers = make_servers(settings)
    async with servers.started():
        return await _call(args, settings, servers)


async def _call(args: Namespace, settings: Settings, servers: ToolServers) -> int:
    recall = recall_alone(settings)
    sources = make_tools(settings, recall, servers)
    known = {tool.spec.name: tool for source in sources for tool in source.tools.values()}
    for agent in make_agents(settings, recall, servers).values():
        known |= agent.toolbox.tools
    tool = known.get(args.name)
    if tool is None:
        advice = did_you_mean(args.name, list(known), f"the tools are {', '.join(known)}")
        say(printable(f"nanoloop: there is no tool {args.name!r}: {advice}"), err=True)
        return Exit.NOT_FOUND
    effect = "it may change something" if effect_of(tool) == "writes" else "it only reads"
    say(printable(f"calling {args.name} with {args.arguments}: {effect}"), err=True)
    toolbox = Toolbox([tool], timeout_seconds=settings.tools.timeout_seconds, result_chars=_ALL)
    outlet = Outlet(_say)
    current = CurrentCall(call=fresh_id(), tool=args.name, outlet=outlet)
    asked = ToolCall(id=current.call, name=args.name, arguments=args.arguments)
    async with outlet.open():
        with calling(current):
            outcome = await toolbox.run(asked)
    if not outcome.success:
        say(printable(f"nanoloop: {args.name} failed: {outcome.error}"), err=True)
        return Exit.FAILED
    say(printable(outcome.text))
    return Exit.DONE


_ALL = sys.maxsize
"""The whole result is printed."""


async def _say(text: str) -> None:
    say(printable(text), err=True)


# The answer to a login

ANSWER_SECONDS = 600.0
"""How long somebody may take to log in."""
_PATH = "/callback"
_REQUEST_SECONDS = 10.0
_REQUEST_BYTES = 16_000
_SEEN_PAGE = "nanoloop has the answer. Return to the terminal, which says whether it is accepted."
_NO_PAGE = "There is nothing here."
SCREENS = ("DISPLAY", "WAYLAND_DISPLAY")


class Redirect:
    """The address on this machine that a login's answer is sent to."""

    def __init__(self, listener: Listener[SocketStream]) -> None:
        self._listener = listener
        self._answer = ""
        self._state = ""
        self._is_here = anyio.Event()
        port = listener.extra(SocketAttribute.local_port)  # noqa: S610 - not Django's
        self.address = f"http://127.0.0.1:{port}{_PATH}"
        """Receives the browser that the authorization server redirects here."""

    async def answer(self, state: str) -> str:
        """Return the address that the browser was sent to; raise `LoginFailed` if none comes.

        Any program or web page can send something here: requests with another state are ignored.
        """
        self._state = state
        with anyio.move_on_after(ANSWER_SECONDS):
            async with anyio.create_task_group() as group:
                group.start_soon(self._listener.serve, self._hear, name="answers of browsers")
                group.start_soon(self._read, name="pasted answers")
                await self._is_here.wait()
                group.cancel_scope.cancel()
        await self._listener.aclose()
        if not self._answer:
            raise LoginFailed(f"nobody logged in within {ANSWER_SECONDS / 60:g} minutes")
        return self._answer

    def _take(self, address: str) -> None:
        self._answer = self._answer or address
        self._is_here.set()

    async def _hear(self, stream: SocketStream) -> None:
        async with stream:
            with anyio.move_on_after(_REQUEST_SECONDS), suppress(anyio.BrokenResourceError):
                target = await _target(stream)
                is_answer = self._is_ours(target) and not self._answer
                status = HTTPStatus.OK if is_answer else HTTPStatus.NOT_FOUND
                await stream.send(_page(status, _SEEN_PAGE if is_answer else _NO_PAGE))
                if is_answer:
                    self._take(self.address.removesuffix(_PATH) + target)

    def _is_ours(self, target: str) -> bool:
        path, _, query = target.partition("?")
        state = parse_qs(query).get("state", [""])[0]
        return path == _PATH and compare_digest(state.encode(), self._state.encode())

    async def _read(self) -> None:
        """Read lines of standard input, if somebody or something can write there."""
        if not _may_speak(0):
            return
        line = b""
        while b"\n" not in line:
            await anyio.wait_readable(0)
            piece = os.read(0, _REQUEST_BYTES)
            line = (line + piece).lstrip()
            if not piece or len(line) > _REQUEST_BYTES:
                return
        self._take(line.decode("utf-8", "replace").strip())


def _may_speak(fd: int) -> bool:
    with suppress(OSError):
        return os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)
    return False


async def _target(stream: SocketStream) -> str:
    """Return the target of a request; empty if it is not a request."""
    head = b""
    with suppress(anyio.EndOfStream):
        while b"\r\n\r\n" not in head and len(head) < _REQUEST_BYTES:
            head += await stream.receive()
    method, _, rest = head.partition(b"\r\n")[0].partition(b" ")
    return rest.partition(b" ")[0].decode("latin-1") if method == b"GET" else ""


def _page(status: HTTPStatus, text: str) -> bytes:
    head = (
        f"HTTP/1.1 {status} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(text)}",
        "Cache-Control: no-store",
        "Referrer-Policy: no-referrer",
        "Connection: close",
    )
    return "\r\n".join((*head, "", text)).encode()


@asynccontextmanager
async def listening(port: int) -> AsyncIterator[Redirect]:
    """Listen on this machine only; raise `SettingsError` if the port is not free."""
    try:
        many = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    except OSError as error:
        raise SettingsError(
            f"port {port} of this machine can't be used: {refusal(error)}"
        ) from None
    async with many:
        yield Redirect(many.listeners[0])


async def open_browser(url: str) -> None:
    """Open the address in a browser if this machine has a screen."""
    if any(os.environ.get(name) for name in SCREENS):
        import webbrowser  # noqa: PLC0415 - only here

        await run_sync(webbrowser.open, url)
