"""The agents that the settings describe, with their tools."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from nanoloop.agents import Agent, Agents
from nanoloop.errors import SettingsError
from nanoloop.memory.recall import Recall
from nanoloop.protocols import Tool
from nanoloop.settings import AgentSettings, Settings
from nanoloop.settings.problems import DEFAULT_AGENT
from nanoloop.tools.calculator import calculator
from nanoloop.tools.clock import clock
from nanoloop.tools.recall import make_recall_tool

TOOLS: Mapping[str, Tool] = {"clock": clock, "calculator": calculator}


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
