"""Vendors of models: their addresses, keys and quirks, and those that plugins bring."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Literal

from nanoloop.errors import SettingsError, place_of
from nanoloop.models.catalogue import is_local
from nanoloop.protocols import Provider

if TYPE_CHECKING:
    from pydantic import BaseModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Quirks:
    """In what a server that speaks OpenAI's chat completions may differ from others."""

    streams_usage: bool = True
    """Whether it takes `stream_options`; one that refuses it tells the usage unasked."""
    max_tokens_field: str = "max_tokens"
    """What it calls the limit of an answer's tokens."""
    takes_cache_key: bool = False
    """Whether it takes `prompt_cache_key`."""
    sees_images: bool = True
    """Whether any of its models takes images."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """Someone who serves models, on the web or on this machine."""

    title: str
    speaks: Literal["openai", "anthropic", "local"] = "openai"
    url: str | None = None
    """Its address; None where everyone has their own, or where there is none."""
    keys: tuple[str, ...] = ()
    """The variables that a key is looked for in, the usual one first; none where it needs none."""
    address: str | None = None
    """The variable that names the address."""
    lists_under: str = ""
    """What its list of models writes before each name."""
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
"""Each by the word that stands before the first colon of a model's name."""

_HOST = re.compile(r"(?:(https?)://)?(\[[^\]]*\]|[^:/\s]*)(?::(\d+))?(/\S*)?")
_EVERYWHERE = ("", "0.0.0.0", "[::]")  # noqa: S104 - nobody listens there for it


def split(model: str) -> tuple[str, str]:
    """The vendor's word, "" where there is none, and the model as that vendor names it.

    Only a word of the table, or the name of an installed plugin, makes what follows its colon a
    vendor's: `qwen3:4b` is a name like any other. A local model keeps its whole name.
    """
    if is_local(model):
        return "local", model
    word, colon, name = model.partition(":")
    if colon and (word in VENDORS or is_installed(word)):
        return word, name
    return "", model


def at(url: str) -> Vendor:
    """The vendor at that address; one without quirks where none of the table is there."""
    known = (vendor for vendor in VENDORS.values() if vendor.url == url.rstrip("/"))
    return next(known, Vendor(title="a server"))


def address_in(variable: str, value: str) -> str:
    """The base URL that a vendor's own variable means, which is not always written as one."""
    match variable:
        case "OLLAMA_HOST":
            return _of_ollama(value)
        case "AZURE_OPENAI_ENDPOINT":
            root = value.strip().rstrip("/")
            return root if root.endswith("/openai/v1") else f"{root}/openai/v1"
        case _:
            return value


def _of_ollama(host: str) -> str:
    """Ollama's server reads the same variable, and may listen everywhere."""
    found = _HOST.fullmatch(host.strip())
    if found is None:
        return host
    scheme, name, port, path = found.groups(default="")
    # As Ollama has it: where a scheme stands, its own port is meant.
    port = port or ("" if scheme else "11434")
    name = "localhost" if name in _EVERYWHERE else name
    root = path.rstrip("/").removesuffix("/v1")
    return f"{scheme or 'http'}://{name}{':' * bool(port)}{port}{root}/v1"


GROUP = "nanoloop.providers"
"""The entry points of other packages: `echo = "my_package:PLUGIN"` serves `model = "echo:…"`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """A provider of another package; any object with these three attributes is one."""

    name: str
    """The word before the colon; its entry point has the same."""
    settings: type[BaseModel] | None
    """What may stand in `[providers.NAME]`; None where nothing may."""
    make: Callable[[Any, str], Provider]
    """Given an instance of that (or None) and the model's name, makes the provider.

    Raises `SettingsError` where these do not do.
    """


def names() -> Sequence[str]:
    """All that are installed, none of them loaded."""
    return sorted({point.name for point in _points(tuple(sys.path))})


def is_installed(name: str) -> bool:
    """Whether a package brings a provider of that name; nothing is loaded for it."""
    return name in names()


def load(name: str) -> Plugin:
    """The provider of that name; raises `SettingsError` where it can't be had."""
    point = next(point for point in _points(tuple(sys.path)) if point.name == name)
    try:
        plugin: Any = point.load()
    except Exception as error:
        # Its text may hold anything, a key too.
        raise SettingsError(
            f"the provider {name!r} can't be loaded ({type(error).__name__} at "
            f"{place_of(error)}): mend or remove the package that has {point.value}"
        ) from error
    if not callable(getattr(plugin, "make", None)) or not hasattr(plugin, "settings"):
        raise SettingsError(
            f"the provider {name!r} is none: {point.value} lacks `settings` or `make`"
        )
    return Plugin(name=name, settings=plugin.settings, make=_guarded(plugin.make, name))


def _guarded(make: Callable[[Any, str], Provider], name: str) -> Callable[[Any, str], Provider]:
    """It, raising `SettingsError` only."""

    def guarded(settings: Any, model: str) -> Provider:
        try:
            return make(settings, model)
        except SettingsError:
            raise
        except Exception as error:
            raise SettingsError(
                f"the provider {name!r} can't be made ({type(error).__name__} at "
                f"{place_of(error)}): check its settings, or its package"
            ) from error

    return guarded


@lru_cache(maxsize=1)
def _points(_: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Read once for each path that modules come from: it takes a look at every package."""
    return tuple(entry_points(group=GROUP))
