"""The memory panel in a real browser, as summaries are written and set right."""

import pytest

from tests import browser
from tests.browser import Voice, ask, expect, opened, serving

anyio_backend = browser.anyio_backend
chromium = browser.chromium


@pytest.mark.slow
async def test_a_summary_is_seen_as_it_is_written(chromium, tmp_path):
    limits = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with serving(tmp_path, Voice(), **limits) as served, opened(chromium, served.url) as page:
        voice = served.provider
        voice.summary.hold()
        await _talk(page, voice, "Green tea at 80 °C?", "Green.", "Or black?", "No.")
        await page.click("#open-memory")
        await expect(page.locator("#bar .window")).to_be_visible()
        await expect(page.locator("#summary")).to_contain_text("nothing to summarise")
        await _talk(page, voice, "For how long?", "Two minutes.")
        await expect(page.locator(".working")).to_be_visible()
        await expect(page.locator("#bar .pending.running")).to_be_visible()
        await expect(page.locator("#log [data-place=pending]").first).to_be_visible()
        voice.summary.release()
        await expect(page.locator("#summary .prose")).to_have_text("It was about tea.")
        await expect(page.locator("#bar .pending")).to_have_count(0)
        await expect(page.locator("#log [data-place=covered]").first).to_be_visible()
        await expect(page.locator("#receipts .receipt")).to_have_count(1)
        await expect(page.locator("#ledger")).to_contain_text("80 °C")


async def _talk(page, voice, *lines):
    for asked, said in zip(lines[::2], lines[1::2], strict=True):
        voice.say(said, None)
        await ask(page, asked, said)


@pytest.mark.slow
async def test_the_summary_is_set_right_in_the_panel(chromium, tmp_path):
    limits = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with serving(tmp_path, Voice(), **limits) as served, opened(chromium, served.url) as page:
        await _talk(page, served.provider, "One", "1", "Two", "2", "Three", "3")
        await page.click("#open-memory")
        await page.click("#edit-summary")
        await page.get_by_role("textbox", name="Summary").fill("It was about numbers.")
        await page.get_by_role("button", name="Save").click()
        await expect(page.locator("#summary .prose")).to_have_text("It was about numbers.")
        [session] = [info async for info in served.app.loop.sessions.store.list()]
        kept = await served.app.loop.sessions.open(session.id)
        assert kept.summary == "It was about numbers."
