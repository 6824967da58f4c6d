"""For who runs it: health, numbers, logs without words, and an API that describes itself."""

import json
import re

import pytest

from nanoloop.channels.web.api import document
from nanoloop.channels.web.channel import OPERATIONS
from nanoloop.sentences import ENGLISH
from tests.web_server import serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


async def test_it_is_alive_and_ready(web):
    assert await web.call("GET", "/healthz", status=200) == {"status": "ok"}
    ready = await web.call("GET", "/readyz", status=200)
    assert ready == {"status": "ok", "loop": True, "store": True}


async def test_a_store_that_fails_is_alive_and_not_ready(web):
    async def fails(_key):
        raise OSError("/secret/path is gone")

    web.app.loop.sessions.store.bound = fails
    ready = await web.call("GET", "/readyz", status=503)
    assert ready == {"status": "not ready", "loop": True, "store": False}
    await web.call("GET", "/healthz", status=200)


async def test_metrics_are_lines_that_prometheus_reads(web):
    await web.answered(await web.begin(), "hello")
    text = (await web.client.get("/metrics")).text
    assert 'nanoloop_events_total{event="turn_finished"} 1\n' in text
    assert "nanoloop_web_open_streams " in text
    line = re.compile(r"(# (HELP|TYPE) .+|\w+(\{\w+=\"\w+\"(,\w+=\"\w+\")*\})? [-\d.e]+)")
    assert [odd for odd in text.splitlines() if not line.fullmatch(odd)] == []


async def test_each_request_is_one_line_without_what_was_said(web):
    session = await web.begin(title="a private title")
    await web.answered(session, "a private word")
    await web.client.get("/no/such/private/path")
    served = web.logged("request_served")
    told = {(line["method"], line["path"], line["status"]) for line in served}
    assert ("POST", "/api/sessions/{session}/messages", 202) in told
    assert ("GET", "-", 404) in told
    assert "private" not in json.dumps(served)


async def test_a_bug_is_a_line_with_its_place_and_no_words(web):
    async def fails(*_, **__):
        raise RuntimeError("a private word")

    web.app.loop.sessions.open = fails
    failed = await web.call("GET", "/api/sessions/web:local.x", status=500)
    (line,) = web.logged("request_failed")
    told = f"{ENGLISH['crashed']} (incident {line['incident']})"
    assert failed["error"] == {"message": told, "type": "failed"}
    assert (line["path"], line["error"]) == ("/api/sessions/{session}", "RuntimeError")
    assert "private" not in web.log.getvalue()


@pytest.mark.parametrize("path", ["/api/me", "/docs", "/no-such", "/static/no-such.js"])
async def test_every_answer_has_the_headers_that_keep_browsers_safe(web, path):
    headers = (await web.client.get(path)).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "unsafe" not in headers["content-security-policy"]
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "server" not in headers


async def test_the_docs_name_every_operation_and_load_nothing(web):
    page = (await web.client.get("/docs")).text
    assert [o.path for o in OPERATIONS if f"{o.method} {o.path}" not in page] == []
    assert not re.search(r"<(script|img|link)|https?://", page)


def test_the_document_has_one_id_for_each_operation():
    described = [
        operation for path in document(OPERATIONS)["paths"].values() for operation in path.values()
    ]
    assert len({operation["operationId"] for operation in described}) == len(OPERATIONS)


async def test_health_is_told_however_often_it_is_asked_for(tmp_path):
    async with serving(tmp_path, requests_per_minute=1) as web:
        await web.call("GET", "/api/sessions", status=200)
        await web.call("GET", "/api/sessions", status=429)
        for _ in range(3):
            await web.call("GET", "/healthz", status=200)
            await web.call("GET", "/readyz", status=200)


async def test_the_head_of_a_stream_ends(web):
    session = await web.begin()
    response = await web.client.head(f"/api/sessions/{session}/events")
    assert response.headers["content-type"].startswith("text/event-stream")
