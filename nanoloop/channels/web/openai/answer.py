"""Answers in OpenAI's format, whole or streamed, with or without a session."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any, Protocol
from uuid import uuid4

import anyio
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from nanoloop.channels.screen import unshown
from nanoloop.channels.web.access import LATER_SECONDS, Refusal, try_later
from nanoloop.channels.web.api import Backend
from nanoloop.channels.web.dialogue import CHANNEL, check_same, hand_in, shown_answer
from nanoloop.channels.web.feed import (
    KEEP_ALIVE_SECONDS,
    STREAM_HEADERS,
    Feed,
    OpenStreams,
    Waker,
    send_body,
)
from nanoloop.channels.web.names import answer_in, exchange_of
from nanoloop.channels.web.openai.request import (
    ClientRefusal,
    client_error_response,
    error_form,
    refusal_of_name,
)
from nanoloop.errors import BusFull
from nanoloop.intake import is_command
from nanoloop.messages import Inbound
from nanoloop.protocols import OnText, Usage
from nanoloop.session.entry import TOOL_CALL
from nanoloop.session.queue import message_id_of
from nanoloop.session.session import Session

HEAD_SECONDS = 2
"""How long a stream waits for its first text, so that an early failure can set the status."""


class SharedAnswer:
    """The answer to one question, shared by all clients waiting for it, including late ones."""

    def __init__(
        self,
        question: Question,
        form: CompletionForm,
        *,
        refuse: Callable[[Exception], Refusal],
        headers: Mapping[str, str],
        grace_seconds: float | None,
    ) -> None:
        """Create the answer; without a client for the grace period, the question is abandoned.

        A grace period of None means never.
        """
        self.form = form
        self.headers = dict(headers)
        self.pieces: list[str] = []
        self.completion: Completion | None = None
        self.refusal: Refusal | None = None
        self._question = question
        self._refuse = refuse
        self._grace = grace_seconds
        self._waiting: set[Waker] = set()
        self._changed = anyio.Event()
        self._has_begun = self._is_ending = False
        self.is_given_up = False
        """True if the question was given up because no client was waiting any more."""

    @property
    def is_over(self) -> bool:
        """Whether the answer is complete or has failed."""
        return self.completion is not None or self.refusal is not None

    @property
    def is_lasting(self) -> bool:
        """Whether a repeated request gets this answer; False after a failure worth retrying."""
        if self.refusal is not None and self.refusal.headers.get(AGAIN) != "false":
            return False
        return not self.is_given_up

    def join(self, waker: Waker) -> None:
        """Add a client, which receives the answer as it arrives."""
        self._waiting.add(waker)
        self._tell_change()

    def leave(self, waker: Waker) -> None:
        """Remove a client."""
        self._waiting.discard(waker)
        if self.is_over and not self._waiting:
            self.pieces.clear()  # the completion has the whole text
        self._tell_change()

    def end(self) -> None:
        """Continue only while clients are connected; without any, the answer is abandoned."""
        self._is_ending = True
        self._tell_change()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def ask(self) -> None:
        """Start answering the question, unless that has already begun."""
        if self._has_begun:
            return
        self._has_begun = True
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._watch, group.cancel_scope, name="those who wait")
                await self._answer()
                group.cancel_scope.cancel()
        finally:
            self._come_to_end()

    async def _answer(self) -> None:
        try:
            self.completion = await self._question.ask(self._hear)
        except Exception as error:  # noqa: BLE001 - the client is told, and a bug is logged
            self.refusal = self._refuse(error)

    def _hear(self, piece: str) -> None:
        self.pieces.append(piece)
        self._tell()

    def _tell(self) -> None:
        for waker in self._waiting:
            waker.set()

    async def _watch(self, asking: anyio.CancelScope) -> None:
        """Cancel the answer if all clients stay away for the grace period."""
        while True:
            changed = self._changed
            seconds = inf if self._waiting else self._patience
            with anyio.move_on_after(seconds) as patience:
                await changed.wait()
            if patience.cancelled_caught and not self._waiting:
                self.is_given_up = not self._is_ending
                asking.cancel()
                return

    @property
    def _patience(self) -> float:
        if self._is_ending:
            return 0
        return inf if self._grace is None else self._grace

    def _come_to_end(self) -> None:
        # A returning client must find the answer, even after a restart. A refused request is asked
        # again, or its key lets the client retry a message that was not stored yet.
        is_refused = self.refusal is not None and self._grace is not None
        if self.completion is None and (self.is_given_up or is_refused or self._grace == 0):
            self._question.give_up()
        if not self.is_over:
            self.refusal = try_later(503, "the answer was cut off here", seconds=LATER_SECONDS)
        self._tell()


class _AnswerWaker(Waker):
    """Counts as an open stream, but lets the answer finish."""

    def __init__(self, answer: SharedAnswer) -> None:
        super().__init__()
        self._answer = answer

    def end(self) -> None:
        """Let the answer continue until its turn ends."""
        self._answer.end()


class CompletionResponse:
    """Sends an answer to a client; the first client starts it and keeps it going for others."""

    def __init__(
        self, answer: SharedAnswer, *, streams: OpenStreams, owner: str, headers: Mapping[str, str]
    ) -> None:
        """Create the response; raises `Refusal` if too many streams are open."""
        self._answer = answer
        self._streams = streams
        self._headers = {**answer.headers, **headers}
        self._news = _AnswerWaker(answer)
        streams.enter(self._news, owner=owner)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve this client."""
        with ExitStack() as stack:
            stack.callback(self._streams.leave, self._news)
            self._answer.join(self._news)
            async with anyio.create_task_group() as group:
                group.start_soon(self._answer.ask, name="question")
                await self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(_leave_with, receive, group.cancel_scope, name="client")
                await self._tell(scope, receive, send)
                group.cancel_scope.cancel()
        finally:
            self._answer.leave(self._news)

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        while not self._answer.is_over:
            await self._news.wait(KEEP_ALIVE_SECONDS)
        if self._answer.completion is None:
            await self._refused(scope, receive, send)
            return
        whole = self._answer.form.whole(self._answer.completion)
        await JSONResponse(whole, headers=self._headers)(scope, receive, send)

    async def _refused(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._answer.refusal or Refusal(500, "")
        await client_error_response(refusal)(scope, receive, send)


class CompletionStream(CompletionResponse):
    """Like `CompletionResponse`, but sends the answer in chunks."""

    async def _tell(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = self._answer
        if not answer.pieces and not answer.is_over:
            await self._news.wait(HEAD_SECONDS)
        if answer.refusal is not None and not answer.pieces:
            await self._refused(scope, receive, send)
            return
        own = [(name.encode(), value.encode()) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS + own})
        await self._tell_pieces(send)

    async def _tell_pieces(self, send: Send) -> None:
        answer, taken = self._answer, 0
        data, said = answer.form.first(), ""
        while True:
            text = "".join(answer.pieces[taken:])
            taken = len(answer.pieces)
            if text:
                said += text
                data += answer.form.piece(text)
            if answer.is_over:
                await send_body(send, data + self._end(said), more=False)
                return
            if data and not await send_body(send, data):
                return
            data = b"" if await self._news.wait(KEEP_ALIVE_SECONDS) else KEEP_ALIVE

    def _end(self, said: str) -> bytes:
        form, completion = self._answer.form, self._answer.completion
        if completion is None:
            return event(error_form(self._answer.refusal or Refusal(500, "")))
        missing = unshown(completion.text, said)
        if missing is None:  # text from before a tool call, or lost pieces
            missing = f"\n\n{completion.text}"
        return (form.piece(missing) if missing else b"") + form.last(completion)


async def _leave_with(receive: Receive, serving: anyio.CancelScope) -> None:
    """Cancel this scope when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    serving.cancel()


DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": waiting\n\n"
_REASONS = {"stop", "length", "tool_calls", "content_filter"}
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """The answer to a question."""

    text: str
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=Usage)
    tool_calls: Sequence[Mapping[str, Any]] = ()
    """Tool calls for the client to run, in OpenAI's format."""
    files: Sequence[Mapping[str, Any]] = ()
    """The answer's files, in the format that `/api` uses."""

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The text and the files as content parts; empty if there are no files."""
        text = [{"type": "text", "text": self.text}] if self.text else []
        return [*text, *map(_part, self.files)] if self.files else []

    @property
    def reason(self) -> str:
        """The finish reason, limited to the values that clients know."""
        return self.finish_reason if self.finish_reason in _REASONS else "stop"


def _part(file: Mapping[str, Any]) -> dict[str, Any]:
    if file["kind"] == "image":
        return {"type": "image_url", "image_url": {"url": file["url"]}}
    known = {name: file[name] for name in ("mime_type", "size", "url")}
    return {"type": "file", "file": {"filename": file["name"], **known}}


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionForm:
    """The format of one answer, with the id and time that all its chunks share."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    with_usage: bool = False

    def whole(self, completion: Completion) -> dict[str, Any]:
        """Return the answer as one object."""
        calls = list(completion.tool_calls)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": completion.text or (None if calls else ""),
            "refusal": None,
        }
        if calls:
            message["tool_calls"] = calls
        if parts := completion.parts:  # beside the text: clients accept that only as a string
            message["content_parts"] = parts
        choice = {"index": 0, "message": message, "logprobs": None}
        return {
            **self._head("chat.completion"),
            "choices": [{**choice, "finish_reason": completion.reason}],
            "usage": usage_form(completion.usage),
        }

    def first(self) -> bytes:
        """Return the first chunk, which contains the role."""
        return self._chunk({"role": "assistant", "content": "", "refusal": None})

    def piece(self, text: str) -> bytes:
        """Return a chunk that contains some of the text."""
        return self._chunk({"content": text})

    def last(self, completion: Completion) -> bytes:
        """Return the chunks that follow the text."""
        calls = [{"index": i, **call} for i, call in enumerate(completion.tool_calls)]
        data = self._chunk({"tool_calls": calls}) if calls else b""
        if parts := completion.parts:
            data += self._chunk({"content_parts": parts})
        data += self._chunk({}, completion.reason)
        if self.with_usage:
            usage = {"choices": [], "usage": usage_form(completion.usage)}
            data += event({**self._head("chat.completion.chunk"), **usage})
        return data + DONE

    def _chunk(self, delta: Mapping[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        chunk = {**self._head("chat.completion.chunk"), "choices": [choice]}
        return event({**chunk, "usage": None} if self.with_usage else chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def event(data: Mapping[str, Any]) -> bytes:
    """Encode one event of a stream."""
    return f"data: {_encode(data)}\n\n".encode("utf-8", "replace")


def usage_form(usage: Usage) -> dict[str, Any]:
    """Return an answer's usage, summed over all its steps."""
    return {
        "prompt_tokens": usage.tokens_in,
        "completion_tokens": usage.tokens_out,
        "total_tokens": usage.tokens_in + usage.tokens_out,
        "prompt_tokens_details": {"cached_tokens": usage.tokens_cached},
    }


class Question(Protocol):
    """A question that can be answered once."""

    async def ask(self, hear: OnText) -> Completion:
        """Pass each piece to `hear`, and return the answer; raises `Refusal` or `NanoloopError`."""
        ...

    def give_up(self) -> None:
        """Cancel the question because nobody is waiting; finished work is kept."""
        ...


LOOK_SECONDS = 5
"""How often to check that the question is still being worked on; two failures mean it is lost."""
AGAIN = "x-should-retry"
"""A header that tells OpenAI's SDK whether to retry by itself."""
WITHOUT_ANSWER = (
    "this message was sent before and got no complete answer: use another Idempotency-Key to ask "
    "again"
)


class SessionQuestion:
    """A message in a session that is waiting for its answer, or already has one."""

    def __init__(self, backend: Backend, session: Session, message: Inbound) -> None:
        self._backend = backend
        self._session = session
        self._message = message
        self._listening: AnswerListener | None = None

    @property
    def session_id(self) -> str:
        """The id of the session in which the message is answered."""
        return self._session.id

    async def ask(self, hear: OnText) -> Completion:
        """Return the answer, or the one from the log if the message is a repeat."""
        self._backend.watch.catch_up(self._session)
        outcome = await hand_in(self._backend, self._message)
        # No await since it was stored, so no event is missed.
        feed = self._backend.feeds.of(self._session.id)
        name = str(self._message.message_id)
        self._listening = listening = AnswerListener(feed, self._session, name, hear)
        feed.watch(listening)
        try:
            if outcome == "repeated":
                listening.catch_up()
                # First let pending writes finish, because the answer is looked up in the log.
                is_owed = await self._backend.parts.sessions.writer.look(self._session, self._owes)
                if not is_owed and not listening.over.is_set():
                    listening.over.set()  # nothing to give up
                    return await self._found()
            await self._wait(listening.over)
            return self._outcome(listening)
        finally:
            feed.unwatch(listening)

    def _owes(self, session: Session) -> bool:
        """Return whether the message awaits its answer; raises `Refusal` if its text differs."""
        name = self._message.message_id
        asked = [entry for entry in session.window if entry.seq == session.awaiting]
        owed = [entry for entry in (*session.waiting, *asked) if message_id_of(entry) == name]
        check_same(owed, self._message)
        return bool(owed)

    async def _found(self) -> Completion:
        """Return the message's answer from the log; raises `Refusal` if there is none."""
        name = str(self._message.message_id)
        said = await exchange_of(self._backend.parts.sessions.store, self._session, name)
        check_same(said[:1], self._message)
        answer = answer_in(said)
        if answer is None:
            raise _not_to_be_sent_again(ClientRefusal(409, WITHOUT_ANSWER, code="not_answered"))
        reason = str(answer.metadata.get("finish_reason") or "stop")
        shown = shown_answer(answer)
        return Completion(text=shown["text"], finish_reason=reason, files=shown["attachments"])

    async def _wait(self, over: anyio.Event) -> None:
        idle = 0
        while not over.is_set():
            if idle > 1:
                lost = self._backend.parts.sentences.text("crashed")
                raise _not_to_be_sent_again(ClientRefusal(500, lost, code="failed"))
            with anyio.move_on_after(LOOK_SECONDS):
                await over.wait()
            is_busy = self._backend.parts.runner.is_busy(self._message.session_key)
            idle = 0 if is_busy or is_command(self._message) else idle + 1

    def give_up(self) -> None:
        """Delete the message if it is waiting, or stop its turn unless a tool changed something."""
        listening, key = self._listening, self._message.session_key
        if listening is not None and listening.over.is_set():
            return
        if listening is not None and listening.is_answering:
            if not self._has_written():
                self._backend.parts.runner.stop(key)
            return
        # Do this even if the message was not stored, because it may be stored later.
        name = self._message.message_id
        unsaid = Inbound(channel=CHANNEL, chat=self._session.id, text="", key=key, deletes=name)
        with suppress(BusFull):
            self._backend.parts.bus.put_nowait(unsaid)

    def _has_written(self) -> bool:
        """Return whether the turn has called a tool that may change data, and so must finish."""
        session = self._session
        writes = self._backend.parts.agents.of(session).toolbox.writes
        done = [entry for entry in session.window if entry.seq > session.awaiting]
        return any(e.type == TOOL_CALL and writes(str(e.content.get("tool"))) for e in done)

    def _outcome(self, heard: AnswerListener) -> Completion:
        if heard.kind == "error":
            raise _not_to_be_sent_again(refusal_of_name(heard.error, heard.text))
        if heard.kind == "answer" or is_command(self._message):
            return heard.completion(heard.text)
        return heard.completion(heard.said)  # the turn was stopped


def _not_to_be_sent_again(refusal: Refusal) -> Refusal:
    """Mark a failure so that the client does not resend a message that the session already has."""
    refusal.headers[AGAIN] = "false"
    return refusal


class AnswerListener:
    """Handles each event at once, while the session is still in that event's state."""

    def __init__(self, feed: Feed, session: Session, message_id: str, hear: OnText) -> None:
        self._feed = feed
        self._session = session
        self._message_id = message_id
        self._hear = hear
        self._place = feed.last
        self._tells = {"text": self._piece, "turn": self._turn, "answer": self._answer}
        self._tells["session"] = self._changed
        self.is_answering = False
        """Whether the current turn answers this message."""
        self.over = anyio.Event()
        self.text = ""
        self.kind = "error"
        """The kind of the `Outbound`: an answer, a notice, or an error."""
        self.said = ""
        """The text streamed so far."""
        self._files: Sequence[Mapping[str, Any]] = ()
        self.error = ""
        """The name of the error, if known."""
        self._usage = Usage()
        self._finish_reason = "stop"

    def set(self) -> None:
        """Process new events."""
        events = self._feed.since(self._place)
        self._place = self._feed.last
        for event in events:
            if event.name in self._tells and not self.over.is_set():
                self._tells[event.name](event.data)

    def catch_up(self) -> None:
        """Process the text streamed before this listener was added."""
        self.is_answering = self._is_awaited()
        running = self._feed.running
        if running is not None and running.message_id == self._message_id and running.text:
            self.said = running.text
            self._hear(running.text)

    def completion(self, text: str) -> Completion:
        """Return the answer with its usage."""
        return Completion(
            text=text,
            finish_reason=self._finish_reason,
            usage=self._usage,
            files=self._files,
        )

    def _piece(self, told: Mapping[str, Any]) -> None:
        if told["message_id"] == self._message_id:
            self.said += told["piece"]
            self._hear(told["piece"])

    def _turn(self, told: Mapping[str, Any]) -> None:
        if told["state"] == "started":
            self.is_answering = self._is_awaited()
        elif self.is_answering:
            self.is_answering = False
            self._end_turn(told)

    def _is_awaited(self) -> bool:
        """Return whether the session is answering this message now."""
        session = self._session
        asked = next((e for e in session.window if e.seq == session.awaiting), None)
        return asked is not None and asked.metadata.get("message_id") == self._message_id

    def _end_turn(self, told: Mapping[str, Any]) -> None:
        self.error = str(told.get("error") or "")
        names = ("tokens_in", "tokens_out", "tokens_cached")
        self._usage = Usage(**{name: int(told.get(name) or 0) for name in names})
        newest = self._session.newest
        if newest is not None and newest.role == "assistant":
            self._finish_reason = str(newest.metadata.get("finish_reason") or "stop")

    def _answer(self, told: Mapping[str, Any]) -> None:
        if told["message_id"] == self._message_id:
            self.text, self.kind = told["text"], told["kind"]
            self._files = told.get("attachments", ())
            self.over.set()

    def _changed(self, told: Mapping[str, Any]) -> None:
        if told.get("deleted"):
            self.error = "SessionNotFound"
            self.text = "the session was deleted"
            self.over.set()
