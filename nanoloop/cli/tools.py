"""`nanoloop tools`: list each agent's tools, try one, or accept a server's tools."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import anyio

from nanoloop.agents import Agents
from nanoloop.channels.screen import printable
from nanoloop.cli import Exit, add_actions, load_settings
from nanoloop.cli.output import say, say_json
from nanoloop.parts import BUILT_IN, PACKAGES, make_agents, make_servers, make_tools, recall_alone
from nanoloop.plugins import OURS
from nanoloop.protocols import Tool, ToolCall, effect_of, is_repeatable, runs_again, settle_of
from nanoloop.session.entry import fresh_id
from nanoloop.settings import Settings
from nanoloop.settings.vendors import suited
from nanoloop.skills import READ_SKILL, SkillReader
from nanoloop.tokens import text_tokens, tools_tokens
from nanoloop.tools.call import CurrentCall, Outlet, calling
from nanoloop.tools.finding import FIND_TOOLS
from nanoloop.tools.servers import ToolServers
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


def accept(args: Namespace, settings: Settings) -> int:
    """Accept what a server says about its tools."""
    servers = make_servers(settings)
    names = [server.name for server in servers]
    if args.server not in names:
        advice = did_you_mean(
            args.server, names, f"configured servers: {', '.join(names) or 'none'}"
        )
        say(printable(f"nanoloop: there is no tool server {args.server!r}: {advice}"), err=True)
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
