"""Voice messages in words: a function of the user's tells them, within a time."""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from nanoloop.channels.platform.platform import File
from nanoloop.tools.threads import Threads

SECONDS = 60.0
SIDE_BY_SIDE = 4
"""Calls of a function that blocks: each has a thread."""
REMEMBERED = 100
"""Recordings whose words are known, so that they are not asked for again."""

Transcribe = Callable[[File, bytes], Awaitable[str | None] | str | None]
"""The words of a voice message, of which it is given what is known and its bytes."""


class Transcriber:
    """Calls the function, sync or async."""

    def __init__(self, function: Transcribe, *, seconds: float = SECONDS) -> None:
        self._function = function
        self._seconds = seconds
        self._threads = Threads(SIDE_BY_SIDE)
        self._told: OrderedDict[bytes, str] = OrderedDict()

    async def words(self, file: File, data: bytes) -> str:
        """What is said; raises what the function raises, and `TimeoutError`."""
        # Some platforms deliver again what takes long, and a call may cost money.
        name = hashlib.sha256(data).digest()
        if name not in self._told:
            self._told[name] = await self._ask(file, data)
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
        return self._told[name]

    async def _ask(self, file: File, data: bytes) -> str:
        with anyio.fail_after(self._seconds):
            # An async one only begins in the thread: what it returns is waited for here.
            found = await self._threads.run(partial(self._function, file, data))
            said = await found if inspect.isawaitable(found) else found
        if not (isinstance(said, str) and said.strip()):
            raise ValueError("no words")
        return said
