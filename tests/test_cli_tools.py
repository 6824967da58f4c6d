"""`nanoloop tools`, and what start, check and a reload say about a user's own tools."""

import json
import sys

import anyio
import pytest

from nanoloop.app import App
from nanoloop.cli import Exit, main
from nanoloop.cli.reload import Reload
from nanoloop.events import SettingsRefused, SettingsReloaded
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from tests.test_tools_functions import later, names, said_by

MODULE = '''
from nanoloop import current_call, tool
from nanoloop.errors import ToolError

@tool(effect="reads")
def weather(city: str) -> str:
    """Tell the weather."""
    current_call().say("looking")
    return f"sun in {city}"

@tool(idempotent=True)
def pay(amount: int) -> str:
    """Pay."""
    raise ToolError("no money")

def ask(call: str) -> str | None:
    return None

@tool(settle=ask, repeatable=True)
async def send() -> str:
    """Send."""
    return "x" * 20_000

def bad(city):
    return city
'''
SETTINGS = """
model = "ollama:none"
base_url = "http://127.0.0.1:9"

[tools.functions]
weather = "mine:weather"
pay = "mine:pay"
send = "mine:send"

[agents.cook]
tools = ["clock", "w*"]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "tools").mkdir(parents=True, mode=0o700)
    (tmp_path / "data").chmod(0o700)
    (tmp_path / "data" / "tools" / "mine.py").write_text(MODULE)
    (tmp_path / "n.toml").write_text(SETTINGS)
    yield tmp_path
    sys.modules.pop("nanoloop_tools_mine", None)


def run(*words):
    return main([*words, "--config", "n.toml", "--data", "data"])


def test_the_tools_of_each_agent_are_listed_with_effect_and_tokens(folder, capsys):
    assert run("tools") == Exit.DONE
    lines = capsys.readouterr().out.splitlines()
    heads = [line for line in lines if not line.startswith(" ")]
    assert [head.partition(" tool")[0] for head in heads] == [
        "assistant (the default): 6",
        "cook: 2",
    ]
    rows = {line.split()[0]: line.split(maxsplit=3)[1:] for line in lines[1:7]}
    assert {name: (effect, source) for name, (effect, _, source) in rows.items()} == {
        "clock": ("reads", "built in"),
        "calculator": ("reads", "built in"),
        "recall": ("reads", "built in"),
        "weather": ("reads", "functions"),
        "pay": ("writes", "functions, runs again after a kill"),
        "send": ("writes", "functions, asks after a kill, repeatable"),
    }
    tokens = sum(int(count) for _, count, _ in rows.values())
    assert heads[0].endswith(f"{tokens} tokens in each request")


def test_the_list_is_there_as_json(folder, capsys):
    assert run("tools", "--json") == Exit.DONE
    told = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in told["cook"]] == ["clock", "weather"]
    pay = next(row for row in told["assistant"] if row["name"] == "pay")
    assert pay.pop("tokens") > 0
    assert pay == {
        "name": "pay",
        "effect": "writes",
        "asks_first": False,
        "after_a_kill": "runs again",
        "repeatable": False,
        "source": "functions",
    }


CALLS = {
    ("weather", '{"city": "Rome"}'): (0, "sun in Rome\n", "it only reads\nlooking\n"),
    ("pay", '{"amount": 5}'): (1, "", "may change something\nnanoloop: pay failed: no money\n"),
    ("pay", '{"amount": "x"}'): (1, "", "argument 'amount': input should be a valid integer"),
    ("pay", "{"): (1, "", "the arguments are not valid JSON"),
    ("wether",): (4, "", "nanoloop: there is no tool 'wether': did you mean 'weather'?\n"),
    ("recall", '{"words": "x"}'): (1, "", "there is no conversation here to search"),
}


@pytest.mark.parametrize(("words", "told"), CALLS.items(), ids=map(" ".join, CALLS))
def test_a_tool_is_tried_once_and_it_is_said_what_it_may_do(folder, capsys, words, told):
    code, out, err = told
    assert run("tools", "call", *words) == code
    said = capsys.readouterr()
    assert said.out == out
    assert err in said.err


def test_a_long_result_is_printed_whole(folder, capsys):
    assert run("tools", "call", "send") == Exit.DONE
    assert capsys.readouterr().out == "x" * 20_000 + "\n"


@pytest.mark.slow
def test_start_check_and_list_refuse_a_tool_with_the_same_sentence(folder, capsys):
    (folder / "n.toml").write_text(SETTINGS.replace("mine:pay", "mine:bad"))
    told = (
        "n.toml:7: tools.functions.pay is \"mine:bad\", but its argument 'city' has no type hint: "
        "write city: str, for example"
    )
    for words in (["run"], ["serve"], ["tools"], ["tools", "call", "clock"]):
        assert run(*words) == Exit.USAGE
        assert capsys.readouterr().err == f"nanoloop: {told}\n"
    assert run("check") != Exit.DONE
    assert capsys.readouterr().out.count(told) == 1


def test_without_a_model_check_looks_at_the_tools_too(folder, capsys):
    (folder / "n.toml").write_text('[agents.cook]\ntools = ["x__*"]\n')
    assert run("check") == Exit.NOT_CONFIGURED
    told = capsys.readouterr().out
    assert "WRONG  tools: n.toml:2: agents.cook.tools has 'x__*', but no tool matches that" in told


def test_check_counts_the_tools_of_each_agent(folder, capsys):
    run("check")
    assert "ok     tools: 6 for assistant, 2 for cook\n" in capsys.readouterr().out


# A reload


@pytest.fixture
async def daemon(folder):
    def load():
        return Settings.load(config="n.toml", flags={"data": "data"})

    settings = load()
    app = App.of(settings, provider=ScriptedProvider())
    yield app, Reload(app, settings, channels=[], load=load)
    await app.close()


async def test_a_reload_brings_changed_code_and_new_tools(daemon, folder, heard):
    app, reload = daemon
    later(folder / "data" / "tools" / "mine.py", MODULE.replace("sun", "rain"))
    reload()
    assert await said_by(app.loop.agents.default, "weather", '{"city": "Rome"}') == "rain in Rome"
    (folder / "n.toml").write_text(SETTINGS.replace('send = "mine:send"\n', ""))
    reload()
    assert names(app.loop.agents.default)[-1] == "pay"
    told = [event for event in heard if isinstance(event, SettingsReloaded)]
    assert [(event.applied, event.needs_restart) for event in told] == [
        (("tools.functions",), ())
    ] * 2


async def test_a_reload_with_a_broken_module_keeps_the_old_tools_and_says_so(daemon, folder, heard):
    app, reload = daemon
    before = app.loop.agents.default
    later(folder / "data" / "tools" / "mine.py", "1 / 0\n")
    reload()
    assert app.loop.agents.default is before
    assert await said_by(before, "weather", '{"city": "Rome"}') == "sun in Rome"
    [refused] = [event for event in heard if isinstance(event, SettingsRefused)]
    assert refused.reason.startswith(
        'n.toml:6: tools.functions.weather is "mine:weather", but importing mine fails '
        "(ZeroDivisionError at mine.py:1 <module>): fix it\n"
    )
    later(folder / "data" / "tools" / "mine.py", MODULE)
    reload()
    assert app.loop.agents.default is not before


async def test_a_module_that_is_written_is_noticed(daemon, folder, heard, monkeypatch):
    monkeypatch.setattr("nanoloop.cli.reload.LOOK_SECONDS", 0.001)
    _, reload = daemon
    async with anyio.create_task_group() as group:
        group.start_soon(reload.keep)
        later(folder / "data" / "tools" / "mine.py", MODULE.replace("sun", "rain"))
        while not any(isinstance(event, SettingsReloaded) for event in heard):  # noqa: ASYNC110 - it polls
            await anyio.sleep(0.001)
        group.cancel_scope.cancel()
