"""The tools that the settings offer to agents: built-in tools, functions, packages, servers."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from nanoloop import plugins
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.memory.recall import Recall
from nanoloop.protocols import Tool
from nanoloop.settings import Settings
from nanoloop.settings.problems import InvalidSettings, Problem
from nanoloop.settings.secrets import shown
from nanoloop.settings.trust import Trust
from nanoloop.skills import READ_SKILL
from nanoloop.stores.place import path_of
from nanoloop.tools.function import tool as as_tool
from nanoloop.tools.functions import tool_named
from nanoloop.tools.ready import calculator, clock, make_recall_tool
from nanoloop.tools.servers import ToolServerPlace, ToolServers
from nanoloop.tools.toolbox import ToolSource


def problem_of(settings: Settings, key: str, name: str, why: SettingsError) -> Problem:
    """Describe what is wrong with a function that a setting names, and where that is set."""
    return problem_at(settings, key, f"{key} is {shown(name)}, but {why}")


def problem_at(settings: Settings, key: str, text: str) -> Problem:
    """Describe a problem with a setting, and where the setting is set."""
    origin = settings.origin(key)
    return Problem(text=text, origin=None if origin.kind == "default" else origin)


TOOLS: Mapping[str, Tool] = {"clock": clock, "calculator": calculator}
BUILT_IN = "built in"
PACKAGES = "packages"
"""The names under which built-in tools and packages' tools are listed as sources."""


def make_tools(
    settings: Settings, recall: Recall | None = None, servers: ToolServers | None = None
) -> Sequence[ToolSource]:
    """Create the tools that agents can choose from, by source.

    Raise `SettingsError` if one of them can't be created.
    """
    ours = TOOLS if recall is None else {**TOOLS, "recall": make_recall_tool(recall)}
    packages = packaged_tools(settings, settings.tools.of_plugins)
    functions = _functions(
        settings, taken={*ours, *settings.tools.of_plugins, *packages, READ_SKILL}
    )
    for name in settings.tools.of_plugins:  # again, because only now their modules are known
        _check_folder(settings, name, settings.tools.of(name))
    return (
        ToolSource(name=BUILT_IN, tools=ours),
        ToolSource(name="functions", tools=functions),
        ToolSource(name=PACKAGES, tools=packages),
        *(servers.sources if servers else ()),
    )


def _functions(settings: Settings, *, taken: Collection[str]) -> Mapping[str, Tool]:
    """Create tools from the user's functions; raise `InvalidSettings` with every problem."""
    found, problems = {}, []
    for name, function in settings.tools.functions.items():
        key = f"tools.functions.{name}"
        beside = settings.origin(key).file
        try:
            found[name] = tool_named(function, name, taken=taken, beside=beside, data=settings.data)
        except SettingsError as why:
            problems.append(problem_of(settings, key, function, why))
    if problems:
        raise InvalidSettings(problems)
    return found


def packaged_tools(settings: Settings, names: Iterable[str]) -> Mapping[str, Tool]:
    """Create the tools of these plugins, which are off by default, with their settings."""
    return {each: tool for name in names for each, tool in _installed(settings, name).items()}


def _installed(settings: Settings, name: str) -> Mapping[str, Tool]:
    own = settings.tools.of(name)
    _check_folder(settings, name, own)
    try:
        made: Any = plugins.load("tools", name).make(own)
    except SettingsError as error:
        raise _of_plugin(settings, name, str(error)) from error
    try:
        if isinstance(made, list | tuple):
            return {tool.spec.name: tool for tool in map(_as_tool, made)}
        tool = _as_tool(made)
        _ = tool.spec
    except (TypeError, ValueError) as error:
        raise _of_plugin(settings, name, f"the tool {name!r} can't be used: {error}") from error
    return {name: tool}


def _as_tool(made: Any) -> Tool:
    return made if isinstance(made, Tool) else as_tool(made)


def _of_plugin(settings: Settings, name: str, text: str) -> InvalidSettings:
    """Locate a problem in a tool's settings, at the setting that the text begins with, if any."""
    key = text.partition(" ")[0]
    is_own = key.startswith(f"tools.{name}.") and settings.origin(key).kind != "default"
    return InvalidSettings([problem_at(settings, key if is_own else f"tools.{name}", text)])


def _check_folder(settings: Settings, name: str, own: Any) -> None:
    """Raise `InvalidSettings` if a tool's folder would give the model what is nanoloop's own."""
    folder = getattr(own, "folder", None)
    if not isinstance(folder, Path):
        return
    there = folder.resolve()
    for place in map(Path.resolve, _private_places(settings, writes=getattr(own, "write", True))):
        if place.is_relative_to(there) or there.is_relative_to(place):
            key = f"tools.{name}.folder"
            text = f"{key} is {shown(folder)}, but {place} would be in reach: choose another folder"
            raise InvalidSettings([problem_at(settings, key, text)])


def _private_places(settings: Settings, *, writes: bool) -> Iterator[Path]:
    """Yield the files and folders that no tool may reach, and those that none may write to."""
    yield settings.data
    yield from settings.files
    yield from (file.parent / "agents" for file in settings.files)
    yield Trust(os.environ).file
    store = settings.store
    yield from filter(None, (store.keys_file, store.url and path_of(store.url, settings.data)))
    if writes:  # the model follows skills, and the code is run
        yield from settings.skills.folders
        known = (sys.modules.get(each.partition(":")[0]) for each in _functions_named(settings))
        yield from (Path(file) for each in known if (file := getattr(each, "__file__", None)))


def _functions_named(settings: Settings) -> Sequence[str]:
    return [*settings.tools.functions.values(), *filter(None, [settings.channels.transcribe])]


def server_places(settings: Settings) -> list[ToolServerPlace]:
    """List the enabled tool servers; raise `SettingsError` without the mcp package."""
    used = {name: own for name, own in settings.tools.servers.items() if own.enabled}
    if used and not _has_mcp():
        first = next(iter(used))
        raise SettingsError(
            f"tools.servers.{first} needs mcp 2.3, which is not installed: {how_to_install('mcp')}"
        )
    return [
        ToolServerPlace(
            name=name,
            command=own.command,
            url=own.url,
            headers={key: value.get_secret_value() for key, value in own.headers.items()},
            auth=own.auth,
            client_id=own.client_id,
            client_secret=own.client_secret.get_secret_value() if own.client_secret else "",
            issuer=own.issuer,
            env=own.env,
            tools=own.tools,
            timeout_seconds=own.timeout_seconds or settings.tools.timeout_seconds,
            sampling_tokens=own.sampling_tokens,
        )
        for name, own in used.items()
    ]


def _has_mcp() -> bool:
    """Return whether a suitable version of mcp is installed, without loading it."""
    try:
        return version("mcp").split(".")[:1] == ["2"]
    except PackageNotFoundError:
        return False
