"""Pictures of what `tests.bench.peers` measured; run by a Python that has matplotlib.

python -m tests.bench.plots RESULTS.json FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib as mpl

mpl.use("agg")

import matplotlib.pyplot as plt

Found = dict[str, dict[str, Any]]

OURS, BARE, PEER = "#0b7285", "#868e96", "#e8590c"
SHADES = ("#e8590c", "#c2255c", "#9c36b5", "#f08c00", "#5c940d", "#1971c2")
LEFT_OUT = ("nanoloop-sqlite-fsync",)
"""In the table only."""
LOADED = "nanoloop-jsonl"
PLAIN = "{x:g}"


def color(name: str) -> str:
    """One for each kind of system."""
    return OURS if name.startswith("nanoloop") else BARE if name == "bare" else PEER


def medians(facts: dict[str, Any]) -> dict[int, float]:
    """Milliseconds of the median turn, by the turns before it."""
    return {
        int(turns): median(took for each in rounds for took in each["taken"]) * 1e3
        for turns, rounds in facts.get("turns", {}).items()
    }


def loaded(facts: dict[str, Any]) -> dict[int, float]:
    """The same for chats that were there before the start."""
    return {
        int(messages) // 2: median(took for each in rounds for took in each["taken"]) * 1e3
        for messages, rounds in facts.get("histories", {}).items()
    }


def line(points: dict[int, float], **style: str) -> None:
    """One system."""
    places = sorted(points)
    plt.plot(places, [points[place] for place in places], marker="o", markersize=3, **style)


def turn_times(found: Found) -> None:
    """The time of a turn by how long the chat is."""
    shades = iter(SHADES)
    for name, facts in found.items():
        own = color(name)
        own = next(shades) if own == PEER else own
        line(medians(facts), label=name, color=own, linestyle="--" if "sqlite" in name else "-")
        if name == LOADED:
            line(loaded(facts), label=f"{name}, loaded history", color=own, linestyle=":")
    plt.xscale("log")
    plt.yscale("log")
    plt.gca().yaxis.set_major_formatter(PLAIN)
    plt.gca().yaxis.set_minor_formatter(PLAIN)
    plt.gca().xaxis.set_major_formatter("{x:,.0f}")
    plt.tick_params(labelsize=7, which="both")
    plt.xlabel("turns before it")
    plt.ylabel("ms, median")
    plt.title("One durable turn, with a model that takes no time", fontsize=10)
    plt.legend(fontsize=7, loc="center right")


def bars(title: str, unit: str, values: dict[str, float], *, digits: int, best: int) -> None:
    """One bar for each system, on top the longest (1) or the shortest (-1)."""
    names = sorted(values, key=lambda name: best * values[name])
    drawn = plt.barh(names, [values[name] for name in names], color=[color(n) for n in names])
    plt.bar_label(drawn, fmt=f"%.{digits}f", padding=3, fontsize=8)
    plt.margins(x=0.12)
    plt.xlabel(unit)
    plt.title(title, fontsize=10)


def typical_turn(found: Found) -> None:
    """The median turn where the window is full."""
    at = {name: medians(facts) for name, facts in found.items()}
    mark = max(min(points) for points in at.values() if points)
    values = {name: points.get(100) or points[mark] for name, points in at.items() if points}
    bars("One durable turn, 100 turns into a chat", "ms, median", values, digits=2, best=-1)


def prefix(found: Found) -> None:
    """What a provider's prefix cache would serve."""
    values = {
        name: 100 * facts["told"]["shared"] / facts["told"]["compared"]
        for name, facts in found.items()
        if facts.get("told", {}).get("compared")
    }
    bars("Of each prompt, what began the prompt before it too", "%", values, digits=0, best=1)


def crowd(found: Found) -> None:
    """Turns a second with two hundred users."""
    rates = {
        name: median(len(each["taken"]) / each["seconds"] for each in facts["crowds"]["200"])
        for name, facts in found.items()
        if facts.get("crowds", {}).get("200")
    }
    if rates:
        bars("200 users, a model that takes 50 ms", "turns a second", rates, digits=0, best=1)


def draw(found: Found, folder: Path) -> None:
    """Four pictures, or fewer where something was not measured."""
    for picture in (turn_times, typical_turn, prefix, crowd):
        plt.figure(figsize=(6.4, 3.6), layout="constrained")
        picture(found)
        if plt.gca().has_data():
            plt.savefig(folder / f"{picture.__name__}.png", dpi=110)
        plt.close()


def main() -> None:
    """Draw what the results file has into the folder."""
    found = json.loads(Path(sys.argv[1]).read_text())
    draw({name: facts for name, facts in found.items() if name not in LEFT_OUT}, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
