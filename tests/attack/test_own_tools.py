"""Somebody who can put something in place of a file with own tools: none of it runs."""

import os
import sys

import pytest

from nanoloop.errors import SettingsError
from nanoloop.files import make_folder
from nanoloop.parts import make_agents
from nanoloop.settings import Settings
from nanoloop.tools import functions

CODE = "def say() -> str:\n    return 'run'\n"
SETTINGS = '[tools.functions]\nsay = "theirs:say"\n'


@pytest.fixture
def tools(tmp_path):
    """The folder of own tools."""
    folder = tmp_path / "data" / "tools"
    make_folder(folder)
    yield folder
    sys.modules.pop("nanoloop_tools_theirs", None)


def made(tools):
    file = tools.parent.parent / "n.toml"
    file.write_text(SETTINGS)
    flags = {"data": tools.parent}
    return make_agents(Settings.load(config=file, env={"HOME": "/nowhere"}, flags=flags))


def refusal(tools):
    with pytest.raises(SettingsError) as caught:
        made(tools)
    assert "nanoloop_tools_theirs" not in sys.modules
    return str(caught.value)


def test_a_link_in_place_of_the_file_is_not_followed(tools, tmp_path):
    (tmp_path / "elsewhere.py").write_text(CODE)
    (tools / "theirs.py").symlink_to(tmp_path / "elsewhere.py")
    assert "theirs.py is a link, which is not followed here" in refusal(tools)


def test_a_link_in_place_of_the_folder_is_not_followed(tools, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "theirs.py").write_text(CODE)
    tools.rmdir()
    tools.symlink_to(tmp_path / "elsewhere")
    assert "leads through 'tools', which is not a folder" in refusal(tools)


def test_a_pipe_is_not_read(tools):
    os.mkfifo(tools / "theirs.py")
    assert "theirs.py is not a file" in refusal(tools)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_write_is_not_run(tools, mode):
    (tools / "theirs.py").write_text(CODE)
    tools.parent.chmod(0o711)
    (tools / "theirs.py").chmod(mode)
    assert "theirs.py may be written by others, so its code is not run: `chmod" in refusal(tools)


def test_a_file_in_a_folder_that_others_can_write_is_not_run(tools):
    (tools / "theirs.py").write_text(CODE)
    tools.parent.chmod(0o711)
    tools.chmod(0o777)
    assert "tools may be written by others" in refusal(tools)


def test_in_a_data_folder_that_nobody_else_enters_the_modes_inside_do_not_matter(tools):
    (tools / "theirs.py").write_text(CODE)
    (tools / "theirs.py").chmod(0o664)
    assert "say" in made(tools).default.toolbox.tools


def test_a_file_of_somebody_else_is_not_run(tools, monkeypatch):
    (tools / "theirs.py").write_text(CODE)
    monkeypatch.setattr(functions.os, "geteuid", lambda: os.getuid() + 1)
    assert "belongs to somebody else, so its code is not run: make it yours" in refusal(tools)


@pytest.mark.parametrize("name", ["../theirs", "a/theirs", ".theirs"])
def test_a_name_does_not_lead_out_of_the_folder(tools, name):
    (tools.parent / "theirs.py").write_text(CODE)
    file = tools.parent.parent / "n.toml"
    file.write_text(f'[tools.functions]\nsay = "{name}:say"\n')
    with pytest.raises(SettingsError, match="not a function's name"):
        Settings.load(config=file, env={"HOME": "/nowhere"}, flags={"data": tools.parent})
