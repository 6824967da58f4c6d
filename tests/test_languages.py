"""What chats are told is one list of sentences, whole in each language."""

import ast
import re
from contextlib import asynccontextmanager
from pathlib import Path
from string import Formatter
from typing import get_args

import anyio
import pytest

from nanoloop.agents import Agent
from nanoloop.errors import NoConnection, SettingsError
from nanoloop.loop import AgentLoop
from nanoloop.memory.index import Index
from nanoloop.memory.recall import Recall
from nanoloop.messages import Inbound, Language
from nanoloop.parts import make_agents, make_loop
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH, FAILURES, Sentences, in_language
from nanoloop.settings import Settings
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_loop import Chats
from tests.test_phrases import is_text

PACKAGE = Path(__file__).parent.parent / "nanoloop"
OTHERS = [language for language in get_args(Language) if language != "en"]

NOT_FOR_CHATS = {
    "approvals.py": ("not run: the user",),  # for the model
    "bus.py": ("it took too long", "no such channel"),  # for the log, as below
    "channels/kit/access.py": ("set users or chats", ", or write to", "not allowed", "too much"),
    "channels/kit/intake.py": (  # for the model
        "(it could not be stored)",
        "(a picture in an",
        "(this voice message",
    ),
    "channels/kit/questions.py": (),
    "channels/kit/uploads.py": ("it fails again", "rate limit", "not connected", " with text"),
    "channels/matrix/rooms.py": ("the room is", "may not invite", "the room can't be joined"),
    "chat.py": (),
    "commands.py": ("nanoloop sessions export ",),  # to be typed in a terminal
    "exchange.py": ("interrupted by", "stopped by", "the turn failed"),  # for the model
    "loop.py": ("interrupted before",),  # for the model
    "memory/recall.py": ("A record of what", "recall tidy"),  # for the model; a thread's name
    "memory/summarizer.py": ("summary agenda",),  # a task's name
    "sending.py": (),
    "tools/approval.py": ("a person",),  # for the model
    "turn.py": (
        "interrupted by",
        "the model ran out",
        "the model gave",
        "): ask again",
    ),  # for the operator
}
"""The modules that tell chats something, and the texts in them that are for somebody else."""
TYPED_BY_THE_OPERATOR = {"messages.py", "testing/channels/suite.py", "testing/trial.py"}
SQL = re.compile(r"\s*[A-Z]{4,} ")


def tree_of(file):
    return ast.parse((PACKAGE / file).read_text(encoding="utf-8"))


def called(call):
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def facts_of(text):
    """The names of what is put into it."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def saying(file):
    """The calls that say a sentence by its name: the expression of the name, and the facts."""
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call) and called(node) in {"say", "_say", "text"}:
            facts = {keyword.arg for keyword in node.keywords}
            yield from ((given, facts) for given in node.args[:2])


def names_in(given):
    """The names that stand in the expression; that of one made of parts ends in an underscore."""
    match given:
        case ast.Constant(value=str(name)):
            return [name]
        case ast.JoinedStr(values=[ast.Constant(value=str(start)), *_]):
            return [name for name in ENGLISH if name.startswith(start)]
        case ast.IfExp(body=body, orelse=other):
            return [*names_in(body), *names_in(other)]
    return []


def own_texts(tree):
    """Texts of several words that are neither docstrings nor for errors or the log."""
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            skipped |= {id(part.value) for part in body if isinstance(part, ast.Expr)}
        if isinstance(node, ast.Raise) or (
            isinstance(node, ast.Call) and called(node) == "announce"
        ):
            skipped |= set(map(id, ast.walk(node)))
    texts = [node for node in ast.walk(tree) if is_text(node) and id(node) not in skipped]
    return [text.value for text in texts if is_sentence(text.value)]


def is_sentence(text):
    words = [word for word in text.split() if word.strip(".,:;()'\"").isalpha()]
    return len(words) > 1 and not SQL.match(text)


# The list


@pytest.mark.parametrize("language", OTHERS)
def test_a_language_has_each_sentence_with_the_same_facts_in_it(language):
    table = in_language(language)
    assert {name: facts_of(text) for name, text in table.items()} == {
        name: facts_of(text) for name, text in ENGLISH.items()
    }


@pytest.mark.parametrize("language", OTHERS)
def test_a_translation_is_not_the_english_sentence(language):
    table = in_language(language)
    same = {name for name, text in ENGLISH.items() if text == table[name] and " " in text.strip()}
    assert same <= {"row"}


@pytest.mark.parametrize("language", get_args(Language))
def test_no_sentence_has_spaces_too_many(language):
    table = dict(in_language(language))
    del table["between"], table["here"]
    assert not [name for name, text in table.items() if text != text.strip() or "  " in text]


@pytest.mark.parametrize("file", NOT_FOR_CHATS)
def test_what_a_module_says_is_in_the_list_and_gets_its_facts(file):
    for given, facts in saying(file):
        for name in names_in(given):
            wanted = facts_of(ENGLISH[name])
            assert wanted - facts == set(), name


def test_every_sentence_is_said_somewhere():
    said = {name for file in NOT_FOR_CHATS for given, _ in saying(file) for name in names_in(given)}
    said |= FAILURES.keys() | {"role_user", "role_assistant", "role_tool"}
    assert {name for name in ENGLISH if name.removesuffix("_one") not in said} == {"between"} - said


@pytest.mark.parametrize("file", NOT_FOR_CHATS)
def test_a_module_that_tells_chats_something_takes_it_from_the_list(file):
    known = NOT_FOR_CHATS[file]
    assert [text for text in own_texts(tree_of(file)) if not text.startswith(known)] == []


def test_no_other_module_tells_chats_anything():
    for path in PACKAGE.rglob("*.py"):
        file = path.relative_to(PACKAGE).as_posix()
        makes = re.search(r"\b(?:Outbound|reply_to)\(", path.read_text(encoding="utf-8"))
        assert file in {*NOT_FOR_CHATS, *TYPED_BY_THE_OPERATOR} or not makes, file


def test_a_sentence_in_the_code_is_found():
    code = ast.parse('def f():\n    """Not this one."""\n    return f"Nothing was {x} here."')
    assert own_texts(code) == ["Nothing was "]


# In a chat


@asynccontextmanager
async def running(provider=None, **options):
    loop = AgentLoop(provider=provider or ScriptedProvider(otherwise="1"), **options)
    loop.chats = Chats(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        yield loop
        loop.bus.close()


async def told(loop, text, **more):
    """The next text of chat "a"."""
    count = len(loop.chats.sent.get("a", ()))
    loop.bus.put_nowait(Inbound(channel="test", chat="a", text=text, **more))
    return (await loop.chats.until("a", count + 1))[count]


def speaking(language, name="cook"):
    agent = Agent(name)
    agent.language = language
    return agent


async def test_a_chat_is_told_in_the_default_language():
    async with running(sentences=Sentences(language="de")) as loop:
        assert "/new - eine neue Unterhaltung beginnen" in await told(loop, "/help")
        assert await told(loop, "/stop") == "Es gibt nichts abzubrechen."


async def test_a_channels_language_is_stronger_and_an_agents_is_the_strongest():
    agents = {"cook": speaking("fr")}
    async with running(sentences=Sentences(language="de"), agents=agents) as loop:
        assert await told(loop, "/undo", language="ja") == "取り消すものはありません。"
        assert await told(loop, "/agent cook", language="ja") == in_language("fr")[
            "agent_chosen"
        ].format(name="cook")
        assert await told(loop, "/undo", language="ja") == in_language("fr")["nothing_to_undo"]
        assert "afficher la liste" in await told(loop, "/help", language="ja")


async def test_help_is_in_the_agents_language_after_a_restart_too():
    store, agents = InMemoryStore(), {"cook": speaking("fr")}
    for text in ("/agent cook", "/help"):
        async with running(store=store, agents=agents) as loop:
            said = await told(loop, text)
    assert "afficher la liste des commandes" in said


@pytest.mark.parametrize("by", ["agent", "channel"])
async def test_a_failure_is_told_in_the_chats_language(by):
    more = {"agent": "cook"} if by == "agent" else {"language": "zh"}
    provider = ScriptedProvider(otherwise=NoConnection("no"))
    async with running(provider, agents={"cook": speaking("zh")}) as loop:
        said = await told(loop, "hi", **more)
    table = in_language("zh")
    sentences = f"{table['model_down']}{table['kept']}"
    assert re.fullmatch(rf"{sentences}\({table['incident']} \w{{6}}\)", said)


async def test_a_language_that_there_is_no_table_for_is_as_if_none_were_named():
    async with running(sentences=Sentences(language="es")) as loop:
        assert await told(loop, "/stop", language="tlh") == "No hay nada que detener."


async def test_the_operators_own_words_are_in_the_default_language():
    own = Sentences({"nothing_to_stop": "Nix."}, language="de")
    async with running(sentences=own) as loop:
        assert await told(loop, "/stop") == "Nix."
        assert await told(loop, "/stop", language="en") == "There is nothing to stop."


def marked(text):
    """The same with marks around its words, and none around the facts."""
    parts = []
    for words, name, _, how in Formatter().parse(text):
        parts += [f"⟦{words}⟧" if words.strip() else words]
        parts += [] if name is None else [f"{{{name}{f'!{how}' if how else ''}}}"]
    return "".join(parts)


MARKED = Sentences({name: marked(text) for name, text in ENGLISH.items()})
COMMANDS = [name.removeprefix("help_") for name in ENGLISH if name.startswith("help_")]
UNKNOWN = ("hlep", "zzzzzz")
GIVEN = ("", "1", "2-3", "last", "99", "x9", "7 7", "edit 8")


def unmarked(text):
    """What is left of a text without the words of the list, commands and what was typed."""
    text = re.sub(r"⟦[^⟦⟧]*⟧", "", text)
    return re.sub(rf"test:a|{'|'.join([*COMMANDS, *UNKNOWN, *GIVEN[1:]])}", "", text)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("command", [*COMMANDS, *UNKNOWN])
async def test_all_words_of_a_commands_answer_are_of_the_list(command, is_new):
    store = InMemoryStore()
    recall = Recall(store, Index(None))
    agent = Agent("7")
    async with running(sentences=MARKED, store=store, recall=recall, agent=agent) as loop:
        if not is_new:
            for text in ("11", "22", "/rename 5", "/pin 1"):
                await told(loop, text)
        for given in GIVEN[:1] if command == "fork" else GIVEN:  # one a second
            said = await told(loop, f"/{command} {given}".strip())
            if command == "export" and said.startswith(("#", "{")):
                continue  # the conversation itself
            assert not re.search(r"[A-Za-z]{2}", unmarked(said)), said


# In the settings


def settings_of(tmp_path, text):
    file = tmp_path / "nanoloop.toml"
    file.write_text(text)
    return Settings.load(config=file, env={"OPENAI_API_KEY": "sk-x"})


def test_the_settings_name_the_languages(tmp_path):
    text = 'language = "de"\nsentences.busy = "Moment."\nagents.cook.language = "fr"\n'
    settings = settings_of(tmp_path, f'{text}channels.telegram.language = "ja"\n')
    loop = make_loop(settings, ScriptedProvider(), InMemoryStore())
    assert loop.sentences.text("stopped") == "Abgebrochen."
    assert loop.sentences.text("busy") == "Moment."
    assert make_agents(settings)["cook"].language == "fr"
    assert settings.channels.of("telegram").language == "ja"


def test_an_unknown_language_is_refused_with_those_that_there_are(tmp_path):
    with pytest.raises(SettingsError, match=r"language .*'de', 'es', 'fr', 'ja' or 'zh'"):
        settings_of(tmp_path, 'language = "tlh"\n')
