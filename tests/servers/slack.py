"""A stand-in for Slack: Socket Mode with redelivery, the Web API with its refusals, and people."""

import json
from collections import defaultdict
from contextlib import asynccontextmanager
from itertools import count

import anyio
from aiohttp import web

TOKEN, APP_TOKEN, BOT = "xoxb-bot", "xapp-app", "UBOT0"
SCOPES = "chat:write,im:history,users:read,channels:history,files:read,files:write"


class SlackServer:
    """A workspace; what it shows in each channel is the ledger."""

    def __init__(self):
        self.channels = defaultdict(dict)
        """By channel: its messages by their ts, oldest first."""
        self.users = {}
        self.files = {}
        self.uploads = {}
        self.calls = []
        """The methods that were called."""
        self.scopes = SCOPES
        self.limit = 4000
        self.refusals = {}
        """By method: what it is refused with the next times."""
        self.limited, self.retry_after = 0, 0.0
        self.lost = self.unconfirmed = 0
        self.open = {}
        """Envelopes that nobody has acknowledged."""
        self.acknowledged = []
        self.is_forgetful = False
        """Whether it has given up delivering what was said while nobody was connected."""
        self.last = None
        self.connected = anyio.Event()
        self._sockets = {}
        self._numbers = count(1)
        self.url = ""

    @asynccontextmanager
    async def serving(self):
        app = web.Application(client_max_size=30_000_000)
        app.router.add_post("/api/{method}", self._call)
        app.router.add_get("/socket", self._socket)
        app.router.add_get("/files/{id}", self._download)
        app.router.add_post("/upload/{id}", self._take_file)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            self.cut()
            with anyio.CancelScope(shield=True):
                await runner.cleanup()

    def refuse(self, method, error, *, times=1, retry_after=0, **more):
        """Refuse this method so often."""
        status = 429 if error == "ratelimited" else 200
        headers = {"Retry-After": str(retry_after)}
        refusal = {"error": error, "status": status, "headers": headers, **more}
        self.refusals[method] = [refusal] * times

    # What is told to the bot

    def say(self, channel, user, text, **more):
        """A message of someone; returns its ts."""
        message = {"type": "message", "user": user, "text": text, "ts": self.ts(), **more}
        self.channels[channel][message["ts"]] = message
        self.tell(channel, message)
        return message["ts"]

    def tell(self, channel, event):
        kind = "im" if channel.startswith("D") else "channel"
        event = {**event, "channel": channel, "channel_type": kind, "event_ts": self.ts()}
        self.last = event
        if self.is_forgetful and not self._sockets:
            return
        name = f"envelope{next(self._numbers)}"
        self.open[name] = {
            "type": "events_api",
            "envelope_id": name,
            "accepts_response_payload": False,
            "payload": {"type": "event_callback", "event": event},
            "retry_attempt": 0,
            "retry_reason": "",
        }
        for socket in [*self._sockets][-1:]:
            self._deliver(socket, self.open[name])

    def redeliver(self):
        """What is not acknowledged after a while comes again."""
        for envelope in self.open.values():
            envelope["retry_attempt"] += 1
            envelope["retry_reason"] = "timeout"
            for socket in [*self._sockets][-1:]:
                self._deliver(socket, envelope)

    def disconnect(self, reason="refresh_requested"):
        for news in self._sockets.values():
            news.send_nowait({"type": "disconnect", "reason": reason})

    def cut(self):
        for transport in self._sockets:
            transport.abort()
        self._sockets.clear()

    def ts(self):
        return f"{1_800_000_000 + next(self._numbers)}.000100"

    def _deliver(self, socket, envelope):
        self._sockets[socket].send_nowait(dict(envelope))

    async def _socket(self, request):
        socket, transport = web.WebSocketResponse(), request.transport
        await socket.prepare(request)
        news, told = anyio.create_memory_object_stream(100_000)
        async with news, anyio.create_task_group() as group:
            self._sockets[transport] = news
            news.send_nowait({"type": "hello", "num_connections": 1})
            for envelope in self.open.values():
                envelope["retry_attempt"] += 1
                self._deliver(transport, envelope)
            group.start_soon(self._write, socket, told)
            self.connected.set()
            async for frame in socket:
                name = json.loads(frame.data)["envelope_id"]
                self.acknowledged.append(name)
                self.open.pop(name, None)
            self._sockets.pop(transport, None)
            group.cancel_scope.cancel()
        return socket

    async def _write(self, socket, told):
        async with told:
            async for said in told:
                try:
                    await socket.send_json(said)
                except ConnectionError:
                    return

    # What the bot does

    async def _call(self, request):
        method = request.match_info["method"]
        self.calls.append(method)
        given = dict(await request.post())
        is_app = method == "apps.connections.open"
        wanted = APP_TOKEN if is_app else TOKEN
        if request.headers.get("Authorization") != f"Bearer {wanted}":
            return _no("invalid_auth")
        if refusals := self.refusals.get(method):
            return _no(**refusals.pop())
        is_counted = method in ("chat.postMessage", "chat.update")
        if is_counted and (refusal := self._hindered(request)):
            return refusal
        answer = getattr(self, "_" + method.replace(".", "_"))(given)
        if is_counted and self.unconfirmed:
            self.unconfirmed -= 1
            request.transport.abort()
        if isinstance(answer, str):
            return _no(answer)
        return web.json_response({"ok": True, **answer}, headers={"x-oauth-scopes": self.scopes})

    def _hindered(self, request):
        if self.limited:
            self.limited -= 1
            headers = {"Retry-After": str(self.retry_after)}
            return _no("ratelimited", status=429, headers=headers)
        if self.lost:
            self.lost -= 1
            request.transport.abort()
            return web.Response()
        return None

    def _apps_connections_open(self, given):
        return {"url": self.url.replace("http", "ws") + "/socket"}

    def _auth_test(self, given):
        return {"user_id": BOT}

    def _users_info(self, given):
        if given["user"] not in self.users:
            return "user_not_found"
        return {
            "user": {"id": given["user"], "profile": {"display_name": self.users[given["user"]]}}
        }

    def _chat_postMessage(self, given):  # noqa: N802 - Slack's name
        if len(given["text"]) > self.limit:
            return "msg_too_long"
        message = {
            "type": "message",
            "user": BOT,
            "bot_id": "B0",
            "text": given["text"],
            "ts": self.ts(),
            "metadata": json.loads(given.get("metadata", "{}")),
            "mrkdwn": given.get("mrkdwn"),
        }
        if "thread_ts" in given:
            message["thread_ts"] = given["thread_ts"]
        self.channels[given["channel"]][message["ts"]] = message
        self.tell(given["channel"], message)
        return {"ts": message["ts"], "channel": given["channel"]}

    def _chat_update(self, given):
        message = self.channels[given["channel"]].get(given["ts"])
        if message is None:
            return "message_not_found"
        if len(given["text"]) > self.limit:
            return "msg_too_long"
        self.change(given["channel"], given["ts"], given["text"])
        return {"ts": given["ts"]}

    def _chat_delete(self, given):
        if given["ts"] not in self.channels[given["channel"]]:
            return "message_not_found"
        self.drop(given["channel"], given["ts"])
        return {}

    def change(self, channel, ts, text):
        before = dict(self.channels[channel][ts])
        edited = {"user": before["user"], "ts": self.ts()}
        now = self.channels[channel][ts] = {**before, "text": text, "edited": edited}
        event = {"subtype": "message_changed", "message": now, "previous_message": before}
        self.tell(channel, {"type": "message", "ts": self.ts(), **event})

    def drop(self, channel, ts):
        before = self.channels[channel].pop(ts)
        event = {"subtype": "message_deleted", "deleted_ts": ts, "previous_message": before}
        self.tell(channel, {"type": "message", "ts": self.ts(), **event})

    def _conversations_history(self, given):
        found = [m for m in self.channels[given["channel"]].values() if "thread_ts" not in m]
        return _page([m for m in found[::-1] if m["ts"] > given.get("oldest", "")], given)

    def _conversations_replies(self, given):
        found = self.channels[given["channel"]].values()
        mine = [m for m in found if given["ts"] in (m.get("thread_ts"), m["ts"])]
        return _page([m for m in mine if m["ts"] > given.get("oldest", "")], given)

    # Files

    def keep(self, name, data):
        """A file as an event tells of it."""
        number = f"F{next(self._numbers)}"
        self.files[number] = data
        kinds = {"png": "image/png", "ogg": "audio/ogg", "txt": "text/plain"}
        return {
            "id": number,
            "name": name,
            "mimetype": kinds.get(name.rpartition(".")[2], "application/octet-stream"),
            "size": len(data),
            "url_private": f"{self.url}/files/{number}",
        }

    async def _download(self, request):
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.Response(status=403)
        return web.Response(body=self.files[request.match_info["id"]])

    async def _take_file(self, request):
        self.uploads[request.match_info["id"]] = await request.read()
        return web.Response(text="OK")

    def _files_getUploadURLExternal(self, given):  # noqa: N802 - Slack's name
        number = f"F{next(self._numbers)}"
        return {"file_id": number, "upload_url": f"{self.url}/upload/{number}"}

    def _files_completeUploadExternal(self, given):  # noqa: N802 - Slack's name
        files = json.loads(given["files"])
        self.say(given["channel_id"], BOT, "", files=files, bot_id="B0")
        return {"files": files}


def _page(found, given):
    begin, size = int(given.get("cursor", 0)), int(given["limit"])
    rest = str(begin + size) if len(found) > begin + size else ""
    return {
        "messages": found[begin : begin + size],
        "response_metadata": {"next_cursor": rest},
    }


def _no(error, *, status=200, headers=None, **more):
    return web.json_response({"ok": False, "error": error, **more}, status=status, headers=headers)
