"""The known settings: the dotted keys of a model, and how each source spells them."""

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
    """The unit of a number."""

    name: str


@dataclass(frozen=True, slots=True)
class Harmless:
    """Marks a setting, never a table, that even an untrusted file may set.

    Until the user trusts a file in the current folder, its other settings are ignored. So don't
    mark a setting that names a place, key, person, model, tool or code, or that multiplies the
    model calls, which cost money, or that is shown as the program's own words.
    """


HARMLESS = Harmless()


@dataclass(frozen=True, slots=True)
class ByName:
    """Marks a table of tables whose types depend on their names.

    The mark is part of a dict's annotation; a model that also has settings of its own returns it
    from `beside()`.
    """

    table: Callable[[str], type[BaseModel]]
    """Returns the type for a name; raises `SettingsError` for an unknown name."""
    usual: type[BaseModel]
    """The type of most tables."""
    example: str
    always: Sequence[str] = ()
    """Names whose tables always exist, with their own types."""


def known_settings(model: type[BaseModel], above: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every setting with its dotted key, in order; agents appear as `agents.NAME.model`."""
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
    """Return the setting or table at this path, or None; same errors as `ByName`."""
    field: FieldInfo | None = FieldInfo(annotation=model)
    for name in path:
        field = setting_in(field, name) if field else None
    return field


def setting_in(field: FieldInfo, name: str) -> FieldInfo | None:
    """Return the setting or table with this name in a table, or None; same errors as `setting`."""
    if is_named(field):
        mark = by_name(field)
        return FieldInfo(annotation=mark.table(name) if mark else table_of(field))
    table = table_of(field)
    return _field(table, name) if table else None


def settings_near(model: type[BaseModel], path: tuple[str, ...]) -> dict[str, FieldInfo]:
    """Return the settings similar to a wrong path: all, or only those of the table it names."""
    field = model.model_fields.get(path[0])
    table = table_of(field) if field else None
    mark = (by_name(field) if field else None) or (beside(table) if table else None)
    if mark is None or len(path) < 2 or (table and path[1] in table.model_fields):  # noqa: PLR2004 - a name and a key
        return dict(known_settings(model))
    return dict(known_settings(mark.table(path[1]), f"{path[0]}.{path[1]}."))


def beside(model: type[BaseModel]) -> ByName | None:
    """Return the mark for the tables that a model accepts beside its own settings, or None."""
    known: Callable[[], ByName] | None = getattr(model, "beside", None)
    return known() if known else None


def _field(model: type[BaseModel], name: str) -> FieldInfo | None:
    field, mark = model.model_fields.get(name), beside(model)
    if field is None and mark is not None:
        return FieldInfo(annotation=mark.table(name))
    return field


def all_in(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each table and value in a table, with its dotted key."""
    for name, value in table.items():
        yield f"{above}{name}", value
        if isinstance(value, Mapping):
            yield from all_in(value, f"{above}{name}.")


def is_harmless(field: FieldInfo) -> bool:
    """Return True if even an untrusted file may set this setting."""
    return HARMLESS in field.metadata


def without_harm(
    model: type[BaseModel], table: Mapping[str, Any], above: str = ""
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split a table into the values that untrusted files may set, and the rest by dotted keys.

    No plugin is loaded for this. Unknown names are kept, so that they can be reported later.
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
    """Return the values below this key by their dotted keys; or the value itself if not a table."""
    if not isinstance(value, Mapping) or not value:
        return {key: value}
    inner = dict(all_in(value, f"{key}."))
    return {name: said for name, said in inner.items() if not isinstance(said, Mapping)}


def variable(key: str) -> str:
    """Return the variable for a key, such as `NANOLOOP_LOG__LEVEL` for `log.level`."""
    return PREFIX + key.upper().replace(".", "__")


def flag(key: str) -> str:
    """Return the flag for a key, such as `--log-level` for `log.level`."""
    return "--" + key.replace(".", "-").replace("_", "-")


def is_named(field: FieldInfo) -> bool:
    """Return True for a table of tables whose names the user chooses."""
    return is_free(field) and table_of(field) is not None


def by_name(field: FieldInfo) -> ByName | None:
    """Return the field's mark if its tables' types depend on their names, otherwise None."""
    return next((mark for mark in field.metadata if isinstance(mark, ByName)), None)


def table_of(field: FieldInfo) -> type[BaseModel] | None:
    """Return the model of a table's fields, or None if the field is not a table."""
    if mark := by_name(field):
        return mark.usual
    kind: Any = get_args(field.annotation)[1] if is_free(field) else field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def is_free(field: FieldInfo) -> bool:
    """Return True for a table whose keys the user chooses."""
    return get_origin(field.annotation) is dict


def is_list(field: FieldInfo) -> bool:
    """Return True if the setting takes several values."""
    return any(get_origin(kind) is tuple for kind in _kinds(field))


def is_secret(field: FieldInfo) -> bool:
    """Return True if the setting's value must never be shown."""
    return SecretStr in _kinds(field)


def _kinds(field: FieldInfo) -> tuple[Any, ...]:
    """Return the types that the field's value may have."""
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
