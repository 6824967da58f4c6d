"""What the README shows of the code is the code's own: `python -m tests.test_readme` renews it."""

import re
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from nanoloop.events import Event
from nanoloop.providers.vendors import VENDORS
from nanoloop.session.queue import FOLLOWS, Next
from nanoloop.settings import Settings  # noqa: F401 - loads every event there is
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.problems import shown

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [README, *ROOT.glob("docs/*.md")]


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


def the_platforms():
    lines = ["| setting | default | |", "|---|---|---|"]
    for name, field in PlatformSettings.model_fields.items():
        default = shown(field.default) if field.default not in ((), None) else "none"
        lines.append(f"| `{name}` | {default} | {field.description} |")
    return "\n".join(lines)


PARTS = {
    "platforms": the_platforms,
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_links_to_is_there(page):
    links = re.findall(r"\]\((?!http|#|attachment:)([^)]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_architecture_names_each_file_and_folder_on_top_and_no_other():
    table = re.findall(r"^\| (`.*?`) \|", ARCHITECTURE.read_text(), re.MULTILINE)
    named = {name.split("/")[0] for cell in table for name in re.findall("`(.*?)`", cell)}
    files = (path.relative_to(ROOT / "nanoloop") for path in ROOT.glob("nanoloop/**/*.py"))
    assert named == {file.parts[0] for file in files} - {"__init__.py", "__main__.py"}


def test_the_architecture_has_each_thing_that_a_chat_may_owe_next():
    text = ARCHITECTURE.read_text(encoding="utf-8")
    table = text.partition("| the session has | next |")[2].partition("\n\n")[0]
    named = re.findall(r"^\|[^|]+\| `(\w+)` \|", table, re.MULTILINE)
    assert named == [kind.__name__.removesuffix("Type") for kind in get_args(Next)]


def the_steps():
    lines = []
    for before, steps in FOLLOWS.items():
        by = {}
        for after, what in steps.items():
            by.setdefault(what, []).append(f"`{name_of(after)}`")
        said = "; ".join(f"{', '.join(after)}: {what}" for what, after in by.items())
        lines.append(f"| from `{name_of(before)}` | {said} |")
    return "\n".join(lines)


def name_of(stage):
    return stage.__name__.removesuffix("Type")


def test_the_architecture_has_each_step_that_a_chat_may_take_and_no_other():
    text = ARCHITECTURE.read_text(encoding="utf-8")
    table = text.partition("| a chat goes | to, and by what |\n|---|---|\n")[2]
    assert table.partition("\n\n")[0] == the_steps()


def renew():
    text = README.read_text()
    for name, made in PARTS.items():
        text = text.replace(part(text, name), made())
    README.write_text(text)


if __name__ == "__main__":
    renew()
