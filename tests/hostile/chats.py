"""Who talks to the attacked daemon: neighbours with a sane model, and one with a hostile one."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp
import anyio

from nanoloop.sentences import ENGLISH
from tests.hostile.daemon import HOSTILE
from tests.hostile.mode import SECRETS, WORDS, Mode
from tests.hostile.process import Daemon

SANE = "A sane answer, and not a long one."
NEIGHBOURS = 20
PAUSE_SECONDS = 0.2
PATIENCE_SECONDS = 15
ANSWER_SECONDS = 60
"""A turn may have many steps, and each its own time."""
STOP_SECONDS = 3
HEADER = {"X-Nanoloop": "1"}
SESSION = "X-Nanoloop-Session"
NEVER_SHOWN = re.compile("|".join((*WORDS, *SECRETS)).encode())
BROKEN = re.compile(r"[\x00-\x08\x0e-\x1f\x7f\ud800-\udfff]")
GONE = (aiohttp.ClientError, OSError, TimeoutError)
SANE_MODE = "sane"


def http(daemon: Daemon) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0)
    return aiohttp.ClientSession(daemon.url, headers=HEADER, connector=connector)


@dataclass(frozen=True, slots=True)
class Took:
    """One turn of a neighbour's."""

    began: float
    seconds: float


@dataclass
class Neighbours:
    """Chats that speak again and again; a failed turn is noted."""

    turns: list[Took] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    async def talk(self, daemon: Daemon) -> None:
        async with http(daemon) as client, anyio.create_task_group() as group:
            for number in range(NEIGHBOURS):
                group.start_soon(self._speak, client, daemon, f"neighbour{number}")

    async def _speak(self, client: aiohttp.ClientSession, daemon: Daemon, name: str) -> None:
        asked = {"model": "assistant", "messages": [{"role": "user", "content": "Hello."}]}
        while not daemon.is_over:
            began = time.monotonic()
            try:
                said = await self._answer(client, name, asked)
            except GONE as error:
                said = type(error).__name__
            if said != SANE and not daemon.is_over:
                self.failures.append(said)
            self.turns.append(Took(began, time.monotonic() - began))
            await anyio.sleep(PAUSE_SECONDS)

    async def _answer(self, client: aiohttp.ClientSession, name: str, asked: Any) -> str:
        timeout = aiohttp.ClientTimeout(PATIENCE_SECONDS)
        path = "/v1/chat/completions"
        async with client.post(path, json=asked, headers={SESSION: name}, timeout=timeout) as came:
            said = await came.json()
        return said["choices"][0]["message"]["content"] if "choices" in said else str(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one question."""

    way: str
    kind: str
    """answer, error or notice; stopped, if it was stopped before."""
    text: str


class Attack:
    """One chat with the hostile model, in one of its modes."""

    agent = HOSTILE

    def __init__(self, daemon: Daemon, mode: Mode) -> None:
        self._daemon = daemon
        self.mode = mode
        self.says, self.must = mode.says, mode.must
        self.name = f"{mode.name}.{uuid4().hex[:6]}"
        self.outcomes: list[Outcome] = []
        self.wrong: dict[str, None] = {}
        """What was seen that must not be, each once."""
        self.sent = 0
        """Bytes of the last request that the model got."""
        self._session = ""
        self._is_stopping = False
        self._came_out: set[bytes] = set()
        self._arrived: dict[str, Outcome] = {}
        self._news = anyio.Event()
        self._client: Any = None
        self._chance = random.Random(mode.name)

    @asynccontextmanager
    async def going_on(self) -> AsyncIterator[None]:
        """Have the session, and somebody who reads along."""
        async with http(self._daemon) as self._client, anyio.create_task_group() as group:
            with anyio.fail_after(PATIENCE_SECONDS):
                asked = {"agent": self.agent, "title": self.name}
                self._session = (await self._call("POST", "/api/sessions", asked))["id"]
            group.start_soon(self._read_along)
            yield
            group.cancel_scope.cancel()

    # Asking

    async def ask_for(self, seconds: float, patience_seconds: float) -> None:
        """Ask again and again for so long; what is under way then is stopped.

        If nothing has come by then, wait for the first outcome.
        """
        known = len(self.outcomes)
        async with anyio.create_task_group() as group:
            group.start_soon(self._ask_on)
            await anyio.sleep(seconds)
            with anyio.move_on_after(patience_seconds):
                while len(self.outcomes) == known:
                    await self._news.wait()
            if len(self.outcomes) == known:
                self._note("there was no outcome in time")
            self._is_stopping = True
            await self._stop()
            group.cancel_scope.cancel()
        self._is_stopping = False

    async def _ask_on(self) -> None:
        ways = (self._by_page, self._by_whole_channel, self._by_stream, self._alone, self._by_json)
        while not self._daemon.is_over:
            way = self._chance.choice(ways)
            with self._noting(f"asking {way.__name__}", ANSWER_SECONDS):
                outcome = await way(f"mode:{self.mode.name}")
                if self._is_stopping:  # it says only how far it came
                    return
                self.outcomes.append(outcome)
                self._tell_news()
                self.judge(outcome)
            await anyio.sleep(0.01)

    async def _stop(self) -> None:
        """Whatever goes on must end soon."""
        with self._noting("stopping"):
            whole = f"whole:{self.name}"
            for session in (self._session, whole):
                with suppress(aiohttp.ClientResponseError):
                    await self._call("POST", f"/api/sessions/{session}/stop", {})
            until = time.monotonic() + STOP_SECONDS
            while time.monotonic() < until:
                with suppress(aiohttp.ClientResponseError):
                    if not (await self._call("GET", f"/api/sessions/{self._session}"))["busy"]:
                        return
                await anyio.sleep(0.05)
            self._note("a stop took too long")

    # The ways

    async def _by_page(self, text: str) -> Outcome:
        """As the page does: a message, and its answer as an event."""
        name = uuid4().hex
        said = {"text": text, "message_id": name}
        await self._call("POST", f"/api/sessions/{self._session}/messages", said)
        while name not in self._arrived:
            await self._news.wait()
        return self._arrived.pop(name)

    async def _by_whole_channel(self, text: str) -> Outcome:
        kind, said = await self._daemon.ask_whole(self.name, text)
        self.look(said.encode("utf-8", "replace"), "a channel")
        return Outcome(way="whole channel", kind=kind, text=said)

    async def _by_json(self, text: str) -> Outcome:
        return await self._complete("json", text, {SESSION: self._session}, stream=False)

    async def _by_stream(self, text: str) -> Outcome:
        return await self._complete("stream", text, {SESSION: self._session}, stream=True)

    async def _alone(self, text: str) -> Outcome:
        return await self._complete("alone", text, {}, stream=True)

    async def _complete(self, way: str, text: str, headers: Any, *, stream: bool) -> Outcome:
        messages = [{"role": "user", "content": text}]
        asked = {"model": self.agent, "messages": messages, "stream": stream}
        path = "/v1/chat/completions"
        async with self._client.post(path, json=asked, headers=headers) as came:
            body = await came.read()
            self.look(body + repr(came.headers).encode(), f"the API ({way})")
        return _completed(way, body)

    async def _call(self, method: str, path: str, body: Any = None) -> Any:
        async with self._client.request(method, path, json=body, raise_for_status=True) as came:
            said = await came.read()
            self.look(said, path.rpartition("/")[2])
            return json.loads(said) if came.content_type == "application/json" else said

    async def _read_along(self) -> None:
        """As the page does, which comes back where it was left behind."""
        path, headers = f"/api/sessions/{self._session}/events", dict[str, str]()
        while not self._daemon.is_over:
            with suppress(*GONE):
                async with self._client.get(
                    path, headers=headers, timeout=aiohttp.ClientTimeout(None), read_bufsize=2**24
                ) as came:
                    async for event in self._events(came):
                        if found := re.match(rb"id: (\d+)", event):
                            headers["Last-Event-ID"] = found[1].decode()
                        if b"event: answer\n" in event:
                            self._take(json.loads(event.partition(b"\ndata: ")[2]))
            await anyio.sleep(0.1)

    async def _events(self, came: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in came.content.iter_any():
            *events, rest = (rest + piece).split(b"\n\n")
            self.look(b"\n\n".join(events), "an event")
            for event in events:
                yield event

    def _take(self, said: dict[str, Any]) -> None:
        if said["message_id"]:
            outcome = Outcome(way="page", kind=said["kind"], text=said["text"])
            self._arrived[said["message_id"]] = outcome
        self._tell_news()

    def _tell_news(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    # Afterwards

    async def end(self) -> None:
        """The chat must still work."""
        with self._noting("asking afterwards"):
            for way in (self._by_page, self._by_whole_channel):
                outcome = await way(f"mode:{SANE_MODE}")
                if not self.is_sane(outcome.text):
                    self._note(f"the chat works no more: {outcome.text[:200]!r} ({outcome.way})")

    def is_sane(self, text: str) -> bool:
        """Whether this is what it says behind a mode; it has a figure in it."""
        found = re.fullmatch(r"You sent (\d+) bytes\.", text)
        self.sent = max(self.sent, int(found[1])) if found else self.sent
        return found is not None

    async def read(self) -> None:
        """All of it must be readable."""
        with self._noting("reading it all"):
            for session in (self._session, f"whole:{self.name}"):
                await self._read_all(f"/api/sessions/{session}")

    async def _read_all(self, session: str) -> None:
        page = await self._call("GET", f"{session}/messages?limit=200")
        for said in page["messages"]:
            if said["role"] == "assistant" and not re.fullmatch(r"You sent \d+.*", said["text"]):
                kind = "part" if said.get("stopped") else "answer"
                self.judge(Outcome(way="history", kind=kind, text=said["text"]))
        for path in (session, f"{session}/memory"):
            await self._call("GET", path)
        for form in ("md", "json"):
            await self._call("GET", f"{session}/export?format={form}")

    # What is wrong

    def judge(self, outcome: Outcome) -> None:
        text = outcome.text
        about = f"{INCIDENT.sub('', text)[:200]!r} ({outcome.way})"
        if BROKEN.search(text):
            self._note(f"characters that nobody can show: {about}")
        if outcome.kind == "answer":
            if not _is_legal(self.says, text):
                self._note(f"that is no answer: {about}")
        elif outcome.kind == "part":
            return
        elif self.must:
            self._note(f"that failed without need: {about}")
        elif not is_known(text):
            self._note(f"no sentence of the closed list: {about}")

    def look(self, said: bytes, where: str) -> None:
        for word in set(NEVER_SHOWN.findall(said)) - self._came_out:
            self._came_out.add(word)
            self._note(f"{word.decode()} came out in {where}")

    def _note(self, what: str) -> None:
        self.wrong[what] = None

    @contextmanager
    def _noting(self, doing: str, seconds: float = PATIENCE_SECONDS) -> Iterator[None]:
        """Note what goes wrong here."""
        try:
            with anyio.fail_after(seconds):
                yield
        except (*GONE, KeyError, ValueError) as error:
            if not self._daemon.is_over:
                self._note(f"{doing}: {type(error).__name__} {str(error)[:200]}")


INCIDENT = re.compile(rf" \({ENGLISH['incident']} [0-9a-f]+\)$")
CIRCLE = r": the model asked for the same thing \d+ times in a row( \((calculator|clock|recall)\))?"


class SummaryAttack(Attack):
    """A chat with a sane model, of which the hostile one makes the summaries."""

    agent = "assistant"

    def __init__(self, daemon: Daemon, mode: Mode) -> None:
        super().__init__(daemon, mode)
        self.says, self.must = re.escape(SANE), True

    def is_sane(self, text: str) -> bool:
        """Whether the other model speaks."""
        return text == SANE


GIVEN_UP = rf"I stopped after \d+ steps({CIRCLE}| without reaching an answer)\."


def _is_legal(says: str, text: str) -> bool:
    """Whether the mode allows the text, or each of its parts, where a turn had many steps."""
    allowed = re.compile("|".join(filter(None, (says, GIVEN_UP))), re.DOTALL)
    parts = text.strip().split("\n\n")
    return any(all(map(allowed.fullmatch, each)) for each in ([text], [text.strip()], parts))


def is_known(text: str) -> bool:
    """Whether a failure is told in a sentence of the closed list, with an incident's id."""
    sentence = INCIDENT.sub("", text).removesuffix(f" {ENGLISH['kept']}")
    return sentence in ENGLISH.values()


def _completed(way: str, body: bytes) -> Outcome:
    text = ""
    for line in body.decode().split("\n"):
        data = line.removeprefix("data: ")
        if not data.startswith("{"):
            continue
        said = json.loads(data)
        if "error" in said:
            return Outcome(way=way, kind="error", text=said["error"]["message"])
        for choice in said["choices"]:
            text += choice.get("delta", choice.get("message", {})).get("content") or ""
    return Outcome(way=way, kind="answer", text=text)
