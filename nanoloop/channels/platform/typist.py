"""Shows in a chat that an answer is being written, from the question to the answer."""

from __future__ import annotations

from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from nanoloop.channels.platform.platform import Place, Platform

LONGEST_SECONDS = 600.0
_RENEWED_AT = 0.8
"""What part of its time has passed when it is shown again."""


class Typist:
    """Types in all chats where something waits for an answer."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._waiting: dict[str, list[str]] = {}
        self._scopes: dict[str, anyio.CancelScope] = {}

    def start(self, chat: str, question: str, group: TaskGroup) -> None:
        """Type until this question is answered."""
        seconds = self._platform.limits.typing_seconds
        if seconds is None:
            return
        self._waiting.setdefault(chat, []).append(question)
        if chat not in self._scopes:
            self._scopes[chat] = scope = anyio.CancelScope()
            group.start_soon(self._type, chat, scope, seconds, name=f"typist {chat}")

    def stop(self, chat: str, question: str | None) -> None:
        """This question is answered, and so are those before it."""
        waiting = self._waiting.get(chat, [])
        if question in waiting:
            del waiting[: waiting.index(question) + 1]
        self._end(chat)

    def drop(self, chat: str, question: str) -> None:
        """This question gets no answer; others may, itself if it was asked before."""
        waiting = self._waiting.get(chat, [])
        if question in waiting:
            del waiting[~waiting[::-1].index(question)]
        self._end(chat)

    def _end(self, chat: str) -> None:
        if not self._waiting.get(chat) and (scope := self._scopes.get(chat)):
            scope.cancel()

    async def _type(self, chat: str, scope: anyio.CancelScope, seconds: float) -> None:
        try:
            with scope, anyio.move_on_after(LONGEST_SECONDS):
                while self._waiting.get(chat):
                    with suppress(Exception):  # it is only a courtesy
                        await self._platform.typing(Place.of(chat))
                    await anyio.sleep(seconds * _RENEWED_AT)
        finally:
            self._scopes.pop(chat, None)
            self._waiting.pop(chat, None)
