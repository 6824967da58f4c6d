"""Two hundred chats of nanoloop and what they notice of an odd one among them.

Chats and model are in one process, so that nothing but the loop is measured; see
`tests.bench.neighbours`, which knows more kinds of odd ones.
"""

from __future__ import annotations

import anyio

from tests.bench import neighbours
from tests.bench.neighbours import Kind, median, p99, stall
from tests.bench.peers.measures import Plan
from tests.bench.report import Report, say
from tests.bench.samples import ms

ALONE = "none"
CHOSEN = (ALONE, "messages", "summary")
"""Words in the names of the kinds that are of interest here."""
PERIODS, PERIOD_SECONDS = 2, 0.8


def measured(plan: Plan) -> dict[str, Kind]:
    """Some runs of each kind, or none where the machine is too busy for the odd one to be odd."""
    kinds = neighbours.kinds(plan.histories[-1], with_export=False)
    chosen = {name: kind for name, kind in kinds.items() if any(word in name for word in CHOSEN)}
    try:
        return anyio.run(neighbours.measure, chosen, plan.starts, PERIODS, PERIOD_SECONDS)
    except* AssertionError:
        say("not measured: the neighbours of an odd chat, on so busy a machine")
    return {}


def tell(report: Report, kinds: dict[str, Kind]) -> None:
    """One line for each kind that was run."""
    if not kinds:
        return
    report.table(
        f"{neighbours.CHATS} chats of nanoloop, one of them odd: the others' turns, best run",
        ("the odd one", "median ms", "p99 ms", "longest stall ms"),
        [
            (name, ms(kind.best(median)), ms(kind.best(p99)), ms(kind.best(stall)))
            for name, kind in kinds.items()
        ],
    )


def judge(report: Report, kinds: dict[str, Kind], tail_ms: float, stall_ms: float) -> None:
    """What the odd one adds to the others' p99, and how long the event loop was gone."""
    for name, kind in kinds.items():
        more = kind.best(p99) - kinds[ALONE].best(p99)
        report.goal(f"the odd one: {name}: added to the others' p99", more * 1e3, tail_ms, " ms")
        report.goal(f"the odd one: {name}: longest stall", kind.best(stall) * 1e3, stall_ms, " ms")
