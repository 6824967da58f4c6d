"""Debian's Chromium before a served page: what the tests of the page have in their hands."""

import os
import shutil
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import pytest

from nanoloop.app import App
from nanoloop.parts import make_with_program
from nanoloop.protocols import Provider, Reply
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.session.entry import Entry
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

try:
    from playwright.async_api import async_playwright, expect
except ImportError:
    async_playwright = expect = None

CHROMIUM = "/usr/bin/chromium"
FLAGS = ("--no-sandbox", "--disable-dev-shm-usage")
WAIT_MS = 8000
"""How long a state of the page is waited for."""


@pytest.fixture(scope="module")
def anyio_backend():
    return "asyncio"  # one loop for the browser and all tests of a file


@pytest.fixture(scope="module")
async def chromium(anyio_backend):
    """One browser for a file of tests; skipped by name where there is none."""
    why = _missing()
    if why and os.environ.get("CI"):
        pytest.fail(f"the page can't be tested: {why}")
    if why:
        pytest.skip(why)
    expect.set_options(timeout=WAIT_MS)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        await browser.close()


def _missing():
    if not shutil.which(CHROMIUM):
        return f"chromium is missing: {CHROMIUM} (apt-get install chromium)"
    return "playwright is missing: pip install playwright" if async_playwright is None else None


class Voice:
    """A provider that a test speaks for, piece by piece; a summary comes when it is let."""

    def __init__(self, summary="It was about tea."):
        self._pieces, self._news = deque(), anyio.Event()
        self.summary = ScriptedProvider(otherwise=summary)
        self.asked = []

    async def chat(self, *, messages, tools=None, model=None, on_text=None):
        if tools is None:
            return await self.summary.chat(messages=messages)
        self.asked.append(messages[-1]["content"])
        said = ""
        while (piece := await self._next()) is not None:
            said += piece
            on_text(piece)
        return Reply(text=said, model="voice")

    async def _next(self):
        while not self._pieces:
            self._news = anyio.Event()
            await self._news.wait()
        return self._pieces.popleft()

    def say(self, *pieces):
        self._pieces.extend(pieces)
        self._news.set()

    def end(self):
        self.say(None)

    async def close(self):
        """Nothing to let go of."""


@dataclass
class Served:
    """A server in this process, and what it runs on."""

    url: str
    link: str
    app: App
    provider: Provider

    @property
    def port(self):
        return int(self.url.rpartition(":")[2])


@asynccontextmanager
async def serving(folder, provider=None, *, port=0, **settings) -> AsyncIterator[Served]:
    """The page and the API over a scripted provider, until the block is left."""
    provider = provider or ScriptedProvider()
    web = {"port": port, "requests_per_minute": 100_000, "open_on_loopback": True}
    web |= settings.pop("web", {})
    loop = {"shutdown_turns_seconds": 0.1}
    settings = Settings(data=folder, model="scripted", channels={"web": web}, loop=loop, **settings)
    app = App.of(settings, provider=provider, telemetry=Telemetry(level="error"))
    channel = make_with_program(settings, "web", app)
    url = channel.bind()
    app.add(channel)
    async with anyio.create_task_group() as group:
        group.start_soon(app.run)
        try:
            yield Served(url=url, link=channel.link(), app=app, provider=provider)
        finally:
            app.stop()


@dataclass
class Seen:
    """What went wrong in a page, and what it was refused."""

    errors: list = field(default_factory=list)

    def watch(self, page):
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", self._hear)

    def _hear(self, message):
        if "Content Security Policy" in message.text:
            self.errors.append(message.text)


@asynccontextmanager
async def opened(browser, url, *, path="/", **options):
    """A fresh page in a browser context of its own; it ends with a look for script errors."""
    seen = Seen()
    context = await browser.new_context(
        viewport=options.pop("viewport", {"width": 1280, "height": 800}), **options
    )
    context.set_default_timeout(WAIT_MS)
    context.on("page", seen.watch)
    try:
        page = await context.new_page()
        await page.goto(url + path)
        yield page
    finally:
        await context.close()
    assert seen.errors == []


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
