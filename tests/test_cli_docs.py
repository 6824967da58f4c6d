"""`nanoloop docs`: the pages of this version, listed, shown and searched."""

import os
import sys
import tomllib

import pytest

from nanoloop.cli import main
from nanoloop.cli.docs import pages
from nanoloop.files import shipped
from tests.stages.command_line import CommandLine, Terminal, ended


def test_each_page_is_listed_with_its_title(capsys):
    assert main(["docs"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert len(pages()) > 2
    assert [line.split()[0] for line in listed[: len(pages())]] == [*pages()]
    assert any(line.split(maxsplit=1) == ["operations", "Operations"] for line in listed)


@pytest.mark.parametrize("name", pages())
def test_a_page_is_printed_as_it_was_written_where_no_terminal_is(name, capsys):
    assert main(["docs", name]) == 0
    assert capsys.readouterr().out == pages()[name].read_text(encoding="utf-8") + "\n"


def test_a_mistyped_page_gets_a_suggestion(capsys):
    assert main(["docs", "operatoins"]) == 4
    assert "did you mean 'operations'?" in capsys.readouterr().err


def test_words_are_found_on_any_page_with_their_place(capsys):
    assert main(["docs", "--search", "TITLE nanoloop.service"]) == 4
    assert "no line in the documentation contains" in capsys.readouterr().err
    assert main(["docs", "--search", "EVENT blocked"]) == 0
    found = capsys.readouterr().out.splitlines()
    assert any(line.startswith("operations:") for line in found)
    assert all("event" in line.casefold() and "blocked" in line for line in found)


def test_words_are_found_on_one_page_only_if_it_is_named(capsys):
    assert main(["docs", "architecture", "--search", "nanoloop"]) == 0
    assert all(line.startswith("architecture:") for line in capsys.readouterr().out.splitlines())


@pytest.mark.slow
async def test_in_a_terminal_a_page_is_shown_by_the_pager(tmp_path):
    nanoloop = CommandLine(tmp_path)
    pager = tmp_path / "pager"
    pager.write_text(f"#!{sys.executable}\nimport sys\nprint('PAGED', len(sys.stdin.read()) > 500)")
    pager.chmod(0o700)
    nanoloop.set(PAGER=str(pager), PATH=os.environ["PATH"])
    with Terminal() as terminal:
        async with nanoloop.started("docs", "operations", terminal=terminal) as process:
            await terminal.shows("PAGED True")
            assert await ended(process) == 0


def test_the_documentation_of_an_installed_package_is_in_it(tmp_path, monkeypatch):
    package = tmp_path / "nanoloop"
    (package / "docs").mkdir(parents=True)
    monkeypatch.setattr("nanoloop.files.__file__", str(package / "files.py"))
    assert shipped("docs") == package / "docs"
    (tmp_path / "pyproject.toml").touch()
    assert shipped("docs") == tmp_path / "docs"


def test_the_wheel_takes_along_what_the_program_reads():
    tree = tomllib.loads(shipped("pyproject.toml").read_text(encoding="utf-8"))
    taken = tree["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert taken == {name: f"nanoloop/{name}" for name in ("config/nanoloop.service", "docs")}
    assert all(shipped(name).exists() for name in taken)
