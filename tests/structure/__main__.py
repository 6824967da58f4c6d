"""The figures of the house, each beside its limit or its goal, and the walk of one "hello".

    python -m tests.structure [--names]

Limits are held by tests/test_structure.py, goals are only shown. With `--names` each figure lists
what it counts.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio

from nanoloop.session.session import Session
from tests.structure.house import House, parameters, settings_names
from tests.structure.walk import walk_in_memory, walk_of_app

CORE = ("nanoloop", "nanoloop/session", "nanoloop/memory")


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    most: float
    counted: Sequence[str] = ()
    kind: str = "goal"

    def __str__(self) -> str:
        is_over = self.value > self.most
        row = f"{self.name:42}{self.value:8,g}   {self.kind:5} {self.most:<8,g}{'over' * is_over}"
        return row.rstrip()


def limits(house: House) -> list[Figure]:
    """What may not become worse."""
    longest = max(house.files, key=lambda file: file.lines)
    made = list(house.constructors())
    widest = max(parameters(given) for _, given in made)
    wide = [where for where, given in made if parameters(given) == widest]
    counts = {
        "class names that stand twice": (0, house.names_of_several()),
        "files with one importer, in their folder": (12, house.with_one_importer()),
        "of them, such as the rule joins": (0, house.to_join()),
        "import depth": (14, house.longest_chain()),
        "__init__s that hide some in **": (0, [where for where, given in made if given.kwarg]),
        "classes of a session, object too": (3, [kind.__name__ for kind in Session.__mro__]),
        "stores that are not on the one engine": (0, house.off_the_engine()),
    }
    return [
        Figure("lines of the largest file", longest.lines, 700, [longest.path], kind="limit"),
        Figure("parameters of an __init__", widest, 10, wide, kind="limit"),
        *(Figure(name, len(of), most, of, kind="limit") for name, (most, of) in counts.items()),
    ]


def goals(house: House) -> list[Figure]:
    """What is wanted, and changes with what the project can do."""
    settings = settings_names()
    return [
        Figure("files", len(house.files), 140),
        Figure("lines", house.lines(), 34_000),
        Figure("lines of core", house.lines(*CORE), 9000),
        Figure("percent of lines in heads of files", round(house.head_percent, 1), 8),
        Figure("settings names", len(settings), 82, settings),
    ]


def walks() -> list[Figure]:
    """What one "hello" goes through."""
    small = anyio.run(walk_in_memory)
    with tempfile.TemporaryDirectory() as folder:
        whole = anyio.run(walk_of_app, Path(folder))
    return [
        Figure("files of a hello, in memory", len(small.files), 19, small.files),
        Figure("switches between them", small.switches, 150),
        Figure("files of a hello, in a whole app", len(whole.files), 22, whole.files),
        Figure("switches between them", whole.switches, 180),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.structure")
    parser.add_argument("--names", action="store_true", help="list what each figure counts")
    with_names = parser.parse_args().names
    house = House()
    for figure in (*goals(house), *limits(house), *walks()):
        listed = figure.counted if with_names else ()
        sys.stdout.writelines(f"{line}\n" for line in (figure, *(f"    {each}" for each in listed)))


if __name__ == "__main__":
    main()
