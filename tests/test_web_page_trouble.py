"""The page when things go wrong: a restart, a token, a conversation that is gone."""

from contextlib import AsyncExitStack

import pytest

from nanoloop.providers.scripted import ScriptedProvider
from tests import browser
from tests.browser import Voice, answer, ask, expect, opened, say, serving

anyio_backend = browser.anyio_backend
chromium = browser.chromium


@pytest.mark.slow
async def test_a_restart_of_the_server_in_the_middle_is_survived(chromium, tmp_path):
    async with AsyncExitStack() as stack:
        async with serving(tmp_path, Voice()) as served:
            page = await stack.enter_async_context(opened(chromium, served.url))
            await say(page, "Count.")
            served.provider.say("one ")
            await expect(answer(page)).to_have_text("one")
        await expect(page.locator("#lost")).to_be_visible()
        await say(page, "And on?")
        await expect(page.locator("#tail .tag")).to_have_text("waits for the connection")
        async with serving(tmp_path, ScriptedProvider(), port=served.port):
            await expect(page.locator("#log .bubble")).to_have_text(["Count.", "And on?"])
            said = ["You said: Count.", "You said: And on?"]
            await expect(page.locator("#log .prose")).to_have_text(said)
            await expect(page.locator("#lost")).to_be_hidden()


@pytest.mark.slow
async def test_a_token_is_asked_for_once(chromium, tmp_path):
    web = {"tokens": {"ada": {"token": "a-long-enough-token"}}}
    async with serving(tmp_path, web=web) as served, opened(chromium, served.url) as page:
        await page.fill("#token", "a-wrong-token-of-mine")
        await page.keyboard.press("Enter")
        await expect(page.locator("#login-trouble")).not_to_be_empty()
        await page.fill("#token", "a-long-enough-token")
        await page.keyboard.press("Enter")
        await expect(page.locator("#login")).to_be_hidden()
        await ask(page, "Hello", "You said: Hello")
        await page.reload()
        await expect(page.locator("#log .bubble")).to_have_text(["Hello"])
        await expect(page.locator("#login")).to_be_hidden()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.locator("#login")).to_be_visible()
        await expect(page.locator("#log .bubble")).to_have_count(0)


@pytest.mark.slow
async def test_the_printed_address_logs_in_and_leaves_no_token_behind(chromium, tmp_path):
    web = {"open_on_loopback": False}
    async with serving(tmp_path, web=web) as served, opened(chromium, served.link, path="") as page:
        await ask(page, "Hello", "You said: Hello")
        assert "token" not in page.url
        await page.get_by_role("button", name="Log out").click()
        await expect(page.locator("#login-where")).to_be_visible()


@pytest.mark.slow
async def test_a_link_changes_nobodys_login(chromium, tmp_path):
    tokens = {name: {"token": f"a-long-enough-token-of-{name}"} for name in ("ada", "bob")}
    async with serving(tmp_path, web={"tokens": tokens}) as served:
        path = f"/#token={tokens['ada']['token']}"
        async with opened(chromium, served.url, path=path) as page:
            await ask(page, "Hello", "You said: Hello")
            await page.goto("about:blank")
            await page.goto(f"{served.url}/#token={tokens['bob']['token']}")
            await expect(page.locator("#text")).to_be_enabled()
            me = await page.evaluate("fetch('api/me').then((answer) => answer.json())")
            assert (me["name"], page.url) == ("ada", f"{served.url}/")


@pytest.mark.slow
async def test_a_conversation_that_was_deleted_is_left(chromium, tmp_path):
    async with serving(tmp_path) as echo, opened(chromium, echo.url) as page:
        await ask(page, "Hello", "You said: Hello")
        [info] = [info async for info in echo.app.loop.sessions.store.list()]
        await page.request.delete(f"{echo.url}/api/sessions/{info.id}", headers={"X-Nanoloop": "1"})
        await expect(page.locator("#welcome")).to_be_visible()
        await expect(page.locator(".toast")).to_have_text("This conversation is gone.")
