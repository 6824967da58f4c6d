"""`nanoloop model`: lists models, and downloads or removes those for this machine."""

from __future__ import annotations

import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nanoloop.cli import Exit, add_actions, is_agreed
from nanoloop.cli.amounts import size
from nanoloop.cli.fetching import fetch_model
from nanoloop.cli.output import say, say_json
from nanoloop.cli.servers import ServerModels, configured_servers
from nanoloop.errors import ModelError, NoSuchModel, SettingsError
from nanoloop.models.catalogue import CATALOGUE, PREFIX, SUFFIX, Model, at, find, known
from nanoloop.models.download import files_in
from nanoloop.settings import Settings
from nanoloop.words import did_you_mean


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop model`."""
    action = add_actions(parser)
    listed = action(
        "list", "list the models on this machine, in the catalogue and on your servers", show_list
    )
    listed.add_argument("--json", action="store_true", help="print one JSON array, for scripts")
    got = action("get", "download a model, or resume a download", get)
    got.add_argument(
        "name", metavar="NAME", help="the model's name, or the address of a .gguf file"
    )
    got.add_argument(
        "--sha256",
        metavar="SUM",
        type=_sum,
        help="the expected SHA-256 checksum, for a file from an address",
    )
    where = action("path", "print the path of a model's file", show_path)
    removed = action("remove", "delete a model's file", remove)
    removed.add_argument("--yes", action="store_true", help="delete without asking")
    for each in (where, removed):
        each.add_argument("name", metavar="NAME", help="the model's name, as shown by `list`")


def show_list(args: Namespace, settings: Settings) -> int:
    """Print the models on this machine and on each configured server."""
    served = configured_servers(settings)
    here = files_in(settings.models)
    others = (Model(name=name, sources=()) for name in sorted(here) if not known(name))
    rows = [_facts(model, here.get(model.name, ())) for model in (*CATALOGUE, *others)]
    if args.json:
        say_json([*rows, *_served(served)])
    else:
        say("\n".join(_table(rows)))
        say(
            f"\nThey are stored in {settings.models}. To talk with one: nanoloop chat --local NAME",
            err=True,
        )
        for each in served:
            if each.models:
                say(
                    "\n".join(
                        (f'\n{each.name} offers these models, for model = "…":', *each.models)
                    )
                )
    for each in served:
        if not each.models:
            told = f"{each.where} does not list its models: check the address and the key"
            say(f"{each.name}: {told}", err=True)
    return Exit.DONE


def get(args: Namespace, settings: Settings) -> int:
    """Download a model's file and say how to use it."""
    model = at(args.name, args.sha256) if "://" in args.name else find(args.name)
    if args.sha256 and model in CATALOGUE:
        raise SettingsError(
            f"--sha256 is only for an address: the catalogue already has one for {args.name}"
        )
    path = fetch_model(model, settings)
    say(f"{path}\ntalk with it: nanoloop chat --local {model.name}", err=True)
    return Exit.DONE


def show_path(args: Namespace, settings: Settings) -> int:
    """Print the path of a model's file; raises `NoSuchModel` if it is not downloaded."""
    name, files = _files_of(args.name, settings.models)
    if not _is_whole(files):
        raise _not_here(name)
    say(files[0])
    return Exit.DONE


def remove(args: Namespace, settings: Settings) -> int:
    """Delete a model's file or partial download, after confirmation."""
    name, files = _files_of(args.name, settings.models)
    what = f"{name}, {size(_bytes_of(files))} in {settings.models}"
    nobody = ModelError("can't ask without a terminal: add --yes to remove the model")
    if not (args.yes or is_agreed(f"{what}\nRemove it?", nobody_there=nobody)):
        say("nothing was removed", err=True)
        return Exit.FAILED
    for file in files:
        file.unlink(missing_ok=True)
    say(f"removed {name}", err=True)
    return Exit.DONE


def _files_of(name: str, folder: Path) -> tuple[str, Sequence[Path]]:
    """Return a model's full name and its files; raises `NoSuchModel` with advice."""
    here, name = files_in(folder), name.removeprefix(PREFIX).removesuffix(SUFFIX)
    if name in here:
        return name, here[name]
    if known(name):
        raise _not_here(name)
    raise NoSuchModel(name, did_you_mean(name, here, most=2))


def _not_here(name: str) -> NoSuchModel:
    return NoSuchModel(name, f"it is not downloaded yet: run `nanoloop model get {name}`")


def _facts(model: Model, files: Sequence[Path]) -> dict[str, Any]:
    kept = _bytes_of(files)
    return {
        "name": model.name,
        "vendor": "local",
        "setting": f"{PREFIX}{model.name}",
        "file": str(files[0]) if _is_whole(files) else None,
        "size_bytes": model.size_bytes or kept,
        "fetched_bytes": kept,
        "parameters": model.parameters or None,
        "licence": model.licence or None,
        "sha256": model.sha256,
        "context_tokens": model.context_tokens,
        "calls_tools": model.calls_tools if model.sources else None,
        "about": model.about or None,
    }


def _is_whole(files: Sequence[Path]) -> bool:
    return bool(files) and files[0].suffix == SUFFIX


def _bytes_of(files: Sequence[Path]) -> int:
    return sum(file.stat().st_size for file in files if file.suffix != ".tag")


def _served(served: list[ServerModels]) -> Iterator[dict[str, Any]]:
    for each in served:
        for setting in each.models:
            name = setting.removeprefix(f"{each.server.word}:")
            yield {"name": name, "vendor": each.name, "setting": setting}


def _table(rows: list[dict[str, Any]]) -> list[str]:
    wide = max(len(row["name"]) for row in rows)
    head = f"{'NAME':{wide}}  {'SIZE':>8}  {'HERE':4}  {'PARAMS':6}  {'LICENCE':10}  GOOD FOR"
    return [head, *(_row(row, wide) for row in rows)]


def _row(row: dict[str, Any], wide: int) -> str:
    part = f"{row['fetched_bytes'] * 100 // (row['size_bytes'] or 1)} %"
    here = "yes" if row["file"] else part if row["fetched_bytes"] else "no"
    facts = f"{row['parameters'] or '':6}  {row['licence'] or '':10}  {row['about'] or ''}"
    return f"{row['name']:{wide}}  {size(row['size_bytes']):>8}  {here:4}  {facts}".rstrip()


def _sum(text: str) -> str:
    if not re.fullmatch(r"[0-9A-Fa-f]{64}", text):
        raise ArgumentTypeError(
            f"{text!r} is not a SHA-256 checksum: it has 64 digits, 0-9 and a-f"
        )
    return text.lower()
