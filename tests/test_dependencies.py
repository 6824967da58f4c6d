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
from tests import pins

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


def test_each_pin_of_an_operator_has_hashes_and_is_that_of_the_constraints():
    found, pinned = pins.pins(pins.REQUIREMENTS), pins.pins()
    where = pins.markers()
    assert found == {name: pinned[name] for name in where}, "python -m tests.pins"
    assert pins.hashes_in().keys() == where.keys()
    assert all(pins.hashes_in().values())
    lines = pins.REQUIREMENTS.read_text().splitlines()
    marked = {line.partition("==")[0] for line in lines if " ; " in line}
    assert marked == {name for name, marker in where.items() if marker}


def test_the_pins_name_no_place():
    for file in (pins.CONSTRAINTS, pins.REQUIREMENTS):
        said = file.read_text()
        assert "//" not in said
        assert "index-url" not in said


@pytest.mark.parametrize(
    ("file", "is_for_us"),
    [
        ("a-1.0-py3-none-any.whl", True),
        ("a-1.0-cp312-cp312-manylinux_2_28_x86_64.whl", True),
        ("a-1.0-cp39-abi3-macosx_11_0_arm64.whl", True),
        ("a-1.0-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a-1.0-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("a-1.0-cp312-cp312-win_amd64.whl", False),
        ("a-1.1-py3-none-any.whl", False),
        ("a-1.0.tar.gz", False),
    ],
)
def test_hashes_are_of_the_wheels_that_operators_may_install(file, is_for_us):
    assert pins._suits(file, "1.0") is is_for_us


def test_the_hashes_of_a_page_are_those_of_its_wheels(tmp_path):
    (tmp_path / "a").mkdir()
    links = "".join(
        f'<a href="https://x/a-{name}#sha256={digest}">a</a>'
        for name, digest in (("1.0-py3-none-any.whl", "ab"), ("1.0.tar.gz", "cd"))
    )
    (tmp_path / "a" / "index.html").write_text(links)
    assert [*pins.hashes("a", "1.0", [f"file://{tmp_path}"])] == ["ab"]


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
