"""`nanoloop sessions usage`: what all conversations together have taken, by whom or when."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from nanoloop.cli.amounts import size
from nanoloop.cli.name import opened
from nanoloop.protocols import SessionInfo
from nanoloop.settings import Settings

GROUPS: dict[str, Callable[[SessionInfo], str]] = {
    "agent": lambda info: info.agent or "no agent",
    "channel": lambda info: (info.key or "").partition(":")[0] or "no channel",
    "month": lambda info: info.updated_at.strftime("%Y-%m"),
}


@dataclass(slots=True)
class Total:
    """What some sessions take together."""

    sessions: int = 0
    entries: int = 0
    size: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0

    def add(self, info: SessionInfo) -> None:
        """One more session."""
        self.sessions += 1
        for name in ("entries", "size", "tokens_in", "tokens_out", "tokens_cached"):
            setattr(self, name, getattr(self, name) + getattr(info, name))


async def usage(args: Namespace, settings: Settings) -> None:
    """Print the totals of each group, and of all."""
    async with opened(settings) as store:
        infos = [info async for info in store.list() if all(c(info) for c in args.where)]
    totals, everything = totals_of(infos, GROUPS[args.by])
    if args.json:
        groups = {name: asdict(total) for name, total in totals.items()}
        print(json.dumps({"groups": groups, "all": asdict(everything)}, indent=2))
    else:
        print(_table(args.by, {**totals, "TOTAL": everything}))


def totals_of(
    infos: Iterable[SessionInfo], group: Callable[[SessionInfo], str]
) -> tuple[dict[str, Total], Total]:
    """The total of each group in order of their names, and that of all."""
    totals: dict[str, Total] = {}
    everything = Total()
    for info in infos:
        totals.setdefault(group(info), Total()).add(info)
        everything.add(info)
    return dict(sorted(totals.items())), everything


def _table(by: str, totals: dict[str, Total]) -> str:
    wide = max(len(name) for name in (by, *totals))
    head = (
        f"{by.upper():{wide}}  {'SESSIONS':>8}  {'ENTRIES':>9}  {'SIZE':>8}  "
        f"{'TOKENS IN':>11}  {'CACHED':>11}  {'OUT':>11}"
    )
    return "\n".join((head, *(_row(name, wide, total) for name, total in totals.items())))


def _row(name: str, wide: int, total: Total) -> str:
    return (
        f"{name:{wide}}  {total.sessions:8}  {total.entries:9}  {size(total.size):>8}  "
        f"{total.tokens_in:11}  {total.tokens_cached:11}  {total.tokens_out:11}"
    )
