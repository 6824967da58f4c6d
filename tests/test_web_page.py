"""The page in a real browser: a conversation as a person has it, with files."""

import json
import re

import pytest

from nanoloop import FileResult
from nanoloop.errors import NoConnection
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.sentences import ENGLISH
from tests import browser
from tests.browser import Voice, answer, ask, expect, opened, say, serving
from tests.images import png
from tests.sent_files import PDF, calling, making

anyio_backend = browser.anyio_backend
chromium = browser.chromium


@pytest.fixture
async def voice(tmp_path):
    async with serving(tmp_path, Voice()) as served:
        yield served


@pytest.fixture
async def echo(tmp_path):
    async with serving(tmp_path, ScriptedProvider()) as served:
        yield served


# A conversation


@pytest.mark.slow
async def test_an_answer_shows_as_it_is_written(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "Hello?")
        voice.provider.say("Good ", "**mor")
        await expect(answer(page)).to_have_text("Good **mor")
        await expect(page.locator("#stop")).to_be_visible()
        voice.provider.say("ning**\n\n", "Well?")
        await expect(answer(page).locator("strong")).to_have_text("morning")
        voice.provider.end()
        await expect(page.locator("#stop")).to_be_hidden()
        await expect(page.locator("#log > .answer")).to_have_count(1)
        await expect(page.locator("#log > .user .bubble")).to_have_text("Hello?")
        await expect(page.locator("#tail > *")).to_have_count(0)
        await expect(page.locator("#announcer")).to_have_text("Good morningWell?")


@pytest.mark.slow
async def test_a_stopped_answer_keeps_what_was_said(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "Tell me everything.")
        voice.provider.say("It began ")
        await expect(answer(page)).to_have_text("It began")
        await page.keyboard.press("Escape")
        await expect(page.locator("#log > .answer .tag")).to_have_text("stopped")
        await expect(page.locator("#stop")).to_be_hidden()
        await expect(answer(page)).to_have_text("It began")


@pytest.mark.slow
async def test_a_reload_in_the_middle_of_a_reply_loses_no_word(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "Count.")
        voice.provider.say("one 🙂 ", "two ")
        await expect(answer(page)).to_have_text("one 🙂 two")
        await page.reload()
        await expect(answer(page)).to_have_text("one 🙂 two")
        voice.provider.say("three")
        await expect(answer(page)).to_have_text("one 🙂 two three")
        voice.provider.end()
        await expect(page.locator("#log > .answer")).to_have_count(1)
        await expect(page.locator("#tail > *")).to_have_count(0)


@pytest.mark.slow
async def test_a_reply_that_went_on_while_the_page_was_away_is_complete(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "Count.")
        voice.provider.say("one ")
        await expect(answer(page)).to_have_text("one")
        await page.goto("about:blank")
        voice.provider.say("two ", "three")
        voice.provider.end()
        await page.go_back()
        await expect(answer(page)).to_have_text("one two three")
        await expect(page.locator("#stop")).to_be_hidden()


@pytest.mark.slow
async def test_two_tabs_show_the_same_at_once(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "Hello both.")
        voice.provider.say("Hello ")
        await expect(answer(page)).to_have_text("Hello")
        other = await page.context.new_page()
        await other.goto(page.url)
        voice.provider.say("you two")
        for tab in (page, other):
            await expect(answer(tab)).to_have_text("Hello you two")
        voice.provider.end()
        voice.provider.say("Again.")
        voice.provider.end()
        await say(other, "And again?")
        for tab in (page, other):
            await expect(tab.locator("#log .bubble")).to_have_text(["Hello both.", "And again?"])
            await expect(tab.locator("#log .prose")).to_have_text(["Hello you two", "Again."])


@pytest.mark.slow
async def test_what_is_said_meanwhile_waits_below(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "First.")
        voice.provider.say("One.")
        await expect(answer(page)).to_have_text("One.")
        await say(page, "Second.")
        await expect(page.locator("#tail > .user .bubble")).to_have_text(["Second."])
        voice.provider.say(None, "Two.", None)
        await expect(page.locator("#log .bubble")).to_have_text(["First.", "Second."])
        await expect(page.locator("#log .prose")).to_have_text(["One.", "Two."])


@pytest.mark.slow
async def test_the_last_message_is_edited_and_asked_again(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await ask(page, "One", "You said: One")
        await ask(page, "Tvo", "You said: Tvo")
        await page.keyboard.press("ArrowUp")
        await expect(page.locator("#text")).to_have_value("Tvo")
        await ask(page, "Two", "You said: Two")
        await expect(page.locator("#log .bubble")).to_have_text(["One", "Two"])
        await expect(page.locator("#text")).to_have_value("")


@pytest.mark.slow
async def test_the_last_answer_is_tried_again(chromium, tmp_path):
    async with (
        serving(tmp_path, ScriptedProvider(["Heads.", "Tails."])) as served,
        opened(chromium, served.url) as page,
    ):
        await ask(page, "Toss a coin.", "Heads.")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator("#log .prose")).to_have_text(["Tails."])
        await expect(page.locator("#log .bubble")).to_have_text(["Toss a coin."])


@pytest.mark.slow
async def test_a_failure_is_told_in_a_sentence_with_a_way_on(chromium, tmp_path):
    provider = ScriptedProvider([NoConnection("no connection to the model")])
    async with serving(tmp_path, provider) as served, opened(chromium, served.url) as page:
        await say(page, "Anyone?")
        await expect(page.locator(".notice.error")).to_contain_text(ENGLISH["model_down"])
        await page.locator(".notice").get_by_role("button", name="Try again").click()
        await expect(page.locator("#log .prose")).to_have_text(["You said: Anyone?"])


@pytest.mark.slow
async def test_a_command_is_answered_beside_the_log(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await ask(page, "Hello", "You said: Hello")
        await say(page, "/help")
        await expect(page.locator(".notice")).to_contain_text("/status")
        await expect(page.locator("#tail > *")).to_have_count(0)


@pytest.mark.slow
async def test_tool_calls_are_folded(chromium, tmp_path):
    call = ToolCall(id="c1", name="calculator", arguments='{"expression": "6*7"}')
    lines = [Reply(text="Let me see.", tool_calls=(call,)), "It is 42."]
    provider = ScriptedProvider(lines, held=True)
    async with serving(tmp_path, provider) as served, opened(chromium, served.url) as page:
        await say(page, "6 times 7?")
        provider.release(1)
        await expect(page.locator(".tool.done .inside")).to_be_hidden()
        await expect(page.locator(".prose")).to_have_text(["Let me see."])
        provider.release(1)
        await expect(page.locator(".prose")).to_have_text(["Let me see.", "It is 42."])
        await page.locator(".tool summary").click()
        asked = json.dumps({"expression": "6*7"}, indent=2)
        await expect(page.locator(".tool pre")).to_have_text([asked, "42"])


# Files


PNG = png(size=(1, 1))
ADDRESS = re.compile("/api/attachments/[0-9a-f]{40}")


@pytest.mark.slow
async def test_a_picture_and_a_text_go_along(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await expect(page.locator("#text")).to_be_focused()
        await page.set_input_files(
            "#file",
            [
                {"name": "dot.png", "mimeType": "image/png", "buffer": PNG},
                {"name": "größe.txt", "mimeType": "text/plain", "buffer": b"42 cm"},
            ],
        )
        await expect(page.locator("#files img")).to_have_count(1)
        await expect(page.locator("#files .about")).to_contain_text(["größe.txt"])
        await say(page, "How big?")
        await expect(page.locator("#log .user .file")).to_have_count(2)
        await expect(page.locator("#log .user img")).to_have_js_property("naturalWidth", 1)
        await expect(page.locator("#log .answer")).to_have_count(1)
        assert "42 cm" in str(echo.provider.calls[-1].messages)


PUT = """(box, bytes) => {
    const dataTransfer = new DataTransfer();
    const png = new File([new Uint8Array(bytes)], "dot.png", { type: "image/png" });
    dataTransfer.items.add(png);
    const about = { bubbles: true, cancelable: true };
    box.dispatchEvent(new ClipboardEvent("paste", { ...about, clipboardData: dataTransfer }));
    document.body.dispatchEvent(new DragEvent("drop", { ...about, dataTransfer }));
}"""


@pytest.mark.slow
async def test_a_picture_is_pasted_and_another_dropped(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await expect(page.locator("#text")).to_be_focused()
        await page.locator("#text").evaluate(PUT, list(PNG))
        await expect(page.locator("#files img")).to_have_count(2)
        await say(page, "Look!")
        await expect(page.locator("#log .user img")).to_have_count(2)


@pytest.mark.slow
async def test_a_broken_picture_says_so_before_it_is_sent(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await expect(page.locator("#text")).to_be_focused()
        what = {"name": "dot.png", "mimeType": "image/png", "buffer": PNG[:43]}
        await page.set_input_files("#file", [what])
        await expect(page.locator("#files .failed")).to_contain_text("it is damaged")


@pytest.mark.slow
async def test_an_answer_shows_its_pictures_and_links_to_its_files(chromium, tmp_path):
    async with serving(tmp_path, calling("Here they are.")) as served:
        picture = FileResult(PNG, name="dot.png")
        served.app.loop.agents.default.toolbox = making([picture, PDF])
        async with opened(chromium, served.url) as page:
            await say(page, "make it")
            shown = page.locator("#log > .answer .file")
            await expect(shown).to_have_count(2)
            await expect(shown.locator("img")).to_have_js_property("naturalWidth", 1)
            await expect(shown.nth(1)).to_contain_text("report.pdf")
            await expect(shown.nth(1).locator("a")).to_have_attribute("href", ADDRESS)
            await expect(answer(page)).to_have_text("Here they are.")


async def test_a_file_that_is_not_taken_says_why(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await expect(page.locator("#text")).to_be_focused()
        what = {"name": "a.exe", "mimeType": "application/octet-stream", "buffer": b"\0\1\2\xff"}
        await page.set_input_files("#file", [what])
        await expect(page.locator("#files .failed")).to_contain_text("a.exe")
        await page.get_by_role("button", name="Remove a.exe").click()
        await expect(page.locator("#files > *")).to_have_count(0)
