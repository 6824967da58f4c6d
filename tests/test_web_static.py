"""The page's files come from memory, anew only where they changed, and nothing else does."""

import hashlib
from pathlib import Path

import pytest

import nanoloop.channels.web
from nanoloop.providers.scripted import ScriptedProvider
from tests.web_server import serving

VENDOR = Path(nanoloop.channels.web.__file__).parent / "static" / "vendor"
LISTED = dict(
    reversed(line.split("  "))
    for line in (VENDOR / "VERSIONS.txt").read_text().splitlines()
    if line.endswith(".js") and ", " not in line
)
"""Each script that others published, with the checksum that it had then."""


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


def test_what_others_published_is_unchanged_and_with_its_licence():
    scripts = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*.js")}
    found = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in scripts.items()}
    assert found == LISTED
    assert all((path.parent / "LICENSE").is_file() for path in scripts.values())


async def test_what_others_published_is_served_from_here(site):
    for name in LISTED:
        sent = await site.client.get(f"/static/vendor/{name}")
        assert "javascript" in sent.headers["content-type"]
        assert sent.content == (VENDOR / name).read_bytes()
