"""Tables of plugins: each in the type that its plugin names, beside the settings of nanoloop."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

from nanoloop import plugins
from nanoloop.errors import SettingsError
from nanoloop.settings.keys import ByName, Section
from nanoloop.settings.problems import checked


class NoSettings(Section):
    """The table of a plugin that takes no settings."""


class PluginTables(Section):
    """A table in which each plugin of a kind may have one of its own, by its name."""

    model_config = ConfigDict(extra="allow")
    kind: ClassVar[plugins.Kind]
    usual: ClassVar[type[BaseModel]]
    """What most of them take."""
    gone: ClassVar[Mapping[str, str]] = {}
    """Names that were something else once, each with what to write now."""
    __pydantic_extra__: dict[str, SerializeAsAny[BaseModel]] = Field(init=False)

    @property
    def of_plugins(self) -> Mapping[str, BaseModel]:
        """The tables that something is said in, by the names of their plugins."""
        return self.__pydantic_extra__

    @classmethod
    def table_for(cls, name: str) -> type[BaseModel]:
        """What that plugin's table may hold; raises `SettingsError` where there is no such one."""
        if plugins.is_installed(cls.kind, name):
            return plugins.load(cls.kind, name).settings or NoSettings
        if name in cls.gone:
            raise SettingsError(f"{cls.kind}.{name} is gone: {cls.gone[name]}")
        known = plugins.names(cls.kind)
        near = get_close_matches(name, [*known, *cls.model_fields], n=1)
        there = f"there are {', '.join(known) or 'none'}; or install the package that has it"
        advice = f"did you mean {cls.kind}.{near[0]}?" if near else there
        what = cls.kind.removesuffix("s")
        raise SettingsError(f"{cls.kind}.{name} names no {what}: {advice}")

    @classmethod
    def beside(cls) -> ByName:
        """How these tables differ, for whoever lists settings."""
        return ByName(cls.table_for, usual=cls.usual, example="NAME")

    @model_validator(mode="before")
    @classmethod
    def _type(cls, said: Any) -> Any:
        if not isinstance(said, Mapping):
            return said
        return {
            name: table
            if name in cls.model_fields
            else checked(f"{cls.kind}.{name}", cls.table_for(name), table)
            for name, table in said.items()
        }
