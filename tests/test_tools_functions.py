"""Functions of a user's own, named in the settings: found, refused with their place, chosen."""

import os
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.errors import SettingsError
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.parts import make_agents
from nanoloop.protocols import ToolCall
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.tools.call import CurrentCall, calling
from nanoloop.tools.toolbox import chosen

EXAMPLES = Path(__file__).parent.parent / "examples"
MODULE = '''
from nanoloop import tool
from nanoloop.protocols import ToolSpec

@tool(effect="reads", name="forecast")
async def weather(city: str) -> str:
    """Tell the weather."""
    return f"sun in {city}"

def stock(fruit: str, count: int = 1) -> str:
    """Say how many there are."""
    return f"{count} {fruit}"

def unhinted(city):
    return city

def by_place(city: str, /):
    return city

def of_no_type(city: "Nowhere"):
    return city

class Bare:
    spec = ToolSpec(name="bare", description="", parameters={"type": "object"})

    async def call(self, arguments):
        return "ok"

class Odd(Bare):
    spec = ToolSpec(name="odd", description="", parameters={})

bare = Bare()
odd = Odd()
number = 5
'''


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A settings file with a data folder, and modules that are forgotten behind the test."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield World(tmp_path)
    for name in set(sys.modules) - known:
        if name.startswith(("own_", "nanoloop_tools_")):
            del sys.modules[name]


class World:
    def __init__(self, folder):
        self.folder = folder
        self.file = folder / "nanoloop.toml"
        self.own = folder / "data" / "tools"
        self.own.mkdir(parents=True, mode=0o700)
        (folder / "data").chmod(0o700)

    def write(self, text, *, name="mine"):
        (self.own / f"{name}.py").write_text(text)

    def agents(self, text, recall=None):
        self.file.write_text(text)
        settings = Settings.load(
            config=self.file, env={"HOME": "/nowhere"}, flags={"data": self.folder / "data"}
        )
        return make_agents(settings, recall)

    def refusal(self, text):
        with pytest.raises(SettingsError) as caught:
            self.agents(text)
        return str(caught.value).replace(f"{self.folder}/", "")


def names(agent):
    return [spec.name for spec in agent.toolbox.specs]


async def said_by(agent, name, arguments="{}"):
    with calling(CurrentCall(call="c")):
        outcome = await agent.toolbox.run(ToolCall(id="", name=name, arguments=arguments))
    return outcome.text


async def test_a_file_in_the_data_folder_brings_tools_under_the_names_of_the_settings(world):
    world.write(MODULE)
    text = '[tools.functions]\nweather = "mine:weather"\nstock = "mine:stock"\nbare = "mine:bare"\n'
    agent = world.agents(text).default
    assert names(agent) == ["clock", "calculator", "weather", "stock", "bare"]
    assert await said_by(agent, "weather", '{"city": "Rome"}') == "sun in Rome"
    assert await said_by(agent, "stock", '{"fruit": "apples"}') == "1 apples"
    assert (agent.toolbox.writes("weather"), agent.toolbox.writes("stock")) == (False, True)


async def test_a_module_beside_the_settings_file_is_found(world):
    (world.folder / "own_beside.py").write_text(MODULE)
    agent = world.agents('[tools.functions]\nstock = "own_beside:stock"').default
    assert await said_by(agent, "stock", '{"fruit": "pears", "count": 3}') == "3 pears"


async def test_the_data_folders_file_comes_before_a_module_of_that_name_elsewhere(world):
    (world.folder / "own_twice.py").write_text("def say() -> str:\n    return 'elsewhere'\n")
    world.write("def say() -> str:\n    return 'here'\n", name="own_twice")
    agent = world.agents('[tools.functions]\nsay = "own_twice:say"').default
    assert await said_by(agent, "say") == "here"


async def test_a_module_may_have_dataclasses_and_types_of_its_own(world):
    text = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Place:\n    name: str\n\n"
        "def go(place: Place) -> str:\n    return place.name\n"
    )
    world.write(text)
    agent = world.agents('[tools.functions]\ngo = "mine:go"').default
    assert await said_by(agent, "go", '{"place": {"name": "Rome"}}') == "Rome"


IS = 'nanoloop.toml:2: tools.functions.it is "{}", but '
REFUSED = {
    "own_nowhere:it": "there is no module own_nowhere: install it, or add its folder to PYTHONPATH",
    "mine:nothing": "mine has no nothing: name an existing function",
    "mine:number": "that is of type int: name a function instead",
    "mine:Bare": "that is of type type: name a function instead",
    "mine:bare": "its spec calls it 'bare': give both the same name",
    "mine:unhinted": "its argument 'city' has no type hint: write city: str, for example",
    "mine:by_place": "by_place can't be a tool: 'city' must be passed by position, but a model "
    "passes arguments by name",
    "mine:of_no_type": "of_no_type uses a type that does not exist at run time (name 'Nowhere' is "
    "not defined): define or import it at the top of the module, outside `if TYPE_CHECKING`",
    "broken:it": "importing broken fails (ZeroDivisionError at broken.py:1 <module>): fix it",
    "torn:it": "importing torn fails (SyntaxError at torn.py:2): fix it",
    "left:it": "importing left fails (SystemExit at left.py:2 <module>): fix it",
    "wrong:it": "importing wrong fails (ValueError at function.py:",
}
WRITTEN = {
    "broken": "1 / 0",
    "torn": "x = 1\ndef (:\n",
    "left": "import sys\nsys.exit()",
    "wrong": "from nanoloop import tool\n\n@tool(effect='read')\ndef it() -> str: ...\n",
}


@pytest.mark.parametrize(("function", "why"), REFUSED.items(), ids=REFUSED)
def test_what_can_not_be_a_tool_is_refused_with_file_and_line(world, function, why):
    world.write(MODULE)
    for name, text in WRITTEN.items():
        world.write(text, name=name)
    told = world.refusal(f'[tools.functions]\nit = "{function}"')
    assert told.startswith(IS.format(function) + why)
    assert "\n" not in told


SETTINGS_REFUSED = {
    '"two words" = "mine:stock"': "nanoloop.toml:2: tools.functions.two words is not a tool's name:"
    " use up to 64 letters, digits, _ and -",
    'it = "mine"': 'nanoloop.toml:2: tools.functions.it is "mine", not a function\'s name: write it'
    " as package.module:function",
    "it = 5": "nanoloop.toml:1: tools.functions is {it = 5}, not a string",
    'clock = "mine:stock"': 'nanoloop.toml:2: tools.functions.clock is "mine:stock", but there is '
    "another tool 'clock': choose another name",
    'read_result = "mine:stock"': "there is another tool 'read_result': choose another name",
    'odd = "mine:odd"': 'nanoloop.toml:2: tools.functions.odd is "mine:odd", but its spec has no '
    "JSON schema of type object: give it one",
}


@pytest.mark.parametrize(("line", "told"), SETTINGS_REFUSED.items(), ids=SETTINGS_REFUSED)
def test_a_wrong_table_of_functions_is_refused(world, line, told):
    world.write(MODULE)
    assert told in world.refusal(f"[tools.functions]\n{line}")


def test_all_that_is_wrong_is_told_at_once(world):
    world.write(MODULE)
    text = '[tools.functions]\na = "mine:nothing"\nstock = "mine:stock"\nb = "mine:unhinted"'
    assert [line.partition(" is ")[0] for line in world.refusal(text).splitlines()] == [
        "nanoloop.toml:2: tools.functions.a",
        "nanoloop.toml:4: tools.functions.b",
    ]


# Which agent has which


def test_an_agent_that_names_none_has_all_the_default_one_included(world):
    world.write(MODULE)
    text = '[tools.functions]\nstock = "mine:stock"\n[agents.cook]\nprompt = "x"\n'
    recall = Recall(InMemoryStore(), Index(None))
    agents = world.agents(text, recall)
    assert names(agents.default) == names(agents["cook"])
    assert names(agents.default) == ["clock", "calculator", "recall", "stock"]


def test_a_small_model_has_those_of_the_settings_and_not_what_comes_along(world):
    world.write(MODULE)
    text = 'model = "local:smollm2-135m"\n[tools.functions]\nstock = "mine:stock"\n'
    assert names(world.agents(text).default) == ["stock"]


CHOSEN = {
    '["clock", "files__*", "!files__move"]': ["clock", "files__list", "files__read"],
    '["!files__*"]': ["clock", "calculator"],
    '["!clock", "clock"]': ["calculator", "files__list", "files__move", "files__read", "clock"],
    '["*", "!*", "clock"]': ["clock"],
    '["files__????"]': ["files__list", "files__move", "files__read"],
    "[]": [],
}


@pytest.mark.parametrize(("wanted", "found"), CHOSEN.items(), ids=CHOSEN)
def test_an_agents_list_chooses_by_names_globs_and_exclusions(world, wanted, found):
    world.write(MODULE)
    functions = "\n".join(f'files__{name} = "mine:stock"' for name in ("list", "move", "read"))
    agents = world.agents(f"[tools.functions]\n{functions}\n[agents.cook]\ntools = {wanted}")
    assert names(agents["cook"]) == found


LOST = {
    "clok": "has 'clok', but there is no such tool: did you mean 'clock'?",
    "!clok": "has '!clok', but there is no such tool: did you mean 'clock'?",
    "files__*": "has 'files__*', but no tool matches that: add [tools.files] to the settings",
    "c*k?": "has 'c*k?', but no tool matches that: the tools are clock, calculator, fetch, files, "
    "shell",
    "!files__*": "has '!files__*', but no tool matches that: add [tools.files] to the settings",
}


@pytest.mark.parametrize(("entry", "told"), LOST.items(), ids=LOST)
def test_an_entry_that_no_tool_matches_is_refused_with_file_and_line(world, entry, told):
    text = f'[agents.cook]\nprompt = "x"\ntools = ["clock", "{entry}"]'
    assert world.refusal(text) == f"nanoloop.toml:3: agents.cook.tools {told}"


NAMES = st.lists(st.text("ab_", min_size=1, max_size=3), unique=True, max_size=6)
GLOBS = st.lists(st.from_regex(r"!?[ab_*?]{1,3}", fullmatch=True), max_size=6)


@given(GLOBS, NAMES)
def test_the_last_entry_that_matches_a_name_decides_about_it(wanted, known):
    found, lost = chosen(wanted, known)
    begins_with_all = bool(wanted) and wanted[0].startswith("!")

    def is_chosen(name):
        says = [e for e in wanted if fnmatchcase(name, e.removeprefix("!"))]
        return not says[-1].startswith("!") if says else begins_with_all

    assert set(found) == set(filter(is_chosen, known))
    assert len(found) == len(set(found))
    assert lost == [
        e for e in wanted if not any(fnmatchcase(n, e.removeprefix("!")) for n in known)
    ]


# Named again


def later(path, text):
    """Write a file so that it is another one, however fast the test is."""
    before = path.stat().st_mtime_ns
    path.write_text(text)
    os.utime(path, ns=(before, before + 1000))


@pytest.mark.parametrize("where", ["data", "beside"])
async def test_a_changed_module_is_run_anew_and_one_that_breaks_leaves_the_earlier(world, where):
    path = world.own / "own_anew.py" if where == "data" else world.folder / "own_anew.py"
    path.write_text("WORD = 'one'\ndef say() -> str:\n    return WORD\n")
    text = '[tools.functions]\nsay = "own_anew:say"'
    first = world.agents(text).default
    assert world.agents(text).default.toolbox.tools["say"].function is (
        first.toolbox.tools["say"].function
    )
    later(path, "WORD = 'broken'\n1 / 0\n")
    assert "ZeroDivisionError at own_anew.py:2" in world.refusal(text)
    assert await said_by(first, "say") == "one"
    known = "own_anew" if where == "beside" else "nanoloop_tools_own_anew"
    assert sys.modules[known].WORD == "one"  # where types are looked up
    later(path, "WORD = 'two'\ndef say() -> str:\n    return WORD\n")
    assert await said_by(world.agents(text).default, "say") == "two"
    assert await said_by(first, "say") == "one"  # a turn that is going on keeps its own


async def test_the_example_is_a_module_for_the_settings(world, monkeypatch):
    monkeypatch.setenv("SHOP", str(world.folder / "shop.sqlite"))
    world.write((EXAMPLES / "shop_tools.py").read_text(), name="shop_tools")
    names_of = "".join(f'{name} = "shop_tools:{name}"\n' for name in ("stock", "order"))
    agent = world.agents(f"[tools.functions]\n{names_of}").default
    assert await said_by(agent, "stock", '{"fruit": "apples"}') == "12 apples"
    order = '{"fruit": "apples", "count": 2}'
    asked = ToolCall(id="", name="order", arguments=order)
    assert (await agent.toolbox.settle(asked, "c")).is_refused  # nothing was done
    assert await said_by(agent, "order", order) == "2 apples ordered"
    assert (await agent.toolbox.settle(asked, "c")).text == "2 apples ordered"
    assert (
        await said_by(agent, "order", '{"fruit": "pears", "count": 2}') == "there are only 0 pears"
    )
