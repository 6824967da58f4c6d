"""The available settings: a model's dotted keys, and how each is spelled in each place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

PREFIX = "NANOLOOP_"


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts."""

    name: str


@dataclass(frozen=True, slots=True)
class Harmless:
    """Marks a setting that any file in the current folder may set: a setting, and never a table.

    Settings without the mark are ignored in such a file until its user trusts it. So never mark one
    that names a place, a key, a person, a model, a tool or code, that multiplies the calls of a
    model, which cost money, or that is shown as the program's own words.
    """


HARMLESS = Harmless()


@dataclass(frozen=True, slots=True)
class ByName:
    """Marks a table of tables whose type depends on their name, and says which type a name has.

    It is part of a dict's annotation; a model that also has settings of its own returns it from
    `beside()`.
    """

    table: Callable[[str], type[BaseModel]]
    """Raises `SettingsError` for a name that has none."""
    usual: type[BaseModel]
    """The type of table that most names have."""
    example: str
    always: Sequence[str] = ()
    """Names that always exist, with their own kinds of tables."""


def known_settings(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every setting with its dotted key, in order; `agents.NAME.model` stands for all agents."""
    for name, field in model.model_fields.items():
        key = f"{above}{name}"
        if (table := table_of(field)) is None:
            yield key, field
        else:
            yield from known_settings(table, f"{key}{'.NAME' * is_named(field)}.")
    if mark := beside(model):
        for name in mark.always:
            yield from known_settings(mark.table(name), f"{above}{name}.")
        yield from known_settings(mark.usual, f"{above}NAME.")


def setting(model: type[BaseModel], path: tuple[str, ...]) -> FieldInfo | None:
    """The setting or table at that path, or None; raises `SettingsError` as `ByName` does."""
    field: FieldInfo | None = FieldInfo(annotation=model)
    for name in path:
        field = setting_in(field, name) if field else None
    return field


def setting_in(field: FieldInfo, name: str) -> FieldInfo | None:
    """The setting or table of that name in this table, or None; raises what `setting` raises."""
    if is_named(field):
        mark = by_name(field)
        return FieldInfo(annotation=mark.table(name) if mark else table_of(field))
    table = table_of(field)
    return _field(table, name) if table else None


def settings_near(model: type[BaseModel], path: tuple[str, ...]) -> dict[str, FieldInfo]:
    """The settings that this path may have meant: all of them, or those of its own named table."""
    field = model.model_fields.get(path[0])
    table = table_of(field) if field else None
    mark = (by_name(field) if field else None) or (beside(table) if table else None)
    if mark is None or len(path) < 2 or (table and path[1] in table.model_fields):  # noqa: PLR2004 - a name and a key
        return dict(known_settings(model))
    return dict(known_settings(mark.table(path[1]), f"{path[0]}.{path[1]}."))


def beside(model: type[BaseModel]) -> ByName | None:
    """How the tables that a model takes besides its own settings differ."""
    known: Callable[[], ByName] | None = getattr(model, "beside", None)
    return known() if known else None


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    field, mark = model.model_fields.get(name), beside(model)
    if field is None and mark is not None:
        return FieldInfo(annotation=mark.table(name))
    return field


def all_in(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each table and value in it, with its dotted key."""
    for name, value in table.items():
        yield f"{above}{name}", value
        if isinstance(value, Mapping):
            yield from all_in(value, f"{above}{name}.")


def is_harmless(field: FieldInfo) -> bool:
    """Whether any file may set it."""
    return HARMLESS in field.metadata


def without_harm(
    model: type[BaseModel], table: Mapping[str, Any], above: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What any file may set in this table, and the rest by its dotted keys.

    No plugin is loaded for this. An unknown name stays, so that it is refused by name.
    """
    kept: dict[str, Any] = {}
    left: dict[str, Any] = {}
    for name, value in table.items():
        key, field = f"{above}{name}", model.model_fields.get(name)
        own = table_of(field) if field and not by_name(field) else None
        if (field is None and not hasattr(model, "beside")) or (field and is_harmless(field)):
            kept[name] = value
        elif field is None or own is None or not isinstance(value, Mapping):
            left |= _leaves(key, value) if field is None or by_name(field) else {key: value}
        elif is_named(field):
            kept[name] = {}
            for each, inner in value.items():
                is_table = isinstance(inner, Mapping)
                found = without_harm(own, inner, f"{key}.{each}.") if is_table else (inner, {})
                kept[name][each], more = found
                left |= more
        else:
            kept[name], more = without_harm(own, value, f"{key}.")
            left |= more
    return kept, left


def _leaves(key: str, value: Any) -> dict[str, Any]:
    """The values below this key by their dotted keys; the value itself if it is not a table."""
    if not isinstance(value, Mapping) or not value:
        return {key: value}
    inner = dict(all_in(value, f"{key}."))
    return {name: said for name, said in inner.items() if not isinstance(said, Mapping)}


def variable(key: str) -> str:
    """`NANOLOOP_LOG__LEVEL` for `log.level`."""
    return PREFIX + key.upper().replace(".", "__")


def flag(key: str) -> str:
    """`--log-level` for `log.level`."""
    return "--" + key.replace(".", "-").replace("_", "-")


def is_named(field: FieldInfo) -> bool:
    """Whether it is a table of tables, each with a name that the user chose."""
    return is_free(field) and table_of(field) is not None


def by_name(field: FieldInfo) -> ByName | None:
    """The mark for tables that differ by name, if it has one."""
    return next((mark for mark in field.metadata if isinstance(mark, ByName)), None)


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of the fields below it, if it is a table."""
    if mark := by_name(field):
        return mark.usual
    kind: Any = get_args(field.annotation)[1] if is_free(field) else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def is_free(field: FieldInfo) -> bool:
    """Whether the user chooses its keys."""
    return get_origin(field.annotation) is dict


def is_list(field: FieldInfo) -> bool:
    """Whether it takes several values."""
    return any(get_origin(kind) is tuple for kind in _kinds(field))


def is_secret(field: FieldInfo) -> bool:
    """Whether its value must never be shown."""
    return SecretStr in _kinds(field)


def _kinds(field: FieldInfo) -> tuple[Any, ...]:
    """Its type, or the types it may have."""
    kinds = (field.annotation, *get_args(field.annotation))
    return (*kinds, *(inner for kind in kinds for inner in get_args(kind)))


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Unit("seconds")]
Messages = Annotated[int, Field(ge=1), Unit("messages")]
Folder = Annotated[Path, Field(strict=False), AfterValidator(Path.expanduser)]
Names = Annotated[tuple[str, ...], Field(strict=False)]


class Section(BaseModel):
    """A table of the settings file."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        strict=True,
        use_attribute_docstrings=True,
    )
