"""`nanoloop docs`: shows the documentation of this version."""

from __future__ import annotations

import os
import re
import shutil
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

from nanoloop.channels.screen import printable
from nanoloop.cli import Exit
from nanoloop.cli.output import say
from nanoloop.files import shipped
from nanoloop.words import did_you_mean

_WIDE = 100
"""The maximum width of a page, in columns."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop docs`."""
    parser.add_argument(
        "page", metavar="PAGE", nargs="?", help="the page to show; without it, all pages are listed"
    )
    parser.add_argument("--search", metavar="WORDS", help="list all lines that contain these words")


def run(args: Namespace) -> int:
    """List the pages, show one page, or search for words."""
    there = pages()
    if args.page is not None and args.page not in there:
        advice = did_you_mean(args.page, there, "`nanoloop docs` lists them")
        say(f"nanoloop: there is no page {args.page!r}: {advice}", err=True)
        return Exit.NOT_FOUND
    chosen = there if args.page is None else {args.page: there[args.page]}
    if args.search is not None:
        return _search(chosen, args.search)
    if args.page is None:
        _list(there)
    else:
        show(_text(there[args.page]))
    return Exit.DONE


def pages() -> Mapping[str, Path]:
    """Return all pages by name, such as `operations` or `platforms/telegram`."""
    folder = shipped("docs")
    found = sorted(folder.rglob("*.md"))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}


def show(markdown: str) -> None:
    """Show a page: formatted and in a pager at a terminal, otherwise as plain Markdown."""
    if not sys.stdout.isatty():
        say(markdown)
        return
    from rich.console import Console  # noqa: PLC0415 - slow, and only wanted here
    from rich.markdown import Markdown  # noqa: PLC0415 - as above

    console = Console()
    console.width = min(console.width, _WIDE)
    # `less -R` shows colours; other pagers would show the escape codes.
    os.environ.setdefault("LESS", "-R")
    pager = os.environ.get("PAGER") or shutil.which("less") or ""
    with console.pager(styles="less" in pager):
        console.print(Markdown(markdown))


def _list(there: Mapping[str, Path]) -> None:
    wide = max(map(len, there), default=0)
    for name, path in there.items():
        say(f"{name:{wide}}  {_title(_text(path))}")
    say("\nnanoloop docs PAGE shows a page; nanoloop docs --search WORDS searches all pages")


def _search(there: Mapping[str, Path], words: str) -> int:
    wanted = words.casefold().split()
    found = [
        f"{name}:{number}: {line.strip()}"
        for name, path in there.items()
        for number, line in enumerate(_text(path).splitlines(), 1)
        if all(word in line.casefold() for word in wanted)
    ]
    if not found:
        where = "the documentation" if len(there) > 1 else "that page"
        say(f"nanoloop: no line in {where} contains {words!r}", err=True)
        return Exit.NOT_FOUND
    say("\n".join(map(printable, found)))
    return Exit.DONE


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _title(text: str) -> str:
    """Return the first heading of a page."""
    found = re.search(r"^#+ +(.+)$", text, re.MULTILINE)
    return found[1] if found else ""
