"""Functions of a user's own, imported by the name that a setting has for them."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from operator import attrgetter
from types import ModuleType
from typing import Any

from nanoloop.errors import SettingsError, place_of
from nanoloop.settings import Settings
from nanoloop.settings.problems import Problem, Refused, shown


def function_of(settings: Settings, key: str) -> Callable[..., Any] | None:
    """What `package.module:function` names there, or None; raises `SettingsError`."""
    name = attrgetter(key)(settings)
    if name is None:
        return None
    module, _, path = name.partition(":")
    try:
        return _called(path, _imported(module))
    except SettingsError as why:
        origin = settings.origin(key)
        text = f"{key} is {shown(name)}, but {why}"
        where = None if origin.kind == "default" else origin
        raise Refused([Problem(text=text, origin=where)]) from why


def _imported(module: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"there is no module {missing.name}: install it, or add its folder to PYTHONPATH"
        ) from missing
    except Exception as error:
        # Its text may hold anything, a key too.
        raise SettingsError(
            f"importing {module} fails ({type(error).__name__} at {place_of(error)}): mend it"
        ) from error


def _called(path: str, module: ModuleType) -> Callable[..., Any]:
    try:
        found: Any = attrgetter(path)(module)
    except AttributeError as missing:
        raise SettingsError(
            f"{module.__name__} has no {path}: name a function that is there"
        ) from missing
    if not callable(found):
        raise SettingsError(f"{path} is of type {type(found).__name__}: name a function")
    function: Callable[..., Any] = found
    return function
