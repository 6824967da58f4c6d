"""Tables of plugins: each in the type that its plugin names, beside the settings of nanoloop."""

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
    """The table of a plugin that takes no settings."""


class Unchecked(NamedTuple):
    """What is said of a plugin, before its name told which type that has."""

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
"""A plugin's table, given as `Unchecked`, in the type that the plugin names."""


def empty(key: str, table: type[BaseModel]) -> BaseModel:
    """The table of a plugin that nothing is said of; `InvalidSettings` if that is too little."""
    try:
        return table.model_validate({})
    except ValidationError as error:
        path = tuple(key.split("."))
        lacking = [lacks((*path, *map(str, each["loc"])), each) for each in error.errors()]
        raise InvalidSettings(lacking) from None


class PluginTables(Section):
    """A table in which each plugin of a kind may have one of its own, by its name."""

    model_config = ConfigDict(extra="allow")
    kind: ClassVar[plugins.Kind]
    usual: ClassVar[type[BaseModel]]
    """What most of them take."""
    always: ClassVar[Sequence[str]] = ()
    """Those that have their table where nothing is said in it, too, unless they are not there."""
    gone: ClassVar[Mapping[str, str]] = {}
    """Names that were something else once, each with what to write now."""
    __pydantic_extra__: dict[str, PluginTable] = Field(init=False)

    @property
    def of_plugins(self) -> Mapping[str, BaseModel]:
        """The tables that something is said in, and `always`, by the names of their plugins."""
        return self.__pydantic_extra__

    def of(self, name: str) -> BaseModel:
        """What that plugin's table says; raises `SettingsError` where there is no such one."""
        said = self.of_plugins.get(name)
        return empty(f"{self.kind}.{name}", self.table_for(name)) if said is None else said

    @classmethod
    def table_for(cls, name: str) -> type[BaseModel]:
        """What that plugin's table may hold; raises `SettingsError` where there is no such one."""
        if plugins.is_installed(cls.kind, name):
            return plugins.load(cls.kind, name).settings or NoSettings
        if name in cls.gone:
            raise SettingsError(f"{cls.kind}.{name} is gone: {cls.gone[name]}")
        known = plugins.names(cls.kind)
        there = f"there are {', '.join(known) or 'none'}; or install the package that has it"
        mine = f"{cls.kind}.{{}}".format
        advice = did_you_mean(name, [*known, *cls.model_fields], there, shown=mine)
        what = cls.kind.removesuffix("s")
        raise SettingsError(f"{cls.kind}.{name} names no {what}: {advice}")

    @classmethod
    def beside(cls) -> ByName:
        """How these tables differ, for whoever lists settings."""
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
