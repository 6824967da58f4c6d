"""Stands between a bot and its homeserver, and goes wrong when told to."""

from contextlib import asynccontextmanager
from io import BytesIO

from aiohttp import ClientError, ClientSession, ClientTimeout, web
from anyio import Event
from yarl import URL

from tests.servers.server import free_port

HOP = {"Host", "Content-Length", "Transfer-Encoding", "Content-Encoding", "Connection"}


class MatrixProxy:
    """`async with matrix_proxy(server.url) as proxy:` and then `proxy.url` in place of its URL."""

    def __init__(self, url, session):
        self._target = URL(url)
        self._session = session
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.limited = self.lost = self.unconfirmed = 0
        self.limited_seconds = 0
        self.since = None
        """The last mark that a bot has read on from."""
        self.rewind = None
        """A mark that its next reading begins with instead."""
        self.refused = None
        """A part of the paths that are answered by an error of the server."""
        self.held = None
        """A part of the paths that are answered only once it `goes_on`."""
        self.goes_on = Event()
        self.calls = []
        self._open = {}

    def cut(self):
        """End all connections now; new ones are let in."""
        for request in list(self._open.values()):
            _abort(request)

    async def handle(self, request):
        self._open[id(request)] = request
        try:
            return await self._answer(request)
        except ClientError:  # the homeserver is down
            return _abort(request)
        finally:
            del self._open[id(request)]

    async def _answer(self, request):
        self.calls.append(f"{request.method} {request.path}")
        is_send = request.method == "PUT" and "/send/" in request.path
        if is_send and self.limited > 0:
            self.limited -= 1
            return _limited(self.limited_seconds)
        if is_send and self.lost > 0:
            self.lost -= 1
            return _abort(request)
        if self.refused is not None and self.refused in request.path:
            return web.Response(status=502)
        if self.held is not None and self.held in request.path:
            await self.goes_on.wait()
        answer = await self._forward(request)
        if is_send and self.unconfirmed > 0:
            self.unconfirmed -= 1
            return _abort(request)
        return answer

    async def _forward(self, request):
        url = self._target.join(request.rel_url)
        if request.path.endswith("/sync"):
            self.since = url.query.get("since")
            if self.rewind is not None:
                url, self.rewind = url.update_query(since=self.rewind), None
        headers = {name: it for name, it in request.headers.items() if name not in HOP}
        body = await request.content.read()  # of any size
        async with self._session.request(
            request.method, url, headers=headers, data=BytesIO(body) if body else None
        ) as answer:
            body = await answer.read()
            kept = {name: it for name, it in answer.headers.items() if name not in HOP}
            return web.Response(status=answer.status, headers=kept, body=body)


def _abort(request):
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _limited(seconds):
    code = {"errcode": "M_LIMIT_EXCEEDED", "error": "Too Many Requests"}
    return web.json_response({**code, "retry_after_ms": int(seconds * 1000)}, status=429)


@asynccontextmanager
async def matrix_proxy(url):
    async with ClientSession(timeout=ClientTimeout(total=60)) as session:
        proxy = MatrixProxy(url, session)
        server = web.Server(proxy.handle, access_log=None)
        runner = web.ServerRunner(server, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", proxy.port).start()
        try:
            yield proxy
        finally:
            await runner.cleanup()
