"""What README and docs tell a reader to type works: Python runs, commands parse, settings load."""

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields

import pytest
import yaml

from nanoloop.cli import actions_of, whole_parser
from nanoloop.errors import SettingsError
from nanoloop.events import Event
from nanoloop.settings import Settings
from tests.packages import names_what_is_gone
from tests.references import ROOT

PAGES = [ROOT / "README.md", *sorted((*ROOT.glob("docs/**/*.md"), *ROOT.glob(".github/*.md")))]
NOT_RUN = {
    (
        "docs/api.md",
        "client = openai.OpenAI",
    ): "needs a server; tests/test_web_openai_session.py asks one so",
    (
        "docs/embedding.md",
        "import anyio\n\nfrom nanoloop import AgentLoop\n\n\ndef timer",
    ): "needs a key; tests/test_embedding.py gives names that need none",
    (
        "docs/platforms/index.md",
        '"""What is said in voice messages',
    ): "tests/test_transcriber.py runs it",
}
"""Blocks of Python that are not run here, by their page and how they begin, and why."""
BY_EXAMPLE = {"docs/examples.md"}
"""Pages that show files of examples/, which tests/test_examples.py runs."""
SHOWN_ONLY = {"mermaid"}
"""Pictures, which a browser draws."""
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def blocks(language):
    """Each block of that language with its page."""
    found = []
    for page in PAGES:
        for indent, kind, text in BLOCK.findall(page.read_text()):
            if kind == language:
                plain = re.sub(f"^{indent}", "", text, flags=re.MULTILINE)
                found.append((str(page.relative_to(ROOT)), plain))
    return found


def each(found):
    names = [f"{page}-{number}" for number, (page, _) in enumerate(found)]
    return pytest.mark.parametrize(("page", "text"), found, ids=names)


def is_run(page, text):
    left = (text.startswith(begin) for where, begin in NOT_RUN if where == page)
    return page not in BY_EXAMPLE and not any(left)


@each([block for block in blocks("python") if is_run(*block)])
def test_python_in_a_page_runs(page, text, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", text],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stderr) == (0, ""), page
    promised = re.findall(r"print\(.*\)  # (.*)$", text, re.MULTILINE)
    assert [line for line in promised if line not in done.stdout.splitlines()] == []


def test_python_that_is_not_run_is_there():
    shown = blocks("python")
    left = [(page, begin) for page, begin in NOT_RUN if not _is_shown(shown, page, begin)]
    assert left == []


def _is_shown(shown, page, begin):
    return any(where == page and text.startswith(begin) for where, text in shown)


SUM = "0" * 64
"""For the SUM of a file, which is the only stand-in that a parser refuses."""


def commands_in(text):
    """The words behind `nanoloop` of each such command in these lines."""
    for line in text.replace("\\\n", " ").splitlines():
        if not re.search(r"(^|[;|&] *)nanoloop\b", line):
            continue  # another program's, whose quotes may go on in the next line
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";|&<>")
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            words.append(SUM if word == "SUM" else word)
            if set(word) <= set(";|&<>"):
                if words[0] == "nanoloop":
                    yield words[1:-1]
                words = []


@each(blocks("sh"))
def test_commands_in_a_page_are_ones_that_there_are(page, text):
    for words in commands_in(text):
        whole_parser().parse_args(words)
    modules = re.findall(r"python -m (tests[\w.]*)", text)
    assert [name for name in modules if not is_there(name)] == [], page


def is_there(module):
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__main__.py").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_a_sentence_are_ones_that_there_are(page):
    prose = BLOCK.sub("", page.read_text())
    told = [" ".join(said.split()) for said in re.findall(r"`(nanoloop [a-z][^`]+)`", prose)]
    assert [said for said in told if not is_known(*next(commands_in(said)))] == []


def is_known(name, *words):
    """Whether there are such a command, action and options; what they take may be left out."""
    parser = actions_of(whole_parser()).get(name)
    actions = actions_of(parser) if parser else {}
    if actions and words and words[0] != "…":
        parser = actions.get(words[0])
    options = {word for word in words if word.startswith("--")}
    return parser is not None and options <= parser._option_string_actions.keys()


@each(blocks("toml"))
def test_settings_in_a_page_are_taken(page, text, tmp_path, monkeypatch):
    if names_what_is_gone(text):
        pytest.skip("its channel's folder is gone")
    for name in [name for name in os.environ if name.startswith("NANOLOOP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OPENAI_API_KEY", "a key")
    (tmp_path / "nanoloop.toml").write_text(text)
    Settings.load(config=str(tmp_path / "nanoloop.toml"), flags={})


OF_EXAMPLES = {"NANOLOOP_CHANNELS__IRC__PASSWORD", "NANOLOOP_PROVIDERS__PARROT__KEY"}
"""Settings of plugins that are not installed here."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_variables_in_a_page_are_settings(page):
    named = set(re.findall(r"\bNANOLOOP_[A-Z_]*[A-Z]\b", page.read_text())) - OF_EXAMPLES
    assert {name for name in named if not is_setting(name)} == set()


def is_setting(variable):
    try:
        Settings.load(env={variable: "any"}, flags={})
    except SettingsError as error:  # it may want another value
        return "no such setting" not in str(error)
    return True


def test_every_block_is_in_a_language_that_is_tried_here():
    found = {kind for page in PAGES for _, kind, _ in BLOCK.findall(page.read_text())}
    assert found - SHOWN_ONLY <= {"json", "python", "sh", "toml", "yaml"}


@each(blocks("yaml"))
def test_yaml_in_a_page_can_be_read(page, text):
    assert yaml.safe_load(text), page


@each(blocks("json"))
def test_a_line_of_the_log_in_a_page_is_one_that_there_is(page, text):
    line = json.loads(text)
    kind = {kind.name(): kind for kind in Event.__subclasses__()}[line["event"]]
    assert line.keys() - {"event", "level", "timestamp"} == {each.name for each in fields(kind)}
    assert line.get("level", kind.level) == kind.level, page
