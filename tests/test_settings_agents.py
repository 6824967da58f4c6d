from pathlib import Path

import pytest

from nanoloop.errors import SettingsError
from nanoloop.parts import make_agents
from nanoloop.settings import Settings


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "nanoloop.toml").write_text("")
    (tmp_path / "agents").mkdir()
    return tmp_path


def write(folder, name, text):
    (folder / "agents" / name).write_text(text)


def load(folder, **more):
    return Settings.load(config=folder / "nanoloop.toml", env={"HOME": "/nowhere"}, **more)


def refusal(folder):
    with pytest.raises(SettingsError) as caught:
        load(folder)
    return str(caught.value)


TOML = '+++\nmodel = "big"\ntools = ["clock"]\nmax_steps = 3\n+++\n\n# A cook\n\nBe patient.\n'
YAML = "---\nmodel: big\ntools: [clock]\nmax_steps: 3\n---\n\n# A cook\n\nBe patient.\n"


@pytest.mark.parametrize("text", [TOML, YAML])
def test_a_file_has_settings_on_top_and_the_prompt_below(folder, text):
    write(folder, "cook.md", text)
    cook = load(folder).agents["cook"]
    assert cook.prompt == "# A cook\n\nBe patient."
    assert (cook.model, cook.tools, cook.max_steps) == ("big", ("clock",), 3)


def test_a_file_may_be_all_prompt(folder):
    write(folder, "cook.md", "Be patient.\n---\nAlways.\n")
    assert load(folder).agents["cook"].prompt == "Be patient.\n---\nAlways."


def test_a_file_may_be_toml_alone(folder):
    write(folder, "cook.toml", 'prompt = "Be patient."')
    assert load(folder).agents["cook"].prompt == "Be patient."


def test_other_files_are_no_agents(folder):
    for name in ("cook.txt", ".cook.md", "cook.py"):
        write(folder, name, "x")
    assert load(folder).agents == {}


def test_the_settings_file_is_stronger(folder):
    write(folder, "cook.md", TOML)
    (folder / "nanoloop.toml").write_text('agents.cook.model = "small"')
    settings = load(folder)
    assert settings.agents["cook"].model == "small"
    assert settings.agents["cook"].max_steps == 3
    assert str(settings.origin("agents.cook.prompt")).endswith("agents/cook.md:7")


def test_without_a_settings_file_the_users_folder_has_them(tmp_path):
    agents = tmp_path / "home" / ".config" / "nanoloop" / "agents"
    agents.mkdir(parents=True)
    (agents / "cook.md").write_text("Be patient.")
    settings = Settings.load(cwd=tmp_path, env={"HOME": str(tmp_path / "home")})
    assert settings.agents["cook"].prompt == "Be patient."


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("cook.md", "+++\n\nmodle = 'x'\n+++\nHi", 'cook.md:3: agents.cook.modle is "x", but'),
        ("cook.md", "+++\nmodle = 'x'\n+++\nHi", "did you mean agents.cook.model?"),
        ("cook.md", "---\nmodel: x\nmax_steps: many\n---\nHi", "cook.md:3: agents.cook.max_steps"),
        ("cook.md", "+++\nmodel = \n+++\nHi", "cook.md:2: not valid TOML: Invalid value"),
        ("cook.md", "---\na: [1\n---\nHi", "not valid YAML: expected"),
        ("cook.md", "---\n- a\n---\nHi", "cook.md:2: not a table"),
        ("cook.md", "+++\nmodel = 'x'\n", "cook.md:1: +++ is opened but never closed"),
        ("cook.md", "+++\nprompt = 'x'\n+++\nHi", "cook.md:2: the prompt is set both at the top"),
        ("cook.md", " \n", "cook.md: it is empty"),
        ("co ok.md", "Hi", "co ok.md: 'co ok' is not a valid agent name"),
        ("cook.toml", "max_steps = 0", "cook.toml:1: agents.cook.max_steps is 0, less than 1"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_line(folder, name, text, told):
    write(folder, name, text)
    assert told in refusal(folder)


def test_a_file_that_is_no_text_is_told(folder):
    (folder / "agents" / "cook.md").write_bytes(b"\xff\xfe\x00")
    assert "cook.md: not a text file in UTF-8" in refusal(folder)


def test_an_agents_window_has_to_go_with_what_is_for_all(folder):
    write(folder, "cook.md", "+++\nmessage_buffer_limit = 8\n+++\nHi")
    assert "cook.md:2: agents.cook.message_buffer_min is 10, more than" in refusal(folder)
    write(folder, "cook.md", "+++\nmessage_buffer_limit = 8\nmessage_buffer_min = 2\n+++\nHi")
    assert load(folder).agents["cook"].message_buffer_limit == 8


def test_a_channels_agent_has_to_be_there(folder):
    write(folder, "cook.md", "Hi")
    (folder / "nanoloop.toml").write_text('\n[channels.terminal]\nagent = "cok"')
    told = 'nanoloop.toml:3: channels.terminal.agent is "cok", but there is no such agent: did you'
    assert told in refusal(folder)
    (folder / "nanoloop.toml").write_text('[channels.terminal]\nagent = "assistant"')
    assert load(folder).channels.terminal.agent == "assistant"


def test_agents_are_made_of_them(folder):
    write(folder, "cook.md", "+++\nmax_steps = 3\ntools = ['clock']\n+++\nHi")
    (folder / "nanoloop.toml").write_text('prompt = "All."\n[channels.terminal]\nagent = "cook"')
    agents = make_agents(load(folder))
    assert list(agents) == ["assistant", "cook"]
    assert agents.default.prompt == "All."
    assert (agents["cook"].prompt, agents["cook"].limits.steps) == ("Hi", 3)
    assert [spec.name for spec in agents["cook"].toolbox.specs] == ["clock"]


def test_an_agent_named_assistant_is_the_one_for_all(folder):
    write(folder, "assistant.md", "Mine.")
    assert make_agents(load(folder)).default.prompt == "Mine."


def test_the_folder_is_beside_the_settings_file_that_was_named(folder, tmp_path):
    write(folder, "cook.md", "Hi")
    config = Path(folder / "nanoloop.toml")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert "cook" in Settings.load(cwd=elsewhere, env={"HOME": "/nowhere"}, config=config).agents


def test_an_unknown_tool_is_told_with_file_and_line(folder):
    write(folder, "cook.md", "+++\ntools = ['clok']\n+++\nHi")
    with pytest.raises(SettingsError, match=r"cook.md:2: agents.cook.tools .*mean 'clock'\?"):
        make_agents(load(folder))
