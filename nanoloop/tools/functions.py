"""A user's own functions, which the settings name as `module:function`.

The module is on Python's path or beside the settings file; a tool's module may also be a file in
the data folder's `tools/`. A module is loaded again when its file has changed. If that fails, the
previous version stays in use.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection
from contextlib import suppress
from importlib import import_module
from importlib.util import cache_from_source, find_spec
from operator import attrgetter
from pathlib import Path
from stat import S_IMODE, S_ISDIR
from types import ModuleType
from typing import Any

from nanoloop.errors import FileRefused, SettingsError, place_of
from nanoloop.files import open_beneath, refusal
from nanoloop.protocols import Tool
from nanoloop.tools.function import FunctionTool
from nanoloop.tools.results import READ_RESULT

FOLDER = "tools"
"""The folder for modules of tools, in the data folder."""
Stamp = tuple[int, int, int]
_OTHERS_WRITE, OTHERS_ENTER = 0o022, 0o011
_PREFIX = "nanoloop_tools_"
"""The prefix of these modules' names in `sys.modules`."""
_OURS = re.compile(r" < (?:functions\.py:|<frozen importlib)")
"""Matches the stack frames of an import, which come after the module's own frames."""
_stamps: dict[str, Stamp | None] = {}
"""The stamp that each module's file had when it was loaded, by the name in `sys.modules`."""


def function_named(name: str, *, beside: Path | None = None, data: Path | None = None) -> Any:
    """Return the object that `module:function` names; raise `SettingsError` if there is none.

    `beside` is the settings file that names it, and `data` is the data folder, if its `tools/`
    counts.
    """
    module, _, path = name.partition(":")
    own = None if data is None or "." in module else _of_data_folder(data / FOLDER, module)
    return _named_in(own or _imported(module, beside=beside), path)


def tool_named(
    function: str, name: str, *, taken: Collection[str], beside: Path | None, data: Path
) -> Tool:
    """Return the function as a tool with this name; raise `SettingsError` if it can't be one."""
    if name in {*taken, READ_RESULT}:
        raise SettingsError(f"there is another tool {name!r}: choose another name")
    found = function_named(function, beside=beside, data=data)
    try:
        tool = _as_tool(found, name)
        parameters = tool.spec.parameters
    except (TypeError, ValueError) as error:
        raise SettingsError(str(error)) from error
    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        raise SettingsError("its spec has no JSON schema of type object: give it one")
    return tool


def _as_tool(found: Any, name: str) -> Tool:
    if isinstance(found, FunctionTool):
        tool: FunctionTool[Any, Any] = found.named(name)
    elif isinstance(found, Tool) and not isinstance(found, type):
        if found.spec.name != name:
            raise SettingsError(f"its spec calls it {found.spec.name!r}: give both the same name")
        return found
    elif callable(found) and not isinstance(found, type):
        tool = FunctionTool(found, name=name)
    else:
        raise SettingsError(f"that is of type {type(found).__name__}: name a function instead")
    if unhinted := tool.unhinted:
        first = unhinted[0]
        raise SettingsError(
            f"its argument {first!r} has no type hint: write {first}: str, for example"
        )
    return tool


def files_run() -> list[Path]:
    """Return the files of the modules that have been loaded."""
    known = (sys.modules.get(name) for name in _stamps)
    return [Path(file) for module in known if (file := getattr(module, "__file__", None))]


# A module on the path


def _imported(module: str, *, beside: Path | None) -> ModuleType:
    """Import a module, which may be in the folder of the settings file that names it."""
    folder = str(beside.absolute().parent) if beside else None
    try:
        if folder and folder not in sys.path and find_spec(module.partition(".")[0]) is None:
            sys.path.append(folder)
        return _as_it_is_now(module)
    except ModuleNotFoundError as missing:
        raise SettingsError(
            f"there is no module {missing.name}: install it, or add its folder to PYTHONPATH"
        ) from missing
    except (Exception, SystemExit) as error:
        raise _fails(module, error) from error


def _as_it_is_now(module: str) -> ModuleType:
    before = sys.modules.get(module)
    if before is not None and _stamps.setdefault(module, _stamp_of(before)) == _stamp_of(before):
        return before
    if before is not None and before.__file__:
        del sys.modules[module]
        # Python doesn't notice an edit within the same second that keeps the file's size.
        with suppress(OSError, NotImplementedError):
            Path(cache_from_source(before.__file__)).unlink()
    try:
        fresh = import_module(module)
    except BaseException:
        if before is not None:
            sys.modules[module] = before
        raise
    _stamps[module] = _stamp_of(fresh)
    return fresh


def _stamp_of(module: ModuleType) -> Stamp | None:
    """Return the current stamp of the module's file, or None if it has no file."""
    file = getattr(module, "__file__", None)
    with suppress(OSError):
        return _stamp(Path(file).stat()) if file else None
    return None


def _stamp(there: os.stat_result) -> Stamp:
    return there.st_mtime_ns, there.st_size, there.st_ino


def _fails(module: str, error: BaseException) -> SettingsError:
    """Return where loading fails, without the error's text, which may even contain a key."""
    at = _OURS.split(place_of(error))[0]
    if isinstance(error, SyntaxError):
        at = f"{Path(error.filename or module).name}:{error.lineno}"
    return SettingsError(f"importing {module} fails ({type(error).__name__} at {at}): fix it")


def _named_in(module: ModuleType, path: str) -> Any:
    try:
        return attrgetter(path)(module)
    except AttributeError as missing:
        shown = module.__name__.removeprefix(_PREFIX)
        raise SettingsError(f"{shown} has no {path}: name an existing function") from missing


def called(found: Any, path: str) -> Callable[..., Any]:
    """Return the object found; raise `SettingsError` if it is not a function."""
    if not callable(found):
        raise SettingsError(f"{path} is of type {type(found).__name__}: name a function instead")
    function: Callable[..., Any] = found
    return function


# Files in the data folder


def _of_data_folder(folder: Path, name: str) -> ModuleType | None:
    """Load the module from the file with its name; return None if there is no such file."""
    try:
        source, stamp = _read(folder, name)
    except FileNotFoundError:
        return None
    except FileRefused as refused:
        raise SettingsError(str(refused)) from None
    except OSError as error:
        raise SettingsError(f"{folder / name}.py can't be read: {refusal(error)}") from None
    known = _PREFIX + name
    before = sys.modules.get(known)
    file = str(folder / f"{name}.py")
    if before is not None and _stamps.get(known) == stamp and before.__file__ == file:
        return before
    module = ModuleType(known)
    module.__file__ = file
    sys.modules[known] = module  # types and dataclasses look it up
    try:
        exec(compile(source, file, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the user's own code
    except (Exception, SystemExit) as error:
        del sys.modules[known]
        if before is not None:
            sys.modules[known] = before
        raise _fails(name, error) from error
    _stamps[known] = stamp
    return module


def _read(folder: Path, name: str) -> tuple[bytes, Stamp]:
    """Read a code file; raise `OSError` unless only this user can have written it."""
    is_open = bool(S_IMODE(folder.parent.stat().st_mode) & OTHERS_ENTER)
    there = folder.lstat()
    if S_ISDIR(there.st_mode):  # anything else is rejected below
        check_ours(folder, there, is_open=is_open)
    path = folder / f"{name}.py"
    with os.fdopen(open_beneath(folder.parent, f"{folder.name}/{path.name}"), "rb") as file:
        there = os.fstat(file.fileno())
        check_ours(path, there, is_open=is_open)
        return file.read(), _stamp(there)


def check_ours(
    path: Path,
    there: os.stat_result,
    *,
    is_open: bool,
    also: Collection[int] = (),
    so: str = "so its code is not run",
) -> None:
    """Raise `FileRefused` if others own the file, or can enter its folder and write to the file.

    `also` names users who may own it too, and `so` states the consequence.
    """
    if there.st_uid not in {os.geteuid(), *also}:
        raise FileRefused(path, f"belongs to somebody else, {so}: make it yours")
    if is_open and S_IMODE(there.st_mode) & _OTHERS_WRITE:
        raise FileRefused(path, f"may be written by others, {so}: `chmod go-w {path}`")
