"""`nanoloop sessions list`: which ones there are, as a table or as JSON."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone

from nanoloop.channels.screen import printable
from nanoloop.cli.amounts import age, size
from nanoloop.cli.name import opened
from nanoloop.protocols import SessionInfo
from nanoloop.search import found, says
from nanoloop.session.entry import rfc3339
from nanoloop.settings import Settings


async def show_list(args: Namespace, settings: Settings) -> None:
    """Print the sessions that were asked for, the last active first."""
    async with opened(settings) as store:
        infos = [info async for info in store.list() if info.archived == args.archived]
        is_empty = not infos
        infos = _chosen(infos, args)
        if args.text:
            infos = [info for info in infos if await says(store, info.id, args.text)]
    infos = infos[: args.limit]
    if args.json:
        print(json.dumps([_as_json(info) for info in infos], ensure_ascii=False, indent=2))
    elif infos:
        print(table(infos))
    elif is_empty:
        which = "archived session" if args.archived else "session"
        print(f"no {which} in {settings.data} yet: `nanoloop chat` begins one", file=sys.stderr)
    else:
        print("no session is like that", file=sys.stderr)


def _chosen(infos: Sequence[SessionInfo], args: Namespace) -> list[SessionInfo]:
    infos = sorted(infos, key=lambda info: info.updated_at, reverse=True)
    if args.search:
        infos = found(infos, args.search)
    infos = [info for info in infos if all(holds(info) for holds in args.where)]
    if args.agent:
        infos = [info for info in infos if info.agent == args.agent]
    return infos if args.older_than is None else older(infos, args.older_than)


def older(infos: Iterable[SessionInfo], least: timedelta) -> list[SessionInfo]:
    """Those unused for so long."""
    before = datetime.now(timezone.utc) - least
    return [info for info in infos if info.updated_at < before]


def _as_json(info: SessionInfo) -> dict[str, object]:
    facts = asdict(info)
    return {k: rfc3339(v) if isinstance(v, datetime) else v for k, v in facts.items()}


def table(infos: Sequence[SessionInfo]) -> str:
    """A line each: when, how many, how large, which."""
    wide = max(2, *(len(info.id) for info in infos))
    head = f"{'LAST ACTIVE':15}  {'ENTRIES':>7}  {'PENDING':>7}  {'SIZE':>8}  {'ID':{wide}}  TITLE"
    return "\n".join((head, *(_row(info, wide) for info in infos)))


def _row(info: SessionInfo, wide: int) -> str:
    marks = [f"agent {info.agent}"] if info.agent else []
    marks += ["no answer yet"] if info.awaiting else []
    title = " ".join(printable(info.title).split()) + (f" ({', '.join(marks)})" if marks else "")
    counts = f"{info.entries:7}  {info.pending:7}  {size(info.size):>8}"
    return f"{age(info.updated_at):15}  {counts}  {info.id:{wide}}  {title}".rstrip()
