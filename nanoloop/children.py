"""Start child processes with a separate environment that contains none of our keys."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

USUAL = ("HOME", "LANG", "LANGUAGE", "LC_*", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""Environment variables that every child process may see."""
NETWORK = ("*_PROXY", "*_proxy", "SSL_CERT_DIR", "SSL_CERT_FILE")
"""Environment variables for programs that connect to servers."""


def child_environment(
    keeps: Iterable[str] = (), adds: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return the usual variables, those that match `keeps`, and the values in `adds`."""
    patterns = (*USUAL, *keeps)
    kept = {
        name: value
        for name, value in os.environ.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    return kept | dict(adds or {})


def start(
    words: Sequence[str],
    *,
    keeps: Iterable[str] = (),
    adds: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.Popen[bytes]:
    """Start a program; `how` is passed on to `subprocess.Popen`."""
    return subprocess.Popen(words, env=child_environment(keeps, adds), **how)  # noqa: S603 - the callers choose the program


def run(
    words: Sequence[str],
    *,
    keeps: Iterable[str] = (),
    adds: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program until it ends; `how` is passed on to `subprocess.run`."""
    return subprocess.run(words, env=child_environment(keeps, adds), **how)  # noqa: PLW1510, S603 - as above


async def run_in_background(
    words: Sequence[str],
    *,
    keeps: Iterable[str] = (),
    adds: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run a program until it ends, or kill it if cancelled; `how` goes to `anyio.run_process`."""
    return await anyio.run_process(words, env=child_environment(keeps, adds), **how)


GRACE_SECONDS = 1.0
"""How long a program may take to end after its input is closed, and again after SIGTERM."""
_GUARDED = """trap : TERM
(trap "" HUP INT TERM; read _ <"$0"; kill -9 0) </dev/null >/dev/null 2>&1 & guard=$!
"$@"
code=$?
kill -9 $guard; wait $guard 2>/dev/null
exit $code"""
"""Runs a program beside a guard, which kills the whole group once nobody has the pipe `$0` open."""
_POLL_SECONDS = 0.01
_SIGNALLED = 128


@asynccontextmanager
async def open_group(
    words: Sequence[str],
    *,
    keeps: Iterable[str] = (),
    adds: Mapping[str, str] | None = None,
) -> AsyncIterator[Process]:
    """Run a program with pipes, in its own process group.

    On exit, the program's input is closed and the whole group is ended, even if this process is
    killed with `kill -9`. A process that leaves the group by itself, as a daemon does, is not
    found.
    """
    held, holding = os.pipe()
    try:
        try:
            process = await anyio.open_process(
                ["/bin/sh", "-c", _GUARDED, f"/dev/fd/{held}", *words],
                stderr=subprocess.PIPE,
                env=child_environment(keeps, adds),
                start_new_session=True,  # Ctrl-C is for us: running calls may be finished
                pass_fds=(held,),
            )
        finally:
            os.close(held)
        try:
            yield process
        finally:
            with anyio.CancelScope(shield=True):
                holding = await _ended(process, holding)
    finally:
        if holding >= 0:
            os.close(holding)


async def _ended(process: Process, holding: int) -> int:
    """End a group, and close the pipe that its guard watches."""
    async with anyio.create_task_group() as draining:
        # A program blocked on a full pipe can't end, and its last output must not hide its end.
        for stream in (process.stdout, process.stderr):
            draining.start_soon(_drain, stream, name="last words")
        if process.stdin is not None:
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await process.stdin.aclose()
        if not await has_ended(process):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGTERM)
            await has_ended(process)
        os.close(holding)
        await has_ended(process)
        draining.cancel_scope.deadline = anyio.current_time() + GRACE_SECONDS
    transport = getattr(getattr(process, "_process", None), "_transport", None)
    if transport is not None:  # open while something outside the group holds a pipe
        with suppress(PermissionError):
            transport.close()
    return -1


async def _drain(stream: ByteReceiveStream | None) -> None:
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        while stream is not None:
            await stream.receive()


async def has_ended(process: Process) -> bool:
    """Return whether the program ends within a moment."""
    # Not `process.wait()`, which also waits for any process that inherited the pipes.
    with anyio.move_on_after(GRACE_SECONDS):
        while process.returncode is None:  # noqa: ASYNC110 - there is no event for it
            await anyio.sleep(_POLL_SECONDS)
    return process.returncode is not None


def how_it_ended(code: int | None) -> str:
    """Return how a program run by `open_group` ended: `ended with 1` or `was killed (SIGKILL)`."""
    if code is None:
        return "closed its output"
    number = -code if code < 0 else code - _SIGNALLED
    with suppress(ValueError):
        return f"was killed ({signal.Signals(number).name})"
    return f"ended with {code}"
