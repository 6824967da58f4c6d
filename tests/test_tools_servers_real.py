"""Servers from packages: the time, a page of this machine, and files if their server is there."""

import os
import shutil
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from nanoloop.tools.servers import ToolServerPlace
from tests.references import ROOT
from tests.tool_servers import LONG, call, running

pytestmark = pytest.mark.slow
PAGE = b"<html><body><h1>The tea is in the kitchen</h1><p>It is green.</p></body></html>"


def installed(name):
    """The program, beside our Python or on the path; where it is missing, CI fails."""
    beside = [str(Path(entry).parents[2] / "bin") for entry in sys.path if "site-packages" in entry]
    path = os.pathsep.join([str(Path(sys.executable).parent), *beside, os.environ["PATH"]])
    if (found := shutil.which(name, path=path)) is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{name} is not installed")
    return found


@pytest.fixture
def data(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def page():
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            is_there = self.path != "/robots.txt"
            self.send_response(200 if is_there else 404)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(PAGE if is_there else b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/tea.html"
    server.shutdown()
    server.server_close()


def place(name, *command):
    return ToolServerPlace(
        name=name, command=(installed(command[0]), *command[1:]), timeout_seconds=LONG
    )


async def test_the_example_of_a_server_is_one(data):
    command = (sys.executable, str(ROOT / "examples" / "fruit_server.py"))
    where = ToolServerPlace(name="fruit", command=command, timeout_seconds=LONG)
    async with running(where, data=data) as servers:
        assert await call(servers, "fruit__stock", fruit="apples") == "12 apples"
        (source,) = servers.sources
        effects = {name: tool.effect for name, tool in source.tools.items()}
    assert effects["fruit__stock"] == "reads"
    assert effects["fruit__order"] == "writes"


async def test_the_time_s_server_says_the_time(data):
    async with running(place("time", "mcp-server-time"), data=data) as servers:
        (source,) = servers.sources
        assert source.tools["time__get_current_time"].spec.parameters["required"] == ["timezone"]
        assert '"timezone": "Europe/Berlin"' in await call(
            servers, "time__get_current_time", timezone="Europe/Berlin"
        )
        said = await call(servers, "time__get_current_time", timezone="Nowhere")
        assert "Nowhere" in said


async def test_the_fetching_server_reads_a_page(data, page):
    async with running(
        place("web", "mcp-server-fetch", "--allow-private-ips"), data=data
    ) as servers:
        said = await call(servers, "web__fetch", url=page)
        assert "It is green." in said


async def test_the_server_of_everything_has_texts_pictures_data_and_prompts(data):
    async with running(place("all", "mcp-server-everything", "stdio"), data=data) as servers:
        assert await call(servers, "all__echo", message="tea") == "Echo: tea"
        (source,) = servers.sources
        _, picture = await source.tools["all__get-tiny-image"].call({})
        assert (picture.shown_type, picture.content[:4]) == ("image/png", b"\x89PNG")
        uri = "demo://resource/dynamic/blob/1"
        _, file = await source.tools["all__read_resource"].call({"uri": uri})
        assert b"Resource 1" in file.content
        prompt = source.prompts["all:args-prompt"]
        (text,) = await prompt.texts(prompt.arguments("Paris"))
        assert text == ("user", "What's weather in Paris?")


@pytest.mark.skipif(shutil.which("mcp-server-filesystem") is None, reason="not on the path")
async def test_the_server_of_files_reads_its_folder_only(data, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tea.txt").write_text("green")
    (tmp_path / "key.txt").write_text("secret")
    where = place("files", "mcp-server-filesystem", str(tmp_path / "docs"))
    async with running(where, data=data) as servers:
        said = await call(servers, "files__read_text_file", path=str(tmp_path / "docs/tea.txt"))
        assert "green" in said
        said = await call(servers, "files__read_text_file", path=str(tmp_path / "key.txt"))
        assert "secret" not in said
