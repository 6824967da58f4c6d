"""The page's files come from memory, anew only where they changed, and nothing else does."""

import pytest

from nanoloop.providers.scripted import ScriptedProvider
from tests.web_server import serving


@pytest.fixture
async def site(tmp_path):
    async with serving(tmp_path, provider=ScriptedProvider()) as site:
        yield site


async def test_a_file_is_sent_once_and_then_only_named(site):
    first = await site.client.get("/static/main.js")
    assert (first.status_code, first.headers["cache-control"]) == (200, "no-cache")
    assert "javascript" in first.headers["content-type"]
    again = await site.client.get(
        "/static/main.js", headers={"If-None-Match": first.headers["etag"]}
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["/static/none.js", "/static/", "/static/../site.py", "/static/%2e%2e/site.py"]
)
async def test_nothing_else_is_there(site, path):
    assert (await site.client.get(path)).status_code == 404
