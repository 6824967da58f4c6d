"""Model servers, here and elsewhere: which ones run on this machine, and what each one serves."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard
from urllib.parse import urlsplit, urlunsplit

import anyio

from nanoloop.channels.screen import printable
from nanoloop.settings.problems import shown
from nanoloop.settings.vendors import servers_of

if TYPE_CHECKING:
    from nanoloop.settings import Settings
    from nanoloop.settings.vendors import ServerSettings as Configured

USUAL: Mapping[str, str] = {
    "Ollama": "http://localhost:11434/v1",
    "llama.cpp": "http://localhost:8080/v1",
    "LM Studio": "http://localhost:1234/v1",
}
_PATIENCE_SECONDS = 1.0
"""For a server on this machine, which answers at once or not at all."""
_FAR_SECONDS = 5.0
_HERE = {"localhost", "127.0.0.1", "::1"}
MOST_SHOWN = 30
_MOST_LISTED = 500
_MOST_BYTES = 10_000_000
_LONGEST_NAME = 200
_NO_CHAT = re.compile(
    r"embed|rerank|whisper|transcri|speech|moderation|dall-e|image"
    r"|\b(audio|ocr|realtime|sora|tts|veo)\b",
    re.IGNORECASE,
)
"""What the names of models have in them that don't chat."""
_NO_CHAT_KINDS = {"audio", "embedding", "embeddings", "image", "moderation", "rerank", "transcribe"}


class RunningServer(NamedTuple):
    """A server that answered, and its models: at least one."""

    name: str
    url: str
    models: Sequence[str]


class ServerModels(NamedTuple):
    """What a configured server said when it was asked for its models."""

    server: Configured
    models: Sequence[str]
    """As `model = …` takes them; none if it could not be asked."""

    @property
    def name(self) -> str:
        """The vendor's word, or the address of a server that has none."""
        return self.server.word or self.where

    @property
    def where(self) -> str:
        """Its address, without a password that may stand in it."""
        return printable(shown(self.server.url).strip('"'))


def running_servers(usual: Mapping[str, str] = USUAL) -> list[RunningServer]:
    """The servers that run at their usual places, all looked for at once."""
    asks = {url: _ListRequest(_list_of(url), {}, _PATIENCE_SECONDS) for url in usual.values()}
    found = anyio.run(_all_listed, asks)
    shown = {url: [name for name, _ in found[url]][:MOST_SHOWN] for url in found}
    return [RunningServer(name, url, shown[url]) for name, url in usual.items() if shown[url]]


def models_at(url: str, key: str | None = None) -> list[str]:
    """The models of the server at that address; none if it can't be asked."""
    asks = {url: _ListRequest(_list_of(url), _bearer(key), _FAR_SECONDS)}
    return [name for name, _ in anyio.run(_all_listed, asks)[url]][:MOST_SHOWN]


def configured_servers(settings: Settings) -> list[ServerModels]:
    """What each server of the settings serves to chat with, all of them asked at once."""
    servers = [server for server in servers_of(settings) if server.url]
    found = anyio.run(_all_listed, {server.word: _asked_of(server) for server in servers})
    return [ServerModels(server, [*_named(server, found[server.word])]) for server in servers]


def models_of_vendor(server: Configured) -> list[str]:
    """The models of that vendor to chat with, as the settings name them."""
    found = anyio.run(_all_listed, {server.word: _asked_of(server)})
    return [*_named(server, found[server.word])]


class _ListRequest(NamedTuple):
    """Where a list of models is, and how it is asked for."""

    url: str
    headers: Mapping[str, str]
    seconds: float


Listed = list[tuple[str, str]]
"""Models, each with its name, and its kind if the server says one."""


def _asked_of(server: Configured) -> _ListRequest:
    if server.vendor.speaks == "anthropic":
        headers = {"x-api-key": server.key or "", "anthropic-version": "2023-06-01"}
        return _ListRequest(_list_of_anthropic(server.url or ""), headers, _FAR_SECONDS)
    return _ListRequest(_list_of(server.url or ""), _bearer(server.key), _FAR_SECONDS)


def _list_of(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/models"))


def _list_of_anthropic(url: str) -> str:
    """The same, also if the base URL ends in /v1 as OpenAI's does."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/models"
    query = "&".join(filter(None, (parts.query, "limit=1000")))
    return urlunsplit(parts._replace(path=path, query=query))


def _bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _named(server: Configured, listed: Listed) -> Iterator[str]:
    """The models that chat, as the settings name them."""
    for name, kind in sorted(listed):
        if not (_NO_CHAT.search(name) or kind in _NO_CHAT_KINDS):
            short = name.removeprefix(server.vendor.lists_under)
            yield f"{server.word}:{short}" if server.word else short


async def _all_listed(asks: Mapping[str, _ListRequest]) -> dict[str, Listed]:
    found: dict[str, Listed] = {}

    async def look(name: str, ask: _ListRequest) -> None:
        found[name] = await _listed(ask)

    async with anyio.create_task_group() as group:
        for name, ask in asks.items():
            group.start_soon(look, name, ask, name=f"models of {name}")
    return found


async def _listed(ask: _ListRequest) -> Listed:
    import aiohttp  # noqa: PLC0415 - it takes a while, and only these commands ask

    # No proxy stands before this machine; a server elsewhere is asked as the environment says.
    through = urlsplit(ask.url).hostname not in _HERE
    try:
        with anyio.fail_after(ask.seconds):
            async with (
                aiohttp.ClientSession(trust_env=through) as client,
                # No key follows a redirect.
                client.get(ask.url, headers=ask.headers, allow_redirects=False) as answer,
            ):
                is_list = answer.status == HTTPStatus.OK
                return _names(json.loads(await _body(answer.content))) if is_list else []
    except (aiohttp.ClientError, OSError, RecursionError, TimeoutError, ValueError):
        return []


async def _body(content: Any) -> bytes:
    """All of it; raises `ValueError` if it is longer than any list of models."""
    body = b""
    async for piece in content.iter_chunked(65_536):
        body += piece
        if len(body) > _MOST_BYTES:
            raise ValueError("too long")
    return body


def _names(said: Any) -> Listed:
    """The ids in a list of models, if it is one, and only what may be shown and typed."""
    listed = said.get("data") if isinstance(said, dict) else said
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    found = ((item.get("id"), item.get("type")) for item in items)
    return [(name, str(kind)) for name, kind in found if _is_name(name)][:_MOST_LISTED]


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME
