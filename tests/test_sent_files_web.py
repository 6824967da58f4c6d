"""Files with answers on the page and in both APIs."""

import pytest
from cryptography.fernet import Fernet

from nanoloop import FileResult
from nanoloop.sentences import ENGLISH
from tests.made_documents import pdf
from tests.sent_files import PDF, PICTURE, SOUND, calling, making
from tests.web_openai import asking, shown, stream, text_of
from tests.web_server import OTHER, TOKENS, bearer, serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path, provider=calling("Here is [it](attachment:none).")) as web:
        yield web


def make(web, *results):
    web.app.loop.agents.default.toolbox = making(*results)


async def answered(web, session):
    async with web.reading(session) as reader:
        await reader.until("hello")
        await web.say(session, "make it")
        return await reader.until("answer")


async def test_the_page_gets_each_file_beside_the_text(web):
    make(web, [PDF, PICTURE, SOUND])
    session = await web.begin()
    told = (await answered(web, session))[-1].data
    (answer,) = [m for m in await web.messages(session) if m["role"] == "assistant"]
    assert told["attachments"] == answer["attachments"]
    assert [(file["kind"], file["name"], file["size"]) for file in answer["attachments"]] == [
        ("file", "report.pdf", len(PDF.content)),
        ("image", "chart.png", len(PICTURE.content)),
        ("file", "said.ogg", len(SOUND.content)),
    ]
    got = [await web.client.get(file["url"]) for file in answer["attachments"]]
    assert [each.content for each in got] == [PDF.content, PICTURE.content, SOUND.content]
    assert [each.headers["content-disposition"].partition(";")[0] for each in got] == [
        "attachment",
        "inline",
        "attachment",
    ]


async def test_a_page_that_a_tool_calls_a_picture_is_none(web):
    make(web, FileResult(b"<script>alert(1)</script>", name="a.png", mime_type="image/png"))
    session = await web.begin()
    (file,) = (await answered(web, session))[-1].data["attachments"]
    got = await web.client.get(file["url"])
    assert file["kind"] == "file"
    assert got.headers["content-type"].startswith("text/plain")
    assert got.headers["content-disposition"].startswith("attachment")


async def test_what_is_streamed_and_shown_names_no_file(tmp_path):
    def naming(messages, *_):
        ref = messages[-1]["content"].split()[-8].rstrip(".")
        return f"Here is [the chart]({ref}), see {ref} and attachment:{'0' * 40}."

    async with serving(tmp_path, provider=calling(naming)) as web:
        make(web, FileResult(PICTURE.content, name="chart.png", send=False))
        session = await web.begin()
        *events, answer = await answered(web, session)
        (said,) = [m for m in await web.messages(session) if m["role"] == "assistant"]
    streamed = "".join(event.data["piece"] for event in events if event.name == "text")
    assert said["text"] == "Here is the chart, see  and ."
    assert answer.data["text"] == f"{said['text']}\n\n{ENGLISH['file_unknown']}"
    assert streamed.strip() == said["text"]
    assert [file["name"] for file in answer.data["attachments"]] == ["chart.png"]


async def test_nobody_else_gets_a_file_that_a_tool_made(tmp_path):
    async with serving(tmp_path, provider=calling(), tokens=TOKENS, headers=bearer()) as web:
        make(web, PDF)
        session = await web.begin()
        (file,) = (await answered(web, session))[-1].data["attachments"]
        await web.call("GET", file["url"], status=200)
        await web.call("GET", file["url"], status=404, headers=bearer(OTHER))
        await web.call("DELETE", file["url"], status=404)


async def test_the_file_goes_with_what_is_forgotten(web, tmp_path):
    make(web, PDF)
    session = await web.begin()
    (file,) = (await answered(web, session))[-1].data["attachments"]
    await web.call("DELETE", f"/api/sessions/{session}", status=204)
    await web.call("GET", file["url"], status=404)
    assert not [*(tmp_path / "attachments").glob("*.data")]


async def test_beside_a_sealed_store_a_tools_file_is_sealed(tmp_path):
    key = {"store": {"encryption_key": Fernet.generate_key().decode()}}
    async with serving(tmp_path, provider=calling(), settings=key) as web:
        make(web, FileResult(b"grandmother's recipe", name="recipe.txt"))
        (file,) = (await answered(web, await web.begin()))[-1].data["attachments"]
        assert (await web.client.get(file["url"])).content == b"grandmother's recipe"
        files = [file for file in tmp_path.rglob("*") if file.is_file()]
        assert not any(b"recipe" in file.read_bytes() for file in files)


PARTS = [
    {"type": "text", "text": "Here it is."},
    {"type": "file", "file": {"filename": "report.pdf", "mime_type": "application/pdf"}},
    {"type": "image_url"},
]


def bare(parts):
    """The parts without what differs each time."""
    for part in parts:
        if part["type"] == "image_url":
            assert part.pop("image_url")["url"].startswith("/api/attachments/")
        if part["type"] == "file":
            assert part["file"].pop("url").startswith("/api/attachments/")
            assert part["file"].pop("size") == len(PDF.content)
    return parts


async def test_clients_of_openais_api_get_content_parts_beside_the_text(tmp_path):
    async with asking(tmp_path, provider=calling()) as web:
        make(web, [PDF, PICTURE])
        given = {"model": "assistant", "messages": [{"role": "user", "content": "make it"}]}
        whole = await web.openai.chat.completions.create(**given, user="ann")
        message = whole.choices[0].message
        assert message.content == "Here it is."
        assert bare(message.content_parts) == PARTS


async def test_a_stream_of_openais_api_ends_with_content_parts(tmp_path):
    async with asking(tmp_path, provider=calling()) as web:
        make(web, [PDF, PICTURE])
        chunks = await stream(web.openai, "make it", user="ann")
    assert text_of(chunks) == "Here it is."
    found = [c.choices[0].delta for c in chunks if c.choices]
    parts = [d.content_parts for d in found if getattr(d, "content_parts", None)]
    assert [bare(each) for each in parts] == [PARTS]


async def test_without_a_session_a_tools_file_is_told_to_be_missing(tmp_path):
    async with asking(tmp_path, provider=calling()) as web:
        make(web, PDF)
        given = {"model": "assistant", "messages": [{"role": "user", "content": "make it"}]}
        whole = await web.openai.chat.completions.create(**given)
    assert whole.choices[0].message.content == "Here it is."
    assert "is missing: files can't be kept in this conversation" in str(shown(web))


async def test_documents_may_be_uploaded_and_are_read(web):
    session = await web.begin()
    ids = []
    for name, data in {"a.pdf": pdf("tea at five"), "b.txt": "茶会在五点".encode("gbk")}.items():
        headers = {"X-Name": name}
        kept = await web.call("POST", "/api/attachments", status=201, content=data, headers=headers)
        ids.append(kept["id"])
    async with web.reading(session) as reader:
        await reader.until("hello")
        await web.say(session, "read", attachments=ids)
        await reader.until("answer")
    said = str(web.provider.calls[0].messages[-1]["content"])
    assert "tea at five" in said
    assert "茶会在五点" in said
