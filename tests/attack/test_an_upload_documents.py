"""Attackers with an upload: documents made to take memory, time, keys or somebody else's file."""

import os
import sys
import zipfile
from io import BytesIO

import pytest

from nanoloop import documents
from nanoloop.attachments import Attachments
from nanoloop.documents import PROBLEMS, Document, Documents
from nanoloop.errors import ToolError
from nanoloop.session.session import Session
from nanoloop.tools.reading import AttachmentReader
from tests.made_documents import pdf, zipped


async def read(data):
    return await Documents().read(data, owner="mallory")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inside", "rounds"),
    [(b"<w:p><w:r><w:t>%b</w:t></w:r></w:p>" % (b"tea " * 999), 400), (b"<w:t>", 80), (b" ", 200)],
)
async def test_a_bomb_ends_within_its_limits(inside, rounds):
    word = b"http://schemas.openxmlformats.org/wordprocessingml/2006/main"
    begin = b'<w:document xmlns:w="%b"><w:body>' % word
    file = BytesIO()
    with (
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("word/document.xml", "w") as xml,
    ):
        xml.write(begin)
        for _ in range(rounds):
            xml.write(inside * (1_000_000 // len(inside)))
    found = await read(file.getvalue())
    assert found.problem


async def test_entities_do_not_multiply():
    whole = '<!DOCTYPE d [<!ENTITY a "aaaaaaaaaa">' + "".join(
        f'<!ENTITY a{n} "{"&a" + str(n - 1 or "") + ";"}{("&a" + str(n - 1 or "") + ";") * 9}">'
        for n in range(1, 10)
    )
    body = f"{whole}]><d>&a9;</d>"
    found = await read(zipped({"word/document.xml": body, "x": "word/document.xml"}))
    assert found == Document(problem=PROBLEMS["damaged"])


async def test_the_child_has_none_of_our_keys(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    tell = "import os, json; print(json.dumps({'text': ' '.join(os.environ)}))"
    monkeypatch.setattr(documents, "COMMAND", (sys.executable, "-c", tell))
    assert "OPENAI_API_KEY" in os.environ
    assert "OPENAI" not in (await read(pdf("tea"))).text


async def test_the_reader_reads_no_file_of_another_session(tmp_path):
    kept = Attachments(tmp_path / "kept", limit_bytes=1000)
    other = await kept.keep_made(b"secret", session_id="other", name="a", mime_type="text/plain")
    reader = AttachmentReader(kept, Session(id="mine"))
    for wanted in (other.id, other.id[:8], f"attachment:{other.id}"):
        with pytest.raises(ToolError, match="there is no file"):
            await reader.call({"id": wanted})
