"""The call that is running, for the tool that runs it: who asked for it, and a word to the chat."""

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

MOST_SAID = 20
"""How many texts the calls of one turn may tell the chat."""
LONGEST_SAID = 4_000
"""How many characters of each are told."""
CLAIM = "claim"
"""The metadata key of a call with the number of its turn's claim, which counts its attempts."""

Tell = Callable[[str], Awaitable[None]]
"""Sends a text to the turn's chat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentCall:
    """One call of a tool by a model."""

    call: str
    """Our own id of it, unique; if it is run again after a restart, it has the same."""
    tool: str = ""
    arguments: Any = None
    """What the model passed; a dict, unless that was wrong."""
    attempt: int = 1
    """How many times it may have been begun, this time included."""
    session: str = ""
    """The id of the session."""
    message: str = ""
    """What the person typed whom the turn answers."""
    message_id: str | None = None
    """That message's id, as its channel names it."""
    sender: Speaker | None = None
    """Who sent it, if its channel says so: only the id tells people apart."""
    channel: str = ""
    chat: str = ""
    is_group: bool = False
    """Whether several people talk in the chat."""
    outlet: Outlet | None = field(default=None, repr=False, compare=False)

    def say(self, text: str) -> bool:
        """Tell the chat this now; returns whether it is on its way.

        It never waits, and a thread may call it. It isn't, if there is no chat, the call's step is
        over, or the turn has said too much.
        """
        return self.outlet is not None and self.outlet.say(text)


_running: ContextVar[CurrentCall] = ContextVar("the call that is running")


def current_call() -> CurrentCall:
    """The call that is running; raises LookupError where none is."""
    try:
        return _running.get()
    except LookupError:
        raise LookupError("no call of a tool is running here: a model has to make it") from None


@contextmanager
def calling(call: CurrentCall) -> Iterator[CurrentCall]:
    """Make this the call that is running."""
    token = _running.set(call)
    try:
        yield call
    finally:
        _running.reset(token)


def call_of(call: Entry, *, claims: int) -> CurrentCall:
    """What an entry of the log says about its call; `claims` counts the turn's claims until now."""
    claim = call.metadata.get(CLAIM)
    return CurrentCall(
        call=call.id,
        tool=str(call.content.get("tool")),
        arguments=call.content.get("parameters"),
        attempt=max(1, claims - claim + 1) if isinstance(claim, int) else 1,
    )


def asked_by(call: CurrentCall, question: Entry) -> CurrentCall:
    """The call with what is known about the message that its turn answers."""
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
    """What the calls of a turn tell its chat while they run."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._left = MOST_SAID
        self._said: MemoryObjectSendStream[str] | None = None
        self._loop: tuple[EventLoopToken, int] | None = None
        """The event loop, and its thread."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TaskGroup]:
        """A task group for the calls of a step; what they say is sent before this is left."""
        said, told = anyio.create_memory_object_stream[str](MOST_SAID)
        self._said, self._loop = said, (current_token(), get_ident())

        async def tell_all() -> None:
            async for text in told:
                with suppress(Exception):  # a failing bus must not cost the turn
                    await self._tell(text)

        with told:
            async with anyio.create_task_group() as teller:
                teller.start_soon(tell_all, name="what tools say")
                with said:
                    async with anyio.create_task_group() as calls:
                        yield calls

    def say(self, text: str) -> bool:
        """Pass on a text, from the event loop or from a thread; returns whether it will be told."""
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
