"""What pages show of the code is the code's own: `python -m tests.test_readme` renews it."""

import re
from typing import get_args

import pytest

from nanoloop.session.queue import FOLLOWS, Next
from tests.demo_picture import PICTURE, demo_lines, picture
from tests.packages import sections_without_what_is_gone
from tests.references import PARTS, ROOT, part, renew

README = ROOT / "README.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
PAGES = [README, *ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/*.md")]


@pytest.mark.parametrize(("page", "name"), [(page, name) for page in PARTS for name in PARTS[page]])
def test_a_page_shows_what_is_there(page, name):
    shown = sections_without_what_is_gone(part((ROOT / page).read_text(), name, page))
    assert shown == f"{PARTS[page][name]()}\n"


def test_the_picture_shows_what_the_demo_prints():
    assert PICTURE.read_text(encoding="utf-8") == picture(demo_lines())


def test_the_readme_fits_on_200_lines():
    assert len(README.read_text().splitlines()) <= 200


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_place_that_a_page_links_to_is_there(page):
    links = re.findall(r"\]\((?!http|attachment:)([^)]+)\)", page.read_text())
    assert [link for link in links if not is_there(page, *link.partition("#"))] == []


def is_there(page, path, _, anchor):
    place = page.parent / path if path else page
    return place.exists() and (not anchor or anchor in anchors(place.read_text()))


def anchors(text):
    """As GitHub and MkDocs make them of headings."""
    plain = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    titles = re.findall("^#+ (.*)$", plain, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


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


if __name__ == "__main__":
    renew()
