"""Plugins by name: channels, tools, providers and stores, our own and other packages'."""

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
OURS: Mapping[Kind, Sequence[str]] = {"channels": ("discord", "matrix", "slack", "telegram", "web")}
"""This package's own plugins, each a folder; they are found even without metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectQuestion:
    """Something that `nanoloop connect` needs to know; it has a flag of the same name."""

    name: str
    """A setting with this name in the channel's table answers it too."""
    help: str
    """The help text of its flag."""
    asks: str = ""
    """How to ask a person; empty if only the flag can answer it."""
    is_secret: bool = False
    is_needed: bool = True
    is_switch: bool = False
    """Whether the flag takes no value: its answer is "yes"."""
    unless: str = ""
    """The question whose answer makes this one unnecessary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connected:
    """The result of connecting an account."""

    settings: Mapping[str, Any]
    """What to write into the channel's table."""
    says: Sequence[str]
    """Sentences for the person: which account it is, and how to talk to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """The object an entry point refers to; any object with these attributes will do."""

    name: str
    """The name of its entry point, and of its settings table."""
    settings: type[BaseModel] | None
    """The model for its table, such as `[channels.irc]`; None if it has no settings."""
    make: Callable[..., Any]
    """Makes it from its kind's arguments; raises `SettingsError` if that is not possible.

    `own` is an instance of `settings`, or None:
    a channel `make(own, folder)`, a `Platform` of the kit or a `Channel`; with `takes_program`
    `make(own, program)`;
    a tool `make(own)`, a `Tool` or a function;
    a provider `make(own, model)`;
    a store `make(opening, url)`, with a `stores.opening.Opening`; the URL says everything else.
    """
    extra: str = ""
    """The nanoloop extra that installs its library; empty if it needs none."""
    takes_program: bool = False
    """Whether a channel gets a `Program` instead of the data folder, like the web channel."""
    asks: Sequence[ConnectQuestion] = ()
    """What `connect` needs to know."""
    connect: Callable[..., Awaitable[Connected]] | None = None
    """`await connect(own, told)` checks an account with its server, for `nanoloop connect`.

    `told` maps the names in `asks` to the answers. Raises a `NanoloopError` whose text is a
    sentence if the account is refused.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """For a channel that shows the sessions themselves, not just the messages in chats."""

    app: App
    """The app it will be added to: its loop with bus, sessions and agents, its telemetry."""
    settings: Settings
    attachments: Attachments


def names(kind: Kind) -> Sequence[str]:
    """The names of all plugins of a kind; none is loaded."""
    return sorted({*_ours(kind), *_installed(kind, tuple(sys.path))})


def is_installed(kind: Kind, name: str) -> bool:
    """Whether there is a plugin with that name; nothing is loaded."""
    return name in _ours(kind) or name in _installed(kind, tuple(sys.path))


def load(kind: Kind, name: str) -> Plugin:
    """The plugin with that name; raises `SettingsError` if it can't be loaded."""
    what = f"the {kind.removesuffix('s')} {name!r}"
    point = _ours(kind).get(name) or _installed(kind, tuple(sys.path))[name]
    try:
        found: Any = point.load()
    except Exception as error:
        # Its text may hold anything, a key too.
        raise SettingsError(
            f"{what} can't be loaded ({type(error).__name__} at {place_of(error)}): fix or remove "
            "the "
            f"package that has {point.value}"
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
"""The module that makes parts from settings; not imported, because it is a layer above."""


def provider_named(model: str) -> Provider:
    """The provider for a model, named as in the settings, with its key from the environment.

    Raises `SettingsError` if it can't be used.
    """
    made: Provider = EntryPoint("provider", f"{PARTS}:provider_named", "nanoloop").load()(model)
    return made


def store_named(url: str) -> Store:
    """The store at that URL, opened as from settings; raises `SettingsError`."""
    made: Store = EntryPoint("store", f"{PARTS}:store_named", "nanoloop").load()(url)
    return made


def _guarded(plugin: Plugin, what: str) -> Callable[..., Any]:
    """The plugin's `make`, wrapped to raise only `SettingsError`."""

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
    """The installed plugins, read once per module path: every package is examined."""
    return {
        point.name: point
        for point in entry_points(group=f"nanoloop.{kind}")
        if not _is_ours(point.module)  # they may be gone from the tree
    }
