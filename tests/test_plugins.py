"""Plugins of other packages, by real entry points: their settings, and what is made of them."""

import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from nanoloop import plugins
from nanoloop.app import App
from nanoloop.channels.kit.channel import wanted
from nanoloop.cli import main
from nanoloop.defaults import UPLOADS_BYTES
from nanoloop.errors import SettingsError
from nanoloop.parts import make_agents, make_channels, make_provider, open_store
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import ChannelSettings, Settings
from nanoloop.settings.channels import PlatformSettings
from tests.packages import make_package

HELLO = [{"role": "user", "content": "Hello."}]
ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "custom_provider.py"
IRC = (ROOT / "examples" / "irc_channel.py").read_text()
PARROT = 'model = "parrot:grey"\n[providers.parrot]\nkey = "k-1234567"\ngreeting = "Yes."'


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Install a package with that code, which is gone behind the test."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)
    installed = []

    def install(code, kind="providers", name="parrot"):
        make_package(site, code, kind=kind, name=name)
        sys.modules.pop(f"{name}s", None)  # that of another test
        installed.append(f"{name}s")

    yield install
    plugins._installed.cache_clear()
    for module in installed:
        sys.modules.pop(module, None)


@pytest.fixture
def load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NANOLOOP_CONFIG", "nanoloop.toml")

    def load(text="", **env):
        (tmp_path / "nanoloop.toml").write_text(text)
        return Settings.load(config="nanoloop.toml", env={"HOME": str(tmp_path)} | env)

    return load


async def test_an_installed_provider_answers_by_its_name_and_settings(install, load):
    install(EXAMPLE.read_text())
    provider = make_provider(load(PARROT))
    assert (await provider.chat(messages=HELLO)).text == "Yes. Hello."
    reply = await provider.chat(messages=HELLO, model="parrot:green:2")
    assert reply.model == "green:2"
    await provider.close()


def test_its_settings_come_from_the_environment_too_and_are_of_its_own_types(install, load):
    install(EXAMPLE.read_text())
    settings = load('model = "parrot:grey"', NANOLOOP_PROVIDERS__PARROT__KEY="k-1234567")
    assert settings.providers["parrot"].key.get_secret_value() == "k-1234567"
    assert str(settings.origin("providers.parrot.key")) == "env NANOLOOP_PROVIDERS__PARROT__KEY"
    assert settings.has_model


def test_config_shows_its_settings_with_the_secret_ones_masked(install, load, capsys):
    install(EXAMPLE.read_text())
    load(PARROT)
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert "providers.parrot.greeting" in out
    assert "********" in next(line for line in out.splitlines() if "parrot.key" in line)
    assert "1234567" not in out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[providers.parrot]\nkey = 5", "nanoloop.toml:2: providers.parrot.key is ********, not a"),
        ("[providers.parrot]\ngreeting = 'Hi'", "providers.parrot.key is missing: set it"),
        ("[providers.parrot]\ngreting = 'Hi'", '2: providers.parrot.greting is "Hi", but there'),
        ("[providers.parrot]\ngreting = 'Hi'", "did you mean providers.parrot.greeting?"),
        ("[providers.parot]\nkey = 'x'", "did you mean providers.parrot?"),
    ],
)
def test_what_is_wrong_with_its_settings_is_told_as_of_any(install, load, text, told):
    install(EXAMPLE.read_text())
    with pytest.raises(SettingsError) as caught:
        load(text)
    assert told in str(caught.value)


def test_without_what_it_must_have_the_start_says_so(install, load):
    install(EXAMPLE.read_text())
    settings = load('model = "parrot:grey"')
    assert not settings.has_model
    with pytest.raises(SettingsError, match=r'model is "parrot:grey", but .*parrot.key is missing'):
        make_provider(settings)


def test_it_is_not_loaded_where_no_setting_names_it(install, load):
    install("raise AssertionError")
    make_provider(load('model = "qwen3:4b"\nbase_url = "http://localhost:1"'))
    assert "parrots" not in sys.modules


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("raise ValueError('k-1234567')", "'parrot' can't be loaded (ValueError at"),
        ("PLUGIN = 5", "'parrot' is not a plugin: parrots:PLUGIN lacks"),
        ("class PLUGIN: settings = None; make = print", 'greeting is "Hi", but there is no such'),
    ],
)
def test_one_that_is_broken_or_takes_no_settings_is_told(install, load, code, told):
    install(code)
    with pytest.raises(SettingsError) as caught:
        load("[providers.parrot]\ngreeting = 'Hi'")
    assert told in str(caught.value)
    assert "1234567" not in str(caught.value)


BROKEN = """
from nanoloop.plugins import Plugin

class Broken:
    async def chat(self, **_):
        raise KeyError("k-1234567")

    async def close(self):
        raise KeyError("k-1234567")

PLUGIN = Plugin(name="parrot", settings=None, make=lambda settings, model: {made})
"""


def test_one_that_can_not_be_made_is_told_without_its_text(install, load):
    install(BROKEN.replace("{made}", "{}['k-1234567']"))
    with pytest.raises(
        SettingsError, match=r"'parrot' can't be created \(KeyError at parr"
    ) as caught:
        make_provider(load('model = "parrot:grey"'))
    assert "1234567" not in str(caught.value)


def test_one_that_breaks_is_told_by_check_which_goes_on(install, load, capsys):
    install(BROKEN.replace("{made}", "Broken()"))
    load('model = "parrot:grey"')
    assert main(["check"]) == 1
    out = capsys.readouterr().out
    assert "WRONG  model: parrot:grey: KeyError at parrots.py:6 chat" in out
    assert "1234567" not in out
    assert "ok     store: " in out


TYPED = """
from datetime import timedelta
from pydantic import AnyHttpUrl, BaseModel, SecretStr

class Own(BaseModel):
    keys: list[SecretStr] = ["k-1234567"]
    url: AnyHttpUrl = "https://me:p1234567@host/"
    pause: timedelta = 5
    model_config = {"validate_default": True}

class PLUGIN: settings = Own; make = print
"""


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_config_shows_settings_of_any_type_and_no_secret(install, monkeypatch, capsys, flags):
    install(TYPED)
    monkeypatch.setenv("NANOLOOP_PROVIDERS__PARROT__PAUSE", "PT7S")
    assert main(["config", *flags]) == 0
    out = capsys.readouterr().out
    assert "https://********@host/" in out
    assert "0:00:07" in out
    assert "1234567" not in out


# Channels


CHANNEL = '[channels.irc]\nhost = "irc.example.org"\nnick = "bot"\n'


def test_the_table_of_an_installed_channel_is_like_that_of_ours(install, load):
    install(IRC, "channels", "irc")
    settings = load(f"{CHANNEL}users = ['ann']", NANOLOOP_CHANNELS__IRC__PASSWORD="p-1234567")
    own = settings.channels.irc
    assert (own.host, own.users, own.groups) == ("irc.example.org", ("ann",), "mention")
    assert own.password.get_secret_value() == "p-1234567"
    assert str(settings.origin("channels.irc.users")).endswith("nanoloop.toml:4")
    assert [name for name, _ in wanted(settings)] == ["irc"]


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_config_shows_a_channels_settings_with_the_secret_ones_masked(install, load, capsys, flags):
    install(IRC, "channels", "irc")
    load(f"{CHANNEL}password = 'p-1234567'")
    assert main(["config", *flags]) == 0
    out = capsys.readouterr().out
    assert "channels.irc.password" in out
    assert "irc.example.org" in out
    assert "1234567" not in out


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("pasword = 'p-1234567'", "nanoloop.toml:4: channels.irc.pasword is ********, but there"),
        ("pasword = 'p-1234567'", "did you mean channels.irc.password?"),
        ("grups = 'always'", "did you mean channels.irc.groups?"),
        ("groups = 'allways'", "4: channels.irc.groups is \"allways\", not 'mention', 'always' or"),
        ("port = 'x'", '4: channels.irc.port is "x", not a whole number'),
        ("[channels.irk]\nnick = 'x'", "channels.irk is not a channel: did you mean channels.irc?"),
        ("[channels.tui]\nnick = 'x'", "channels.tui is not a channel: choose from"),
        ("[channels]\ntranscrib = 'x:y'", "did you mean channels.transcribe?"),
        (
            "[channels.others.irc]\nusers = []",
            "write [channels.NAME] instead of [channels.others.NAME]",
        ),
    ],
)
def test_what_is_wrong_with_a_channels_settings_is_told_as_of_ours(install, load, text, told):
    install(IRC, "channels", "irc")
    above = "" if text.startswith("[") else CHANNEL
    with pytest.raises(SettingsError) as caught:
        load(f"{above}{text}")
    assert told in str(caught.value)
    assert "1234567" not in str(caught.value)


def test_what_a_channel_must_have_is_named(install, load):
    install(IRC, "channels", "irc")
    with pytest.raises(SettingsError, match=r"channels\.irc\.nick is missing: set it"):
        load("[channels.irc]\nhost = 'irc.example.org'")


def test_a_channel_is_not_loaded_where_no_setting_names_it(install, load):
    install("raise AssertionError", "channels", "irc")
    load("channels.transcribe = 'speech:words_of'")
    assert "ircs" not in sys.modules


LACKING = """
from nanoloop.channels.kit import PlatformSettings, Plugin

def make(own, folder):
    import no_such_library

PLUGIN = Plugin(name="irc", settings=PlatformSettings, make=make, extra="irc")
"""


def test_a_library_that_is_not_installed_is_named_with_its_extra(install):
    install(LACKING, "channels", "irc")
    told = r"the channel 'irc' needs no_such_library, .* extra \"irc\""
    with pytest.raises(SettingsError, match=told):
        plugins.load("channels", "irc").make(None, None)


BOARD = """
from nanoloop.plugins import Plugin

class Board:
    name, streams = "board", False

    def __init__(self, program):
        self.program = program

PLUGIN = Plugin(
    name="board", settings=None, make=lambda own, program: Board(program), takes_program=True
)
"""


async def test_a_channel_that_takes_the_program_is_given_it(install, load):
    install(BOARD, "channels", "board")
    settings = load("[channels.board]")
    app = App.of(settings, provider=ScriptedProvider())
    [board] = make_channels(settings, app)
    assert (board.program.app, board.program.settings) == (app, settings)
    assert board.program.attachments._limit_bytes == UPLOADS_BYTES


@pytest.mark.parametrize(
    "name", [name for name in plugins.OURS["channels"] if plugins.is_installed("channels", name)]
)
def test_each_channel_of_ours_is_a_plugin_like_any_other(name):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = import_module(f"nanoloop.channels.{name}").PLUGIN
    assert isinstance(plugin, plugins.Plugin)
    assert (plugin.name, plugin.extra) == (name, name)
    assert plugin.extra in project["optional-dependencies"]
    declared = project["entry-points"]["nanoloop.channels"]
    assert declared[name] == f"nanoloop.channels.{name}:PLUGIN"
    own = plugin.settings.model_fields.keys() - PlatformSettings.model_fields
    example = "nanoloop" if name in ChannelSettings.always else name
    shown = (ROOT / "config" / f"{example}.example.toml").read_text().lower()
    assert [key for key in own if key not in shown] == []


# Tools and stores


WEATHER = """
from pydantic import BaseModel, SecretStr
from nanoloop.plugins import Plugin

class WeatherSettings(BaseModel):
    key: SecretStr = SecretStr("none")

def make(own):
    def weather(city: str) -> str:
        "Tell the weather."
        return f"sun in {city}, says {own.key.get_secret_value()}"
    return weather

PLUGIN = Plugin(name="weather", settings=WeatherSettings, make=make)
"""


@pytest.mark.parametrize(
    ("text", "agents"),
    [
        ("", []),
        ("[tools.weather]\nkey = 'k-1234567'", ["assistant"]),
        ("[agents.cook]\ntools = ['clock', 'weather']", ["cook"]),
    ],
)
def test_a_tool_is_for_agents_that_name_it_or_for_all_where_it_has_a_table(
    install, load, text, agents
):
    install(WEATHER, "tools", "weather")
    made = make_agents(load(text))
    assert [name for name in made if "weather" in told(made[name])] == agents


def told(agent):
    return {spec.name for spec in agent.toolbox.specs}


def test_a_tool_that_nobody_has_is_told_with_those_that_are_installed(install, load):
    install(WEATHER, "tools", "weather")
    with pytest.raises(SettingsError, match=r"did you mean 'weather'\?"):
        make_agents(load("[agents.cook]\ntools = ['wether']"))


ODD = """
from nanoloop import tool
from nanoloop.plugins import Plugin

def positional(city, /):
    return city

PLUGIN = Plugin(name="odd", settings=None, make=lambda own: WHAT)
"""


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("positional", ":1: the tool 'odd' can't be used: positional can't be a tool: 'city'"),
        ("5", ":1: the tool 'odd' can't be used: "),
        (
            'tool(name="clock")(lambda: 1)',
            "the tools of agent 'assistant' can't be used: two tools",
        ),
    ],
)
def test_a_packages_tool_that_can_not_be_used_is_refused(install, load, what, told):
    install(ODD.replace("WHAT", what), "tools", "odd")
    with pytest.raises(SettingsError) as refused:
        make_agents(load("[tools.odd]"))
    assert told in str(refused.value)


SHELF = """
from nanoloop import InMemoryStore
from nanoloop.plugins import Plugin

class Shelf(InMemoryStore):
    def __init__(self, place):
        super().__init__()
        self.place = place

PLUGIN = Plugin(name="shelf", settings=None, make=lambda how, url: Shelf((how.data, url)))
"""


def test_a_store_is_opened_by_its_url(install, load, tmp_path):
    install(SHELF, "stores", "shelf")
    settings = load("store.url = 'shelf://top'")
    store = open_store(settings)
    assert store.place == (settings.data, "shelf://top")


def test_a_url_of_a_store_that_is_not_installed_is_refused(load):
    with pytest.raises(SettingsError, match="not a store"):
        load("store.url = 'shelf://top'")
