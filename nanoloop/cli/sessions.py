"""`nanoloop sessions`: what is stored, found, shown, exported, kept in order.

What only reads works while a daemon runs; what writes needs the data folder for itself.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial

import anyio

from nanoloop.cli import Exit, load_settings
from nanoloop.cli.amounts import duration, whole
from nanoloop.cli.listing import show_list
from nanoloop.cli.removal import delete, forget, prune
from nanoloop.cli.transcript import export, show, stats
from nanoloop.cli.upkeep import archive, fork, load, rename, unarchive, undo
from nanoloop.cli.usage import GROUPS, usage
from nanoloop.cli.where import condition

_READ_OR_WRITTEN = {
    "list": show_list,
    "show": show,
    "stats": stats,
    "export": export,
    "usage": usage,
    "import": load,
    "rename": rename,
    "fork": fork,
    "undo": undo,
    "archive": archive,
    "unarchive": unarchive,
}
_ASKING = {"delete": delete, "prune": prune, "forget": forget}

_Action = Callable[..., ArgumentParser]


def add_arguments(parser: ArgumentParser) -> None:
    """What `nanoloop sessions` takes."""
    common = ArgumentParser(add_help=False)
    for flag in ("--config", "--data", "--model", "--log-level"):
        # Taken here too, so that they may stand last; left out, those before the action count.
        common.add_argument(flag, default=SUPPRESS, help=SUPPRESS)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")

    def action(name: str, promise: str, *, named: bool = True) -> ArgumentParser:
        about = f"{promise[0].upper()}{promise[1:]}. Settings as in `nanoloop sessions --help`."
        parser = actions.add_parser(name, help=promise, description=about, parents=[common])
        if named:
            parser.add_argument(
                "name",
                metavar="NAME",
                help="its id, its key such as telegram:42, or chat's --session",
            )
        return parser

    _add_reading(action)
    _add_changing(action)
    _add_removing(action)


def _add_reading(action: _Action) -> None:
    listed = action("list", "list them, the last active first", named=False)
    listed.add_argument("--search", metavar="TEXT", help="with this in id, key or title")
    listed.add_argument("--text", metavar="WORDS", help="with a message that has these words")
    listed.add_argument("--agent", metavar="NAME", help="answered by this agent")
    listed.add_argument("--older-than", type=duration, metavar="AGE", help="unused for 30d, 12h")
    _add_where(listed)
    listed.add_argument(
        "--limit", type=partial(whole, least=1), metavar="N", help="at most so many"
    )
    listed.add_argument("--archived", action="store_true", help="those put away, no others")
    listed.add_argument("--json", action="store_true", help="one JSON array, for scripts")
    used = action("usage", "add up what all conversations have taken", named=False)
    used.add_argument("--by", choices=tuple(GROUPS), default="agent", help="(%(default)s)")
    _add_where(used)
    used.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    shown = action("show", "show a conversation")
    shown.add_argument(
        "--last", type=whole, default=20, metavar="N", help="messages; 0 is all (%(default)s)"
    )
    counted = action("stats", "count what a conversation is made of")
    counted.add_argument("--json", action="store_true", help="one JSON object, for scripts")
    exported = action("export", "write a whole conversation to standard output")
    exported.add_argument(
        "--format", choices=("json", "yaml", "md"), default="json", help="(%(default)s)"
    )


def _add_where(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--where",
        type=condition,
        action="append",
        default=[],
        metavar="CONDITION",
        help="such as entries>100, size>1MB, key~telegram, updated_at<30d (before that), agent= "
        "(without one); may be repeated",
    )


def _add_changing(action: _Action) -> None:
    loaded = action(
        "import", "take in a file: an export, Magent's JSON, nanobot's JSONL", named=False
    )
    loaded.add_argument("file", metavar="FILE", help="the file; - is standard input")
    renamed = action("rename", "give a conversation another title")
    renamed.add_argument("title", metavar="TITLE", help="what it is called from now on")
    forked = action("fork", "copy a conversation, whole or up to a message")
    forked.add_argument(
        "--from", dest="upto", metavar="SEQ", help="the last entry of the copy: its number or id"
    )
    for parser in (loaded, forked):
        parser.add_argument(
            "--as", dest="new_name", metavar="NAME", help="its name, for `chat --session NAME` too"
        )
    action("undo", "take back the last exchange of a conversation")
    action("archive", "put a conversation away: kept, and listed with --archived only")
    action("unarchive", "get a conversation back that was put away")


def _add_removing(action: _Action) -> None:
    deleted = action("delete", "delete a conversation for good")
    pruned = action("prune", "put away those long unused, or delete those put away", named=False)
    pruned.add_argument(
        "--older-than", type=duration, required=True, metavar="AGE", help="unused for 30d, 12h"
    )
    pruned.add_argument("--keep", type=whole, default=0, metavar="N", help="spare the newest N")
    pruned.add_argument(
        "--archived", action="store_true", help="delete, for good, those that were put away"
    )
    pruned.add_argument("--dry-run", action="store_true", help="only say which ones")
    erased = action("forget", "erase messages of a conversation for good, its summary with them")
    erased.add_argument("seqs", metavar="SEQ", help="their numbers as `show` has them: 12, 12-15")
    for parser in (deleted, pruned, erased):
        parser.add_argument("--yes", action="store_true", help="delete without asking")


def run(args: Namespace) -> int:
    """Do what was asked for; raises `SessionNotFound` with the nearest names."""
    settings = load_settings(args)
    if args.action in _ASKING:
        return _ASKING[args.action](args, settings)
    anyio.run(_READ_OR_WRITTEN[args.action], args, settings)
    return Exit.DONE
