"""Questions about tool calls on the page, in a real browser: buttons, and what becomes of them."""

import sys
from contextlib import asynccontextmanager

import anyio
import pytest

from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from nanoloop.tools.toolbox import Toolbox
from tests import browser
from tests.browser import expect, opened, say, serving
from tests.test_approvals import Till, asks, call

anyio_backend = browser.anyio_backend
chromium = browser.chromium

ALICE, BOB = "a-token-of-alice-24-signs", "a-token-of-bob-that-is-long"


@asynccontextmanager
async def asking(folder, *replies, **more):
    """The page over a model that asks for a call, and the tool that it calls."""
    till = Till()
    provider = ScriptedProvider(replies or [asks(), "It is paid."], otherwise="Well.")
    async with serving(folder, provider, **more) as served:
        agent = served.app.loop.agents.default
        agent.toolbox = Toolbox([till.tool], approval=agent.toolbox.approval)
        yield served, till


def choice(page, name):
    return page.locator("#log > .approval").get_by_role("button", name=name, exact=True)


@pytest.mark.slow
async def test_a_question_is_answered_by_a_button(chromium, tmp_path):
    async with asking(tmp_path) as (served, till), opened(chromium, served.url) as page:
        await say(page, "Pay!")
        question = page.locator("#log > .approval")
        await expect(question.locator(".prose")).to_contain_text("May I call pay? (number 1)")
        await expect(question.locator("pre")).to_contain_text('"to": "Ada"')
        await expect(page.get_by_role("button", name="Try again")).to_have_count(0)
        await choice(page, "Yes").click()
        await expect(page.locator("#log > .answer .prose")).to_have_text("It is paid.")
        await expect(question.locator(".choices")).to_have_count(0)
        await expect(question.locator(".tag")).to_have_text("answered")
        await expect(page.locator("#tail > *")).to_have_count(0)
        await expect(page.locator(".bubble")).to_have_text(["Pay!"])
    assert till.paid == [("Ada", 5)]


@pytest.mark.slow
async def test_after_a_reload_the_buttons_are_there_for_the_keyboard(chromium, tmp_path):
    async with asking(tmp_path) as (served, till), opened(chromium, served.url) as page:
        await say(page, "Pay!")
        await expect(choice(page, "No")).to_be_visible()
        await page.reload()
        await expect(page.get_by_role("group", name="Your answer")).to_be_visible()
        await choice(page, "Yes").focus()
        await page.keyboard.press("Tab")
        await expect(choice(page, "No")).to_be_focused()
        await page.keyboard.press("Enter")
        await expect(page.locator("#log > .answer .prose")).to_have_text("It is paid.")
        await expect(page.locator("#text")).to_be_focused()
        await page.reload()
        await expect(page.locator("#log > .approval .tag")).to_have_text("answered")
        await expect(page.locator("#log > .approval .choices")).to_have_count(0)
    assert till.paid == []


@pytest.mark.slow
async def test_of_two_calls_each_has_its_buttons(chromium, tmp_path):
    both = asks(call(to="Ada"), call(to="Bob", call_id="c2"))
    async with (
        asking(tmp_path, both, "one") as (served, till),
        opened(chromium, served.url) as page,
    ):
        await say(page, "Pay both!")
        await choice(page, "Yes 2").click()
        await expect(page.locator("#log > .answer .prose")).to_have_text("one")
        await expect(choice(page, "Yes 2")).to_have_count(0)
        await expect(choice(page, "Yes 1")).to_be_enabled()
        await expect(page.locator("#log > .approval .tag")).to_have_text("2: answered")
    assert till.paid == [("Bob", 5)]


@pytest.mark.slow
async def test_a_typed_yes_leaves_nothing_below_the_log(chromium, tmp_path):
    async with asking(tmp_path) as (served, _), opened(chromium, served.url) as page:
        await say(page, "Pay!")
        await expect(choice(page, "Yes")).to_be_visible()
        await say(page, "/yes")
        await expect(page.locator("#log > .answer .prose")).to_have_text("It is paid.")
        await expect(page.locator("#tail > *")).to_have_count(0)


@pytest.mark.slow
async def test_the_buttons_go_in_all_windows(chromium, tmp_path):
    async with asking(tmp_path) as (served, _), opened(chromium, served.url) as page:
        await say(page, "Pay!")
        await expect(choice(page, "Yes")).to_be_visible()
        other = await page.context.new_page()
        await other.goto(page.url)
        await choice(other, "Yes").click()
        for tab in (page, other):
            await expect(tab.locator("#log > .answer .prose")).to_have_text("It is paid.")
            await expect(tab.locator("#log > .approval .choices")).to_have_count(0)


@pytest.mark.slow
async def test_the_buttons_go_when_another_process_answers(chromium, tmp_path):
    async with asking(tmp_path) as (served, till), opened(chromium, served.url) as page:
        await say(page, "Pay!")
        await expect(choice(page, "Yes")).to_be_visible()
        (session,) = [i.id async for i in served.app.loop.sessions.store.list()]
        command = [sys.executable, "-m", "nanoloop", "approvals", "--data", str(tmp_path)]
        await anyio.run_process([*command, "no", session, "1"])
        await expect(page.locator("#log > .approval .choices")).to_have_count(0)
    assert till.paid == []


@pytest.mark.slow
async def test_the_buttons_go_when_the_time_is_over(chromium, tmp_path):
    soon = {"approvals": {"expires": "3s"}}
    async with (
        asking(tmp_path, tools=soon) as (served, _),
        opened(chromium, served.url) as page,
    ):
        await say(page, "Pay!")
        await expect(choice(page, "Yes")).to_be_visible()
        await expect(page.locator("#log > .approval .tag")).to_have_text("nobody answered in time")
        await expect(choice(page, "Yes")).to_have_count(0)


@pytest.mark.slow
async def test_somebody_elses_press_is_refused_and_the_buttons_stay(chromium, tmp_path):
    tokens = {"alice": {"token": ALICE}, "bob": {"token": BOB, "sessions": ["*"]}}
    async with (
        asking(tmp_path, web={"tokens": tokens}) as (served, till),
        opened(chromium, served.url, path=f"/#token={ALICE}") as page,
        opened(chromium, served.url, path=f"/#token={BOB}") as other,
    ):
        await say(page, "Pay!")
        await expect(choice(page, "Yes")).to_be_visible()
        await other.goto(page.url)
        await other.reload()
        await choice(other, "Yes").click()
        await expect(other.locator("#log > .notice")).to_contain_text(ENGLISH["void_others"])
        await expect(choice(other, "Yes")).to_be_enabled()
        assert till.paid == []
        await choice(page, "Yes").click()
        await expect(page.locator("#log > .answer .prose")).to_have_text("It is paid.")
