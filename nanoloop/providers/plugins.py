"""Providers of other packages: found by their entry point, loaded once one is named."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from nanoloop.errors import SettingsError, place_of
from nanoloop.protocols import Provider

if TYPE_CHECKING:
    from pydantic import BaseModel

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
