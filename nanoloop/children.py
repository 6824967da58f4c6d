"""Start child processes with a separate environment that contains none of our keys."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import anyio

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
    return subprocess.Popen(words, env=child_environment(keeps, adds), **how)  # noqa: S603 - the callers' own words


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
