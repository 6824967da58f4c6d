"""Agents as models: listed, found by name, and which one a request means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse, Response

from nanoloop.agents import Agent
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.malformed import quoted
from nanoloop.channels.web.openai.operation import ClientOperation
from nanoloop.channels.web.openai.refusing import Unfit
from nanoloop.channels.web.operation import Call, Operation

_SINCE = 0
"""When agents came to be: nobody knows, and clients want a number."""


async def list_models(call: Call) -> Response:
    """All agents."""
    return JSONResponse({"object": "list", "data": [_shown(n) for n in call.desk.shop.agents]})


async def show_model(call: Call) -> Response:
    """One agent."""
    return JSONResponse(_shown(agent_of(call.desk, call.request.path_params["model"]).name))


def agent_of(desk: Desk, model: str) -> Agent:
    """The agent of that name; the default one for the model it asks. Raises a refusal."""
    agents = desk.shop.agents
    if model in agents:
        return agents[model]
    if model == desk.shop.model:
        return agents.default
    near = agents.nearest(model)
    advice = f"did you mean {near}?" if near else "/v1/models lists the agents"
    raise Unfit(
        404, f"there is no model {quoted(model)}: {advice}", code="model_not_found", param="model"
    )


def _shown(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": _SINCE, "owned_by": "nanoloop"}


OPERATIONS: Sequence[Operation] = (
    ClientOperation(
        method="GET", path="/v1/models", says="The agents, as OpenAI's API has it", run=list_models
    ),
    ClientOperation(
        method="GET",
        path="/v1/models/{model}",
        says="One agent, as OpenAI's API has it",
        run=show_model,
    ),
)
