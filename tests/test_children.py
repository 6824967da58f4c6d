"""Child processes see what is on a list, and no key of ours."""

import ast
import json
import re
import subprocess
import sys

import pytest

from nanoloop import children
from tests.references import ROOT

SHOW = [sys.executable, "-c", "import json, os; print(json.dumps(dict(os.environ)))"]
KEYS = {
    "OPENAI_API_KEY": "sk-secret",
    "NANOLOOP_STORE__ENCRYPTION_KEY": "secret",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "LD_PRELOAD": "",
    "PYTHONSTARTUP": "secret.py",
}


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1")


def seen_by_run(**more):
    return json.loads(children.run(SHOW, capture_output=True, check=True, **more).stdout)


def seen_by_start(**more):
    with children.start(SHOW, stdout=subprocess.PIPE, **more) as process:
        return json.loads(process.stdout.read())


@pytest.mark.parametrize("seen", [seen_by_run, seen_by_start])
def test_a_child_sees_the_usual_variables_and_no_key(seen):
    found = seen()
    assert not KEYS.keys() & found.keys()
    assert {"PATH", "LC_ALL"} <= found.keys()
    assert "XDG_RUNTIME_DIR" not in found


@pytest.mark.parametrize("seen", [seen_by_run, seen_by_start])
def test_it_sees_what_it_is_given_too(seen):
    found = seen(keeps=["XDG_*"], adds={"LC_ALL": "C", "ANSWER": "42"})
    assert (found["XDG_RUNTIME_DIR"], found["LC_ALL"], found["ANSWER"]) == (
        "/run/user/1",
        "C",
        "42",
    )
    assert not KEYS.keys() & found.keys()


async def test_one_in_the_background_sees_no_more():
    done = await children.run_in_background(SHOW, adds={"ANSWER": "42"})
    found = json.loads(done.stdout)
    assert found["ANSWER"] == "42"
    assert not KEYS.keys() & found.keys()


STARTING = {
    "subprocess": {"run", "Popen", "call", "check_call", "check_output", "getoutput"},
    "anyio": {"run_process", "open_process"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
    "os": {"system", "popen", "fork", "execv", "execve", "execvp", "posix_spawn", "spawnv"},
    "multiprocessing": {"Process", "Pool"},
    "pty": {"spawn", "fork"},
}

LIKELY = re.compile(r"\b(subprocess|multiprocessing|pty|\w+_process|os\.(sy|p|f|ex|sp)\w+)\b")


def started_in(file):
    """The calls in a file that would start a process."""
    text = file.read_text(encoding="utf-8")
    if not LIKELY.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=module), attr=name)):
                if name in STARTING.get(module, ()):
                    yield f"{file.relative_to(ROOT)} calls {module}.{name}"
            case ast.ImportFrom(module=module, names=names):
                for each in names:
                    if each.name in STARTING.get(module, ()):
                        yield f"{file.relative_to(ROOT)} imports {module}.{each.name}"


def test_nothing_else_starts_a_process():
    files = sorted((ROOT / "nanoloop").rglob("*.py"))
    assert [said for file in files for said in started_in(file)] == [
        "nanoloop/children.py calls subprocess.Popen",
        "nanoloop/children.py calls subprocess.run",
        "nanoloop/children.py calls anyio.run_process",
        "nanoloop/children.py calls anyio.open_process",
    ]
