"""The page's shape: small, on every screen, by keyboard, read aloud, in light and dark."""

from pathlib import Path

import pytest

import nanoloop.channels.web
from nanoloop.providers.scripted import ScriptedProvider
from tests import browser
from tests.browser import Voice, expect, opened, serving

anyio_backend = browser.anyio_backend
chromium = browser.chromium

STATIC = Path(nanoloop.channels.web.__file__).parent / "static"
OURS = [file for file in STATIC.iterdir() if file.is_file()]  # what others wrote is in a folder
PICTURES = Path(__file__).parent / "screenshots"
SCREENS = {"wide": (1440, 900), "middle": (1024, 768), "phone": (390, 844)}
TELLING = """Bake it on **Friday evening**: it cuts better after a night.

| | Amount |
|---|---:|
| Chocolate | 200 g |
| Eggs | 4 |

```python
def scaled(grams, tin_cm):
    return grams * (tin_cm / 26) ** 2
```

1. Melt the chocolate.
2. Fold in the eggs."""


SUMMARY = (
    "Mira bakes a chocolate cake for her brother Tom, who turns 30. Tom is allergic to nuts and "
    "hates raisins. Eight guests, 60 EUR, an oven that runs hot."
)
TALK = {
    "Tom turns 30 on Saturday 14 June 2026. He is allergic to nuts!": "No nuts, then.",
    "Remember: no raisins either. We are eight; 60 EUR at most.": "I keep that in mind.",
    "The oven runs hot. When should I bake the chocolate cake?": TELLING,
    "And how many candles?": "**Thirty.** They will fit if you start at the edge.",
}


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path, ScriptedProvider()) as server:
        yield server


async def ask(page, *texts):
    for text in texts:
        await page.fill("#text", text)
        await page.keyboard.press("Enter")
        await expect(page.locator("#log .bubble").last).to_have_text(text)
        await expect(page.locator("#log > :last-child.answer")).to_have_count(1)


def test_all_that_is_ours_is_under_a_hundred_kilobytes():
    assert sum(file.stat().st_size for file in OURS) < 100_000


def test_nothing_is_asked_of_another_site():
    for file in OURS:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert 'src="http' not in text, file
        assert "url(" not in text, file
        assert "innerHTML" not in text, file


@pytest.mark.slow
@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_it_looks_right_on_every_screen(chromium, tmp_path, colours):
    PICTURES.mkdir(exist_ok=True)
    voice = Voice(summary=SUMMARY)
    limits = {"message_buffer_limit": 4, "message_buffer_min": 2}
    async with (
        serving(tmp_path, voice, **limits) as served,
        opened(chromium, served.url, color_scheme=colours) as page,
    ):
        for asked, said in TALK.items():
            voice.say(said, None)
            await ask(page, asked)
        await page.click("#open-memory")
        await expect(page.locator("#summary .prose")).to_have_text(SUMMARY)
        await expect(page.locator("#memory-state")).to_contain_text("waits for more to be said")
        voice.summary.hold()  # the next one is seen while it is written
        await page.click("#summarise")
        await expect(page.locator("#memory-dot")).to_be_visible()
        await page.click("#close-memory")
        for name, (width, height) in SCREENS.items():
            await page.set_viewport_size({"width": width, "height": height})
            await _picture(page, f"{name}-{colours}", width)
            await page.click("#open-memory")
            await expect(page.locator("#bar > *")).to_have_count(3)
            await _picture(page, f"{name}-memory-{colours}", width)
            await page.click("#close-memory")


async def _picture(page, name, width):
    await page.screenshot(path=PICTURES / f"{name}.png", animations="disabled")
    assert await page.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.slow
async def test_a_phone_shows_one_thing_at_a_time(chromium, served):
    phone = {"width": 390, "height": 844}
    async with opened(chromium, served.url, viewport=phone, has_touch=True) as page:
        await expect(page.locator("#side")).to_be_hidden()
        await ask(page, "Hello")
        await page.click("#open-side")
        await expect(page.locator("#sessions a")).to_have_count(1)
        await expect(page.locator("#main")).to_have_attribute("inert", "")
        await page.keyboard.press("Escape")
        await expect(page.locator("#side")).to_be_hidden()
        await expect(page.locator("#open-side")).to_be_focused()
        await page.click("#open-side")
        await page.click("#new")
        await expect(page.locator("#side")).to_be_hidden()
        await expect(page.locator("#welcome")).to_be_visible()


@pytest.mark.slow
async def test_everything_can_be_done_by_keyboard(chromium, served):
    async with opened(chromium, served.url) as page:
        keys = page.keyboard
        await expect(page.locator("#text")).to_be_focused()
        await ask(page, "One")
        await keys.press("Alt+n")
        await expect(page.locator("#welcome")).to_be_visible()
        await ask(page, "Two")
        await expect(page.locator("#sessions a")).to_have_count(2)
        await keys.press("Control+k")
        await expect(page.locator("#search")).to_be_focused()
        await keys.press("Tab")
        await keys.press("ArrowDown")
        await expect(page.locator("#sessions a").nth(1)).to_be_focused()
        await keys.press("Enter")
        await expect(page.locator("#title")).to_have_text("One")
        await expect(page.locator("#text")).to_be_focused()
        await keys.press("ArrowUp")
        await expect(page.locator("#text")).to_have_value("One")
        await keys.press("Escape")
        await expect(page.locator("#text")).to_have_value("")
        await page.locator("#session-menu").focus()
        await keys.press("Enter")
        await keys.press("ArrowDown")
        await expect(page.get_by_role("menuitem", name="Export as Markdown")).to_be_focused()
        await keys.press("Escape")
        await expect(page.locator("#session-menu")).to_be_focused()


async def test_the_first_stop_leads_to_the_message_field(chromium, served):
    async with opened(chromium, served.url) as page:
        await page.locator("#skip").focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("#text")).to_be_focused()


@pytest.mark.slow
async def test_every_control_has_a_name_and_every_field_a_label(chromium, served):
    async with opened(chromium, served.url) as page:
        await ask(page, "```\ncode\n```\n\n| a |\n|---|")
        await page.click("#open-memory")
        await expect(page.locator("#memory-body")).to_be_visible()
        assert await page.evaluate(NAMELESS) == []


NAMELESS = """() => {
    const all = document.querySelectorAll("button, a, input, textarea, select, [role=region]");
    const hasName = (node) => node.ariaLabel || node.labels?.length || node.textContent.trim();
    const nameless = [...all].filter((node) => node.checkVisibility() && !hasName(node));
    return nameless.map((node) => node.outerHTML);
}"""
CONTRAST = """pairs => {
    const spot = document.body.appendChild(document.createElement("i"));
    const canvas = document.createElement("canvas").getContext("2d");
    const light = (name) => {
        spot.style.color = `var(--${name})`;
        canvas.fillStyle = getComputedStyle(spot).color;
        canvas.fillRect(0, 0, 1, 1);
        const [r, g, b] = [...canvas.getImageData(0, 0, 1, 1).data].map((each) =>
            each <= 10 ? each / 3294 : ((each / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const ratio = ([front, back]) => {
        const [a, b] = [light(front), light(back)];
        return [front, back, Math.max(a, b) / Math.min(a, b)];
    };
    return pairs.map(ratio);
}"""


@pytest.mark.parametrize("colours", ["light", "dark"])
async def test_words_stand_out_from_what_is_behind_them(chromium, served, colours):
    fronts, backs = ("ink", "soft", "trouble", "accent"), ("paper", "side", "raised")
    pairs = [(front, back) for front in fronts for back in backs]
    pairs += [("on-accent", "accent"), ("ink", "bubble"), ("ink", "hover"), ("soft", "hover")]
    async with opened(chromium, served.url, color_scheme=colours) as page:
        for front, back, ratio in await page.evaluate(CONTRAST, pairs):
            assert ratio >= 4.5, (front, back)


@pytest.mark.slow
async def test_the_colours_are_chosen_and_stay(chromium, served):
    async with opened(chromium, served.url, color_scheme="light") as page:
        root = page.locator("html")
        await expect(root).to_have_attribute("data-theme", "auto")
        await page.click("#theme")
        await page.click("#theme")
        await expect(root).to_have_attribute("data-theme", "dark")
        await page.reload()
        await expect(root).to_have_attribute("data-theme", "dark")
        await expect(page.locator("body")).to_have_css("background-color", "rgb(24, 23, 22)")
