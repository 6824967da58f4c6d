import pytest

from nanoloop.session.resize import REF_LIMIT, attachment_summaries, without_payloads


def about(*parts):
    return attachment_summaries({"role": "user", "content": list(parts)})


@pytest.mark.parametrize("content", ["text", None, {"type": "image"}, 3, []])
def test_r0_56_only_a_list_has_attachments(content):
    assert attachment_summaries({"role": "user", "content": content}) == []


def test_r0_56_r1_17_type_reference_and_known_facts():
    part = {
        "type": "image",
        "path": "/p.png",
        "url": "http://x/y.png",
        "name": "y",
        "mime_type": "image/png",
        "size": 3,
        "width": 1,
        "height": 2,
        "duration": 4,
        "data": "AAAA",
    }
    facts = {k: part[k] for k in ("name", "mime_type", "size", "width", "height", "duration")}
    assert about(part) == [{"type": "image", "ref": "http://x/y.png", "meta": facts}]


@pytest.mark.parametrize("name", ["file", "url", "path", "id", "name"])
def test_r0_56_any_of_five_names_is_a_reference(name):
    assert about({"type": "file", name: "here"})[0]["ref"] == "here"


def test_r0_56_the_first_of_them_that_is_there_counts():
    part = {"type": "file", "name": "n", "id": "i", "path": "p", "url": "", "file": None}
    assert about(part)[0]["ref"] == "p"


def test_a_reference_may_be_nested():
    assert about({"type": "image_url", "image_url": {"url": "http://x"}})[0]["ref"] == "http://x"
    assert about({"type": "image_url", "image_url": "http://x"})[0]["ref"] == "http://x"
    assert about({"type": "file", "file": {"id": "f1"}})[0]["ref"] == "f1"


def test_text_and_parts_without_a_type_are_skipped():
    assert about("words", {"type": "text", "text": "t"}, {"url": "x"}, {"type": ""}, 3) == []


def test_falsy_facts_are_skipped_and_no_reference_is_none():
    assert about({"type": "audio", "size": 0, "name": ""}) == [
        {"type": "audio", "ref": None, "meta": {}}
    ]


def test_r1_17_a_payload_is_no_reference():
    assert about({"type": "image", "url": "data:image/png;base64,AAAA"})[0]["ref"] == (
        "data:image/png;base64"
    )
    assert len(about({"type": "file", "file": "A" * 9999})[0]["ref"]) == REF_LIMIT + 1


def test_a_content_without_payloads_names_what_was_there():
    image = {"type": "image", "data": "AAAA"}
    use = {"type": "tool_use", "name": "t"}
    assert without_payloads(["a", {"type": "text", "text": "b"}, image, use, 3]) == (
        "a\nb\n[image]\n[calls t]"
    )
    assert without_payloads("a") == "a"
