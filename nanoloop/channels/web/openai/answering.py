"""The response to a question: whole, or streamed as it comes, for as long as anyone is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

import anyio
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from nanoloop.channels.screen import unshown
from nanoloop.channels.web.openai.form import KEEP_ALIVE, Completion, Form, event
from nanoloop.channels.web.openai.question import Question
from nanoloop.channels.web.openai.refusing import error_form, error_response
from nanoloop.channels.web.refusal import Refusal
from nanoloop.channels.web.stream import PATIENCE_SECONDS, Streams, Waker

HEAD_SECONDS = 2
"""How long a stream waits for its first word, so that a failure before it has a status."""
KEEP_ALIVE_SECONDS = 15
"""After so much silence a comment is sent."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]


class _Place(Waker):
    """A place among the open streams; an answer is let come to its end."""

    def end(self) -> None:
        """Go on: the turn ends by itself, or is ended."""


class Answering:
    """Asks a question and sends what comes of it; who leaves before stops it."""

    def __init__(
        self,
        question: Question,
        form: Form,
        *,
        streams: Streams,
        refuse: Callable[[Exception], Refusal],
        headers: Mapping[str, str],
    ) -> None:
        """Raises a refusal where too many are open."""
        self._question = question
        self._form = form
        self._streams = streams
        self._refuse = refuse
        self._headers = dict(headers)
        self._news = _Place()
        self._pieces: list[str] = []
        self._completion: Completion | None = None
        self._refusal: Refusal | None = None
        streams.enter(self._news)

    @property
    def _is_over(self) -> bool:
        return self._completion is not None or self._refusal is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve this client."""
        with ExitStack() as stack:
            stack.callback(self._streams.leave, self._news)
            async with anyio.create_task_group() as group:
                group.start_soon(self._ask, name="question")
                group.start_soon(_leave_with, receive, group.cancel_scope, name="client")
                await self._tell(scope, receive, send)
                group.cancel_scope.cancel()

    async def _ask(self) -> None:
        try:
            self._completion = await self._question.ask(self._hear)
        except Exception as error:  # noqa: BLE001 - the client is told, and a bug is logged
            self._refusal = self._refuse(error)
        self._news.set()

    def _hear(self, piece: str) -> None:
        self._pieces.append(piece)
        self._news.set()

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not self._is_over:
            await self._news.wait(KEEP_ALIVE_SECONDS)
        if self._completion is None:
            await error_response(self._refusal or Refusal(500, ""))(scope, receive, send)
            return
        whole = self._form.whole(self._completion)
        await JSONResponse(whole, headers=self._headers)(scope, receive, send)


class Streaming(Answering):
    """The same in chunks."""

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._news.wait(HEAD_SECONDS)
        if self._refusal is not None and not self._pieces:
            await error_response(self._refusal)(scope, receive, send)
            return
        own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS + own})
        await self._tell_pieces(send)

    async def _tell_pieces(self, send: Send) -> None:
        data, said = self._form.first(), ""
        while True:
            if text := "".join(self._pieces):
                self._pieces.clear()
                said += text
                data += self._form.piece(text)
            if self._is_over:
                await _send(send, data + self._end(said), more=False)
                return
            if data and not await _send(send, data):
                return
            data = b"" if await self._news.wait(KEEP_ALIVE_SECONDS) else KEEP_ALIVE

    def _end(self, said: str) -> bytes:
        if self._completion is None:
            return event(error_form(self._refusal or Refusal(500, "")))
        text = self._completion.text
        missing = unshown(text, said)
        if missing is None:  # words before a tool was called, or pieces that were lost
            missing = f"\n\n{text}"
        return (self._form.piece(missing) if missing else b"") + self._form.last(self._completion)


async def _send(send: Send, data: bytes, *, more: bool = True) -> bool:
    """Send it; False where it was not taken in for too long."""
    with anyio.move_on_after(PATIENCE_SECONDS) as patience:
        await send({"type": "http.response.body", "body": data, "more_body": more})
    return not patience.cancelled_caught


async def _leave_with(receive: Receive, serving: anyio.CancelScope) -> None:
    """End it all when the client is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    serving.cancel()
