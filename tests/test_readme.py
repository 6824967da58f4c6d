"""What the README shows of the code is the code's own: `python -m tests.test_readme` renews it."""

import ast
import re
from functools import partial
from pathlib import Path

import pytest

from nanoloop.events import Event
from nanoloop.providers.vendors import VENDORS
from nanoloop.settings import Settings  # noqa: F401 - loads every event there is

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"


def the_map():
    """One line a file: its name, and the first sentence of its docstring."""
    lines = []
    for path in sorted(ROOT.glob("nanoloop/**/*.py"), key=lambda p: (len(p.parts), p)):
        promise = ast.get_docstring(ast.parse(path.read_text())) or ""
        if path.name != "__init__.py" or path.parent.name in {"nanoloop", "cli"}:
            name = path.relative_to(ROOT / "nanoloop").as_posix()
            lines.append(f"- `{name}`: {promise.splitlines()[0]}")
    return "\n".join(lines)


def the_events():
    kinds = {
        kind.name(): kind for kind in Event.__subclasses__() if kind.__module__ == "nanoloop.events"
    }
    by_level = {}
    for name, kind in kinds.items():
        if kind.logged:
            by_level.setdefault(kind.level, []).append(f"`{name}`")
    levels = ("error", "warning", "info", "debug")
    return "\n".join(f"- {level}: {', '.join(by_level[level])}" for level in levels)


def the_example(name):
    return f"```python\n{(ROOT / 'examples' / name).read_text().strip()}\n```"


def the_vendors():
    lines = ["| word | vendor | key | address |", "|---|---|---|---|"]
    for word, vendor in VENDORS.items():
        key = " or ".join(f"`{name}`" for name in vendor.keys) or "none"
        known = [f"`{vendor.url}`"] * bool(vendor.url) + [f"`{vendor.address}`"] * bool(
            vendor.address
        )
        address = " or ".join(known) or "a file"
        lines.append(f"| `{word}` | {vendor.title} | {key} | {address} |")
    return "\n".join(lines)


PARTS = {
    "map": the_map,
    "events": the_events,
    "vendors": the_vendors,
    "bot": partial(the_example, "bot.py"),
    "speech": partial(the_example, "speech.py"),
}


def part(text, name):
    found = re.search(rf"<!-- {name} -->\n(.*?)\n<!-- end of {name} -->", text, re.DOTALL)
    assert found, f"README.md has no part {name!r}"
    return found[1]


@pytest.mark.parametrize("name", PARTS)
def test_the_readme_shows_what_is_there(name):
    assert part(README.read_text(), name) == PARTS[name]()


def test_every_file_that_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!http|#|attachment:)([^)]+)\)", README.read_text())
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def renew():
    text = README.read_text()
    for name, made in PARTS.items():
        text = text.replace(part(text, name), made())
    README.write_text(text)


if __name__ == "__main__":
    renew()
