"""Sessions over the web: begun, listed, found, renamed, put away, exported, deleted."""

import pytest

from tests.web_server import serving


@pytest.fixture
async def web(tmp_path):
    async with serving(tmp_path) as web:
        yield web


async def test_a_session_begins_empty_and_is_listed(web):
    session = await web.begin(title="Our trip")
    listed = await web.call("GET", "/api/sessions", status=200)
    assert [(s["id"], s["title"], s["entries"]) for s in listed["sessions"]] == [
        (session, "Our trip", 0)
    ]
    assert listed["next"] is None


async def test_lists_come_page_by_page(web):
    begun = {await web.begin() for _ in range(3)}
    first = await web.call("GET", "/api/sessions", params={"limit": 2})
    rest = await web.call("GET", "/api/sessions", params={"limit": 2, "after": first["next"]})
    assert {s["id"] for s in first["sessions"] + rest["sessions"]} == begun
    assert rest["next"] is None


async def test_a_page_of_the_list_reads_no_more_sessions_than_it_needs(web, monkeypatch):
    for _ in range(6):
        await web.begin()
    store, read = web.app.loop.sessions.store, []
    listed = [info async for info in store.list()]

    async def counted():
        for info in listed:
            read.append(info)
            yield info

    monkeypatch.setattr(store, "list", counted, raising=False)
    page = await web.call("GET", "/api/sessions", params={"limit": 2})
    assert (len(page["sessions"]), len(read)) == (2, 3)
    read.clear()
    await web.call("GET", "/api/sessions", params={"limit": 1, "after": page["next"]})
    assert len(read) == 4


async def test_a_session_is_found_by_its_title_or_by_what_was_said(web):
    named, other = await web.begin(title="Cakes and tea"), await web.begin(title="Work")
    await web.answered(other, "the blue bicycle")
    for search, found in (("cakes", named), ("bicycle blue", other)):
        listed = await web.call("GET", "/api/sessions", params={"search": search})
        assert [s["id"] for s in listed["sessions"]] == [found]


async def test_a_session_can_be_renamed_and_put_away_and_got_back(web):
    session = await web.begin()
    path = f"/api/sessions/{session}"
    shown = await web.call(
        "PATCH", path, status=200, json={"title": " New  name ", "archived": True}
    )
    assert (shown["title"], shown["archived"]) == ("New name", True)
    assert (await web.call("GET", "/api/sessions"))["sessions"] == []
    put_away = await web.call("GET", "/api/sessions", params={"archived": "1"})
    assert [s["id"] for s in put_away["sessions"]] == [session]
    assert not (await web.call("PATCH", path, json={"archived": False}))["archived"]


async def test_the_agent_can_be_chosen_from_those_there_are(tmp_path):
    agents = {"cook": {"prompt": "You cook."}}
    async with serving(tmp_path, settings={"agents": agents}) as web:
        me = await web.call("GET", "/api/me", status=200)
        assert [agent["name"] for agent in me["agents"]] == ["assistant", "cook"]
        assert "You cook" not in str(me)
        session = await web.begin(agent="cook")
        await web.answered(session, "hello")
        assert web.provider.calls[-1].messages[0]["content"] == "You cook."
        refused = await web.call("POST", "/api/sessions", status=422, json={"agent": "cok"})
        assert "did you mean cook?" in refused["error"]["message"]


@pytest.mark.parametrize(("form", "kind"), [("md", "markdown"), ("json", "json"), ("yaml", "yaml")])
async def test_the_whole_of_it_can_be_taken_along(web, form, kind):
    session = await web.begin(title='A "title" / with\nsigns')
    await web.answered(session, "hello")
    path = f"/api/sessions/{session}/export"
    response = await web.client.get(path, params={"format": form})
    assert kind in response.headers["content-type"]
    assert response.headers["content-disposition"].startswith("attachment; filename*=UTF-8''")
    assert "You said: hello" in response.text


async def test_a_deleted_session_is_gone_and_its_readers_are_told(web):
    session = await web.begin()
    await web.answered(session, "hello")
    async with web.reading(session) as reader:
        await reader.until("hello")
        await web.call("DELETE", f"/api/sessions/{session}", status=204)
        assert (await reader.until("session"))[-1].data == {"deleted": True}
    await web.call("GET", f"/api/sessions/{session}", status=404)
    await web.call("GET", f"/api/sessions/{session}/messages", status=404)


@pytest.mark.parametrize("name", ["..%2f..%2fetc%2fpasswd", "%00", "no-such", "%2e%2e", "a b", "é"])
async def test_a_name_is_never_a_path(web, name):
    for path in (f"/api/sessions/{name}", f"/api/attachments/{name}", f"/static/{name}"):
        response = await web.call("GET", path)
        assert set(response["error"]) == {"message", "type"}
        assert response["error"]["type"] == "not_found"


async def test_a_session_of_another_channel_is_talked_in_while_it_is_its_chats_own(web):
    sessions = web.app.loop.sessions
    old = (await sessions.current("telegram:42")).id
    assert await web.answered(old, "hello") == "You said: hello"
    new = (await sessions.start_new("telegram:42")).id
    said = {"text": "again"}
    refused = await web.call("POST", f"/api/sessions/{old}/messages", status=409, json=said)
    assert "another session" in refused["error"]["message"]
    assert await web.answered(new, "hi") == "You said: hi"
