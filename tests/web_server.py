"""The web as it is served, over a real socket with a scripted provider, and a client of it."""

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import anyio
import httpx2

from nanoloop.app import App
from nanoloop.parts import make_with_program
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry

ASKED = {"X-Nanoloop": "1"}
TOKEN = "a-token-of-alice-24-signs"
OTHER = "a-token-of-bob-that-is-long"
TOKENS = {"alice": {"token": TOKEN}, "bob": {"token": OTHER}}


def bearer(token=TOKEN):
    """The header that shows this token."""
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Event:
    """One server-sent event."""

    name: str
    data: Any
    id: str | None = None


@dataclass
class Reader:
    """Reads events one by one."""

    response: httpx2.Response
    lines: Any = field(init=False)
    last_id: str | None = None

    def __post_init__(self):
        self.lines = self.response.aiter_lines()

    async def next(self):
        """The next event; None at the end."""
        said = {}
        async for line in self.lines:
            if line == "" and "event" in said:
                self.last_id = said.get("id", self.last_id)
                return Event(said["event"], json.loads(said["data"]), said.get("id"))
            if line == "":
                said = {}
            name, _, value = line.partition(": ")
            said[name] = value
        return None

    async def until(self, name):
        """The events up to the first of this name, it included."""
        found = []
        with anyio.fail_after(10):
            while not found or found[-1].name != name:
                found.append(await self.next())
                assert found[-1] is not None, "the stream ended"
        return found


@dataclass
class Web:
    """A server that runs, and a client of it."""

    app: App
    channel: Any
    client: httpx2.AsyncClient
    provider: ScriptedProvider
    log: StringIO

    async def call(self, method, path, *, status=None, **more):
        """What one operation answers; JSON where it is JSON."""
        response = await self.client.request(method, path, **more)
        if status is not None:
            assert response.status_code == status, response.text
        kind = response.headers.get("content-type", "")
        return response.json() if kind.startswith("application/json") else response

    async def begin(self, **given):
        """The id of a new session."""
        return (await self.call("POST", "/api/sessions", status=201, json=given))["id"]

    async def say(self, session, text, **more):
        """The message id of what was said."""
        said = {"text": text, **more}
        path = f"/api/sessions/{session}/messages"
        return (await self.call("POST", path, status=202, json=said))["message_id"]

    async def messages(self, session, **query):
        """What the page shows of a session."""
        path = f"/api/sessions/{session}/messages"
        return (await self.call("GET", path, status=200, params=query))["messages"]

    @asynccontextmanager
    async def reading(self, session, *, last_id=None, **query):
        """A reader of this session's events."""
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        path = f"/api/sessions/{session}/events"
        async with self.client.stream("GET", path, headers=headers, params=query) as response:
            assert response.status_code == 200
            yield Reader(response)

    async def answered(self, session, text):
        """Say something and wait for the answer to be kept; returns its text."""
        async with self.reading(session) as reader:
            await reader.until("hello")
            await self.say(session, text)
            return (await reader.until("answer"))[-1].data["text"]

    def logged(self, event):
        """The log's lines of this event."""
        lines = map(json.loads, self.log.getvalue().splitlines())
        return [line for line in lines if line["event"] == event]


@asynccontextmanager
async def serving(folder, *, provider=None, headers=None, settings=None, **web):
    """A server in this folder; `web` are its settings."""
    web = {"port": 0, "open_on_loopback": True, **web}
    given = Settings(data=folder, channels={"web": web}, **(settings or {}))
    provider = provider or ScriptedProvider()
    log = StringIO()
    app = App.of(given, provider=provider, telemetry=Telemetry(format="json", stream=log))
    channel = make_with_program(given, "web", app)
    address = channel.bind()
    app.add(channel)
    client = httpx2.AsyncClient(
        timeout=30, base_url=address, headers=ASKED if headers is None else headers
    )
    async with anyio.create_task_group() as group, client:
        group.start_soon(app.run)
        try:
            yield Web(app, channel, client, provider, log)
        finally:
            app.stop()
