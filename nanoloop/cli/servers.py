"""Model servers on this machine: whether one runs at its usual place, and what it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import anyio

USUAL: Mapping[str, str] = {
    "Ollama": "http://localhost:11434/v1",
    "llama.cpp": "http://localhost:8080/v1",
    "LM Studio": "http://localhost:1234/v1",
}
_PATIENCE_SECONDS = 1.0
"""For a server on this machine, which answers at once or not at all."""
_FAR_SECONDS = 5.0
_MOST_SHOWN = 30
_LONGEST_NAME = 200


class Server(NamedTuple):
    """A server that answered, and its models: at least one."""

    name: str
    url: str
    models: Sequence[str]


def running(usual: Mapping[str, str] = USUAL) -> list[Server]:
    """The servers that run at their usual places, all looked for at once."""
    found: dict[str, list[str]] = {}

    async def look(url: str) -> None:
        found[url] = await _listed(url, None, _PATIENCE_SECONDS)

    async def look_everywhere() -> None:
        async with anyio.create_task_group() as group:
            for name, url in usual.items():
                group.start_soon(look, url, name=name)

    anyio.run(look_everywhere)
    return [Server(name, url, found[url]) for name, url in usual.items() if found[url]]


def models_at(url: str, key: str | None = None) -> list[str]:
    """The models of the server at that address; none where it can't be asked."""
    return anyio.run(_listed, url, key, _FAR_SECONDS)


async def _listed(url: str, key: str | None, seconds: float) -> list[str]:
    import httpx2  # noqa: PLC0415 - it takes a while, and only a first run asks

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    # No proxy stands before this machine; a server elsewhere is asked as the environment says.
    through = seconds == _FAR_SECONDS
    try:
        with anyio.fail_after(seconds):
            async with httpx2.AsyncClient(
                timeout=seconds, trust_env=through, verify=through
            ) as client:
                answer = await client.get(f"{url}/models", headers=headers)
                return _names(answer.json()) if answer.is_success else []
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError):
        return []


def _names(said: Any) -> list[str]:
    """The ids in a list of models, if it is one, and only what may be shown and typed."""
    listed = said.get("data") if isinstance(said, dict) else None
    items = listed if isinstance(listed, list) else []
    ids = [item.get("id") for item in items if isinstance(item, dict)]
    return [
        name
        for name in ids
        if isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME
    ][:_MOST_SHOWN]
