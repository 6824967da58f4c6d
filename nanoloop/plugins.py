"""Plugins: channels, tools, providers and stores, ours and those of other packages, by name."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
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
    from nanoloop.settings import Settings

Kind = Literal["channels", "tools", "providers", "stores"]
"""Each has a group of entry points: `irc = "my_package:PLUGIN"` below `nanoloop.channels`."""
OURS: Mapping[Kind, Sequence[str]] = {"channels": ("discord", "matrix", "slack", "telegram", "web")}
"""Those of this package, each a folder; they are found where no metadata names them too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugin:
    """What an entry point names; any object with these attributes is one."""

    name: str
    """As its entry point has it: the table of its settings has that name too."""
    settings: type[BaseModel] | None
    """What may stand in its table, such as `[channels.irc]`; None where nothing may."""
    make: Callable[..., Any]
    """Makes it from what each of its kind is given; raises `SettingsError` where that won't do.

    `own` is an instance of `settings`, or None:
    a channel `make(own, folder)`, a `Platform` of the kit or a `Channel`; with `takes_program`
    `make(own, program)`;
    a tool `make(own)`, a `Tool` or a function;
    a provider `make(own, model)`;
    a store `make(opening, url)`, with a `stores.opening.Opening`: its URL says all else.
    """
    extra: str = ""
    """The extra of nanoloop that its library comes with; empty where it needs none."""
    takes_program: bool = False
    """Whether a channel is given a `Program` in place of the data folder, as the web is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a channel works with that shows sessions themselves, and not only messages of chats."""

    app: App
    """Which it will be added to: its loop with bus, sessions and agents, its telemetry."""
    settings: Settings
    attachments: Attachments


def names(kind: Kind) -> Sequence[str]:
    """All that are there, none of them loaded."""
    return sorted({*_ours(kind), *_installed(kind, tuple(sys.path))})


def is_installed(kind: Kind, name: str) -> bool:
    """Whether there is one of that name; nothing is loaded for it."""
    return name in _ours(kind) or name in _installed(kind, tuple(sys.path))


def load(kind: Kind, name: str) -> Plugin:
    """The one of that name, which is there; raises `SettingsError` where it can't be had."""
    what = f"the {kind.removesuffix('s')} {name!r}"
    point = _ours(kind).get(name) or _installed(kind, tuple(sys.path))[name]
    try:
        found: Any = point.load()
    except Exception as error:
        # Its text may hold anything, a key too.
        raise SettingsError(
            f"{what} can't be loaded ({type(error).__name__} at {place_of(error)}): mend or remove "
            f"the package that has {point.value}"
        ) from error
    if not callable(getattr(found, "make", None)) or not hasattr(found, "settings"):
        raise SettingsError(f"{what} is none: {point.value} lacks `settings` or `make`")
    plugin = Plugin(
        name=name,
        settings=found.settings,
        make=found.make,
        extra=getattr(found, "extra", ""),
        takes_program=getattr(found, "takes_program", False),
    )
    return replace(plugin, make=_guarded(plugin, what))


def _guarded(plugin: Plugin, what: str) -> Callable[..., Any]:
    """What makes it, raising `SettingsError` only."""

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
                f"{what} can't be made ({type(error).__name__} at {place_of(error)}): check its "
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
    """Read once for each path that modules come from: it takes a look at every package."""
    return {
        point.name: point
        for point in entry_points(group=f"nanoloop.{kind}")
        if not _is_ours(point.module)  # they may be gone from the tree
    }
