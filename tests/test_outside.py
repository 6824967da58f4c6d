"""A package of somebody else, installed as its wheel, has one of everything and works."""

import ast
import json
import os
import re
import shutil
import subprocess
import time
from contextlib import contextmanager

import pytest

from tests.wheels import ROOT, Environment, build

OUTSIDE = ROOT / "tests" / "outside"
SETTINGS = """
data = "data"
model = "harbour:talk"
summary_model = "harbour:gist"
message_buffer_limit = 6
message_buffer_min = 2

[agents.default]
tools = ["tide"]

[providers.harbour]
greeting = "Ahoy there,"

[tools.tide]
metres = 4.5

[store]
url = "cupboard:"

[channels.terminal]
enabled = false

[channels.pigeonhole]
folder = "box"
users = ["*"]
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh one with the two wheels, and beside that only pytest."""
    folder = tmp_path_factory.mktemp("outside")
    package = shutil.copytree(OUTSIDE, folder / "package")
    made = Environment(folder / "env")
    made.install(
        build(ROOT, folder), build(package, folder), "pytest", "pytest-timeout", "nanoloop-agent"
    )
    return made


@pytest.fixture
def home(tmp_path):
    folder = tmp_path / ".config" / "nanoloop"
    folder.mkdir(parents=True)
    (folder / "nanoloop.toml").write_text(SETTINGS)
    (tmp_path / "box").mkdir()
    return tmp_path


def test_it_takes_nothing_that_is_private_and_nothing_of_these_tests():
    for path in OUTSIDE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in getattr(node, "names", [])]
            origin = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            parts = [f"{origin}{name}".split(".") for name in names]
            assert [each for each in parts if each[0] == "tests"] == [], path
            assert [each for each in parts if any(one.startswith("_") for one in each)] == [], path
            if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
                assert ast.unparse(node.value) == "self", path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_passes_the_suites_that_come_with_nanoloop(environment, tmp_path):
    tests = shutil.copytree(OUTSIDE / "tests", tmp_path / "tests")
    shutil.copy(OUTSIDE / "pyproject.toml", tmp_path)
    done = environment.run("pytest", "-q", tests, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 100  # the suites are found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_daemon_serves_with_all_of_it(environment, home):
    chat = home / "box" / "ann.jsonl"
    with running(environment, home) as daemon:
        assert said_to(chat, "hello", daemon) == "Ahoy there, hello"
        assert said_to(chat, "the tide at Brest?", daemon) == "Ahoy there, 4.5 m at Brest"
        for number in range(6):
            said_to(chat, f"My boat is number {number}", daemon)
        comes(lambda: "My boat is number 0" in shown(environment, home), daemon)
    with running(environment, home) as daemon:  # all of it is still there, and nothing said twice
        assert said_to(chat, "are you back?", daemon) == "Ahoy there, are you back?"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_one_chats_with_it_and_the_doctor_is_content(environment, home):
    words = ("nanoloop", "chat", "-m", "hello", "--session", "quay")
    done = environment.run(*words, cwd=home, HOME=home)
    assert (done.returncode, done.stdout) == (0, "Ahoy there, hello\n"), done.stderr
    done = environment.run("nanoloop", "doctor", cwd=home, HOME=home)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pigeonhole" in done.stdout


def shown(environment, home):
    return environment.run(
        "nanoloop", "sessions", "show", "pigeonhole:ann", cwd=home, HOME=home
    ).stdout.partition("Summary")[2]


@contextmanager
def running(environment, home):
    """`nanoloop run` in that folder meanwhile."""
    env = {"PATH": f"{environment.folder}/bin:{os.defpath}", "HOME": str(home)}
    daemon = subprocess.Popen(
        ["nanoloop", "run"], cwd=home, env=env, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    try:
        yield daemon
    finally:
        daemon.terminate()
        daemon.communicate(timeout=30)


def said_to(chat, text, daemon):
    """Say it as a person, and wait for the answer."""
    before = len(lines_of(chat))
    with chat.open("a") as file:
        file.write(json.dumps({"id": f"{before}", "sender": "ann", "text": text}) + "\n")
    comes(lambda: len(lines_of(chat)) == before + 2, daemon)
    return lines_of(chat)[-1]["text"]


def lines_of(chat):
    return [json.loads(line) for line in chat.read_text().splitlines()] if chat.exists() else []


def comes(is_there, daemon, *, seconds=30):
    """Wait until it is so, while the daemon lives."""
    give_up = time.monotonic() + seconds
    while not is_there():
        assert daemon.poll() is None, daemon.stderr.read().decode()
        assert time.monotonic() < give_up
        time.sleep(0.05)
