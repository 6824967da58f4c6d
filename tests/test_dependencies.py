"""What nanoloop needs is little, and every bit of it is pinned."""

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nanoloop import errors
from nanoloop.errors import how_to_install

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CORE = PROJECT["dependencies"]
EXTRAS = PROJECT["optional-dependencies"]
NEEDED_BY_EXTRAS = [
    text
    for wanted in EXTRAS.values()
    for text in wanted
    if not text.startswith(f"{PROJECT['name']}[")  # which names other extras
]
HINTS = re.compile(
    r"""(?:how_to_install\(|= Plugin\(.*extra=|^    extra=)["'](\w+)["']""", re.MULTILINE
)
HINTED = {
    name for path in (ROOT / "nanoloop").rglob("*.py") for name in HINTS.findall(path.read_text())
}
"""The extras that messages name."""


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
    assert needed(CORE + NEEDED_BY_EXTRAS) <= pinned


def test_no_message_sends_anybody_to_another_projects_package():
    wrong = re.compile(r"pip install[^\n]* '?nanoloop(\[|\b(?!-agent))")
    told = [path for path in (ROOT / "nanoloop").rglob("*.py") if wrong.search(path.read_text())]
    assert told == []


@pytest.mark.parametrize("name", sorted(HINTED))
def test_a_hint_names_an_extra_that_there_is(name):
    assert name in EXTRAS
    hint = how_to_install(name)
    assert hint.endswith(f"{sys.executable} -m pip install 'nanoloop-agent[{name}]'")


def test_all_is_what_the_program_can_use():
    (everything,) = map(Requirement, EXTRAS["all"])
    assert everything.extras == EXTRAS.keys() - {"all", "dev"}


def test_the_tools_of_development_are_the_same_as_a_group_and_as_an_extra():
    assert PYPROJECT["dependency-groups"]["dev"] == EXTRAS["dev"]


def test_without_pip_the_hint_is_for_uv(monkeypatch):
    monkeypatch.setattr(errors, "find_spec", lambda _: None)
    wanted = f"uv pip install --python {sys.executable} 'nanoloop-agent[web]'"
    assert how_to_install("web").endswith(wanted)
