"""Anyone who holds a token sends bodies that take long to read, or addresses of our network."""

import json
import socket
import threading
from base64 import b64encode

import pytest

from nanoloop.channels.server import LOOP_BYTES
from nanoloop.channels.web import api
from nanoloop.channels.web.openai import request
from nanoloop.channels.web.openai.request import JSON_BYTES, NESTED, ChatRequest
from tests.web_openai import asking

PATH = "/v1/chat/completions"
SAID = b'{"model": "assistant", "messages": [{"role": "user", "content": "hello"}], "extra": %s}'
IMAGE = b'"data:image/png;base64,%s"'
ONE_IMAGE = IMAGE % (b"a" * JSON_BYTES)


@pytest.fixture
async def web(tmp_path):
    async with asking(tmp_path) as web:
        yield web


async def sent(web, body):
    return await web.client.post(PATH, content=body)


@pytest.mark.parametrize(
    "extra",
    [
        b'"%s"' % (b"x" * JSON_BYTES),
        b"[%s1]" % (b"1," * (JSON_BYTES // 2)),
        b"[%s1]" % (b'"data:image/",' * (JSON_BYTES // 10)),
        b'["data:image/png;base64,%s"]' % (b'",1,"data:image/' * (JSON_BYTES // 10)),
        b'"%s", "x": "%s"' % (b"y" * (JSON_BYTES // 2), b"z" * (JSON_BYTES // 2)),
    ],
    ids=["one text", "numbers", "short images", "images that end at once", "two texts"],
)
async def test_what_is_no_image_has_a_limit_of_its_own(web, extra):
    refused = await sent(web, SAID % extra)
    assert refused.status_code == 413
    assert f"more than {JSON_BYTES} bytes apart from" in refused.json()["error"]["message"]


@pytest.mark.parametrize("extra", [ONE_IMAGE, b"[%s, %s]" % (ONE_IMAGE, ONE_IMAGE)])
async def test_images_may_be_larger(web, extra):
    assert (await sent(web, SAID % extra)).status_code == 200


async def test_lists_and_objects_without_end_are_refused_before_they_are_parsed(web):
    refused = await sent(web, SAID % (b"[%s[]]" % (b"{}," * NESTED)))
    assert refused.status_code == 413
    assert f"more than {NESTED} lists and objects" in refused.json()["error"]["message"]


@pytest.mark.parametrize("sign", [b"[", b'{"a":'], ids=["lists", "objects"])
@pytest.mark.parametrize("depth", [1000, NESTED - 10])
async def test_deep_nesting_is_refused(web, sign, depth):
    closing = {b"[": b"]"}.get(sign, b"}")
    refused = await sent(web, SAID % (sign * depth + b"1" + closing * depth))
    assert refused.status_code == 400
    assert "recursion limit" in refused.json()["error"]["message"]


async def test_more_tools_than_anyone_needs_are_refused(web):
    tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(request.TOOLS + 1)]
    given = {"model": "assistant", "messages": [{"role": "user", "content": "x"}], "tools": tools}
    refused = await web.client.post(PATH, json=given)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools"


@pytest.fixture
def places(monkeypatch):
    """The threads in which bodies are parsed and checked."""
    found = {}

    def noting(module, name):
        real = getattr(module, name)

        def noted(*given, **named):
            found.setdefault(name, set()).add(threading.get_ident())
            return real(*given, **named)

        monkeypatch.setattr(module, name, noted)

    noting(ChatRequest, "model_validate_json")
    noting(request, "_checked_message")
    noting(request, "image_bytes")
    noting(api, "_checked")
    return found


@pytest.mark.parametrize("is_large", [True, False])
async def test_a_large_body_is_parsed_and_checked_outside_the_event_loop(web, places, is_large):
    text = "x" * (LOOP_BYTES if is_large else 1)
    url = f"data:image/png;base64,{b64encode(text.encode()).decode()}"
    picture = [{"type": "image_url", "image_url": {"url": url}}]
    for content, more in ((text, {}), (picture, {"user": "ann"})):
        said = {"model": "assistant", "messages": [{"role": "user", "content": content}], **more}
        await sent(web, json.dumps(said))
    session = await web.begin()
    await web.call("POST", f"/api/sessions/{session}/messages", status=202, json={"text": text})
    here = threading.get_ident()
    assert {name: here in threads for name, threads in places.items()} == {
        "model_validate_json": not is_large,
        "_checked_message": not is_large,
        "image_bytes": not is_large,
        "_checked": True,  # of the session that is begun
    }
    assert (len(places["_checked"]) > 1) == is_large


PRIVATE = [
    "http://example.org/a.png",
    "http://169.254.169.254/latest/meta-data/",
    "https://169.254.169.254/latest/meta-data/",
    "https://127.0.0.1:8765/api/sessions",
    "https://2130706433/",
    "https://0x7f.1/",
    "https://[::ffff:10.0.0.1]/",
    "https://example.org@10.0.0.1/",
    "https://10.0.0.1\\@example.org/",
    "https://localhost/",
    "https://metadata.google.internal/computeMetadata/v1/",
    "https://leads-there.example/",
]


@pytest.fixture
def names(monkeypatch):
    """All names but one stand for a public address."""

    def look_up(host, port, **_):
        address = "10.0.0.1" if host == "leads-there.example" else "93.184.216.34"
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port))]

    monkeypatch.setattr("nanoloop.addresses.socket.getaddrinfo", look_up)


def showing(url):
    part = {"type": "image_url", "image_url": {"url": url}}
    text = {"type": "text", "text": "what is this?"}
    return {"model": "assistant", "messages": [{"role": "user", "content": [text, part]}]}


@pytest.mark.usefixtures("names")
@pytest.mark.parametrize("more", [{}, {"user": "ann"}, {"stream": True}])
async def test_an_image_in_our_network_is_not_asked_for(web, more):
    for url in PRIVATE:
        refused = await web.client.post(PATH, json=showing(url) | more)
        assert refused.status_code == 400, url
    assert web.provider.count == 0


@pytest.mark.usefixtures("names")
async def test_a_public_image_is(web):
    assert (await web.client.post(PATH, json=showing("https://example.org/a.png"))).is_success
    assert "https://example.org/a.png" in str(web.provider.calls)


async def test_an_image_may_lie_behind_few_names(web):
    asked = showing("https://example.org/a.png")
    asked["messages"] *= 30
    asked["messages"] = json.loads(json.dumps(asked["messages"]))
    for number, message in enumerate(asked["messages"]):
        message["content"][1]["image_url"]["url"] = f"https://{number}.example.org/"
    refused = await web.client.post(PATH, json=asked)
    assert (refused.status_code, "hosts at once" in refused.text) == (400, True)
