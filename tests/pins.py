"""The pins of what operators install, with the hashes of their files: `python -m tests.pins`.

It reads the versions from config/constraints.txt and the hashes from the pages of the package index
that pip is set up for, and writes config/requirements.txt.
"""

import os
import re
import ssl
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from html import unescape
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urldefrag
from urllib.request import urlopen

from packaging.requirements import Requirement
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).parent.parent
CONSTRAINTS = ROOT / "config" / "constraints.txt"
REQUIREMENTS = ROOT / "config" / "requirements.txt"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PYTHONS = ("3.11", "3.12", "3.13")
PLATFORMS = ("linux", "darwin")
_INTERPRETER = re.compile(r"py3|py2\.py3|cp3(\d+)")
_PLATFORM = re.compile(
    r"any|(many|musl)linux\w*_(x86_64|aarch64)|macosx_\w+_(x86_64|arm64|universal2)"
)
_HEAD = """\
# What config/constraints.txt pins of all that nanoloop and its extras need, and of what builds it,
# with the hashes of the wheels for Linux and macOS. Written by `python -m tests.pins`.
#
#   pip download --require-hashes --requirement config/requirements.txt --dest wheels
#   pip install --no-index --find-links wheels '.[web]'
"""


def roots() -> list[str]:
    """All that people install of it: with every extra, but not the tools of development."""
    project = PYPROJECT["project"]
    extras = project["optional-dependencies"]
    own = [text for name in extras.keys() - {"dev", "all"} for text in extras[name]]
    return [*project["dependencies"], *own, *PYPROJECT["build-system"]["requires"]]


def needed(requirements: list[str], environment: dict[str, str] | None = None) -> set[str]:
    """The names of all distributions that these bring in, with the extras that are asked for."""
    found: set[tuple[str, str]] = set()
    todo = [need for need in map(Requirement, requirements) if applies(need, "", environment)]
    while todo:
        wanted = todo.pop()
        for extra in {"", *wanted.extras}:
            asked = (canonicalize_name(wanted.name), extra)
            if asked not in found:
                found.add(asked)
                needs = map(Requirement, _requires(wanted.name))
                todo += [need for need in needs if applies(need, extra, environment)]
    return {name for name, _ in found}


def applies(requirement: Requirement, extra: str, environment: dict[str, str] | None) -> bool:
    """Whether it is needed there, for that extra."""
    given = {**(environment or {}), "extra": extra}
    return requirement.marker is None or requirement.marker.evaluate(given)


def _requires(name: str) -> list[str]:
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:  # it is for another platform or version: what it needs is unknown
        return []


def markers() -> dict[str, str]:
    """Each distribution that operators may need, with where; empty is everywhere."""
    places = [(python, platform) for python in PYTHONS for platform in PLATFORMS]
    found: dict[str, list[tuple[str, str]]] = {}
    for python, platform in places:
        system = {"linux": "Linux", "darwin": "Darwin"}[platform]
        environment = {
            "python_version": python,
            "python_full_version": f"{python}.9",
            "sys_platform": platform,
            "platform_system": system,
        }
        for name in needed(roots(), environment):
            found.setdefault(name, []).append((python, platform))
    return {
        name: "" if there == places else _marker(there) for name, there in sorted(found.items())
    }


def _marker(places: list[tuple[str, str]]) -> str:
    since = places[0][0]
    if places == [
        (python, platform) for python in PYTHONS if python >= since for platform in PLATFORMS
    ]:
        return f'python_version >= "{since}"'
    each = '(python_version == "{}" and sys_platform == "{}")'
    return " or ".join(each.format(*place) for place in places)


def pins(file: Path = CONSTRAINTS) -> dict[str, str]:
    """The version of each distribution that a file pins."""
    lines = (line.partition(";")[0].split(" ")[0] for line in file.read_text().splitlines())
    return {
        name: version for name, _, version in (line.partition("==") for line in lines) if version
    }


def hashes_in(file: Path = REQUIREMENTS) -> dict[str, list[str]]:
    """The hashes of each distribution."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in file.read_text().splitlines():
        if "==" in line and not line.startswith(("#", " ")):
            name = line.partition("==")[0]
        found.setdefault(name, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return {name: hashes for name, hashes in found.items() if name}


# The index


def indexes() -> list[str]:
    """The addresses of the indexes that pip is set up for."""
    shown = _pip("download", "--help")
    usual = re.search(r"\(default\s+(\S+?)\)", shown)
    assert usual, "pip names no index"
    own = _pip("config", "get", "global.index-url").strip()
    more = _pip("config", "get", "global.extra-index-url")
    return [own or os.environ.get("PIP_INDEX_URL") or usual[1], *more.split()]


def _pip(*words: str) -> str:
    command = [sys.executable, "-m", "pip", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def hashes(name: str, version: str, addresses: list[str]) -> Iterator[str]:
    """The hashes of the wheels that operators may install, each once."""
    found = {digest for address in addresses for digest in _listed(address, name, version)}
    yield from sorted(found)


def _listed(address: str, name: str, version: str) -> Iterator[str]:
    page = f"{address.rstrip('/')}/{name}/" + "index.html" * address.startswith("file:")
    try:
        with urlopen(page, context=ssl.create_default_context(), timeout=120) as answer:
            text = answer.read().decode()
    except OSError:
        return
    for link in re.findall(r'href="([^"]+)"', text):
        url, fragment = urldefrag(unescape(link))
        if fragment.startswith("sha256=") and _suits(unquote(url.rpartition("/")[2]), version):
            yield fragment.removeprefix("sha256=")


def _suits(file: str, version: str) -> bool:
    try:
        _, found, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, ValueError):
        return False
    return str(found) == version and any(map(_is_for_us, tags))


def _is_for_us(tag: Tag) -> bool:
    interpreter = _INTERPRETER.fullmatch(tag.interpreter)
    if interpreter is None or not _PLATFORM.fullmatch(tag.platform):
        return False
    if interpreter[1] is None or tag.abi == "abi3":
        return True
    return f"3.{interpreter[1]}" in PYTHONS and tag.abi in ("none", tag.interpreter)


def text() -> str:
    """The whole file; each distribution has to be pinned, and to have a wheel."""
    addresses, versions = indexes(), pins()
    lines = [_HEAD]
    for name, where in markers().items():
        found = [*hashes(name, versions[name], addresses)]
        assert found, f"the index has no wheel of {name} {versions[name]}"
        marker = f" ; {where}" if where else ""
        said = [f"{name}=={versions[name]}{marker}", *(f"    --hash=sha256:{one}" for one in found)]
        lines.append(" \\\n".join(said) + "\n")
    return "".join(lines)


if __name__ == "__main__":
    REQUIREMENTS.write_text(text())
