"""Plugins by name: channels, tools, providers and stores, from this package and others."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from nanoloop.errors import SettingsError, how_to_install, place_of

if TYPE_CHECKING:
    from pydantic import BaseModel

    from nanoloop.app import App
    from nanoloop.attachments import Attachments
    from nanoloop.protocols import Provider, Store
    from nanoloop.settings import Settings

Kind = Literal["channels", "tools", "providers", "stores"]
"""Each kind has an entry point group: `irc = "my_package:PLUGIN"` in `nanoloop.channels`."""
OURS: Mapping[Kind, Sequence[str]] = {
    "channels": ("discord", "matrix", "slack", "telegram", "web"),
    "tools": ("fetch", "files", "shell"),
}
"""This package's own plugins, which are found even without package metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectQuestion:
    """A question that `nanoloop connect` asks, unless it is answered by a flag of the same name."""

    name: str
    """The question's name; a setting with this name in the channel's table answers it too."""
    help: str
    """The help text for the flag."""
    asks: str = ""
    """The question as shown to people; empty if only the flag can answer it."""
    is_secret: bool = False
    is_needed: bool = True
    is_switch: bool = False
    """True if the flag takes no value; giving it answers "yes"."""
    unless: str = ""
    """The question whose answer makes this one unnecessary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The result of connecting an account."""

    settings: Mapping[str, Any]
    """The settings to write into the channel's table."""
    says: Sequence[str]
    """Sentences that tell the user which account it is, and how to talk to the bot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The object that an entry point names; any object with these attributes works."""

    name: str
    """The name of the entry point and of the settings table."""
    settings: type[BaseModel] | None
    """The model for the settings table, such as `[channels.irc]`; None if there are no settings."""
    make: Callable[..., Any]
    """Creates the plugin's object from the arguments for its kind; raises `SettingsError`.

    `own` is an instance of `settings`, or None: a channel is created with `make(own, folder)`,
    which returns a `Platform` of the kit or a `Channel`, or with `make(own, program)` if
    `takes_program` is set; a tool with `make(own)`, which returns a `Tool`, a function, or a list
    of these; a provider with `make(own, model)`; a store with `make(opening, url)`, where `opening`
    is a `stores.opening.Opening` and the URL has all other settings.
    """
    extra: str = ""
    """The nanoloop extra that installs the plugin's library; empty if there is none."""
    takes_program: bool = False
    """True if `make` gets a `Program` instead of the data folder, as for the web channel."""
    asks: Sequence[ConnectQuestion] = ()
    """The questions that `connect` needs answered."""
    connect: Callable[..., Awaitable[Connected]] | None = None
    """Checks an account with its server, for `nanoloop connect`: `await connect(own, told)`.

    `told` maps the names in `asks` to the answers. Raises a `NanoloopError` with a full sentence if
    the account is refused.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The program, for a channel that shows whole sessions rather than just the chats' messages."""

    app: App
    """The app that the channel will be added to."""
    settings: Settings
    attachments: Attachments


def names(kind: Kind) -> Sequence[str]:
    """Return the names of all plugins of this kind, without loading them."""
    return sorted({*_ours(kind), *_installed(kind, tuple(sys.path))})


def is_installed(kind: Kind, name: str) -> bool:
    """Return True if a plugin with this name exists, without loading it."""
    return name in _ours(kind) or name in _installed(kind, tuple(sys.path))


def load(kind: Kind, name: str) -> Plugin:
    """Load a plugin by name; raise `SettingsError` if that fails."""
    what = f"the {kind.removesuffix('s')} {name!r}"
    point = _ours(kind).get(name) or _installed(kind, tuple(sys.path))[name]
    try:
        found: Any = point.load()
    except Exception as error:
        # The error's text may contain anything, even a key.
        raise SettingsError(
            f"{what} can't be loaded ({type(error).__name__} at {place_of(error)}): fix or remove "
            "the "
            f"package that provides {point.value}"
        ) from error
    if not callable(getattr(found, "make", None)) or not hasattr(found, "settings"):
        raise SettingsError(f"{what} is not a plugin: {point.value} lacks `settings` or `make`")
    plugin = Plugin(
        name=name,
        settings=found.settings,
        make=found.make,
        extra=getattr(found, "extra", ""),
        takes_program=getattr(found, "takes_program", False),
        asks=getattr(found, "asks", ()),
        connect=getattr(found, "connect", None),
    )
    return replace(plugin, make=_guarded(plugin, what))


PARTS = "nanoloop.parts"
"""The module that builds parts from settings; a string, because it is in a higher layer."""


def provider_named(model: str) -> Provider:
    """Create a model's provider, with the key from the environment.

    Raise `SettingsError` if the model can't be used.
    """
    made: Provider = EntryPoint("provider", f"{PARTS}:provider_named", "nanoloop").load()(model)
    return made


def store_named(url: str) -> Store:
    """Open the store at this URL, as the settings would; raise `SettingsError` if that fails."""
    made: Store = EntryPoint("store", f"{PARTS}:store_named", "nanoloop").load()(url)
    return made


def _guarded(plugin: Plugin, what: str) -> Callable[..., Any]:
    """Wrap the plugin's `make` so that it raises only `SettingsError`."""

    def guarded(*given: Any) -> Any:
        try:
            return plugin.make(*given)
        except SettingsError:
            raise
        except Exception as error:
            if plugin.extra and isinstance(error, ModuleNotFoundError) and not _is_ours(error.name):
                raise SettingsError(
                    f"{what} needs {error.name}, which is not installed: "
                    + how_to_install(plugin.extra)
                ) from None
            raise SettingsError(
                f"{what} can't be created ({type(error).__name__} at {place_of(error)}): check its "
                "settings, or its package"
            ) from error

    return guarded


def _is_ours(module: str | None) -> bool:
    return (module or "").partition(".")[0] == "nanoloop"


def _ours(kind: Kind) -> Mapping[str, EntryPoint]:
    modules = {name: f"nanoloop.{kind}.{name}" for name in OURS.get(kind, ())}
    return {
        name: EntryPoint(name, f"{module}:PLUGIN", f"nanoloop.{kind}")
        for name, module in modules.items()
        if find_spec(module)
    }


@lru_cache(maxsize=4)
def _installed(kind: Kind, _: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Return the installed plugins, read once per module path because the search is slow."""
    return {
        point.name: point
        for point in entry_points(group=f"nanoloop.{kind}")
        if not _is_ours(point.module)  # the source tree may no longer have them
    }
