"""The comparison with the peers still runs, as far as it goes without them."""

import json
from contextlib import asynccontextmanager

import pytest

from tests.bench.peers import tables
from tests.bench.peers.measures import Bench, Plan
from tests.bench.peers.model_server import ModelServer
from tests.bench.peers.process import Broken, Process, model_server, rate, told
from tests.bench.peers.said import ANSWERED, PROMPT
from tests.bench.peers.systems import SYSTEMS, NotInstalled, installed_bytes, python_of, versions
from tests.bench.peers.worker import playing
from tests.bench.report import Report
from tests.openai_server import PATH, OpenAIServer, Request

TINY = Plan(checkpoints=(5, 30), rounds=1, turns=5, budget_seconds=10)
BY_NAME = {system.name: system for system in SYSTEMS}


def asking(prompt, *texts):
    messages = [{"role": "system", "content": prompt}]
    messages += [{"role": "user", "content": text} for text in texts]
    return Request(b"POST " + PATH, json.dumps({"messages": messages}).encode())


def told_by(server):
    return json.loads(server.answer(Request(b"GET /told", b"")).body)


def here(*names):
    return {name: (BY_NAME[name], python_of("", "")) for name in names}


@pytest.mark.slow
def test_nanoloop_and_a_bare_loop_take_turns_and_are_compared(capsys):
    bench = Bench(here("nanoloop-jsonl", "bare"), TINY)
    bench.turn_times()
    assert bench.broken == []
    report = Report("short")
    tables.tell(report, bench.found, TINY)
    tables.judge(report, bench.found, TINY)
    assert "nanoloop-jsonl: a turn, in turns of bare" in capsys.readouterr().out


@asynccontextmanager
async def at_work(tmp_path):
    """A worker in this process, and a server that has been told to answer it."""
    async with OpenAIServer(otherwise=ANSWERED) as server:
        place = {"play": "nanoloop", "store": "jsonl", "folder": str(tmp_path), "url": server.url}
        async with playing({**place, "histories": [40]}) as worker:
            yield worker, server


async def test_a_worker_takes_turns_in_a_history_that_was_made_before(tmp_path):
    async with at_work(tmp_path) as (worker, server):
        got = await worker.turns("history40", 2, 10)
        assert len(got["taken"]) == 2
        assert got["written"] > 0
        assert len(server.requests[0].json["messages"]) > 8


async def test_a_crowd_speaks_side_by_side_and_is_counted(tmp_path):
    async with at_work(tmp_path) as (worker, _):
        got = await worker.crowd(3, 0.1)
        assert len(got["taken"]) >= 3
        assert got["errors"] == 0
        assert (await worker.idle(5))["bytes"] < 10_000_000


async def test_a_chat_and_its_neighbour_are_timed(tmp_path):
    async with at_work(tmp_path) as (worker, _):
        got = await worker.beside(2, 0.1)
        assert got["own"]
        assert got["other"]
        assert got["stall"] > 0


async def test_an_answer_that_is_not_the_models_is_an_error(tmp_path):
    async with at_work(tmp_path) as (worker, server):
        server.otherwise = "Something else."
        with pytest.raises(AssertionError):
            await worker.turns("chat", 1, 10)


def test_a_system_that_breaks_is_named_and_left_out(tmp_path):
    (tmp_path / "python").write_text("#!/bin/sh\necho no such library >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(Broken, match="no such library"):
        Process(BY_NAME["bare"], tmp_path / "python", "").__enter__()
    bench = Bench({"bare": (BY_NAME["bare"], tmp_path / "python")}, TINY)
    bench.turn_times()
    assert bench.broken == ["bare"]


def test_a_peer_that_cannot_be_installed_is_said_to_be_so(tmp_path):
    (tmp_path / "no folder").touch()
    with pytest.raises(NotInstalled):
        python_of("strands-agents", tmp_path / "no folder")


def test_the_server_is_far_faster_than_what_is_measured():
    with model_server() as url:
        assert rate(url, rounds=100) > 500
        assert told(url)["turns"] == 400


@pytest.mark.parametrize(
    ("prompt", "counted"), [(PROMPT, "turns"), ("You write summaries.", "summaries")]
)
def test_a_summary_is_told_from_a_turn_by_its_prompt(prompt, counted):
    server = ModelServer(record=True)
    server.answer(asking(prompt, "Hello."))
    assert told_by(server)[counted] == 1


def test_what_a_prefix_cache_would_serve_is_counted():
    server = ModelServer(record=True)
    server.answer(asking(PROMPT, "one"))
    server.answer(asking(PROMPT, "one", "two"))
    counts = told_by(server)
    assert counts["compared"] / 2 < counts["shared"] < counts["compared"]


def test_what_is_installed_is_found_with_its_size(tmp_path):
    assert versions(BY_NAME["bare"], tmp_path).startswith("openai ")
    assert installed_bytes(BY_NAME["nanoloop-jsonl"], tmp_path) > installed_bytes(
        BY_NAME["bare"], tmp_path
    )
