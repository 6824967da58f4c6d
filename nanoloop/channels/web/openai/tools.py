"""The client's own tools: the model hears of them, and the client runs them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nanoloop.channels.web.openai.refusing import unfit
from nanoloop.channels.web.openai.request import ChatRequest
from nanoloop.protocols import ToolCall, ToolSpec
from nanoloop.tools.toolbox import Toolbox, ToolOutcome

NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def client_tools(asked: ChatRequest, ours: Collection[ToolSpec]) -> Sequence[ToolSpec]:
    """The tools that a request brings, where it wants them used; raises a refusal."""
    if asked.tool_choice not in (None, "auto", "none"):
        raise unfit("tool_choice", "auto or none: the model chooses among all tools")
    specs = [_spec(tool) for tool in asked.tools or ()]
    names = [spec.name for spec in (*ours, *specs)]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise unfit("tools", f"there are two named {twice!r}, here and among the agent's")
    return () if asked.tool_choice == "none" else specs


def _spec(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise unfit("tools", "each a function with a name")
    parameters = function.get("parameters") or NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise unfit("tools", f"the parameters of {name[:64]!r} are a JSON schema")
    return ToolSpec(
        name=name, description=str(function.get("description") or ""), parameters=parameters
    )


class Offered(Toolbox):
    """The agent's tools, which run here, and the client's, which the model only hears of."""

    def __init__(self, ours: Toolbox, theirs: Collection[ToolSpec]) -> None:
        super().__init__()
        self._ours = ours
        self.specs = (*ours.specs, *theirs)

    async def run(self, call: ToolCall) -> ToolOutcome:
        """Run one of ours."""
        return await self._ours.run(call)
