"""Installed from its wheel, it says truly how to install the rest."""

import os
import re

import pytest

from tests.test_dependencies import HINTED
from tests.wheels import ROOT, Environment, build, write_wheel

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PIP = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
PIP["PIP_CONSTRAINT"] = str(ROOT / "config" / "constraints.txt")
"""Where pip looks, as on this machine, and the versions that are tested."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def environment(wheel, tmp_path):
    """One that has the wheel, and all libraries that are here."""
    made = Environment(tmp_path / "env")
    made.share_libraries()
    made.install("--no-deps", wheel)
    return made


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory):
    """One that has the wheel and what that needs; the hints add to it."""
    made = Environment(tmp_path_factory.mktemp("fresh") / "env")
    made.install(wheel)
    return made


KEY = {"OPENAI_API_KEY": "none"}
TOLD = {
    "pictures": (["doctor"], KEY),
    "web": (["serve"], KEY),
    "encrypt": (["sessions", "list"], {"NANOLOOP_STORE__ENCRYPTION_KEY": "a key"}),
    "redis": (["sessions", "list"], {"NANOLOOP_STORE__URL": "redis://127.0.0.1:9"}),
    "postgres": (["sessions", "list"], {"NANOLOOP_STORE__URL": "postgresql://127.0.0.1:9/bot"}),
    "anthropic": (
        ["chat", "-m", "hi"],
        {"NANOLOOP_MODEL": "anthropic:a-model", "ANTHROPIC_API_KEY": "none"},
    ),
    "socks": (["doctor"], KEY | {"HTTPS_PROXY": "socks5://127.0.0.1:9"}),
    "local": (["chat", "-m", "hi"], {"NANOLOOP_MODEL": "/nowhere/my.gguf"}),
    "telegram": (["run"], KEY | {"NANOLOOP_CHANNELS__TELEGRAM__TOKEN": "1:a"}),
    "discord": (["run"], KEY | {"NANOLOOP_CHANNELS__DISCORD__TOKEN": "a"}),
    "slack": (
        ["run"],
        KEY | {"NANOLOOP_CHANNELS__SLACK__TOKEN": "a", "NANOLOOP_CHANNELS__SLACK__APP_TOKEN": "a"},
    ),
    "matrix": (
        ["run"],
        KEY
        | {
            "NANOLOOP_CHANNELS__MATRIX__HOMESERVER": "http://127.0.0.1:9",
            "NANOLOOP_CHANNELS__MATRIX__USER": "@bot:example.org",
            "NANOLOOP_CHANNELS__MATRIX__TOKEN": "a",
        },
    ),
    "mcp": (["tools"], {"NANOLOOP_TOOLS__SERVERS__FILES__URL": "http://127.0.0.1:9/mcp"}),
}
"""What tells that an extra is missing: a command and the settings of its environment.

In this order: some extras bring in what belongs to another one too.
"""
BROUGHT_BY = {
    **dict.fromkeys(TOLD),
    "encrypt": "cryptography",
    "postgres": "asyncpg",
    "pictures": "PIL",
    "local": "xllamacpp",
    "socks": "socksio",
    "web": "uvicorn",
    "matrix": "nio",
    "slack": "slack_sdk",
}


def test_every_hint_that_the_program_can_print_is_tried_here():
    assert TOLD.keys() == HINTED


@pytest.mark.parametrize("extra", TOLD)
def test_what_a_hint_says_is_typed_in_an_empty_folder_and_works(fresh, tmp_path, extra):
    words, env = TOLD[extra]
    empty = tmp_path / "empty"
    empty.mkdir()
    env = env | {"HOME": tmp_path / "home"}
    said = fresh.run("nanoloop", *words, cwd=empty, **env)
    (hint,) = {*re.findall(rf"extra \"{extra}\": (.*)", said.stdout + said.stderr)}
    assert hint == f"{fresh.python} -m pip install 'nanoloop-agent[{extra}]'"
    typed = fresh.run("sh", "-c", hint, cwd=empty, **PIP)
    assert typed.returncode == 0, typed.stderr
    module = BROUGHT_BY[extra] or extra
    assert fresh.run("python", "-c", f"import {module}", cwd=empty).returncode == 0


def test_its_version_and_its_plugins_are_found(environment, wheel, tmp_path):
    from_wheel = wheel.name.split("-")[1]
    assert wheel.name.startswith("nanoloop_agent-")
    said = environment.run("nanoloop", "--version", cwd=tmp_path)
    assert said.stdout.startswith(f"nanoloop {from_wheel} (Python 3.")
    assert said.stderr == ""
    told = "from nanoloop import plugins; print(*plugins.names('channels'))"
    names = environment.run("python", "-c", told, cwd=tmp_path).stdout.split()
    assert {"web", "telegram"} <= {*names}
    told = "from nanoloop.sentences import in_language; print(in_language('de')['stopped'])"
    assert environment.run("python", "-c", told, cwd=tmp_path).stdout == "Abgebrochen.\n"


@pytest.mark.parametrize("is_last", [True, False])
def test_another_projects_package_of_the_same_import_name_is_told_of(
    environment, wheel, tmp_path, is_last
):
    theirs = {"nanoloop/__init__.py": '__version__ = "0.3.2"\n', "nanoloop/cli.py": ""}
    environment.install("--no-index", write_wheel(tmp_path, "nanoloop", "0.3.2", theirs))
    if not is_last:
        environment.install("--no-deps", "--force-reinstall", wheel)
    said = environment.run("nanoloop", "--version", cwd=tmp_path).stderr
    assert "is installed here too" in said
    assert "pip uninstall nanoloop`" in said
    environment.run("python", "-m", "pip", "uninstall", "--yes", "nanoloop", cwd=tmp_path)
    environment.install("--no-deps", "--force-reinstall", wheel)
    assert environment.run("nanoloop", "--version", cwd=tmp_path).stderr == ""
