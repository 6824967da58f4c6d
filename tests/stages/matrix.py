"""Ann, Bob and a bot on a real Synapse: the stage of the channel suite, and more."""

import json
import mimetypes
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import ClassVar
from urllib.parse import quote

import anyio
import httpx2

from nanoloop.channels.kit.platform import Host
from nanoloop.channels.matrix.platform import LIMITS, MatrixPlatform
from nanoloop.channels.matrix.sync import Bookmark
from nanoloop.testing.channels.stage import VisibleMessage, comes_to
from tests.servers.matrix_proxy import matrix_proxy

_NUMBERS = count(1)
QUICK = replace(LIMITS, text=1000, edit_seconds=0.05)
V3 = "/_matrix/client/v3"
BOT_SAYS = "The bot says"


@dataclass
class Person:
    """An account, used through a plain HTTP client."""

    server: str
    client: httpx2.AsyncClient
    id: str
    token: str
    since: str = ""
    events: dict = field(default_factory=dict)
    typing: dict = field(default_factory=dict)

    async def ask(self, method, path, body=None, **more):
        headers = {"Authorization": f"Bearer {self.token}"}
        url = f"{self.server}{path}"
        answer = await self.client.request(method, url, json=body, headers=headers, **more)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()

    async def create_room(self, *invited, direct=False, **more):
        body = {"preset": "private_chat", "invite": list(invited), "is_direct": direct, **more}
        return (await self.ask("POST", f"{V3}/createRoom", body))["room_id"]

    async def join(self, room):
        await self.ask("POST", f"{V3}/join/{quote(room)}", {})

    async def invite(self, room, person):
        await self.ask("POST", f"{V3}/rooms/{quote(room)}/invite", {"user_id": person})

    async def call_oneself(self, name):
        await self.ask("PUT", f"{V3}/profile/{self.id}/displayname", {"displayname": name})

    async def send(self, room, content, kind="m.room.message"):
        path = f"{V3}/rooms/{quote(room)}/send/{kind}/{next(_NUMBERS)}"
        return (await self.ask("PUT", path, content))["event_id"]

    async def redact(self, room, message):
        path = f"{V3}/rooms/{quote(room)}/redact/{quote(message)}/{next(_NUMBERS)}"
        await self.ask("PUT", path, {})

    async def upload(self, name, data):
        path = f"{self.server}/_matrix/media/v3/upload?filename={quote(name)}"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind_of(name)}
        answer = await self.client.post(path, content=data, headers=headers)
        return answer.json()["content_uri"]

    async def begin(self):
        self.since = (await self.ask("GET", f"{V3}/sync"))["next_batch"]

    async def look(self, milliseconds=50):
        """Take in what is new, or wait a little for it."""
        limit = quote(json.dumps({"room": {"timeline": {"limit": 1000}}}))
        path = f"{V3}/sync?since={self.since}&timeout={milliseconds}&filter={limit}"
        found = await self.ask("GET", path)
        for room, news in found.get("rooms", {}).get("join", {}).items():
            for event in news["timeline"]["events"]:
                self.events.setdefault(room, {})[event["event_id"]] = event
            for event in news["ephemeral"]["events"]:
                if event["type"] == "m.typing":
                    self.typing[room] = set(event["content"]["user_ids"])
        self.since = found["next_batch"]

    def messages(self, room):
        """The events of a room as clients show them: edits done, what was taken back gone."""
        shown = {}
        for event in self.events.get(room, {}).values():
            content = event["content"]
            relation = content.get("m.relates_to", {})
            if event["type"] == "m.room.redaction":
                shown.pop(event["redacts"], None)
            elif relation.get("rel_type") == "m.replace":
                if relation["event_id"] in shown:
                    shown[relation["event_id"]]["content"] = content["m.new_content"]
            elif event["type"] == "m.room.message" and "body" in content:
                shown[event["event_id"]] = {**event, "relation": relation}
        return list(shown.values())


class MatrixStage:
    skills: ClassVar = frozenset(
        {
            "bots",
            "cut",
            "delete",
            "edit",
            "files",
            "group",
            "ids",
            "limit",
            "lose",
            "repeat",
            "replies",
            "threads",
            "token",
            "typing",
        }
    )

    def __init__(self, server, proxy, folder, people):
        self.server = server
        self.proxy = proxy
        self.folder = folder
        self.ann, self.bob, self.bot = people
        self._owners = {}
        self._mark = None

    def platform(self, **more):
        options = {"folder": self.folder, "limits": QUICK, **more}
        platform = MatrixPlatform(homeserver=self.proxy.url, token=self.bot.token, **options)
        platform.meet(Host(channel="matrix", welcomes=lambda _: True))
        return platform

    @property
    def bookmark(self):
        """The bot's, as it is stored now."""
        return Bookmark(self.folder / "channels" / "matrix.bookmark.json")

    async def open(self):
        """The bot has read nothing yet, and all of what follows is news to it."""
        for person in (self.ann, self.bob, self.bot):
            await person.begin()
        self._mark = self.bot.since
        bookmark = self.bookmark
        bookmark.belongs_to(self.bot.id)
        bookmark.move(self.bot.since)

    @cached_property
    def group(self):
        """Made where a test asks for it, without waiting as its name is no call."""
        ask = self.server.ask
        body = {"preset": "private_chat", "invite": [self.bob.id, self.bot.id]}
        room = ask("POST", f"{V3}/createRoom", body, token=self.ann.token)["room_id"]
        for person in (self.bob, self.bot):
            ask("POST", f"{V3}/join/{quote(room)}", {}, token=person.token)
        self._owners[room] = self.ann
        return room

    async def people(self, count):
        return [await self._private((self.ann, self.bob)[n % 2]) for n in range(count)]

    def watch(self, room):
        """From now on Ann sees to what is shown there."""
        self._owners[room] = self.ann

    def naming(self, text):
        return f"{self.bot.id}: {text}"

    async def say(self, chat, text, *, sender, reply_to=None, files=None, thread="", is_bot=False):
        content = {"msgtype": "m.notice" if is_bot else "m.text", "body": text}
        for name, data in (files or {}).items():
            address = await self._who(sender).upload(name, data)
            info = {"mimetype": kind_of(name), "size": len(data)}
            content |= {"msgtype": "m.file", "filename": name, "url": address, "info": info}
        if thread:
            content["m.relates_to"] = {"rel_type": "m.thread", "event_id": thread}
        if reply_to:
            content.setdefault("m.relates_to", {})["m.in_reply_to"] = {"event_id": reply_to}
        self._mark = self.proxy.since or self._mark
        return await self._who(sender).send(chat, content)

    async def edit(self, chat, message, text, *, sender):
        new = {"msgtype": "m.text", "body": text}
        relation = {"rel_type": "m.replace", "event_id": message}
        edit = {"msgtype": "m.text", "body": f"* {text}", "m.new_content": new}
        return await self._who(sender).send(chat, {**edit, "m.relates_to": relation})

    async def delete(self, chat, message, *, sender):
        await self._who(sender).redact(chat, message)

    async def repeat(self):
        self.proxy.rewind = self._mark
        self.proxy.cut()

    async def shown(self, chat):
        owner = self._owners[chat]
        await owner.look()
        return [
            VisibleMessage(
                id=event["event_id"],
                text=event["content"]["body"],
                is_bots=event["sender"] == self.bot.id,
                reply_to=event["relation"].get("m.in_reply_to", {}).get("event_id"),
            )
            for event in owner.messages(chat)
        ]

    async def typed(self, chat):
        owner = self._owners[chat]
        await owner.look()
        return self.bot.id in owner.typing.get(chat, ())

    async def cut(self):
        self.proxy.cut()

    async def limit(self, calls, *, seconds):
        self.proxy.limited, self.proxy.limited_seconds = calls, seconds

    async def lose(self, calls, *, taken):
        if taken:
            self.proxy.unconfirmed = calls
        else:
            self.proxy.lost = calls

    async def refuse_token(self):
        await self.bot.ask("POST", f"{V3}/logout", {})

    async def _private(self, owner):
        room = await owner.create_room(self.bot.id, direct=True)
        await self.bot.join(room)
        self._owners[room] = owner
        return room, owner.id

    def _who(self, sender):
        return {person.id: person for person in (self.ann, self.bob, self.bot)}[sender]


def kind_of(name):
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


@asynccontextmanager
async def matrix_stage(synapse, folder):
    async with matrix_proxy(synapse.url) as proxy, httpx2.AsyncClient(timeout=30) as client:
        number = next(_NUMBERS)
        accounts = [synapse.register(f"{name}{number}") for name in ("ann", "bob", "nano")]
        people = [Person(synapse.url, client, *account) for account in accounts]
        stage = MatrixStage(synapse, proxy, folder, people)
        await stage.open()
        yield stage


class Ears:
    """What a platform hears, without a bot behind it."""

    def __init__(self):
        self.heard = []
        self.is_connected = anyio.Event()

    async def hear(self, *heard):
        self.heard += heard

    async def comes(self, count=1):
        """So many things that were said by others, once they are heard."""
        return await comes_to(self._others, lambda found: len(found) >= count)

    async def _others(self):
        return [heard for heard in self.heard if not heard.is_bot]


@asynccontextmanager
async def listening(platform):
    ears = Ears()
    async with anyio.create_task_group() as group:
        group.start_soon(platform.listen, ears.hear, ears.is_connected.set)
        await ears.is_connected.wait()
        yield ears
        group.cancel_scope.cancel()
