"""Where settings come from: files, the environment, the command line; and how one is written."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource

from nanoloop.errors import SettingsError
from nanoloop.files import replace_file
from nanoloop.providers.vendors import VENDORS, address_in, split
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
from nanoloop.settings.problems import (
    Problem,
    gone,
    http_address,
    is_table_gone,
    malformed,
    unknown,
)

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
class GivenSetting:
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

    def __init__(self, model: type[BaseSettings], given: list[GivenSetting]) -> None:
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

    def _take(self, given: GivenSetting) -> None:
        if problem := gone(given.key, given.origin):
            self.problems.append(problem)
            return
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
    path = Path(config) if config else find(cwd, user_folder("config", env))
    said, unreadable = _read(path)
    data = user_folder("data", env)
    agents, odd = _read_agents(path.parent if path else user_folder("config", env))
    sources = (
        [*_from_flags(flags)],
        [*_from_env(env)],
        [*_from_table(model, said.table, (), said.lines, str(path))],
        agents,
        [
            GivenSetting(path=("data",), value=data, origin=DEFAULT),
            GivenSetting(path=("models",), value=data / "models", origin=DEFAULT),
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


def _check(field: FieldInfo, given: GivenSetting) -> Any:
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


def _read(path: Path | None) -> tuple[SettingsFile, list[Problem]]:
    if path is None:
        return SettingsFile(), []
    try:
        return read_file(path), []
    except UnreadableFile as error:
        origin = Origin(kind="file", name=str(path), line=error.line)
        return SettingsFile(), [Problem(text=str(error), origin=origin)]


def _read_agents(folder: Path) -> tuple[list[GivenSetting], list[Problem]]:
    """What the files of agents say; the settings file, in whose folder they stand, is stronger."""
    given: list[GivenSetting] = []
    problems: list[Problem] = []
    for file in read_agents(folder / "agents"):
        name = str(file.path)
        if file.unreadable:
            origin = Origin(kind="file", name=name, line=file.unreadable.line)
            problems.append(Problem(text=str(file.unreadable), origin=origin))
        for key, value in file.said.table.items():
            origin = Origin(kind="file", name=name, line=file.said.lines.get(key))
            given.append(GivenSetting(path=("agents", file.name, key), value=value, origin=origin))
    return given, problems


def _from_table(
    model: type[BaseModel],
    table: Mapping[str, Any],
    above: tuple[str, ...],
    lines: Mapping[str, int],
    file: str,
) -> Iterator[GivenSetting]:
    for name, value in table.items():
        path = (*above, name)
        if isinstance(value, Mapping) and _is_table(model, path):
            yield from _from_table(model, value, path, lines, file)
        else:
            line = lines.get(".".join(path))
            yield GivenSetting(
                path=path, value=value, origin=Origin(kind="file", name=file, line=line)
            )


def _is_table(model: type[BaseModel], path: tuple[str, ...]) -> bool:
    try:
        field = setting(model, path)
    except SettingsError:  # told where it is taken
        return False
    return table_of(field) is not None if field else is_table_gone(".".join(path))


def _from_env(env: Mapping[str, str]) -> Iterator[GivenSetting]:
    """What the environment says; an empty variable says nothing."""
    # Ours come after those that all programs know: the later one counts.
    for name, key in EVERYWHERE:
        if env.get(name):
            path, origin = tuple(key.split(".")), Origin(kind="env", name=name)
            yield GivenSetting(path=path, value=address_in(name, env[name]), origin=origin)
    for name, value in env.items():
        if name.startswith(PREFIX) and value and not _SERVICE_LINK.fullmatch(name):
            path = tuple(name.removeprefix(PREFIX).lower().split("__"))
            yield GivenSetting(path=path, value=value, origin=Origin(kind="env", name=name))


def _words_in(sources: Iterable[list[GivenSetting]]) -> set[str]:
    """The vendors that a model is named of, by whatever source."""
    said = [item for given in sources for item in given if item.path[-1] in _MODELS]
    return {split(item.value)[0] for item in said if isinstance(item.value, str)}


def _is_idle(given: GivenSetting, words: set[str]) -> bool:
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


def _from_flags(flags: Mapping[str, Any]) -> Iterator[GivenSetting]:
    for key, value in flags.items():
        if value is not None:
            origin = Origin(kind="flag", name=flag(key))
            yield GivenSetting(path=tuple(key.split(".")), value=value, origin=origin)


NAME = "nanoloop.toml"


class UnreadableFile(Exception):
    """The file is not there, may not be read, or is no TOML."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """What one file says."""

    table: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    """On which line each dotted key or table begins, counted from 1."""


def find(cwd: Path, user_folder: Path) -> Path | None:
    """The file of the working folder, else of the user, else None."""
    places = (cwd / NAME, user_folder / NAME)
    return next((place for place in places if place.is_file()), None)


def read_file(path: Path) -> SettingsFile:
    """What the file says; raises `UnreadableFile`."""
    return parse(text_of(path))


def text_of(path: Path) -> str:
    """The file's text; raises `UnreadableFile`."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UnreadableFile("not a text file in UTF-8") from None
    except OSError as error:
        raise UnreadableFile(f"can't be read: {error.strerror}") from None


def parse(text: str) -> SettingsFile:
    """What the TOML says; raises `UnreadableFile`."""
    try:
        return SettingsFile(table=tomllib.loads(text), lines=_lines(text))
    except tomllib.TOMLDecodeError as error:
        raise _no_toml(str(error), text) from None


def _no_toml(reason: str, text: str) -> UnreadableFile:
    place = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", reason)
    if place is None:
        return UnreadableFile(f"not TOML: {reason}")
    line = int(place[1]) if place[1] else len(text.splitlines())
    return UnreadableFile(f"not TOML: {reason[: place.start()]}", line)


def _lines(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    table = ""
    for number, statement in _statements(text):
        said = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            table = _header(said)
            found.setdefault(table, number)
        else:
            for key in _keys(said):
                found[f"{table}.{key}".lstrip(".")] = number
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Each header or assignment with its first line: as many lines as it takes to be TOML."""
    begin, parts = 1, ""
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        parts += line
        if _is_toml(parts):
            yield begin, parts
            begin, parts = number + 1, ""


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _header(said: Any) -> str:
    names = []
    while said:
        said = said[-1] if isinstance(said, list) else said
        for name in said:
            names.append(name)
            said = said[name]
    return ".".join(names)


def _keys(said: Mapping[str, Any]) -> Iterator[str]:
    for name, value in said.items():
        yield name
        if isinstance(value, Mapping):
            yield from (f"{name}.{key}" for key in _keys(value))


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_TOML, _YAML = "+++", "---"
"""What stands around the settings on top, and how they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFile:
    """One agent's file."""

    path: Path
    said: SettingsFile = field(default_factory=SettingsFile)
    unreadable: UnreadableFile | None = None

    @property
    def name(self) -> str:
        """The agent's name."""
        return self.path.stem


def read_agents(folder: Path) -> Iterator[AgentFile]:
    """Every agent's file in a folder, in the order of their names; the folder may be missing."""
    for path in sorted(folder.glob("[!.]*")):
        if path.suffix in {".md", ".toml"} and path.is_file():
            try:
                yield AgentFile(path=path, said=_said(path))
            except UnreadableFile as error:
                yield AgentFile(path=path, unreadable=error)


def _said(path: Path) -> SettingsFile:
    if not _NAME.fullmatch(path.stem):
        raise UnreadableFile(f"{path.stem!r} is no agent's name: use a-z, A-Z, 0-9, _ and -")
    text = text_of(path)
    said = parse(text) if path.suffix == ".toml" else _with_prompt(text)
    if not said.table:
        raise UnreadableFile("it says nothing: write the agent's prompt into it")
    return said


def _with_prompt(text: str) -> SettingsFile:
    lines = text.splitlines()
    fence = lines[0].rstrip() if lines else ""
    if fence not in (_TOML, _YAML):
        return _prompted(SettingsFile(), lines, 0)
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == fence), None)
    if end is None:
        raise UnreadableFile(f"{fence} is opened and never closed", 1)
    # The empty line stands for the fence: every line keeps its number.
    top = "\n".join(["", *lines[1:end]])
    said = parse(top) if fence == _TOML else _yaml(top)
    return _prompted(said, lines, end + 1)


def _prompted(said: SettingsFile, lines: list[str], begin: int) -> SettingsFile:
    prompt = "\n".join(lines[begin:]).strip()
    if not prompt:
        return said
    if "prompt" in said.table:
        raise UnreadableFile(
            "the prompt stands on top and below too: keep one", said.lines["prompt"]
        )
    line = next(n for n, text in enumerate(lines, 1) if n > begin and text.strip())
    return replace(
        said, table={**said.table, "prompt": prompt}, lines={**said.lines, "prompt": line}
    )


def _yaml(text: str) -> SettingsFile:
    import yaml  # noqa: PLC0415 - only for who writes YAML

    try:
        table: Any = yaml.safe_load(text)
        root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        raise UnreadableFile(f"not YAML: {error.problem}", line) from None
    except yaml.YAMLError:  # a character that no YAML may hold
        raise UnreadableFile("not YAML") from None
    if table is None:
        return SettingsFile()
    if not isinstance(table, dict):
        raise UnreadableFile("not a table: write `model: NAME` and the like", 2)
    keys = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    return SettingsFile(table={str(key): value for key, value in table.items()}, lines=keys)


_FOR_ITS_OWNER = 0o600


def write(path: Path, said: Mapping[str, str]) -> None:
    """Say these things, by their dotted keys, in a file that is made where it is missing.

    A file with a key is for its owner's eyes. Raises `SettingsError` where the file is not
    understood; it is then as it was.
    """
    path = path.resolve()  # a link stays one
    mode = path.stat().st_mode & 0o777 if path.exists() else _FOR_ITS_OWNER
    text = with_settings(_text(path), said)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode(), durable=True)
    path.chmod(_FOR_ITS_OWNER if any(map(_is_key, said)) else mode)


def with_settings(text: str, said: Mapping[str, str]) -> str:
    """The text with these settings in it; raises `SettingsError` where that can't be done."""
    try:
        before = parse(text)
        lines = text.splitlines(keepends=True)
        put = [_put(lines, before.lines, key, value) for key, value in said.items()]
        fresh = [line for line in put if line]
        # First of all lines: after the first table they would belong to it.
        after = "".join(fresh + ["\n"] * bool(fresh and lines) + lines)
        if parse(after).table == _with_all(before.table, said):
            return after
    except UnreadableFile:
        pass
    wanted = " and ".join(key for key in said)
    raise SettingsError(f"the settings file is not understood: write {wanted} into it by hand")


def _put(lines: list[str], places: Mapping[str, int], key: str, value: str) -> str:
    """Say it where the key or its table stands; returns what has to stand above all tables."""
    table, _, name = key.rpartition(".")
    said = f"{name} = {json.dumps(value, ensure_ascii=False)}\n"
    whole = said.replace(name, key, 1)
    if key in places:
        place = places[key] - 1
        lines[place] = whole if lines[place].lstrip().startswith(key) else said
    elif table in places and lines[places[table] - 1].lstrip().startswith("["):
        place = places[table] - 1
        lines[place] = f"{lines[place].rstrip()}\n{said}"
    else:
        return whole
    return ""


def _with_all(table: Mapping[str, Any], said: Mapping[str, str]) -> dict[str, Any]:
    """The table with these dotted keys in it."""
    after = deepcopy(dict(table))
    for key, value in said.items():
        *above, name = key.split(".")
        inner = after
        for part in above:
            inner = inner.setdefault(part, {})
        inner[name] = value
    return after


def _is_key(key: str) -> bool:
    return key.rpartition(".")[2] == "api_key"


def _text(path: Path) -> str:
    try:
        return text_of(path) if path.exists() else ""
    except UnreadableFile as error:
        raise SettingsError(f"{path}: {error}") from None
