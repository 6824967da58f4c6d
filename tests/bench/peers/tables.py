"""The tables of the comparison, and which goals were met."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

from tests.bench.peers.measures import Found, Plan, a_turn, middle, quantile, times
from tests.bench.report import Report, say
from tests.bench.samples import ms

MB = 1e6
GOAL_OF_BARE = 0.23
GOAL_OF_PEERS = 0.2
GOAL_FLAT = 1.1
GOAL_CROWD = 1 / 2.5
GOAL_USERS = 200
"""How many users that is asked of; with more there only may be no error."""
GOAL_SUMMARY_MS = 5
GOAL_STALL_MS = 20
GOAL_IDLE_MB = 100
GOAL_IMPORT_MS = 60
GOAL_FIRST_MS = 350
DURABLE = ("nanoloop-jsonl", "nanoloop-sqlite")


def tell(report: Report, found: Found, plan: Plan) -> None:
    """All tables."""
    turn_table(report, found, plan)
    history_table(report, found)
    summary_table(report, found)
    crowd_table(report, found)
    rest_table(report, found)


def turn_table(report: Report, found: Found, plan: Plan) -> None:
    """The time of a turn, by how many there were."""
    marks = [str(turns) for turns in plan.checkpoints]
    rows = []
    for name, facts in found.items():
        taken = facts.get("turns", {})
        cells = [cell for mark in marks for cell in turn_cells(taken.get(mark))]
        last = taken.get(marks[-1]) or (list(taken.values()) or [None])[-1]
        written, read = (
            f"{a_turn(last, what):,.0f}" if last else "" for what in ("written", "read")
        )
        stopped = f"stopped at {facts['stopped']}" if "stopped" in facts else ""
        rows.append((name, *cells, written, read, stopped))
    columns = [cell for mark in marks for cell in (f"ms at {mark}", "p10 - p90", "p99")]
    report.table(
        "One durable turn, by the turns before it; bytes written and read by the last of them",
        ("", *columns, "written", "read", ""),
        rows,
    )


def turn_cells(rounds: Sequence[dict[str, Any]] | None) -> tuple[str, str, str]:
    """Median, spread and p99."""
    if not rounds:
        return "", "", ""
    taken = times(rounds)
    spread = f"{quantile(taken, 0.1) * 1e3:.1f} - {quantile(taken, 0.9) * 1e3:.1f}"
    return ms(median(taken)), spread, ms(quantile(taken, 0.99))


def history_table(report: Report, found: Found) -> None:
    """nanoloop's turn with long histories."""
    rows = [
        (
            f"{name}, {int(size):,} messages",
            *turn_cells(rounds),
            f"{a_turn(rounds, 'written'):,.0f}",
            f"{a_turn(rounds, 'read'):,.0f}",
        )
        for name, facts in found.items()
        for size, rounds in facts.get("histories", {}).items()
        if rounds
    ]
    columns = ("", "median ms", "p10 - p90", "p99", "written", "read")
    report.table("A turn of a chat that was there before the start", columns, rows)


def summary_table(report: Report, found: Found) -> None:
    """What a slow summary does to a chat, to its neighbour and to the event loop."""
    rows = []
    for name, facts in found.items():
        if "slow" not in facts:
            continue
        calm, slow = facts["calm"], facts["slow"]
        cells = [ms(tail(each, who)) for who in ("own", "other") for each in (calm, slow)]
        worst = [ms(tail(slow, who, 1)) for who in ("own", "other")]
        rows.append((name, *cells, *worst, ms(stall(slow))))
    report.table(
        "While the summary of a chat takes long: p99 of that chat and of another, best run, in ms",
        ("", "own, calm", "slow", "other, calm", "slow", "own worst", "other worst", "stall"),
        rows,
    )


def crowd_table(report: Report, found: Found) -> None:
    """Turns a second with many users."""
    rows = []
    for name, facts in found.items():
        for users, rounds in facts.get("crowds", {}).items():
            taken = times(rounds)
            errors = sum(each["errors"] for each in rounds)
            tail = ms(quantile(taken, 0.99)) if taken else ""
            rates = sorted(len(each["taken"]) / each["seconds"] for each in rounds)
            spread = f"{rates[0]:.0f} - {rates[-1]:.0f}"
            rows.append((f"{name}, {users} users", f"{median(rates):.0f}", spread, tail, errors))
    columns = ("", "turns a second", "least - most", "p99 ms", "errors")
    report.table("Users who speak again at once, a model that takes 50 ms", columns, rows)


def rest_table(report: Report, found: Found) -> None:
    """Memory, prompts, starts and sizes."""
    rows = []
    for name, facts in found.items():
        rows.append(
            (
                name,
                cell(facts.get("start_memory"), MB),
                cell(facts.get("memory"), MB),
                cell(facts.get("idle"), MB),
                *prompt_cells(facts.get("told")),
                cell(facts.get("import"), 1e-3),
                cell(facts.get("first"), 1e-3),
                cell(facts.get("installed"), MB),
            )
        )
    columns = (
        "",
        "MB at start",
        "at the end",
        "idle sessions",
        "sent a turn",
        "cached %",
        "not cached",
        "import ms",
        "first answer",
        "installed MB",
    )
    report.table("Memory, characters sent and the share of a prefix cache, starts", columns, rows)


def cell(value: float | None, unit: float) -> str:
    """A number in this unit, or nothing."""
    return "" if value is None else f"{value / unit:,.0f}"


def prompt_cells(counts: dict[str, int] | None) -> tuple[str, str, str]:
    """Characters a turn, the share that the request before had too, and what is left of them."""
    if not counts or not counts["compared"]:
        return "", "", ""
    share = counts["shared"] / counts["compared"]
    sent = counts["characters"] / counts["turns"]
    return f"{sent:,.0f}", f"{100 * share:.1f}", f"{sent * (1 - share):,.0f}"


def tail(runs: Sequence[dict[str, Any]], who: str, share: float = 0.99) -> float:
    """That quantile in the best run: what else the machine does only ever adds."""
    return min(quantile(sorted(run[who]), share) for run in runs)


def stall(runs: Sequence[dict[str, Any]]) -> float:
    """How long the event loop was gone at once, in the best run."""
    return min(run["stall"] for run in runs)


def judge(report: Report, found: Found, plan: Plan) -> None:
    """Compare with the goals; what was not measured is not judged."""
    say("")
    mark = str(plan.checkpoints[1])
    medians = {
        name: middle(facts["turns"][mark])
        for name, facts in found.items()
        if facts.get("turns", {}).get(mark)
    }
    for name in (name for name in DURABLE if name in medians):
        judge_turns(report, name, medians, found[name])
        judge_rest(report, name, found)
    if "command" in found.get(DURABLE[0], {}):
        what = "nanoloop chat -m, to its answer, beyond the SDK's import"
        report.goal(what, found[DURABLE[0]]["command"] * 1e3, GOAL_FIRST_MS, " ms")


def judge_turns(
    report: Report, name: str, medians: dict[str, float], facts: dict[str, Any]
) -> None:
    """The time of a turn beside others, and beside itself with a longer history."""
    own = medians[name]
    for other, value in medians.items():
        if not other.startswith("nanoloop"):
            limit = GOAL_OF_BARE if other == "bare" else GOAL_OF_PEERS
            report.goal(f"{name}: a turn, in turns of {other}", own / value, limit)
    sizes = [rounds for rounds in facts.get("histories", {}).values() if rounds]
    if len(sizes) < 2:
        return
    for what, values in (
        ("time", [middle(rounds) for rounds in sizes]),
        ("bytes written", [median(each["written"] for each in rounds) for rounds in sizes]),
    ):
        report.goal(
            f"{name}: {what}, longest history beside the shortest",
            values[-1] / values[0],
            GOAL_FLAT,
        )


def judge_rest(report: Report, name: str, found: Found) -> None:
    """Many users, summaries, memory and starts."""
    facts, bare = found[name], found.get("bare", {})
    for users, rounds in facts.get("crowds", {}).items():
        errors = sum(each["errors"] for each in rounds)
        report.goal(f"{name}: errors with {users} users", errors, 0)
        if users == GOAL_USERS and users in bare.get("crowds", {}):
            share = len(times(bare["crowds"][users])) / (len(times(rounds)) or 1)
            report.goal(f"{name}: {users} users, bare's turns of nanoloop's", share, GOAL_CROWD)
    if "import" in facts:
        report.goal("import nanoloop", facts["import"] * 1e3, GOAL_IMPORT_MS, " ms")
    if "idle" in facts:
        report.goal(f"{name}: idle sessions", facts["idle"] / MB, GOAL_IDLE_MB, " MB")
    if "slow" in facts:
        judge_summary(report, name, facts)


def judge_summary(report: Report, name: str, facts: dict[str, Any]) -> None:
    """What a summary that takes long does to others."""
    for who in ("own", "other"):
        more = tail(facts["slow"], who) - tail(facts["calm"], who)
        report.goal(
            f"{name}: p99 that a summary adds, {who} chat", more * 1e3, GOAL_SUMMARY_MS, " ms"
        )
    report.goal(f"{name}: longest stall", stall(facts["slow"]) * 1e3, GOAL_STALL_MS, " ms")
