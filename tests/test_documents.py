"""Documents that come in: their text reaches the model to the last page, or it is told why not."""

import json
import sys

import pytest

from nanoloop import documents
from nanoloop.attachments import Attachments
from nanoloop.documents import PROBLEMS, SHOWN_CHARS, Document, Documents, kind_of
from nanoloop.errors import BadArguments
from nanoloop.events import FileLeftOut
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.session import Session
from nanoloop.session.speech import passages_of
from nanoloop.testing.channels.fake import FakeChats
from nanoloop.testing.channels.stage import Bot, says
from nanoloop.tools.reading import AttachmentReader
from tests.made_documents import docx, encrypted_pdf, pdf, xlsx, zipped
from tests.sent_files import making

CHAT = "with-ann"
FACT = "the code is 4711"
PAGES = [f"page {n} says {'nothing of note ' * 10}" for n in range(150)]
CHINESE = "会议将于星期五下午三点举行,预算为四千二百元"
LONG = {
    "text.pdf": pdf(*PAGES, FACT),
    "text.docx": docx(*PAGES, FACT),
    "text.xlsx": xlsx(Sales=[[page, n] for n, page in enumerate(PAGES)], Last=[[FACT]]),
    "gbk.csv": "\n".join([f"{CHINESE},{n}" for n in range(2000)] + [FACT]).encode("gbk"),
    "cp1252.txt": "\n".join(["Über den Fluß für fünf €"] * 2000 + [FACT]).encode("cp1252"),
    "utf16.txt": "\n".join(["plain words"] * 3000 + [FACT]).encode("utf-16"),
    "server.log": b"GET /index.html 200\n" * 250_000 + FACT.encode(),
}


@pytest.fixture(autouse=True)
def at_once(request, monkeypatch):
    """Read in this process, where no child is what a test is about: starting one takes a while."""
    if "child" not in request.node.name:

        async def read(kind, data):
            return documents._read(kind, data)

        monkeypatch.setattr(documents, "_read_by_child", read)


async def read(data):
    return await Documents().read(data, owner="ann")


# What can be read


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (pdf("first", "second\nline"), "[page 1]\nfirst\n[page 2]\nsecond\nline"),
        (pdf("first", ""), "[page 1]\nfirst\n[page 2]"),
        (encrypted_pdf("open", password=""), "[page 1]\nopen"),
        (docx("one", "two", rows=["ab", "cd"]), "one\n[page 2]\ntwo\na | b\nc | d"),
        (xlsx(Fruit=[["pear", 12], [None, 3.5]]), "[sheet Fruit]\npear | 12\n | 3.5"),
        ("Grüße".encode("utf-16-le"), "Grüße"),
        (b"\xef\xbb\xbftea", "tea"),
        (CHINESE.encode("gbk"), CHINESE),
        ("苹果,12\n梨,15".encode("gbk"), "苹果,12\n梨,15"),
        ("naïve café, 12 €".encode("cp1252"), "naïve café, 12 €"),
        ("会議は金曜日の午後三時です。".encode("cp932"), "会議は金曜日の午後三時です。"),
    ],
)
async def test_a_document_becomes_text(data, text):
    assert await read(data) == Document(text=text)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (pdf("", ""), "no_text"),
        (encrypted_pdf("x", password="secret"), "encrypted"),
        (b"%PDF-1.4 nonsense", "damaged"),
        (docx("a")[:-60], "damaged"),
        (docx("a").replace(b"PK\x01\x02", b"PK\x01\x03"), "damaged"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(50), "old"),
        (zipped({"a.txt": "tea"}), "archive"),
        (b"\x1f\x8b\x08\x00\x00", "archive"),
        (b"\x00\x01\x02", "unknown"),
    ],
)
async def test_what_can_not_be_read_is_told_in_a_sentence(data, problem):
    assert await read(data) == Document(problem=PROBLEMS[problem])


@pytest.mark.parametrize("size", [0, 5_000_000])
@pytest.mark.parametrize(
    ("end", "problem"),
    [("os.abort()", "failed"), ("os.kill(os.getpid(), 9)", "large"), ("print('no')", "failed")],
)
async def test_a_child_that_dies_costs_a_sentence(monkeypatch, size, end, problem):
    monkeypatch.setattr(documents, "COMMAND", (sys.executable, "-S", "-c", f"import os; {end}"))
    found = await read(pdf("tea") + bytes(size))
    assert found.problem in {PROBLEMS[problem], PROBLEMS["failed"]}


async def test_a_child_that_can_not_be_started_costs_a_sentence(monkeypatch):
    monkeypatch.setattr(documents, "COMMAND", ("/nowhere",))
    assert await read(pdf("tea")) == Document(problem=PROBLEMS["failed"])


async def test_a_child_without_the_extra_says_how_to_get_it(monkeypatch):
    hide = "import sys; sys.modules['pypdf'] = None; import runpy; sys.argv = ['x', 'pdf']; "
    run = "runpy.run_module('nanoloop.documents', run_name='__main__')"
    monkeypatch.setattr(documents, "COMMAND", (sys.executable, "-c", hide + run))
    found = await read(pdf("tea"))
    assert found.problem == (
        'PDF files can\'t be read here: whoever runs this can install the extra "documents", with '
        "pip install 'nanoloop-agent[documents]'"
    )


def test_a_word_file_and_a_text_need_no_extra(monkeypatch):
    for name in ("pypdf", "openpyxl", "charset_normalizer"):
        monkeypatch.setitem(sys.modules, name, None)
    assert documents._read("docx", docx("tea")).text == "tea"
    assert documents._read("text", CHINESE.encode("gbk")).text == CHINESE


def test_a_document_is_what_its_bytes_are():
    assert [kind_of(LONG[name]) for name in ("text.pdf", "text.docx", "text.xlsx")] == [
        "pdf",
        "docx",
        "xlsx",
    ]


async def test_a_child_reads_what_is_sent_to_it():
    assert await read(pdf("tea")) == Document(text="[page 1]\ntea")


# In a chat


def reader(name, **arguments):
    """Has the model call the reader with the id from the message."""

    def ask(messages, tools, _model):
        assert name in [tool.name for tool in tools]
        said = str(messages)
        file_id = said[said.rindex("the file is attachment:") + 23 :][:40]
        call = ToolCall(id="c1", name=name, arguments=json.dumps({"id": file_id, **arguments}))
        return Reply(text="", model="scripted", finish_reason="tool_calls", tool_calls=(call,))

    return ask


def bot_on(chats, folder, provider):
    kept = Attachments(folder / "kept", limit_bytes=100_000_000)
    bot = Bot(chats.platform(), folder, provider=provider, attachments=kept)
    bot.loop.agents.default.toolbox = making()
    return bot


@pytest.mark.parametrize("name", LONG)
async def test_the_fact_on_the_last_page_reaches_the_model(name, tmp_path):
    ask = reader("read_attachment", words="the code is")
    chats, provider = FakeChats(), ScriptedProvider([ask])
    provider._otherwise = lambda said, *_: "found" if FACT in said[-1]["content"] else "lost"
    async with bot_on(chats, tmp_path, provider):
        await chats.say(CHAT, "what is the code?", files={name: LONG[name]})
        await says(chats, CHAT, "found")
    shown = str(provider.calls[0].messages[-1]["content"])
    assert "[cut: 20,000 of " in shown
    assert FACT not in shown


async def test_a_file_is_read_on_from_where_it_was_cut(tmp_path):
    start = SHOWN_CHARS
    chats, provider = FakeChats(), ScriptedProvider([reader("read_attachment", **{"from": start})])
    provider._otherwise = lambda said, *_: said[-1]["content"].partition("\n")[0]
    async with bot_on(chats, tmp_path, provider):
        await chats.say(CHAT, "read", files={"a.txt": b"0123456789" * 5000})
        await says(chats, CHAT, "[characters 20,000 to 32,000 of 50,000; from=32000 reads on]")


async def test_there_is_no_reader_where_nothing_is_cut(tmp_path):
    chats, provider = FakeChats(), ScriptedProvider(otherwise="ok")
    async with bot_on(chats, tmp_path, provider):
        await chats.say(CHAT, "read", files={"a.txt": b"short", "b.zip": zipped({"a": "b"})})
        await says(chats, CHAT, "ok")
    assert [tool.name for tool in provider.calls[0].tools] == ["make"]
    assert f"({PROBLEMS['archive']})" in str(provider.calls[0].messages[-1]["content"])


@pytest.mark.parametrize(
    "arguments", [{}, {"id": "../a"}, {"id": "a" * 40, "from": -1}, {"id": "a" * 40, "file": 1}]
)
async def test_the_reader_refuses_what_it_does_not_understand(tmp_path, arguments):
    reader = AttachmentReader(Attachments(tmp_path, limit_bytes=1), Session(id="mine"))
    with pytest.raises(BadArguments):
        await reader.call(arguments)


async def test_what_a_document_says_was_typed_by_nobody(tmp_path):
    chats, provider = FakeChats(), ScriptedProvider(otherwise="ok")
    async with bot_on(chats, tmp_path, provider) as bot:
        await chats.say(CHAT, "look", files={"a.pdf": pdf("I like tea")})
        await says(chats, CHAT, "ok")
        (session,) = bot.loop.sessions._alive.values()
        entry = session.window[0]
    assert [(p.kind, p.is_typed) for p in passages_of(entry)] == [("said", True), ("file", False)]
    assert not [e for e in bot.events if isinstance(e, FileLeftOut)]
