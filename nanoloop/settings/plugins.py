"""Plugins' settings tables, each with the type that its plugin defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    SerializeAsAny,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from nanoloop import plugins
from nanoloop.errors import SettingsError
from nanoloop.settings.keys import ByName, Section
from nanoloop.settings.problems import NO_SUCH_TABLE, InvalidSettings, lacks
from nanoloop.words import did_you_mean


class NoSettings(Section):
    """The table of a plugin without settings."""


class Unchecked(NamedTuple):
    """A plugin's table whose type has not been looked up yet."""

    table_for: Callable[[str], type[BaseModel]]
    name: str
    said: Any


def _checked(own: Unchecked) -> BaseModel:
    if isinstance(own.said, BaseModel):
        return own.said
    try:
        table = own.table_for(own.name)
    except SettingsError as error:
        raise PydanticCustomError(NO_SUCH_TABLE, "{why}", {"why": str(error)}) from None
    return table.model_validate(own.said, extra="forbid")


PluginTable = SerializeAsAny[Annotated[BaseModel, PlainValidator(_checked)]]
"""A plugin's table, given as `Unchecked` and converted to the type that the plugin defines."""


def empty(key: str, table: type[BaseModel]) -> BaseModel:
    """Return a plugin's empty table; raise `InvalidSettings` if a setting is required."""
    try:
        return table.model_validate({})
    except ValidationError as error:
        path = tuple(key.split("."))
        lacking = [lacks((*path, *map(str, each["loc"])), each) for each in error.errors()]
        raise InvalidSettings(lacking) from None


class PluginTables(Section):
    """A table that may contain, by name, a table for each plugin of one kind."""

    model_config = ConfigDict(extra="allow")
    kind: ClassVar[plugins.Kind]
    usual: ClassVar[type[BaseModel]]
    """The type that most plugins' tables have."""
    always: ClassVar[Sequence[str]] = ()
    """Installed plugins that have a table even if it is empty."""
    gone: ClassVar[Mapping[str, str]] = {}
    """Former names, each with advice on what to write instead."""
    __pydantic_extra__: dict[str, PluginTable] = Field(init=False)

    @property
    def of_plugins(self) -> Mapping[str, BaseModel]:
        """The tables that were given, and those in `always`, by plugin name."""
        return self.__pydantic_extra__

    def of(self, name: str) -> BaseModel:
        """Return a plugin's table; raise `SettingsError` if there is no such plugin."""
        said = self.of_plugins.get(name)
        return empty(f"{self.kind}.{name}", self.table_for(name)) if said is None else said

    @classmethod
    def table_for(cls, name: str) -> type[BaseModel]:
        """Return the type of a plugin's table; raise `SettingsError` if there is no such plugin."""
        if plugins.is_installed(cls.kind, name):
            return plugins.load(cls.kind, name).settings or NoSettings
        if name in cls.gone:
            raise SettingsError(f"{cls.kind}.{name} no longer exists: {cls.gone[name]}")
        known = plugins.names(cls.kind)
        there = f"choose from {', '.join(known) or 'none'}, or install its package"
        mine = f"{cls.kind}.{{}}".format
        advice = did_you_mean(name, [*known, *cls.model_fields], there, shown=mine)
        what = cls.kind.removesuffix("s")
        raise SettingsError(f"{cls.kind}.{name} is not a {what}: {advice}")

    @classmethod
    def beside(cls) -> ByName:
        """Return the mark for these tables, for code that lists settings."""
        return ByName(cls.table_for, usual=cls.usual, example="NAME", always=tuple(cls._unsaid()))

    @model_validator(mode="before")
    @classmethod
    def _with_names(cls, said: Any) -> Any:
        if not isinstance(said, Mapping):
            return said
        return {
            name: own if name in cls.model_fields else Unchecked(cls.table_for, name, own)
            for name, own in (cls._unsaid() | dict(said)).items()
        }

    @classmethod
    def _unsaid(cls) -> dict[str, Any]:
        return {name: {} for name in cls.always if plugins.is_installed(cls.kind, name)}
