"""The page with many conversations, and long ones."""

import pytest

from nanoloop.providers.scripted import ScriptedProvider
from tests import browser
from tests.browser import Voice, answer, ask, expect, opened, say, serving, talked

anyio_backend = browser.anyio_backend
chromium = browser.chromium


@pytest.fixture
async def echo(tmp_path):
    async with serving(tmp_path, ScriptedProvider()) as served:
        yield served


@pytest.mark.slow
async def test_a_conversation_is_renamed_found_archived_and_exported(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await ask(page, "About tea", "You said: About tea")
        await page.click("#new")
        await ask(page, "About coffee", "You said: About coffee")
        await page.click("#session-menu")
        await page.get_by_role("menuitem", name="Rename").click()
        await page.get_by_role("textbox", name="Title").fill("Beans")
        await page.keyboard.press("Enter")
        await expect(page.locator("#title")).to_have_text("Beans")
        titles = page.locator("#sessions .title")
        await expect(titles).to_have_text(["Beans", "About tea"])
        await page.fill("#search", "tea")
        await expect(titles).to_have_text(["About tea"])
        await page.fill("#search", "")
        await page.click("#session-menu")
        async with page.expect_download() as download:
            await page.get_by_role("menuitem", name="Export as Markdown").click()
        path = await (await download.value).path()
        assert "You said: About coffee" in path.read_text()
        await page.click("#session-menu")
        await page.get_by_role("menuitem", name="Archive").click()
        await expect(titles).to_have_text(["About tea"])
        await expect(page.locator("#welcome")).to_be_visible()
        await page.click("#archived")
        await expect(titles).to_have_text(["Beans"])


@pytest.mark.slow
async def test_the_agent_is_chosen(chromium, tmp_path):
    agents = {"cook": {"prompt": "You are a cook."}}
    async with (
        serving(tmp_path, ScriptedProvider(), agents=agents) as served,
        opened(chromium, served.url) as page,
    ):
        await page.get_by_role("radio", name="cook").check()
        await ask(page, "Eggs?", "You said: Eggs?")
        assert served.provider.calls[-1].messages[0]["content"].startswith("You are a cook.")
        await expect(page.locator("#agent")).to_have_value("cook")
        await page.select_option("#agent", "assistant")
        await expect(page.locator("#agent")).to_have_value("assistant")
        await ask(page, "And now?", "You said: And now?")
        assert "cook" not in served.provider.calls[-1].messages[0]["content"]


@pytest.mark.slow
async def test_a_session_whose_agent_is_gone_can_still_be_read(chromium, echo):
    path = await talked(echo, 2, agent="ghost")
    async with opened(chromium, echo.url, path=path) as page:
        await expect(page.locator("#log .bubble")).to_contain_text(["message 0"])
        await ask(page, "Hello", "You said: Hello")


@pytest.mark.slow
async def test_older_messages_come_as_one_scrolls_up(chromium, echo):
    path = await talked(echo, 130)
    async with opened(chromium, echo.url, path=path) as page:
        items = page.locator("#log > li")
        await expect(items).to_have_count(50)
        await expect(items.last).to_be_in_viewport()
        await page.locator("#scroller").evaluate("box => box.scrollTop = 0")
        await expect(items).to_have_count(100)
        await expect(page.get_by_text("message 80,").first).to_be_in_viewport()
        await page.locator("#scroller").evaluate("box => box.scrollTop = 0")
        await expect(items).to_have_count(130)
        await expect(page.locator("#older")).to_be_hidden()


@pytest.mark.slow
async def test_who_scrolled_up_is_left_there(chromium, tmp_path):
    async with serving(tmp_path, Voice()) as voice, opened(chromium, voice.url) as page:
        await page.goto(voice.url + await talked(voice, 40))
        await expect(page.locator("#log > li").last).to_be_in_viewport()
        await say(page, "More?")
        voice.provider.say("Yes. ")
        await expect(answer(page)).to_be_in_viewport()
        await page.mouse.move(600, 300)
        await page.mouse.wheel(0, -900)
        await expect(page.locator("#latest")).to_be_visible()
        voice.provider.say("a line\n\n" * 30)
        await expect(answer(page).locator("p")).to_have_count(30)
        await expect(answer(page).locator("p").last).not_to_be_in_viewport()
        await page.click("#latest")
        await expect(answer(page).locator("p").last).to_be_in_viewport()
        voice.provider.end()
