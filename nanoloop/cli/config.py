"""`nanoloop config`: each setting, and where its value came from."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from nanoloop.cli import Exit, load_settings
from nanoloop.settings import Settings
from nanoloop.settings.keys import Unit, beside, by_name, is_named, table_of
from nanoloop.settings.problems import MASK, shown

_HEAD = """\
# Settings of nanoloop, written by `nanoloop config --example`.
#
# Each setting stands here with its default, or with an example if it has none:
# take away the # in front of its name to change it. It is read from --config FILE, else
# from nanoloop.toml in the working folder, else from ~/.config/nanoloop/nanoloop.toml.
# Stronger than the file are variables (NANOLOOP_MODEL; two underscores reach into a table:
# NANOLOOP_LOG__LEVEL), and stronger than those are flags (--model).
"""


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop config` takes."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    how.add_argument("--example", action="store_true", help="a settings file with all defaults")


def run(args: Namespace) -> int:
    """Print the effective settings, secrets masked."""
    if args.example:
        print(example(), end="")
        return Exit.DONE
    settings = load_settings(args)
    print(as_json(settings) if args.json else as_text(settings))
    return Exit.DONE


def as_text(settings: Settings) -> str:
    """A line for each setting: key, value, origin."""
    rows = [(key, shown(value), str(settings.origin(key))) for key, value in values(settings)]
    wide = max(len(key) for key, _, _ in rows)
    lines = [f"{key:{wide}}  {value:28}  {origin}" for key, value, origin in rows]
    return "\n".join((f"settings file: {settings.file or 'none'}", "", *lines))


def as_json(settings: Settings) -> str:
    """One object: the file, and each setting's value and origin."""
    said = {
        key: {"value": _plain(value), "origin": str(settings.origin(key))}
        for key, value in values(settings)
    }
    file = None if settings.file is None else str(settings.file)
    return json.dumps({"file": file, "settings": said}, indent=2, ensure_ascii=False)


def values(table: BaseModel, above: str = "") -> Iterator[tuple[str, Any]]:
    """Each setting's dotted key and value, in the order of the example."""
    for name, field in type(table).model_fields.items():
        value = getattr(table, name)
        if is_named(field):
            for own, inner in value.items():
                yield from values(inner, f"{above}{name}.{own}.")
        elif isinstance(value, BaseModel):
            yield from values(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
    for own, inner in (table.model_extra or {}).items():
        yield from values(inner, f"{above}{own}.")


def example() -> str:
    """A settings file that says nothing but shows everything."""
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
        # With nothing below it, it stays a comment where every line is taken in.
        yield f"#{' ' * (not mark.usual.model_fields)}[{above}{mark.example}]"
        yield ""
        yield from _table(mark.usual)


def _header(key: str, field: FieldInfo, inner: type[BaseModel]) -> Iterator[str]:
    yield f"# {inner.__doc__}"
    # An empty table says nothing; a named one would make an agent of that name.
    mark = by_name(field)
    yield f"#[{key}.{mark.example if mark else 'cook'}]" if is_named(field) else f"[{key}]"
    yield ""


def _setting(name: str, field: FieldInfo) -> Iterator[str]:
    unit = next((f" ({mark.name})" for mark in field.metadata if isinstance(mark, Unit)), "")
    value = field.examples[0] if field.examples else field.default
    yield f"# {field.description}{unit}"
    yield f"#{name} = {shown(value)}"
    yield ""


def _plain(value: Any) -> Any:
    match value:
        case SecretStr():
            return MASK
        case None | bool() | int() | float():
            return value
        case list() | tuple():
            return [_plain(inner) for inner in value]
        case dict():
            return {str(key): _plain(inner) for key, inner in value.items()}
        case _:
            return json.loads(shown(value))
