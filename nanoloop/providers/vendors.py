"""Model vendors: their addresses, keys and quirks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from nanoloop.models.catalogue import is_local
from nanoloop.plugins import is_installed


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """The ways in which a server differs from OpenAI's chat completions API."""

    streams_usage: bool = True
    """Whether the server accepts `stream_options`; other servers send the usage without it."""
    max_tokens_field: str = "max_tokens"
    """The server's name for an answer's token limit."""
    takes_cache_key: bool = False
    """Whether the server accepts `prompt_cache_key`."""
    sees_images: bool = True
    """Whether any of the vendor's models accepts images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """A service that offers models, on the web or on this machine."""

    title: str
    speaks: Literal["openai", "anthropic", "local"] = "openai"
    url: str | None = None
    """The vendor's base URL; None if each user has a different one, or there is none."""
    keys: tuple[str, ...] = ()
    """The environment variables for the key, the usual one first; empty if no key is needed."""
    address: str | None = None
    """The environment variable for the base URL."""
    lists_under: str = ""
    """The prefix of each name in the vendor's list of models."""
    quirks: Quirks = Quirks()


_MODERN = Quirks(max_tokens_field="max_completion_tokens")

VENDORS: Mapping[str, Vendor] = {
    "openai": Vendor(
        title="OpenAI",
        url="https://api.openai.com/v1",
        keys=("OPENAI_API_KEY",),
        address="OPENAI_BASE_URL",
        quirks=Quirks(max_tokens_field="max_completion_tokens", takes_cache_key=True),
    ),
    "anthropic": Vendor(
        title="Anthropic",
        speaks="anthropic",
        url="https://api.anthropic.com",
        keys=("ANTHROPIC_API_KEY",),
    ),
    "gemini": Vendor(
        title="Google Gemini",
        url="https://generativelanguage.googleapis.com/v1beta/openai",
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
        lists_under="models/",
    ),
    "mistral": Vendor(
        title="Mistral",
        url="https://api.mistral.ai/v1",
        keys=("MISTRAL_API_KEY",),
        quirks=Quirks(streams_usage=False),
    ),
    "groq": Vendor(
        title="Groq",
        url="https://api.groq.com/openai/v1",
        keys=("GROQ_API_KEY",),
        quirks=_MODERN,
    ),
    "deepseek": Vendor(
        title="DeepSeek",
        url="https://api.deepseek.com",
        keys=("DEEPSEEK_API_KEY",),
        quirks=Quirks(sees_images=False),
    ),
    "xai": Vendor(
        title="xAI",
        url="https://api.x.ai/v1",
        keys=("XAI_API_KEY",),
        quirks=_MODERN,
    ),
    "openrouter": Vendor(
        title="OpenRouter",
        url="https://openrouter.ai/api/v1",
        keys=("OPENROUTER_API_KEY",),
    ),
    "together": Vendor(
        title="Together",
        url="https://api.together.xyz/v1",
        keys=("TOGETHER_API_KEY",),
    ),
    "fireworks": Vendor(
        title="Fireworks",
        url="https://api.fireworks.ai/inference/v1",
        keys=("FIREWORKS_API_KEY",),
    ),
    "azure": Vendor(
        title="Azure OpenAI",
        keys=("AZURE_OPENAI_API_KEY",),
        address="AZURE_OPENAI_ENDPOINT",
        quirks=_MODERN,
    ),
    "ollama": Vendor(title="Ollama", url="http://localhost:11434/v1", address="OLLAMA_HOST"),
    "lmstudio": Vendor(title="LM Studio", url="http://localhost:1234/v1"),
    "llamacpp": Vendor(title="llama.cpp", url="http://localhost:8080/v1"),
    "vllm": Vendor(title="vLLM", url="http://localhost:8000/v1"),
    "local": Vendor(
        title="a model file on this machine", speaks="local", quirks=Quirks(sees_images=False)
    ),
}
"""All vendors, keyed by the word before the first colon in a model's name."""

_HOST = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^:/\s]*)(?::(\d+))?(/\S*)?")
_EVERYWHERE = ("", "0.0.0.0", "[::]")  # noqa: S104 - other servers' addresses, not ours


def split(model: str) -> tuple[str, str]:
    """Return the vendor's word ("" if there is none), and the vendor's own name for the model.

    Only a word in the table, or the name of an installed plugin, is a vendor: `qwen3:4b` is just a
    model's name. A local model keeps its whole name.
    """
    if is_local(model):
        return "local", model
    word, colon, name = model.partition(":")
    if colon and (word in VENDORS or is_installed("providers", word)):
        return word, name
    return "", model


def at(url: str) -> Vendor:
    """Return the vendor with this base URL, or one without quirks if it is not in the table."""
    known = (vendor for vendor in VENDORS.values() if vendor.url == url.rstrip("/"))
    return next(known, Vendor(title="a server"))


def address_in(variable: str, value: str) -> str:
    """Return the base URL from a vendor's own variable, which may use another format."""
    match variable:
        case "OLLAMA_HOST":
            return _of_ollama(value)
        case "AZURE_OPENAI_ENDPOINT":
            root = value.strip().rstrip("/")
            return root if root.endswith("/openai/v1") else f"{root}/openai/v1"
        case _:
            return value


def _of_ollama(host: str) -> str:
    """Return Ollama's base URL; the variable may contain the server's wildcard address."""
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return host
    scheme, name, port, path = found.groups(default="")
    # As in Ollama, a URL with a scheme uses the scheme's default port.
    port = port or ("" if scheme else "11434")
    name = "localhost" if name in _EVERYWHERE else name
    root = path.rstrip("/").removesuffix("/v1")
    return f"{scheme or 'http'}://{name}{':' * bool(port)}{port}{root}/v1"
