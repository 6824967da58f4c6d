"""Anyone who holds a token sends bodies that take long to read: they hold up nobody."""

import json
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
    assert (
        refused.json()["error"]["message"] == f"that is more than {JSON_BYTES} bytes beside images"
    )


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
