"""What nanoloop needs is little, and every bit of it is pinned."""

import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nanoloop.errors import how_to_install

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = PROJECT["dependencies"]
EXTRAS = [
    text
    for wanted in PROJECT["optional-dependencies"].values()
    for text in wanted
    if not text.startswith("nanoloop[")  # which names other extras
]


def needed(requirements):
    """The names of all distributions that these bring in, with the extras that are asked for."""
    found, todo = set(), [Requirement(text) for text in requirements]
    while todo:
        wanted = todo.pop()
        for extra in {"", *wanted.extras}:
            asked = (canonicalize_name(wanted.name), extra)
            if asked not in found:
                found.add(asked)
                needs = map(Requirement, requires(wanted.name))
                todo += [need for need in needs if applies(need, extra)]
    return {name for name, _ in found}


def requires(name):
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        pytest.fail(f"{name} is needed and not installed")


def applies(requirement, extra):
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def test_an_extra_that_is_asked_for_counts_too():
    assert needed(["openai[aiohttp]"]) - needed(["openai"]) >= {"aiohttp", "multidict", "yarl"}


def test_the_core_is_at_most_33_distributions():
    # The SDK and its aiohttp client, the owner's choice, are 15 of them.
    assert len(needed(CORE)) <= 33


def test_every_distribution_is_pinned():
    lines = (ROOT / "config" / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0] for line in lines if "==" in line}
    assert needed(CORE + EXTRAS) <= pinned


def test_no_message_sends_anybody_to_another_projects_package():
    told = [path for path in (ROOT / "nanoloop").rglob("*.py") if "nanoloop[" in path.read_text()]
    assert told == []
    assert how_to_install("redis").endswith("in nanoloop's folder, pip install '.[redis]'")
