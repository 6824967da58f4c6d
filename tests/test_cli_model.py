"""`nanoloop model` and `chat --local` as processes: files come, are listed and go."""

import hashlib
import json
import signal

import anyio
import pytest

from tests.servers.file_server import FileServer
from tests.stages.command_line import CommandLine, Terminal, ended, line_with
from tests.stages.local_model import FOLDER, TINY, model_file

CONTENT = b"GGUF" + bytes(range(256)) * 2000
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with FileServer(CONTENT) as server:
        yield server


@pytest.fixture
def nanoloop(tmp_path):
    return CommandLine(tmp_path)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / ".local/share/nanoloop/models"


async def listed(nanoloop):
    out, _ = await nanoloop.run("model", "list", "--json")
    return {row["name"]: row for row in json.loads(out)}


async def test_the_catalogue_is_listed_with_size_licence_and_what_is_here(nanoloop):
    out, _ = await nanoloop.run("model", "list")
    tiny = next(line for line in out.splitlines() if line.startswith(TINY))
    assert "98.4 MB  no " in tiny
    assert "Apache-2.0" in tiny
    assert (await listed(nanoloop))[TINY]["file"] is None


@pytest.mark.slow
async def test_a_file_from_an_address_is_fetched_listed_and_removed(nanoloop, server, folder):
    _, err = await nanoloop.run("model", "get", server.url("big.gguf"), "--sha256", SUM)
    assert "100 % of 512.0 kB" in err
    assert (await listed(nanoloop))["big"]["file"] == str(folder / "big.gguf")
    assert (await nanoloop.run("model", "path", "big"))[0] == f"{folder / 'big.gguf'}\n"
    await nanoloop.run("model", "remove", "big", "--yes")
    assert not (folder / "big.gguf").exists()


async def test_a_wrong_sum_is_told_with_both_sums(nanoloop, server):
    _, err = await nanoloop.run("model", "get", server.url(), "--sha256", "0" * 64, code=1)
    assert SUM in err
    assert "0" * 64 in err


@pytest.mark.parametrize("action", ["get", "path", "remove"])
async def test_a_name_that_nothing_has_is_told_with_the_nearest(nanoloop, action):
    _, err = await nanoloop.run("model", action, "smollm2", code=4)
    assert TINY in err or "model list" in err


async def test_a_model_that_is_not_here_yet_has_no_path(nanoloop):
    _, err = await nanoloop.run("model", "path", TINY, code=4)
    assert f"nanoloop model get {TINY}" in err


async def test_nothing_is_removed_where_nobody_can_agree(nanoloop, folder):
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(CONTENT)
    await nanoloop.run("model", "remove", "mine", code=1)
    assert (folder / "mine.gguf").exists()


async def test_a_person_is_asked_before_a_file_goes(nanoloop, folder):
    folder.mkdir(parents=True)
    (folder / "mine.gguf").write_bytes(CONTENT)
    with Terminal() as terminal:
        async with nanoloop.started("model", "remove", "mine", terminal=terminal) as process:
            await terminal.shows("512.0 kB")
            await terminal.shows("Remove it?")
            terminal.type("y\r")
            assert await ended(process) == 0
    assert not (folder / "mine.gguf").exists()


async def test_what_is_no_sum_is_refused_before_anything_is_fetched(nanoloop, server):
    _, err = await nanoloop.run("model", "get", server.url(), "--sha256", "abc", code=2)
    assert "'abc' is not a SHA-256 checksum" in err
    assert server.asked == []


async def test_a_file_that_did_not_come_is_told_with_what_to_type(nanoloop, server):
    url = server.url("x.gguf")
    _, err = await nanoloop.run("model", "get", url, "--sha256", "0" * 64, code=1)
    assert f"`nanoloop model get {url} --sha256 {'0' * 64}` resumes it" in err


@pytest.mark.slow
async def test_ctrl_c_keeps_what_came_and_the_same_command_goes_on(nanoloop, server, folder):
    server.stops_after = 200_000
    part = folder / "tiny.gguf.part"
    async with nanoloop.started("model", "get", server.url()) as process:
        with anyio.fail_after(20):
            while not (part.exists() and part.stat().st_size > 100_000):
                await anyio.lowlevel.checkpoint()
        assert (await listed(nanoloop))["tiny"]["fetched_bytes"] > 100_000
        process.send_signal(signal.SIGINT)
        assert "the partial download is kept" in await line_with(process.stderr, "stopped")
        assert await ended(process) == 130
    server.release()
    await nanoloop.run("model", "get", server.url())
    assert server.ranges == [None, "bytes=200000-"]
    assert (folder / "tiny.gguf").read_bytes() == CONTENT


async def test_a_terminal_has_a_bar(nanoloop, server):
    with Terminal() as terminal:
        async with nanoloop.started("model", "get", server.url(), terminal=terminal) as process:
            await terminal.shows("512.0/512.0 kB")
            await terminal.shows("chat --local tiny")
            assert await ended(process) == 0


async def test_a_named_file_that_is_missing_is_told(nanoloop):
    _, err = await nanoloop.run("chat", "--model", "/nowhere/my.gguf", "-m", "hi", code=2)
    assert "no model file /nowhere/my.gguf" in err


@pytest.mark.slow
async def test_a_local_model_answers_a_pipe_without_any_settings(nanoloop):
    await anyio.to_thread.run_sync(model_file)
    nanoloop.set(NANOLOOP_MODELS=str(FOLDER))
    out, err = await nanoloop.run("chat", "--local", TINY, text="Say hello.\n")
    assert out.strip()
    assert err == ""
