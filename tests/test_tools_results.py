"""A large result: the model sees its ends, the session keeps it whole, and a tool reads it."""

import re

import pytest

from nanoloop import Agent, tool
from nanoloop.parts import make_attachments, make_store
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sessions import Sessions
from nanoloop.settings import Settings
from nanoloop.tools.results import PAGE, PLACES
from tests.test_holds import running, said

KEY = "test:a"
FACT = "The code of the  door is 4711."
TEXT = "a" * 40_000 + FACT + "b" * 60_000
SHOWN = re.compile(r'\[(\d+) of 100030 characters are left out here; read_result\(id="(\w{8})"\)')


@pytest.fixture
async def world(tmp_path):
    made = World(tmp_path)
    yield made
    await made.store.close()


class World:
    def __init__(self, folder, limit_bytes=10**8):
        self.settings = Settings(data=folder)
        self.store = make_store(self.settings)
        self.store.attachments._limit_bytes = limit_bytes
        self.files = make_attachments(self.settings)
        self.texts = {"page": TEXT}

        @tool(effect="reads")
        def fetch(name: str) -> str:
            """Fetch a page."""
            return self.texts[name]

        self.agent = Agent(tools=[fetch])

    async def asks(self, *steps, chat="a", text="go"):
        """What the model is shown last, with these steps; each is a function of that, or a call."""
        seen = []

        def answer(messages, *_):
            seen[:] = [m["content"] for m in messages if m["role"] == "tool"]
            if not left:
                return "done"
            step = left.pop(0)
            name, arguments = step(seen[-1]) if callable(step) else step
            return Reply(tool_calls=(ToolCall(id="", name=name, arguments=arguments),))

        left = [*steps]
        self.provider = ScriptedProvider(otherwise=answer)
        async with running(self.provider, self.store, agent=self.agent) as loop:
            loop.bus.put_nowait(said(text, message_id=f"{text}{len(steps)}"))
            assert await loop.chat.until(1) == ["done"]
        return seen

    @property
    def kept(self):
        return self.files.all()


FETCH = ("fetch", '{"name": "page"}')


def reading(**more):
    """Read what was just shown: its id is in it."""
    extra = "".join(f', "{name.rstrip("_")}": {value}' for name, value in more.items())
    return lambda shown: ("read_result", f'{{"id": "{SHOWN.search(shown)[2]}"{extra}}}')


def tools_of(call):
    return [spec.name for spec in call.tools]


async def test_the_model_sees_both_ends_and_finds_what_is_in_between(world):
    shown, found = await world.asks(FETCH, reading(words='"DOOR is"'))
    assert len(shown) < 17_000
    assert (shown[:12_000], shown[-4_000:]) == (TEXT[:12_000], TEXT[-4_000:])
    assert SHOWN.search(shown)[1] == "84030"
    assert found.startswith("[at character 40017]\n")
    assert FACT in found
    [entry] = [e for e in await world.store.entries(KEY) if "whole" in e.metadata]
    file = await world.files.held(KEY, world.kept[0])
    assert (file.size, file.mime_type) == (len(TEXT), "text/plain")
    assert await world.files.data(file.id) == TEXT.encode()
    assert entry.metadata["attachments"][0]["ref"] == f"attachment:{file.id}"


async def test_the_tool_is_offered_only_where_there_is_something_to_read(world):
    world.texts["small"] = "little"
    await world.asks(("fetch", '{"name": "small"}'), FETCH, reading())
    assert [tools_of(call) for call in world.provider.calls] == [["fetch"]] * 2 + [
        ["fetch", "read_result"]
    ] * 2
    assert len(world.kept) == 1


async def test_it_is_read_page_by_page(world):
    def on(shown):
        ends = re.search(r'id="(\w+)", from=(\d+)\) reads on', shown)
        return "read_result", f'{{"id": "{ends[1]}", "from": {ends[2]}}}'

    _, *pages = await world.asks(FETCH, reading(from_=80_000), on, on)
    assert [page.partition("\n")[2] for page in pages] == [
        TEXT[begin : begin + PAGE] for begin in (80_000, 88_000, 96_000)
    ]
    assert pages[2].startswith("[characters 96000 to 100030 of 100030]")


WRONG = {
    '"nowhere"': "there is no result 'nowhere': the ids are",
    '"x", "words": 5': "argument 'words': input should be a string",
    '"x", "from": -1': "argument 'from': input should be a whole number, 0 or more",
    '"x", "page": 1': "there is no argument 'page': the arguments are id, from, words",
    "5": "argument 'id': it is required, as a string",
}


@pytest.mark.parametrize(("arguments", "told"), WRONG.items(), ids=WRONG)
async def test_wrong_arguments_are_told(world, arguments, told):
    _, said_to = await world.asks(FETCH, ("read_result", f'{{"id": {arguments}}}'))
    assert told in said_to


async def test_a_search_says_what_is_not_there(world):
    _, found = await world.asks(FETCH, reading(words='"elephant"'))
    assert found == "[none of 100030 characters from 0 on has 'elephant']"


async def test_a_search_goes_on_behind_its_last_place(world):
    lines = "".join(f"{n:03} needle {'x' * 500}\n" for n in range(60))
    world.texts["page"] = lines.ljust(len(TEXT), "z")

    def search_on(shown):
        begin = shown.rpartition("from ")[2].rstrip("]")
        name = world.kept[0][:8]
        return "read_result", f'{{"id": "{name}", "words": "no needle", "from": {begin}}}'

    _, found, more = await world.asks(FETCH, reading(words='"needle"'), search_on)
    assert found.count("needle") == PLACES
    assert f"{PLACES:03} needle" in more


async def test_what_is_erased_takes_the_whole_result_with_it(world):
    await world.asks(FETCH)
    [entry] = [e for e in await world.store.entries(KEY) if "whole" in e.metadata]
    await world.store.erase(await world.store.load(KEY), [entry.seq])
    assert world.kept == []
    await world.asks(text="again")
    assert tools_of(world.provider.calls[0]) == ["fetch"]


async def test_what_is_deleted_takes_the_whole_result_with_it(world):
    await world.asks(FETCH)
    await world.store.delete(KEY)
    assert world.kept == []


async def test_a_fork_reads_it_too_and_keeps_it(world):
    await world.asks(FETCH)
    await Sessions(world.store).fork(KEY, new_id="other", key="test:b")
    await world.store.delete(KEY)
    assert await world.files.held("other", world.kept[0])


async def test_where_there_is_no_room_the_model_is_told(world):
    world.store.attachments._limit_bytes = 50_000
    [shown] = await world.asks(FETCH)
    assert "[84030 of 100030 characters are left out here, and could not be kept]" in shown
    assert world.kept == []


async def test_a_tool_of_that_name_that_somebody_has_is_theirs(world):
    @tool(effect="reads")
    def read_result(id: str) -> str:  # noqa: A002 - as ours has it
        """Read."""
        return f"theirs: {id}"

    world.agent = Agent(tools=[*world.agent.toolbox.tools.values(), read_result])
    _, told = await world.asks(FETCH, ("read_result", '{"id": "x"}'))
    assert told == "theirs: x"
    assert tools_of(world.provider.calls[-1]) == ["fetch", "read_result"]


async def test_where_no_files_are_kept_the_model_is_told_how_much_is_left_out():
    @tool(effect="reads")
    def fetch() -> str:
        """Fetch."""
        return TEXT

    call = Reply(tool_calls=(ToolCall(id="", name="fetch", arguments="{}"),))
    provider = ScriptedProvider([call, "done"])
    await Agent(provider=provider, tools=[fetch]).ask("go")
    shown = provider.calls[-1].messages[-1]["content"]
    assert "[84030 of 100030 characters are left out here]" in shown
    assert tools_of(provider.calls[-1]) == ["fetch"]
