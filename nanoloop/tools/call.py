"""The running tool call: its id, who asked for it, and ways to write to the chat and send files."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.from_thread import run_sync
from anyio.lowlevel import EventLoopToken, current_token
from anyio.streams.memory import MemoryObjectSendStream

from nanoloop.messages import Speaker
from nanoloop.session.entry import Entry
from nanoloop.session.speech import GROUP, speaker_of, typed
from nanoloop.tools.file_results import AttachedFiles, FileResult

MOST_SAID = 20
"""How many texts one turn's calls may send to the chat."""
LONGEST_SAID = 4_000
"""How many characters of each text are sent."""
CLAIM = "claim"
"""The metadata key for the turn's claim number when the call was made."""

Tell = Callable[[str], Awaitable[None]]
"""Sends text to the turn's chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentCall:
    """One tool call by a model."""

    call: str
    """Our own id for the call: unique, and the same if the call runs again after a restart."""
    tool: str = ""
    arguments: Any = None
    """The arguments that the model passed: a dict, unless they are invalid."""
    attempt: int = 1
    """How many times the call may have started, including this time."""
    session: str = ""
    """The session's id."""
    message: str = ""
    """The text of the message that the turn answers."""
    message_id: str | None = None
    """The channel's id for the message that the turn answers."""
    sender: Speaker | None = None
    """The sender of the message, if the channel says so; only the id identifies a person."""
    channel: str = ""
    chat: str = ""
    is_group: bool = False
    """True if the chat has several people."""
    outlet: Outlet | None = field(default=None, repr=False, compare=False)
    files: AttachedFiles = field(default_factory=AttachedFiles, repr=False, compare=False)

    def say(self, text: str) -> bool:
        """Send this text to the chat now; return True if it will be sent.

        This never waits, and threads may call it. The text is not sent if there is no chat, if the
        call's step has ended, or if the turn has sent too many texts.
        """
        return self.outlet is not None and self.outlet.say(text)

    def attach(self, file: FileResult) -> bool:
        """Add a file to the call's result; return True if it was accepted.

        This never waits, and threads may call it. The file is read and stored when the call ends,
        even if the call fails. No file is accepted if files can't be kept here, if the call has
        ended, or if it has attached too many.
        """
        return self.files.add(file)


_running: ContextVar[CurrentCall] = ContextVar("the call that is running")


def call_here() -> CurrentCall | None:
    """Return the running call, or None."""
    return _running.get(None)


def current_call() -> CurrentCall:
    """Return the running call; raise LookupError if there is none."""
    try:
        return _running.get()
    except LookupError:
        raise LookupError(
            "no tool call is running here: current_call() is for tools that a model calls"
        ) from None


@contextmanager
def calling(call: CurrentCall) -> Iterator[CurrentCall]:
    """Make this the running call inside the block."""
    token = _running.set(call)
    try:
        yield call
    finally:
        _running.reset(token)


def call_of(call: Entry, *, claims: int) -> CurrentCall:
    """Return the call in a log entry; `claims` is the session's current number of claims."""
    claim = call.metadata.get(CLAIM)
    return CurrentCall(
        call=call.id,
        tool=str(call.content.get("tool")),
        arguments=call.content.get("parameters"),
        attempt=max(1, claims - claim + 1) if isinstance(claim, int) else 1,
    )


def asked_by(call: CurrentCall, question: Entry) -> CurrentCall:
    """Add the facts about the message that the turn answers."""
    known: Mapping[str, Any] = question.metadata
    return replace(
        call,
        message=typed(question),
        message_id=known.get("message_id"),
        sender=speaker_of(question),
        channel=known.get("channel") or "",
        chat=known.get("chat") or "",
        is_group=bool(known.get(GROUP)),
    )


class Outlet:
    """Lets a turn's running tool calls send texts to the chat."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._left = MOST_SAID
        self._said: MemoryObjectSendStream[str] | None = None
        self._loop: tuple[EventLoopToken, int] | None = None
        """The turn's event loop, and the id of its thread."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TaskGroup]:
        """Open a task group for a step's calls; their texts are sent before it closes."""
        said, told = anyio.create_memory_object_stream[str](MOST_SAID)
        self._said, self._loop = said, (current_token(), get_ident())

        async def tell_all() -> None:
            async for text in told:
                with suppress(Exception):  # a failing bus must not break the turn
                    await self._tell(text)

        with told:
            async with anyio.create_task_group() as teller:
                teller.start_soon(tell_all, name="what tools say")
                with said:
                    async with anyio.create_task_group() as calls:
                        yield calls

    def say(self, text: str) -> bool:
        """Accept text from the event loop or a thread; return True if it will be sent."""
        if self._loop is None:
            return False
        token, thread = self._loop
        if thread == get_ident():
            return self._put(text)
        with suppress(RuntimeError):  # the event loop has closed
            return run_sync(self._put, text, token=token)
        return False

    def _put(self, text: str) -> bool:
        if self._said is None or not self._left or not text.strip():
            return False
        try:
            self._said.send_nowait(text[:LONGEST_SAID])
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            return False
        self._left -= 1
        return True
