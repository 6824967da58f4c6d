"""Finds model servers on this machine, and lists the models that servers offer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard
from urllib.parse import urlsplit, urlunsplit

import anyio

from nanoloop.channels.screen import printable
from nanoloop.providers.vendors import VENDORS
from nanoloop.settings.secrets import shown
from nanoloop.settings.vendors import server_of, servers_of

if TYPE_CHECKING:
    from nanoloop.settings import Settings
    from nanoloop.settings.vendors import ServerSettings as Configured


class ServerPlace(NamedTuple):
    """An address on this machine where a model server may be running."""

    name: str
    word: str
    """The prefix of the server's model names; "" if the address identifies the server."""
    url: str


_PATIENCE_SECONDS = 1.0
"""The timeout for a server on this machine, which answers at once or not at all."""
_FAR_SECONDS = 5.0
_HERE = {"localhost", "127.0.0.1", "::1"}
MOST_SHOWN = 30
_MOST_LISTED = 500
_MOST_BYTES = 10_000_000
_LONGEST_NAME = 200
_NO_CHAT = re.compile(
    r"embed|rerank|whisper|transcri|speech|moderation|dall-e|image|minilm|colbert|diffusion"
    r"|kokoro|paraphrase|\b(audio|bge|clip|e5|flux|gte|ocr|parler|piper|realtime|sora|tts|veo)\b",
    re.IGNORECASE,
)
"""Matches the names of models that can't chat."""
_NO_CHAT_KINDS = {"audio", "embedding", "embeddings", "image", "moderation", "rerank", "transcribe"}
_WELL_SUITED = re.compile(
    r"latest|instruct|chat|turbo|versatile|\b(flash|mini|sonnet|small)\b", re.IGNORECASE
)
_ILL_SUITED = re.compile(
    r"preview|exp\b|base\b|code|math|guard|search|vision|\bvl\b|\b(nano|lite)\b", re.IGNORECASE
)


class RunningServer(NamedTuple):
    """A running server and its chat models."""

    place: ServerPlace
    models: Sequence[str]
    """Names as `model = …` accepts them, the best choice first; may be empty."""

    @property
    def name(self) -> str:
        """The server's usual name."""
        return self.place.name


class ServerModels(NamedTuple):
    """The models that a configured server lists."""

    server: Configured
    models: Sequence[str]
    """Names as `model = …` accepts them; empty if the server did not answer."""

    @property
    def name(self) -> str:
        """The vendor's word, or the server's address if there is none."""
        return self.server.word or self.where

    @property
    def where(self) -> str:
        """The server's address, without any password."""
        return printable(shown(self.server.url).strip('"'))


def usual_places(settings: Settings) -> list[ServerPlace]:
    """Return the usual addresses of model servers, or those set in the environment."""
    words = ("ollama", "lmstudio", "vllm")
    known = [
        ServerPlace(VENDORS[word].title, word, server_of(settings, word).url or "")
        for word in words
    ]
    return [
        *known,
        # LocalAI uses the same port.
        ServerPlace("llama.cpp or LocalAI", "llamacpp", server_of(settings, "llamacpp").url or ""),
        ServerPlace("Jan", "", "http://localhost:1337/v1"),
    ]


def running_servers(places: Sequence[ServerPlace]) -> list[RunningServer]:
    """Return the servers running at these places, all checked at once within a second."""
    asks = {place.url: _ListRequest(_list_of(place.url), {}, _PATIENCE_SECONDS) for place in places}
    found = anyio.run(_all_listed, asks)
    return [
        RunningServer(place, _named(place.word, listed)[:MOST_SHOWN])
        for place in places
        # Ollama is reported even if it has no models yet.
        if (listed := found[place.url]) or (place.word == "ollama" and listed is not None)
    ]


def models_at(url: str, key: str | None = None) -> list[str]:
    """Return the models that the server at this address offers; empty if it does not answer."""
    asks = {url: _ListRequest(_list_of(url), _bearer(key), _FAR_SECONDS)}
    return _named("", anyio.run(_all_listed, asks)[url] or [])[:MOST_SHOWN]


def configured_servers(settings: Settings) -> list[ServerModels]:
    """Return the chat models on each configured server, asking all servers at once."""
    servers = [server for server in servers_of(settings) if server.url]
    found = anyio.run(_all_listed, {server.word: _asked_of(server) for server in servers})
    return [ServerModels(server, sorted(_of(server, found[server.word]))) for server in servers]


def models_of_vendor(server: Configured) -> list[str]:
    """Return the vendor's chat models, named as in the settings."""
    found = anyio.run(_all_listed, {server.word: _asked_of(server)})
    return _of(server, found[server.word])


class _ListRequest(NamedTuple):
    """A request for a list of models."""

    url: str
    headers: Mapping[str, str]
    seconds: float


Listed = list[tuple[str, str]]
"""Models, each with its name, and its type if the server reports one."""


def _asked_of(server: Configured) -> _ListRequest:
    if server.vendor.speaks == "anthropic":
        headers = {"x-api-key": server.key or "", "anthropic-version": "2023-06-01"}
        return _ListRequest(_list_of_anthropic(server.url or ""), headers, _FAR_SECONDS)
    return _ListRequest(_list_of(server.url or ""), _bearer(server.key), _FAR_SECONDS)


def _list_of(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/models"))


def _list_of_anthropic(url: str) -> str:
    """Return the URL of Anthropic's model list, even if the base URL ends in /v1 like OpenAI's."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/models"
    query = "&".join(filter(None, (parts.query, "limit=1000")))
    return urlunsplit(parts._replace(path=path, query=query))


def _bearer(key: str | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _of(server: Configured, listed: Listed | None) -> list[str]:
    under = server.vendor.lists_under
    return _named(server.word, [(name.removeprefix(under), kind) for name, kind in listed or []])


def _named(word: str, listed: Listed) -> list[str]:
    """Return the chat models named as in the settings, those best suited to chatting first."""
    chatting = [
        name for name, kind in listed if not (_NO_CHAT.search(name) or kind in _NO_CHAT_KINDS)
    ]
    return [f"{word}:{name}" if word else name for name in sorted(chatting, key=_unsuitability)]


def _unsuitability(name: str) -> int:
    """Return a sort key based on the name alone; for ties, the server's order is kept."""
    return bool(_ILL_SUITED.search(name)) * 2 - bool(_WELL_SUITED.search(name))


async def _all_listed(asks: Mapping[str, _ListRequest]) -> dict[str, Listed | None]:
    found: dict[str, Listed | None] = {}

    async def look(name: str, ask: _ListRequest) -> None:
        found[name] = await _listed(ask)

    async with anyio.create_task_group() as group:
        for name, ask in asks.items():
            group.start_soon(look, name, ask, name=f"models of {name}")
    return found


async def _listed(ask: _ListRequest) -> Listed | None:
    """Return the models listed at a URL, or None if there is no list."""
    import aiohttp  # noqa: PLC0415 - slow to import, and only needed by some commands

    # Servers on this machine are reached directly, others through the environment's proxy.
    through = urlsplit(ask.url).hostname not in _HERE
    try:
        with anyio.fail_after(ask.seconds):
            async with (
                aiohttp.ClientSession(trust_env=through) as client,
                # A redirect must not receive the key.
                client.get(ask.url, headers=ask.headers, allow_redirects=False) as answer,
            ):
                if answer.status != HTTPStatus.OK:
                    return None
                return _names(json.loads(await _body(answer.content)))
    except (aiohttp.ClientError, OSError, RecursionError, TimeoutError, ValueError):
        return None


async def _body(content: Any) -> bytes:
    """Return the whole response; raises `ValueError` if it is too long for a list of models."""
    body = b""
    async for piece in content.iter_chunked(65_536):
        body += piece
        if len(body) > _MOST_BYTES:
            raise ValueError("too long")
    return body


def _names(said: Any) -> Listed:
    """Return the ids in a list of models, except those that cannot be shown or typed."""
    listed = said.get("data") if isinstance(said, dict) else said
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    # Skip nanoloop's own server, whose models are this program's agents.
    items = [item for item in items if item.get("owned_by") != "nanoloop"]
    found = ((item.get("id"), item.get("type")) for item in items)
    return [(name, str(kind)) for name, kind in found if _is_name(name)][:_MOST_LISTED]


def _is_name(name: object) -> TypeGuard[str]:
    return isinstance(name, str) and name.isprintable() and 0 < len(name) <= _LONGEST_NAME
