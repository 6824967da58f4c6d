"""The page in a real browser: a conversation as a person has it, and what may come between."""

import json
from contextlib import AsyncExitStack

import pytest

from nanoloop.errors import NoConnection
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from tests import browser
from tests.browser import Voice, expect, opened, serving

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


async def say(page, text):
    await page.fill("#text", text)
    await page.keyboard.press("Enter")


async def ask(page, text, answer):
    """Say it, and see the whole answer in the log."""
    await say(page, text)
    await expect(page.locator("#log > :last-child .prose")).to_have_text(answer)
    await expect(page.locator("#stop")).to_be_hidden()


def answer(page):
    return page.locator(".answer .prose").last


async def talked(served, count, **about):
    """A session with so many messages, as another channel may have left it."""
    session = await served.app.loop.sessions.named("web:local.long", **about)
    for number in range(count):
        role = "assistant" if number % 2 else "user"
        session.add_entry(Entry.message(role, f"message {number}, and some words more\n" * 3))
    await served.app.loop.sessions.store.save(session)
    return "/#web%3Alocal.long"


# A conversation


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


async def test_a_stopped_answer_keeps_what_was_said(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "Tell me everything.")
        voice.provider.say("It began ")
        await expect(answer(page)).to_have_text("It began")
        await page.keyboard.press("Escape")
        await expect(page.locator("#log > .answer .tag")).to_have_text("stopped")
        await expect(page.locator("#stop")).to_be_hidden()
        await expect(answer(page)).to_have_text("It began")


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


async def test_what_is_said_meanwhile_waits_below(chromium, voice):
    async with opened(chromium, voice.url) as page:
        await say(page, "First.")
        voice.provider.say("One.")
        await expect(answer(page)).to_have_text("One.")
        await say(page, "Second.")
        await expect(page.locator("#tail > .user .bubble")).to_have_text("Second.")
        voice.provider.say(None, "Two.", None)
        await expect(page.locator("#log .bubble")).to_have_text(["First.", "Second."])
        await expect(page.locator("#log .prose")).to_have_text(["One.", "Two."])


async def test_the_last_message_is_edited_and_asked_again(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await ask(page, "One", "You said: One")
        await ask(page, "Tvo", "You said: Tvo")
        await page.keyboard.press("ArrowUp")
        await expect(page.locator("#text")).to_have_value("Tvo")
        await ask(page, "Two", "You said: Two")
        await expect(page.locator("#log .bubble")).to_have_text(["One", "Two"])
        await expect(page.locator("#text")).to_have_value("")


async def test_the_last_answer_is_tried_again(chromium, tmp_path):
    async with (
        serving(tmp_path, ScriptedProvider(["Heads.", "Tails."])) as served,
        opened(chromium, served.url) as page,
    ):
        await ask(page, "Toss a coin.", "Heads.")
        await page.get_by_role("button", name="Try again").click()
        await expect(page.locator("#log .prose")).to_have_text(["Tails."])
        await expect(page.locator("#log .bubble")).to_have_text(["Toss a coin."])


async def test_a_failure_is_told_in_a_sentence_with_a_way_on(chromium, tmp_path):
    provider = ScriptedProvider([NoConnection("no connection to the model")])
    async with serving(tmp_path, provider) as served, opened(chromium, served.url) as page:
        await say(page, "Anyone?")
        await expect(page.locator(".notice.error")).to_contain_text("no connection to the model")
        await page.locator(".notice").get_by_role("button", name="Try again").click()
        await expect(page.locator("#log .prose")).to_have_text(["You said: Anyone?"])


async def test_a_command_is_answered_beside_the_log(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await ask(page, "Hello", "You said: Hello")
        await say(page, "/help")
        await expect(page.locator(".notice")).to_contain_text("/status")
        await expect(page.locator("#tail > *")).to_have_count(0)


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


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c6360f8cf50000003010180a13f5d0c0000000049454e44ae426082"
)


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


async def test_a_picture_is_pasted_and_another_dropped(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await expect(page.locator("#text")).to_be_focused()
        await page.locator("#text").evaluate(PUT, list(PNG))
        await expect(page.locator("#files img")).to_have_count(2)
        await say(page, "Look!")
        await expect(page.locator("#log .user img")).to_have_count(2)


async def test_a_file_that_is_not_taken_says_why(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await expect(page.locator("#text")).to_be_focused()
        what = {"name": "a.exe", "mimeType": "application/octet-stream", "buffer": b"\0\1\2\xff"}
        await page.set_input_files("#file", [what])
        await expect(page.locator("#files .failed")).to_contain_text("a.exe")
        await page.get_by_role("button", name="Remove a.exe").click()
        await expect(page.locator("#files > *")).to_have_count(0)


# Conversations at the side


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


async def test_a_session_whose_agent_is_gone_can_still_be_read(chromium, echo):
    path = await talked(echo, 2, agent="ghost")
    async with opened(chromium, echo.url, path=path) as page:
        await expect(page.locator("#log .bubble")).to_contain_text(["message 0"])
        await ask(page, "Hello", "You said: Hello")


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


async def test_who_scrolled_up_is_left_there(chromium, voice):
    path = await talked(voice, 40)
    async with opened(chromium, voice.url, path=path) as page:
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


# When things go wrong


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


async def test_a_conversation_that_was_deleted_is_left(chromium, echo):
    async with opened(chromium, echo.url) as page:
        await ask(page, "Hello", "You said: Hello")
        [info] = [info async for info in echo.app.loop.sessions.store.list()]
        await page.request.delete(f"{echo.url}/api/sessions/{info.id}", headers={"X-Nanoloop": "1"})
        await expect(page.locator("#welcome")).to_be_visible()
        await expect(page.locator(".toast")).to_have_text("This conversation is gone.")


# The memory


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
