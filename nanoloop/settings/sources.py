"""The sources of settings: command line, environment and files, highest priority first."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource, InitSettingsSource

from nanoloop.errors import SettingsError
from nanoloop.files import user_folder
from nanoloop.providers.vendors import VENDORS, address_in, split
from nanoloop.settings.files import (
    NAME,
    AgentFile,
    SettingsFile,
    UnreadableFile,
    digest_of,
    read_agents,
    read_file,
)
from nanoloop.settings.keys import (
    PREFIX,
    all_in,
    flag,
    is_list,
    setting,
    setting_in,
    variable,
    without_harm,
)
from nanoloop.settings.problems import (
    InvalidSettings,
    Problem,
    all_gone,
    http_address,
    is_table_gone,
    refused,
)
from nanoloop.settings.trust import LeftOut, Trust

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

EVERYWHERE = (
    ("OPENAI_API_KEY", "api_key"),
    ("OPENAI_BASE_URL", "base_url"),
    ("HF_ENDPOINT", "local.hub"),
    *(
        (name, f"providers.{word}.api_key")
        for word, vendor in VENDORS.items()
        for name in reversed(vendor.keys)
    ),
    *(
        (vendor.address, f"providers.{word}.base_url")
        for word, vendor in VENDORS.items()
        if vendor.address
    ),
)
"""Variables that other programs use too, lowest priority first; our own override them all."""
_MODELS = {"model", "summary_model", "fallback_model"}
"""The last parts of the keys that name a model."""
_OF_ALL_PROGRAMS = {name for name, _ in EVERYWHERE}
CONFIG = f"{PREFIX}CONFIG"
"""The variable for the path of the settings file, like `--config`."""
_SERVICE_LINK = re.compile(r"NANOLOOP_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")
"""The variables that Kubernetes sets in every process for a service called nanoloop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The source of a value."""

    kind: Literal["default", "file", "env", "flag"]
    name: str = ""
    """The path of the file, or the name of the variable or flag."""
    line: int | None = None

    def __str__(self) -> str:
        """Return `default`, `nanoloop.toml:3`, `env NANOLOOP_MODEL` or `flag --model`."""
        match self.kind:
            case "default":
                return self.kind
            case "file":
                return f"{self.name}:{self.line}" if self.line else self.name
            case _:
                return f"{self.kind} {self.name}"

    @property
    def file(self) -> Path | None:
        """The file that sets the value, or None."""
        return Path(self.name) if self.kind == "file" else None

    def spell(self, key: str) -> str:
        """Return a key as this source writes it."""
        match self.kind:
            case "env":
                return variable(key)
            case "flag":
                return flag(key)
            case _:
                return key


DEFAULT = Origin(kind="default")


S = TypeVar("S", bound=BaseSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The settings from one file, the environment or the command line."""

    table: dict[str, Any] = field(default_factory=dict)
    places: Mapping[str, Origin] = field(default_factory=dict)
    """Where each dotted key, or the table that contains it, is set."""
    place: Origin = DEFAULT
    """Where everything else in this source is set."""
    problems: list[Problem] = field(default_factory=list)

    def origin(self, key: str) -> Origin:
        """Return where this source sets a key."""
        while key not in self.places and "." in key:
            key = key.rpartition(".")[0]
        return self.places.get(key, self.place)

    def says(self, *path: str) -> bool:
        """Return True if this source sets this key."""
        table: Any = self.table
        for name in path:
            table = table.get(name) if isinstance(table, Mapping) else None
        return table is not None

    def take_out(self, path: tuple[str, ...]) -> Any:
        """Remove and return the value at this path; raise KeyError if there is none."""
        if (key := ".".join(path)) in self.table:
            return self.table.pop(key)
        table = self.table
        for name in path[:-1]:
            table = table[name] if isinstance(table[name], dict) else {}
        return table.pop(path[-1])

    def take_out_what_is_gone(self) -> Iterator[Problem]:
        """Remove settings that no longer exist, and yield a problem for each."""
        for problem in list(all_gone(self.table)):
            (key,) = problem.keys
            self.take_out(tuple(key.split(".")))
            yield replace(problem, origin=self.origin(key))
        for name in [name for name, said in self.table.items() if said == {}]:
            if is_table_gone(name):
                del self.table[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """All sources that were read at startup."""

    said: tuple[Source, ...]
    """The sources, highest priority first."""
    files: tuple[Path, ...] = ()
    """The settings files that were read, highest priority first."""
    own_file: Path | None = None
    """The one of these files that is the user's own, or None."""
    left_out: LeftOut | None = None
    """The settings that one of the files can't set because it is not trusted."""

    @property
    def origins(self) -> dict[str, Origin]:
        """The source of each key's value."""
        return {
            key: source.origin(key)
            for source in reversed(self.said)
            for key, _ in all_in(source.table)
        }

    def together(self, model: type[S]) -> S:
        """Combine the sources into settings; raise `InvalidSettings` with every problem."""
        problems: list[Problem] = []
        for source in reversed(self.said):
            problems += (*source.problems, *source.take_out_what_is_gone())
        while True:
            try:
                settings = self._validated(model)
            except ValidationError as error:
                found = [self._problem(model, wrong) for wrong in error.errors()]
            except InvalidSettings as conflicts:
                found = [problem.found_in(self.origins) for problem in conflicts.problems]
            else:
                break
            # Invalid values are removed, so that conflicts among the others are found too.
            if not (fresh := [problem for problem in found if problem not in problems]):
                break
            problems += fresh
        if problems:
            raise InvalidSettings(problems)
        return settings

    def _validated(self, model: type[S]) -> S:
        layers = tuple(InitSettingsSource(model, source.table) for source in self.said)
        return model(_build_sources=(layers, {}))

    def _problem(self, model: type[S], wrong: ErrorDetails) -> Problem:
        path = tuple(map(str, wrong["loc"]))
        if len(path) == 1:
            path = tuple(path[0].split("."))  # from an unknown variable
        if wrong["type"] != "extra_forbidden":
            path = _known_part(model, path)
        for source in self.said:
            with suppress(KeyError):
                value = source.take_out(path)
                origin = source.origin(".".join(path))
                place = None if origin.kind == "default" else origin  # set by a program
                return refused(model, path, value, wrong, place)
        # A missing setting has to be added in its table.
        tables = (each for each in self.said if each.says(*path[:-1]))
        table = next(tables, None) if wrong["type"] == "missing" else None
        place = None if table is None else table.origin(".".join(path[:-1]))
        return refused(model, path, wrong["input"], wrong, place)


def _known_part(model: type[BaseSettings], path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path without anything below a setting, such as an index into a list."""
    ends = range(len(path), 1, -1)
    return next((path[:end] for end in ends if _is_known(model, path[:end])), path[:1])


def _is_known(model: type[BaseSettings], path: tuple[str, ...]) -> bool:
    try:
        return setting(model, path) is not None
    except SettingsError:  # the value is rejected later, with the reason
        return True


def read_sources(
    model: type[BaseSettings],
    *,
    config: Path | str | None,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    cwd: Path,
) -> Sources:
    """Read every source; if one is unreadable, add a problem rather than raise an error."""
    named = config or env.get(CONFIG)
    files = [_read(Path(named), is_needed=True)] if named else _found(model, cwd, env)
    typed = {key: str(value) for key, value in flags.items() if value is not None}
    words = _vendors_in(*typed.items())
    by_files = [source for file in files for source in file.sources]
    words |= _vendors_in(*(each for source in by_files for each in all_in(source.table)))
    said = (
        _of_texts(model, typed, {key: Origin(kind="flag", name=flag(key)) for key in typed}),
        _of_environment(model, env, words),
        *by_files,
        _of_user(env),
    )
    _keep_keys_apart(said)
    return Sources(
        said=said,
        files=tuple(file.path for file in files if file.is_there),
        own_file=files[-1].path if files[-1].is_there else None,
        left_out=next((file.left_out for file in files if file.left_out), None),
    )


def _keep_keys_apart(said: Sequence[Source]) -> None:
    """Remove keys that would be sent to an address they were not meant for.

    Other programs' variables were not meant for a settings file. Their keys are not sent to an
    address that has its own key in the file, and no key in a file is sent to their addresses.
    """
    words = {word for source in said for word in _table(source.table.get("providers"))}
    for above in ((), *(("providers", word) for word in sorted(words))):
        key, address = (*above, "api_key"), (*above, "base_url")
        place = next((source for source in said if source.says(*address)), None)
        if place is None:
            continue
        is_general = place.origin(".".join(address)).name == "OPENAI_BASE_URL"
        for source in said:
            if source is place or not source.says(*key):
                continue
            is_for_all = source.origin(".".join(key)).name in _OF_ALL_PROGRAMS
            if is_general or (is_for_all and place.says(*key)):
                source.take_out(key)


def _table(said: Any) -> Mapping[str, Any]:
    return said if isinstance(said, Mapping) else {}


def read_environment(
    model: type[BaseSettings], said: Mapping[str, str], env: Mapping[str, str]
) -> Sources:
    """Read the environment's settings, overridden by the program's own."""
    words = _vendors_in(*said.items())
    own = _of_texts(model, said, {})
    return Sources(said=(own, _of_environment(model, env, words), _of_user(env)))


def _of_environment(model: type[BaseSettings], env: Mapping[str, str], words: set[str]) -> Source:
    """Read the variables; a vendor's variables count only if the vendor is named elsewhere."""
    given = [*_variables(env)]
    words = words | _vendors_in(*((key, value) for _, key, value in given))
    used = [each for each in given if not _is_idle(*each, words)]
    return _of_texts(
        model,
        {key: value for _, key, value in used},
        {key: Origin(kind="env", name=name) for name, key, _ in used},
    )


def _of_user(env: Mapping[str, str]) -> Source:
    data = user_folder("data", env)
    return Source(table={"data": data, "models": data / "models"})


class _Texts(EnvSettingsSource):
    """Parses settings from text: a list is comma-separated, and a table is JSON."""

    def __init__(self, model: type[BaseSettings], texts: Mapping[str, str]) -> None:
        super().__init__(model, case_sensitive=True, env_nested_delimiter="__")
        self.env_vars = {key.replace(".", "__"): text for key, text in texts.items()}

    def next_field(
        self,
        field: FieldInfo | Any | None,
        key: str,
        case_sensitive: bool | None = None,  # noqa: ARG002 - as pydantic-settings has it
    ) -> FieldInfo | None:
        """Return the setting with this name in a table, which may belong to a plugin."""
        try:
            return setting_in(field, key) if field else None
        except SettingsError:  # the value is rejected later, with the reason
            return None

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:  # noqa: ARG002
        """Return the list or table that a text represents, or the text itself."""
        if field and is_list(field):
            return [part.strip() for part in value.split(",")]
        with suppress(ValueError):
            if isinstance(table := json.loads(value), dict):
                return table
        return value


def _of_texts(
    model: type[BaseSettings], texts: Mapping[str, str], places: Mapping[str, Origin]
) -> Source:
    known = {key for key in texts if _is_known(model, tuple(key.split(".")))}
    table = _Texts(model, {key: texts[key] for key in known})()
    # Unknown settings are kept under their full names, so that errors can mention these.
    unknown = {key: text for key, text in texts.items() if key not in known}
    return Source(table={**table, **unknown}, places=places)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """A settings file, with the agents' files beside it."""

    path: Path
    sources: tuple[Source, ...]
    """The sources in the files, highest priority first; the agents' files come last."""
    digest: str = ""
    left_out: LeftOut | None = None
    is_there: bool = True


def _read(path: Path, *, is_needed: bool = False, beneath: Path | None = None) -> _Read:
    agents = [*read_agents(path.parent / "agents", beneath=beneath)]
    sources = [_of_agent(each) for each in reversed(agents)]
    if not is_needed and not path.is_file():
        return _Read(path=path, sources=tuple(sources), is_there=False)
    try:
        file = read_file(path, beneath=beneath)
    except UnreadableFile as error:
        return _Read(path=path, sources=(_unreadable(path, error), *sources))
    sources.insert(0, _of_table(str(path), file))
    return _Read(path=path, sources=tuple(sources), digest=digest_of(file.text, agents))


def _found(model: type[BaseSettings], cwd: Path, env: Mapping[str, str]) -> list[_Read]:
    """Read the current folder's file and, unless it is trusted, the user's own as well.

    Without a file in the current folder, read only the user's own.
    """
    own, here = user_folder("config", env) / NAME, cwd / NAME
    if not here.is_file() or (own.exists() and own.samefile(here)):
        return [_read(own)]
    # Links are not followed: the trust in another file would apply, and any file could become a
    # prompt.
    found, trust = _read(here, beneath=cwd), Trust(env)
    if (answer := trust.of(here, found.digest)) is True:
        return [found]
    left: dict[str, Any] = {}
    sources = []
    for source in found.sources:
        kept, more = without_harm(model, source.table)
        sources.append(replace(source, table=kept))
        left = more | left
    left_out = LeftOut(path=here, digest=found.digest, said=left, is_refused=answer is False)
    return [replace(found, sources=tuple(sources), left_out=left_out if left else None), _read(own)]


def _of_table(name: str, said: SettingsFile, *above: str) -> Source:
    table: dict[str, Any] = dict(said.table)
    for outer in reversed(above):
        table = {outer: table}
    places = {
        ".".join((*above, key)): Origin(kind="file", name=name, line=line)
        for key, line in said.lines.items()
    }
    return Source(table=table, places=places, place=Origin(kind="file", name=name))


def _unreadable(path: Path, error: UnreadableFile) -> Source:
    origin = Origin(kind="file", name=str(path), line=error.line)
    return Source(problems=[Problem(text=str(error), origin=origin)])


def _of_agent(file: AgentFile) -> Source:
    if file.unreadable:
        return _unreadable(file.path, file.unreadable)
    return _of_table(str(file.path), file.said, "agents", file.name)


def _variables(env: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield the name, key and value of each variable that is not empty."""
    # Ours come after those of other programs, because the last one counts.
    for name, key in EVERYWHERE:
        if env.get(name):
            yield name, key, address_in(name, env[name])
    for name, value in env.items():
        is_ours = name.startswith(PREFIX) and name != CONFIG
        if is_ours and value and not _SERVICE_LINK.fullmatch(name):
            yield name, name.removeprefix(PREFIX).lower().replace("__", "."), value


def _vendors_in(*said: tuple[str, Any]) -> set[str]:
    """Return the vendors of all models named in these sources."""
    models = [value for key, value in said if key.rpartition(".")[2] in _MODELS]
    return {split(model)[0] for model in models if isinstance(model, str)}


def _is_idle(name: str, key: str, value: str, vendors: set[str]) -> bool:
    """Return True if another program's variable has an invalid address for a vendor not in use."""
    if (name, key) not in EVERYWHERE or not key.endswith(".base_url"):
        return False
    if key.split(".")[1] in vendors:
        return False
    try:
        http_address(value)
    except ValueError:
        return True
    return False
