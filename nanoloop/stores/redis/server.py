"""The server: asked again while it can't answer, for a bounded time; its failures as sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from nanoloop.errors import StoreError
from nanoloop.stores.redis.client import client_of, disconnect_idle, exceptions, place_of
from nanoloop.stores.redis.scripts import Call, in_full

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.05, 1.0
FAILURES = (exceptions.RedisError, exceptions.RedisClusterException)
PASSING = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.ReadOnlyError,  # another server became the primary: it is found by connecting again
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.RedisClusterException,
)
OLDEST = 7
LASTING = (exceptions.AuthenticationError, exceptions.AuthorizationError)
"""Failures of connecting that no second try mends."""


class Server:
    """A Redis behind a URL."""

    def __init__(self, url: str, *, timeout_seconds: float) -> None:
        """`timeout_seconds` bounds a call with all its tries, each may take a third of them."""
        self._timeout_seconds = timeout_seconds
        self._redis = client_of(url, timeout_seconds=timeout_seconds / 3)
        self._where = place_of(url)

    async def ask(self, *calls: Call) -> list[Any]:
        """The answers to these calls, made in one go; raises `StoreError`.

        They may be made twice: a connection that was cut doesn't say what came of them.
        """
        with anyio.CancelScope(shield=True):  # bounded; half an answer spoils a connection
            answers = await self._tried(calls)
        return answers  # noqa: RET504 - as far as types know, the scope may swallow an error

    async def _tried(self, calls: Sequence[Call]) -> list[Any]:
        deadline = anyio.current_time() + self._timeout_seconds
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                return await self._answers(calls)
            except FAILURES as error:
                if not _passes(error) or anyio.current_time() + pause > deadline:
                    raise StoreError(self._sentence(error)) from None
            await anyio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    async def _answers(self, calls: Sequence[Call]) -> list[Any]:
        answers = await self._sent(calls)
        if any(isinstance(answer, exceptions.NoScriptError) for answer in answers):
            answers = await self._sent([in_full(call) for call in calls])
        for answer in answers:
            if isinstance(answer, exceptions.RedisError):
                if isinstance(answer, exceptions.ReadOnlyError):
                    await disconnect_idle(self._redis)
                raise answer
        return answers

    async def _sent(self, calls: Sequence[Call]) -> list[Any]:
        if len(calls) > 1:
            pipeline = self._redis.pipeline(transaction=False)
            for call in calls:
                pipeline.execute_command(*call)
            return await pipeline.execute(raise_on_error=False)
        try:
            return [await self._redis.execute_command(*calls[0])]
        except exceptions.ResponseError as error:
            return [error]

    def _sentence(self, error: Exception) -> str:
        """What is wrong and what to do; never a word of what was sent, nor of a password."""
        for kind, mark, words in _SENTENCES:
            if isinstance(error, kind) and mark in str(error):
                return f"Redis at {self._where} {words}"
        code = str(error).partition(" ")[0]
        said = code if code.isupper() else type(error).__name__
        return f"Redis at {self._where} can't do it ({said}): see its log"

    async def check(self) -> bool:
        """Refuse a server that is too old or would forget; else whether it never drops a key.

        Raises `StoreError`.
        """
        (facts,) = await self.ask(("INFO",))
        version = str(facts.get("redis_version", ""))
        if int(version.partition(".")[0] or 0) < OLDEST:
            raise StoreError(
                f"Redis at {self._where} is version {version}: sessions need {OLDEST} or newer"
            )
        policy = str(facts.get("maxmemory_policy", "noeviction"))
        if policy.startswith("allkeys"):
            raise StoreError(
                f"Redis at {self._where} forgets sessions when its memory is full "
                f"(maxmemory-policy is {policy}): set it to noeviction"
            )
        return policy == "noeviction"

    async def close(self) -> None:
        """Close all connections; closing twice is fine."""
        await self._redis.aclose()


_SENTENCES: tuple[tuple[type[Exception], str, str], ...] = (
    (LASTING[0], "", "refused the user or the password: check both in store.url"),
    (LASTING[1], "", "refused the user: check it in store.url"),
    (
        exceptions.NoPermissionError,
        "",
        "does not let this user do that: allow it ~PREFIX:* @read @write @scripting and info",
    ),
    (
        exceptions.OutOfMemoryError,
        "",
        "is out of memory: raise maxmemory or delete sessions; nothing was written",
    ),
    (
        exceptions.ResponseError,
        "MISCONF",
        "can't write to its disk: make room there, its log says more; nothing was written",
    ),
    (exceptions.ReadOnlyError, "", "is a replica: name the primary in store.url"),
    (exceptions.TimeoutError, "", "took too long to answer: see whether it is busy or far away"),
    (exceptions.BusyLoadingError, "", "is still loading its data: try again in a while"),
    (
        exceptions.ConnectionError,
        "CERTIFICATE_VERIFY_FAILED",
        "has a certificate that nobody here vouches for: add ?ssl_ca_certs=FILE to store.url",
    ),
    (exceptions.ConnectionError, "", "does not answer: start it, or check store.url"),
    (
        exceptions.RedisClusterException,
        "",
        "is in no cluster that answers: start it, or check store.url",
    ),
    (exceptions.ClusterDownError, "", "is in a cluster that is down: see CLUSTER INFO there"),
    (exceptions.AskError, "", "is part of a cluster: write redis+cluster://HOST:PORT in store.url"),
    (exceptions.InvalidResponse, "", "is no Redis: check store.url"),
)
"""The error, what its text has in it, and what that means; the first that fits."""


def _passes(error: Exception) -> bool:
    return isinstance(error, PASSING) and not isinstance(error, LASTING)
