"""`nanoloop config`: shows each setting and where its value came from."""

from __future__ import annotations

import json
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from pydantic.json_schema import models_json_schema

from nanoloop import plugins
from nanoloop.cli import Exit, load_settings
from nanoloop.cli.output import json_text, say, say_json
from nanoloop.providers.vendors import VENDORS
from nanoloop.settings import ChannelSettings, Settings, ToolSettings
from nanoloop.settings.files import NAME
from nanoloop.settings.keys import Unit, beside, by_name, is_named, table_of
from nanoloop.settings.secrets import MASK, kept_secret, open_in, shown
from nanoloop.settings.trust import Trust
from nanoloop.settings.vendors import table_for

_HEAD = """\
# Settings for nanoloop, written by `nanoloop config --example`.
#
# Each setting is listed with its default, or with an example if it has none:
# remove the # in front of its name to change it. This file is read from --config FILE (or
# NANOLOOP_CONFIG), else from nanoloop.toml in the current folder if you trust it
# (`nanoloop config trust`), else from ~/.config/nanoloop/nanoloop.toml.
# Variables override the file (NANOLOOP_MODEL; two underscores separate a table:
# NANOLOOP_LOG__LEVEL), and flags override variables (--model).
"""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop config`."""
    parser.add_argument(
        "answer",
        choices=("trust", "distrust"),
        nargs="?",
        help="trust or distrust the current content of nanoloop.toml in this folder; if omitted, "
        "show the settings",
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object, for scripts")
    how.add_argument(
        "--example", action="store_true", help="print a settings file with all defaults"
    )
    how.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON Schema of a settings file, for editors",
    )


def run(args: Namespace) -> int:
    """Print an example, the schema, or the effective settings with secrets masked."""
    if args.schema:
        say_json(schema())
        return Exit.DONE
    if args.example:
        say(example(), end="")
        return Exit.DONE
    if args.answer:
        return _answer(args)
    settings = load_settings(args)
    say(json_text(as_json(settings)) if args.json else as_text(settings))
    return Exit.DONE


def _answer(args: Namespace) -> int:
    """Trust or distrust the settings file in the current folder, and report its effect."""
    here, trust = Path(NAME).absolute(), Trust(os.environ)
    left = load_settings(args, can_ask=False).left_out
    if args.answer == "distrust":
        was_trusted = trust.forget(here)
        say(f"{here} is {'no longer' if was_trusted else 'not'} trusted")
    elif left is None:
        say(f"{here} does not need to be trusted, or is trusted already")
    else:
        trust.answer(here, left.digest, is_trusted=True)
        say("\n".join((f"{here} now sets", *(f"  {line}" for line in left.lines))))
    return Exit.DONE


def as_text(settings: Settings) -> str:
    """Format the settings with one line each: key, value and origin."""
    rows = [(key, shown(value), str(settings.origin(key))) for key, value in values(settings)]
    wide = max(len(key) for key, _, _ in rows)
    lines = [f"{key:{wide}}  {value:28}  {origin}" for key, value, origin in rows]
    files = " and ".join(map(str, settings.files)) or "none"
    return "\n".join((f"settings file: {files}", "", *lines))


def as_json(settings: Settings) -> str:
    """Format the settings as one JSON object: the file, and each setting's value and origin."""
    said = {
        key: {"value": _plain(value), "origin": str(settings.origin(key))}
        for key, value in values(settings)
    }
    file = None if settings.file is None else str(settings.file)
    return json.dumps({"file": file, "settings": said}, indent=2, ensure_ascii=False)


def values(table: BaseModel, above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting's dotted key and value, in the same order as in the example."""
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if is_named(field):
            for own, inner in value.items():
                yield from values(inner, f"{above}{name}.{own}.")
        elif isinstance(value, BaseModel):
            yield from values(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", kept_secret(name, value)
    for own, inner in (table.model_extra or {}).items():
        yield from values(inner, f"{above}{own}.")


def example() -> str:
    """Return a settings file that lists every setting in a comment."""
    return "\n".join((_HEAD, *_table(Settings))).rstrip() + "\n"


def _table(model: type[BaseModel], above: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = table_of(field)
        if inner is None:
            yield from _setting(name, field)
        else:
            yield from _header(f"{above}{name}", field, inner)
            yield from _table(inner, f"{above}{name}.")
    if mark := beside(model):
        for name in mark.always:
            own = mark.table(name)
            yield from _header(f"{above}{name}", FieldInfo(annotation=own), own)
            yield from _table(own, f"{above}{name}.")
        yield f"# {mark.usual.__doc__}"
        # An empty header stays a comment if the table accepts any key.
        yield f"#{' ' * (not mark.usual.model_fields)}[{above}{mark.example}]"
        yield ""
        yield from _table(mark.usual)


def _header(key: str, field: FieldInfo, inner: type[BaseModel]) -> Iterator[str]:
    yield f"# {inner.__doc__}"
    # An empty table has no effect, but an empty named table would create an agent.
    mark = by_name(field)
    yield f"#[{key}.{mark.example if mark else 'cook'}]" if is_named(field) else f"[{key}]"
    yield ""


def _setting(name: str, field: FieldInfo) -> Iterator[str]:
    value = field.examples[0] if field.examples else field.default
    yield f"# {field.description}{_unit(field)}"
    yield f"#{name} = {shown(value)}"
    yield ""


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> dict[str, Any]:
    """Return the JSON Schema of a settings file, including the tables for installed plugins."""
    named: dict[str, dict[str, type[BaseModel]]] = {
        "channels": {name: ChannelSettings.table_for(name) for name in plugins.names("channels")},
        "tools": {name: ToolSettings.table_for(name) for name in plugins.names("tools")},
        "providers": {name: table_for(name) for name in _providers()},
    }
    tables: list[type[BaseModel]] = [
        Settings,
        *(table for own in named.values() for table in own.values()),
    ]
    refs, found = models_json_schema([(table, "validation") for table in tables])
    kinds: dict[str, Any] = found["$defs"]
    for model in {inner for table in tables for inner in _all_tables(table)}:
        _tell_units(kinds[model.__name__], model)
    top = kinds.pop(Settings.__name__)
    for key, own in named.items():
        table = top["properties"][key]
        table = kinds[table["$ref"].rpartition("/")[2]] if "$ref" in table else table
        table["additionalProperties"] = False
        table.setdefault("properties", {}).update(
            {name: refs[model, "validation"] for name, model in own.items()}
        )
    return {"$schema": _DRAFT, **top, "title": "Settings for nanoloop", "$defs": kinds}


def _providers() -> Iterator[str]:
    yield from (word for word in VENDORS if word != "local")
    yield from plugins.names("providers")


def _all_tables(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    yield model
    for field in model.model_fields.values():
        if (inner := table_of(field)) is not None and by_name(field) is None:
            yield from _all_tables(inner)


def _tell_units(said: dict[str, Any], model: type[BaseModel]) -> None:
    """Add units to the descriptions, and remove the defaults of whole tables."""
    for name, field in model.model_fields.items():
        about = said["properties"][name]
        about.pop("title", None)
        if table_of(field) is not None:
            about.pop("default", None)
        about["description"] = f"{field.description or ''}{_unit(field)}".strip()
        if not about["description"]:
            del about["description"]


def _unit(field: FieldInfo) -> str:
    return next((f" ({mark.name})" for mark in field.metadata if isinstance(mark, Unit)), "")


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return MASK
        case None | bool() | int() | float():
            return value
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case dict():
            return {key: _plain(inner) for key, inner in open_in(value)}
        case _:
            return json.loads(shown(value))
