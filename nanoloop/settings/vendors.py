"""Settings for model vendors, and for the models on this machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from nanoloop import defaults, plugins
from nanoloop.errors import SettingsError
from nanoloop.models.catalogue import file_of, is_local, known
from nanoloop.providers import vendors
from nanoloop.providers.vendors import VENDORS, Vendor, split
from nanoloop.settings.keys import Section
from nanoloop.settings.plugins import NoSettings, Unchecked, empty
from nanoloop.settings.problems import Problem, http_address
from nanoloop.settings.secrets import shown
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from nanoloop.settings import Settings


class VendorSettings(Section):
    """Settings for a model vendor, named by the first word in model = "groq:NAME"."""

    api_key: SecretStr | None = Field(default=None, examples=["..."])
    """The vendor's key; its variable, such as GROQ_API_KEY, is a safer place than a file."""
    base_url: Annotated[str, AfterValidator(http_address)] | None = Field(
        default=None, examples=["https://proxy.example.org/v1"]
    )
    """The vendor's address; by default, its usual one."""
    options: dict[str, Any] = Field(default_factory=dict, examples=[{"temperature": 0.3}])
    """Extra fields for each request to the vendor, in addition to those of [provider]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server for one vendor's models, and how to call it."""

    word: str
    """The word before the colon; "" for the server at `base_url`."""
    vendor: Vendor
    url: str | None
    """The server's address; None if it is not set."""
    key: str | None
    options: Mapping[str, Any]

    @property
    def key_name(self) -> str:
        """Where to set the server's key."""
        if not self.word:
            return "OPENAI_API_KEY"
        return self.vendor.keys[0] if self.vendor.keys else f"providers.{self.word}.api_key"

    @property
    def lacks(self) -> str | None:
        """A sentence that says what must be set before the server can be called, or None."""
        if self.url is None:
            return f"no address is set: set {self.vendor.address}"
        if self.key is None and self.vendor.keys and self.url == (self.vendor.url or self.url):
            return f"no key is set: set {self.vendor.keys[0]}"
        return None


def table_for(name: str) -> type[BaseModel]:
    """Return the type of `[providers.NAME]`; raise `SettingsError` if there is no such provider."""
    if name == "local":
        raise SettingsError("providers.local has no settings: use [local] instead")
    if name in VENDORS:
        return VendorSettings
    if plugins.is_installed("providers", name):
        return plugins.load("providers", name).settings or NoSettings
    known = [*VENDORS, *plugins.names("providers")]
    there = f"choose from {', '.join(known)}"
    advice = did_you_mean(name, known, there, shown="providers.{}".format)
    raise SettingsError(f"providers.{name} is not a provider: {advice}")


def with_names(said: Any) -> Any:
    """Return each provider's table with its name, for `PluginTable`."""
    if not isinstance(said, Mapping):
        return said
    return {name: Unchecked(table_for, name, own) for name, own in said.items()}


def models_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield every model in the settings, with the key that names it."""
    named = [
        ("model", settings.model),
        ("summary_model", settings.summary_model),
        ("summary.fallback_model", settings.summary.fallback_model),
        *((f"agents.{name}.model", agent.model) for name, agent in settings.agents.items()),
    ]
    yield from ((key, model) for key, model in named if model is not None)


def server_of(settings: Settings, word: str) -> ServerSettings:
    """Return the server for the models of a built-in vendor."""
    if not word:
        return _plain(settings)
    own, vendor = own_of(settings, word), VENDORS[word]
    key = own.api_key
    if word == "openai" and settings.base_url is None:
        key = key or settings.api_key  # this key is also OpenAI's
    options = {**settings.provider.options, **own.options}
    url = own.base_url or vendor.url
    return ServerSettings(word=word, vendor=vendor, url=url, key=_said(key), options=options)


def servers_of(settings: Settings) -> list[ServerSettings]:
    """Return the servers for all models in the settings and for all vendors that are set up."""
    named = {split(model)[0] for _, model in models_of(settings)}
    words = [word for word in VENDORS if word in named or settings.providers.get(word)]
    servers = [server_of(settings, word) for word in words if word != "local"]
    plain = _plain(settings)
    # If no model uses this server, its key may be meant for another server.
    if plain.lacks or "" not in named:
        return servers
    # A key set only for OpenAI appears under both of its names.
    others = [each for each in servers if (each.url, each.key) != (plain.url, plain.key)]
    return [plain, *others]


def keyed_vendors(settings: Settings) -> list[str]:
    """Return the words of the vendors that have a key."""
    said = ((word, settings.providers.get(word)) for word in VENDORS)
    return [word for word, own in said if getattr(own, "api_key", None)]


def own_of(settings: Settings, word: str) -> Any:
    """Return `[providers.WORD]` in its own type; raise `InvalidSettings` if it is incomplete."""
    return settings.providers.get(word) or empty(f"providers.{word}", table_for(word))


def lacking(settings: Settings, model: str) -> str | None:
    """Return a sentence that says what must be set before this model can be called, or None."""
    word, name = split(model)
    if word and not name:
        return f"no model is named: write {word}:NAME"
    if word == "local":
        return None
    if word and word not in VENDORS:
        return _lacking_to_plugin(settings, word)
    lacks = server_of(settings, word).lacks
    begin, colon, name = model.partition(":")
    if lacks and colon and not word:  # perhaps a misspelt vendor
        meant = did_you_mean(begin, VENDORS, shown=lambda vendor: f"{vendor}:{name}")
        return f"{lacks}, or {meant}" if meant else lacks
    return lacks


def unaskable(settings: Settings) -> list[Problem]:
    """Return a problem for each named model that can't be called."""
    lacks = ((key, model, lacking(settings, model)) for key, model in models_of(settings))
    return [no_model(settings, key, model, why) for key, model, why in lacks if why]


def no_model(settings: Settings, key: str, model: str, why: str) -> Problem:
    """Return the problem with a setting that names an unavailable model."""
    origin = settings.origin(key)
    where = None if origin.kind == "default" else origin
    return Problem(text=f"{key} is {shown(model)}, but {why}", origin=where, keys=(key,))


def _plain(settings: Settings) -> ServerSettings:
    """Return the server for all models that are named without a vendor."""
    url, key = settings.base_url, _said(settings.api_key)
    options = settings.provider.options
    vendor = VENDORS["openai"] if url is None else vendors.at(url)
    # A user who sets an address may not need a key there.
    vendor = vendor if url is None else replace(vendor, keys=())
    return ServerSettings(word="", vendor=vendor, url=url or vendor.url, key=key, options=options)


def _lacking_to_plugin(settings: Settings, word: str) -> str | None:
    try:
        own_of(settings, word)
    except SettingsError as error:
        return str(error).replace("\n", "; ")
    return None


def _said(key: SecretStr | None) -> str | None:
    return key.get_secret_value() if key else None


SMALL_PROMPT = (
    "You are nanoloop, a helpful assistant that runs on the person's own computer. Each message is "
    "a new request: answer the newest one, briefly and correctly, in its language. What the person "
    "told you earlier is true: use it when it matters. You have no clock and no internet."
)
"""A prompt for models with one or two billion parameters, which do worse with more instructions."""
_FOR_THE_CONVERSATION = 0.75
"""The part of the context that a request may use; the rest is for the answer."""
_CHARS_A_TOKEN = 2
"""Low, to suit all languages: a batch too long for the model would never be summarised."""
_SUMMARY_SECONDS = 600
"""Long, because a local model reads slowly and serves all turns first."""


def context_tokens(settings: Settings, model: str | None = None) -> int:
    """Return how many tokens one conversation with a local model may use."""
    found = known(file_of(model or settings.model, settings.models).stem)
    suited = found.context_tokens if found else None
    return settings.local.context_tokens or suited or defaults.LOCAL_CONTEXT_TOKENS


def call_timeout_seconds(settings: Settings) -> float:
    """Return how many seconds a local model's answer may take."""
    calls = settings.provider
    is_said = "call_timeout_seconds" in calls.model_fields_set
    return calls.call_timeout_seconds if is_said else defaults.LOCAL_CALL_TIMEOUT_SECONDS


def is_small(model: str) -> bool:
    """Return True for a local model from the catalogue, which long texts confuse."""
    return is_local(model) and known(file_of(model, Path()).stem) is not None


def suited(settings: Settings) -> Settings:
    """Return the settings adjusted to the local models that they name; explicit settings stay."""
    update: dict[str, Any] = {}
    if is_local(settings.model) and settings.context_tokens is None:
        update["context_tokens"] = int(context_tokens(settings) * _FOR_THE_CONVERSATION)
    if is_small(settings.model) and "prompt" not in settings.model_fields_set:
        update["prompt"] = SMALL_PROMPT
    if is_small(settings.model) and "handover" not in settings.model_fields_set:
        update["handover"] = True  # summaries take long, so the messages stay in view
    own = settings.summary
    if _summary_contexts(settings) and "timeout_seconds" not in own.model_fields_set:
        update["summary"] = own.model_copy(update={"timeout_seconds": _SUMMARY_SECONDS})
    return settings.model_copy(update=update)


def summary_batch_chars(settings: Settings, most: int) -> int:
    """Return how many characters one summary call takes; fewer for a local model."""
    return min([most, *(tokens * _CHARS_A_TOKEN for tokens in _summary_contexts(settings))])


def _summary_contexts(settings: Settings) -> list[int]:
    """Return the context of each local model that writes summaries or is the fallback."""
    models = (settings.summary_model or settings.model, settings.summary.fallback_model or "")
    return [context_tokens(settings, model) for model in models if is_local(model)]
