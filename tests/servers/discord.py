"""Simcord's Discord behind a real API and a real gateway: resumed, limited, cut and refused."""

import copy
import json
import warnings
from contextlib import asynccontextmanager
from io import BytesIO
from itertools import count
from types import SimpleNamespace
from unittest.mock import patch

import anyio
from aiohttp import web
from yarl import URL

with warnings.catch_warnings():
    # Its voice, which nobody uses here, is made of something that Python 3.13 has no more.
    warnings.filterwarnings("ignore", "'audioop' is deprecated", DeprecationWarning)
    from discord import Client
    from discord.gateway import DiscordWebSocket
from discord.http import Route
from simcord.backend import Backend, serializers
from simcord.backend.cdn import CDN_BASE
from simcord.backend.errors import BackendError
from simcord.http import router

TOKEN = "bot.token.x"
_API = "/api/v10"
_MESSAGE_CONTENT = 1 << 15
_READS_MESSAGES = 1 << 19
_READS_MESSAGES = 1 << 19
DISPATCH, IDENTIFY, RESUME, INVALID, HELLO = 0, 2, 6, 9, 10


class DiscordServer:
    """A world of servers and people, and how a bot's connection to it fares."""

    def __init__(self):
        self.world = Backend()
        self.world.subscribers.append(self._tell)
        self.typed = set()
        self.limited, self.retry_after = 0, 0.0
        self.lost = self.unconfirmed = 0
        self.is_limited_at_reading = 0
        self.allows_content = True
        self.refuses_files = False
        self.forgets_sessions = False
        """Whether what was told while nobody was connected can't be had by resuming."""
        self.identified = self.resumed = 0
        self.connected = anyio.Event()
        self.url = ""
        self._told = []
        self._names = {}
        self._sessions = {}
        self._numbers = count(1)

    @asynccontextmanager
    async def serving(self):
        app = web.Application(client_max_size=30_000_000)
        app.router.add_route("*", _API + "/{path:.*}", self._call)
        app.router.add_get("/gateway", self._gateway)
        app.router.add_get("/cdn/{path:.*}", self._download)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        gateway = URL(self.url.replace("http", "ws") + "/gateway")
        with (
            patch.object(Route, "BASE", self.url + _API),
            patch.object(DiscordWebSocket, "DEFAULT_GATEWAY", gateway),
            patch.object(Client, "before_identify_hook", _at_once),
        ):
            try:
                yield self
            finally:
                self.cut()
                with anyio.CancelScope(shield=True):
                    await runner.cleanup()

    def cut(self):
        for transport in [*self._sessions]:
            self._sessions.pop(transport)
            transport.abort()

    def forget(self):
        """Sessions can't be resumed any more; what follows is told to new ones only."""
        self._told = [(0, "", {})]

    # The gateway

    def _tell(self, event, payload):
        said = json.loads(json.dumps(payload).replace(CDN_BASE, f"{self.url}/cdn"))
        self._told.append((len(self._told) + 1, event, said))
        for news in self._sessions.values():
            news.send_nowait(_frame(*self._told[-1]))

    async def _gateway(self, request):
        socket, transport = web.WebSocketResponse(), request.transport
        await socket.prepare(request)
        await socket.send_json({"op": HELLO, "d": {"heartbeat_interval": 45000}})
        news, told = anyio.create_memory_object_stream(100_000)
        async with news, anyio.create_task_group() as group:
            group.start_soon(self._write, socket, told)
            async for frame in socket:
                said = json.loads(frame.data)
                if said["op"] == IDENTIFY:
                    if not self._may_identify(said["d"]):
                        await socket.close(code=self._refusal(said["d"]))
                        break
                    self._identify(news)
                    self._sessions[transport] = news
                elif said["op"] == RESUME:
                    self._resume(said["d"], news, transport)
            self._sessions.pop(transport, None)
            group.cancel_scope.cancel()
        return socket

    def _may_identify(self, said):
        return said["token"] == TOKEN and self.allows_content

    def _refusal(self, said):
        return 4014 if said["token"] == TOKEN else 4004

    def _identify(self, news):
        self.identified += 1
        self.connected.set()
        ready = {
            "v": 10,
            "user": dict(serializers.user_payload(self.world.bot_user)),
            "guilds": [],
            "session_id": "session",
            "resume_gateway_url": self.url.replace("http", "ws") + "/gateway",
            "application": {"id": str(self.world.application_id), "flags": 0},
        }
        news.send_nowait(_frame(len(self._told), "READY", ready))
        for guild in self.world.guilds.values():
            said = copy.deepcopy(serializers.guild_create_payload(self.world, guild))
            news.send_nowait(_frame(len(self._told), "GUILD_CREATE", said))

    def _resume(self, said, news, transport):
        if self.forgets_sessions or said["session_id"] != "session":
            news.send_nowait({"op": INVALID, "d": False})
            return
        self.resumed += 1
        for told in self._told[said["seq"] :]:
            news.send_nowait(_frame(*told))
        news.send_nowait(_frame(len(self._told), "RESUMED", {}))
        self._sessions[transport] = news
        self.connected.set()

    async def _write(self, socket, told):
        async with told:
            async for frame in told:
                try:
                    await socket.send_json(frame)
                except ConnectionError:
                    return

    # The API

    async def _call(self, request):
        path, body, files = "/" + request.match_info["path"], None, []
        if request.content_type == "multipart/form-data":
            form = await request.post()
            body = json.loads(form["payload_json"])
            files = [_upload(part) for part in form.values() if isinstance(part, web.FileField)]
        elif request.can_read_body:
            body = await request.json()
        if request.headers.get("Authorization") != f"Bot {TOKEN}":
            return _json({"code": 0, "message": "401: Unauthorized"}, status=401)
        is_counted = path.startswith("/channels/") and request.method in ("POST", "PATCH")
        is_counted = is_counted and not path.endswith("/typing")
        if path.endswith("/typing"):
            self.typed.add(path.split("/")[2])
        if is_counted and (refusal := self._hindered(request, files)):
            return refusal
        if self.is_limited_at_reading and path.endswith("/messages") and request.method == "GET":
            self.is_limited_at_reading -= 1
            return _limited(31)
        if path == "/oauth2/applications/@me":
            return _json(self._application())
        if path == "/oauth2/applications/@me":
            return _json(self._application())
        answer = self._answer(request, path, body, files)
        if is_counted and self.unconfirmed:
            self.unconfirmed -= 1
            request.transport.abort()
        return answer

    def _application(self):
        return {
            "id": str(self.world.application_id),
            "name": "test",
            "description": "",
            "icon": None,
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": "",
            "flags": _READS_MESSAGES if self.allows_content else 0,
            "owner": {"id": "1", "username": "ann", "discriminator": "0", "avatar": None},
            "team": None,
        }

    def _application(self):
        return {
            "id": str(self.world.application_id),
            "name": "test",
            "description": "",
            "icon": None,
            "bot_public": True,
            "bot_require_code_grant": False,
            "verify_key": "",
            "flags": _READS_MESSAGES if self.allows_content else 0,
            "owner": {"id": "1", "username": "ann", "discriminator": "0", "avatar": None},
            "team": None,
        }

    def _hindered(self, request, files):
        if files and self.refuses_files:
            return _json({"code": 40005, "message": "Request entity too large"}, status=413)
        if self.limited:
            self.limited -= 1
            return _limited(self.retry_after)
        if self.lost:
            self.lost -= 1
            request.transport.abort()
            return web.Response()
        return None

    def _answer(self, request, path, body, files):
        nonce = body.get("nonce") if isinstance(body, dict) else None
        if (path, nonce) in self._names:
            return _json(self._names[path, nonce])
        query = dict(request.query)
        try:
            answer = router.dispatch(
                self.world, request.method, path, json=body, params=query, files=files
            )
        except BackendError as error:
            return _json(error.to_json(), status=error.status)
        if nonce:
            self._names[path, nonce] = answer
        return _json(answer) if answer is not None else web.Response(status=204)

    async def _download(self, request):
        return web.Response(body=self.world.cdn.get(f"{CDN_BASE}/{request.match_info['path']}"))


def _json(said, *, status=200, headers=None):
    """Discord names no character set, and the library wants it so."""
    body = json.dumps(said).encode()
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def _at_once(*_, **__):
    """Discord wants five seconds between two sessions."""


def _frame(number, event, said):
    return {"op": DISPATCH, "s": number, "t": event, "d": said}


def _limited(seconds):
    said = {"message": "You are being rate limited.", "retry_after": seconds, "global": False}
    return _json(said, status=429, headers={"Via": "1.1 stand-in"})


def _upload(part):
    return SimpleNamespace(
        filename=part.filename, fp=BytesIO(part.file.read()), description=None, spoiler=False
    )
