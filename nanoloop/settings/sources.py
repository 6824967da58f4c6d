"""Where settings come from: files, the environment, flags, each value with its origin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from nanoloop.errors import SettingsError
from nanoloop.providers.vendors import VENDORS, address_in, split
from nanoloop.settings import agents as settings_agents
from nanoloop.settings import file as settings_file
from nanoloop.settings.keys import (
    PREFIX,
    flag,
    is_free,
    is_list,
    setting,
    settings_near,
    table_of,
    variable,
)
from nanoloop.settings.problems import Problem, http_address, malformed, unknown

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
"""Names that other programs know too, the weaker of two before the stronger; ours beat all."""
_MODELS = {"model", "summary_model", "fallback_model"}
"""The last parts of the keys that name a model."""
_SERVICE_LINK = re.compile(r"NANOLOOP_(SERVICE_(HOST|PORT\w*)|PORT(_\d+_\w+)?)")
"""What Kubernetes tells every process about a service called nanoloop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a value came from."""

    kind: Literal["default", "file", "env", "flag"]
    name: str = ""
    """The path of the file, the variable or the flag."""
    line: int | None = None

    def __str__(self) -> str:
        """`default`, `nanoloop.toml:3`, `env NANOLOOP_MODEL`, `flag --model`."""
        match self.kind:
            case "default":
                return self.kind
            case "file":
                return f"{self.name}:{self.line}" if self.line else self.name
            case _:
                return f"{self.kind} {self.name}"

    def spell(self, key: str) -> str:
        """A key as this source writes it."""
        match self.kind:
            case "env":
                return variable(key)
            case "flag":
                return flag(key)
            case _:
                return key


DEFAULT = Origin(kind="default")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What one source says of one key."""

    path: tuple[str, ...]
    value: Any
    origin: Origin

    @property
    def key(self) -> str:
        """The path as one writes it."""
        return ".".join(self.path)


class Layer(PydanticBaseSettingsSource):
    """One source for pydantic-settings: values that were checked one by one."""

    def __init__(self, model: type[BaseSettings], given: list[Given]) -> None:
        super().__init__(model)
        self.origins: dict[str, Origin] = {}
        self.problems: list[Problem] = []
        self._values: dict[str, Any] = {}
        for item in given:
            self._take(item)

    def __call__(self) -> dict[str, Any]:
        """The values as nested tables."""
        return self._values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """Asked for by the base class only; the values are taken as a whole."""
        return self._values.get(field_name), field_name, False

    def _take(self, given: Given) -> None:
        try:
            field = setting(self.settings_cls, given.path)
        except SettingsError as error:
            self.problems.append(Problem(text=str(error), origin=given.origin))
            return
        if field is None:
            known = settings_near(self.settings_cls, given.path)
            self.problems.append(unknown(given.key, given.value, known, given.origin))
            return
        try:
            self._put(given.path, _check(field, given))
        except ValidationError as error:
            first = error.errors()[0]
            self.problems.append(malformed(given.key, given.value, field, first, given.origin))
        else:
            self.origins[given.key] = given.origin

    def _put(self, path: tuple[str, ...], value: Any) -> None:
        table = self._values
        for name in path[:-1]:
            table = table.setdefault(name, {})
        table[path[-1]] = value


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """All sources of one start."""

    layers: tuple[Layer, ...]
    """The strongest first."""
    origins: dict[str, Origin]
    problems: list[Problem]
    file: Path | None


def read_layers(
    model: type[BaseSettings],
    *,
    config: Path | str | None,
    flags: Mapping[str, Any],
    env: Mapping[str, str],
    cwd: Path,
) -> Layers:
    """Read every source; what is wrong with them is in `problems`, nothing is raised."""
    path = Path(config) if config else settings_file.find(cwd, user_folder("config", env))
    said, unreadable = _read(path)
    data = user_folder("data", env)
    agents, odd = _read_agents(path.parent if path else user_folder("config", env))
    sources = (
        [*_from_flags(flags)],
        [*_from_env(env)],
        [*_from_table(model, said.table, (), said.lines, str(path))],
        agents,
        [
            Given(path=("data",), value=data, origin=DEFAULT),
            Given(path=("models",), value=data / "models", origin=DEFAULT),
        ],
    )
    words = _words_in(sources)
    found = tuple(
        Layer(model, [item for item in given if not _is_idle(item, words)]) for given in sources
    )
    origins = {key: value for layer in reversed(found) for key, value in layer.origins.items()}
    problems = [problem for layer in reversed(found) for problem in layer.problems]
    return Layers(layers=found, origins=origins, problems=unreadable + odd + problems, file=path)


def user_folder(kind: Literal["config", "data"], env: Mapping[str, str]) -> Path:
    """The user's folder for settings or for data, as the XDG rules have it."""
    home = Path(env.get("HOME") or Path.home())
    usual = {"config": home / ".config", "data": home / ".local" / "share"}[kind]
    chosen = Path(env.get(f"XDG_{kind.upper()}_HOME", ""))
    return (chosen if chosen.is_absolute() else usual) / "nanoloop"


def _check(field: FieldInfo, given: Given) -> Any:
    """The value in its type: a file means what it writes, elsewhere all is text."""
    if table := table_of(field):
        return TypeAdapter(table).validate_python(given.value)
    from_env = given.origin.kind == "env"
    config = ConfigDict(strict=given.origin.kind == "file")
    kind: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config=config)
    if from_env and is_free(field):
        return kind.validate_json(given.value)
    if from_env and is_list(field):
        return kind.validate_python([part.strip() for part in given.value.split(",")])
    return kind.validate_python(given.value)


def _read(path: Path | None) -> tuple[settings_file.SettingsFile, list[Problem]]:
    if path is None:
        return settings_file.SettingsFile(), []
    try:
        return settings_file.read(path), []
    except settings_file.Unreadable as error:
        origin = Origin(kind="file", name=str(path), line=error.line)
        return settings_file.SettingsFile(), [Problem(text=str(error), origin=origin)]


def _read_agents(folder: Path) -> tuple[list[Given], list[Problem]]:
    """What the files of agents say; the settings file, in whose folder they stand, is stronger."""
    given: list[Given] = []
    problems: list[Problem] = []
    for file in settings_agents.read(folder / "agents"):
        name = str(file.path)
        if file.unreadable:
            origin = Origin(kind="file", name=name, line=file.unreadable.line)
            problems.append(Problem(text=str(file.unreadable), origin=origin))
        for key, value in file.said.table.items():
            origin = Origin(kind="file", name=name, line=file.said.lines.get(key))
            given.append(Given(path=("agents", file.name, key), value=value, origin=origin))
    return given, problems


def _from_table(
    model: type[BaseModel],
    table: Mapping[str, Any],
    above: tuple[str, ...],
    lines: Mapping[str, int],
    file: str,
) -> Iterator[Given]:
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, Mapping) and _is_table(model, path):
            yield from _from_table(model, value, path, lines, file)
        else:
            line = lines.get(".".join(path))
            yield Given(path=path, value=value, origin=Origin(kind="file", name=file, line=line))


def _is_table(model: type[BaseModel], path: tuple[str, ...]) -> bool:
    try:
        field = setting(model, path)
    except SettingsError:  # told where it is taken
        return False
    return field is not None and table_of(field) is not None


def _from_env(env: Mapping[str, str]) -> Iterator[Given]:
    """What the environment says; an empty variable says nothing."""
    # Ours come after those that all programs know: the later one counts.
    for name, key in EVERYWHERE:
        if env.get(name):
            path, origin = tuple(key.split(".")), Origin(kind="env", name=name)
            yield Given(path=path, value=address_in(name, env[name]), origin=origin)
    for name, value in env.items():
        if name.startswith(PREFIX) and value and not _SERVICE_LINK.fullmatch(name):
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield Given(path=path, value=value, origin=Origin(kind="env", name=name))


def _words_in(sources: Iterable[list[Given]]) -> set[str]:
    """The vendors that a model is named of, by whatever source."""
    said = [item for given in sources for item in given if item.path[-1] in _MODELS]
    return {split(item.value)[0] for item in said if isinstance(item.value, str)}


def _is_idle(given: Given, words: set[str]) -> bool:
    """Whether another program's variable says what is no address, of a vendor nobody asks for."""
    if (given.origin.name, given.key) not in EVERYWHERE or given.path[0] != "providers":
        return False
    if given.path[1] in words or given.path[-1] != "base_url":
        return False
    try:
        http_address(given.value)
    except ValueError:
        return True
    return False


def _from_flags(flags: Mapping[str, Any]) -> Iterator[Given]:
    for key, value in flags.items():
        if value is not None:
            origin = Origin(kind="flag", name=flag(key))
            yield Given(path=tuple(key.split(".")), value=value, origin=origin)
