"""Child processes: each starts with an environment of its own, without any of our keys."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import anyio

USUAL = ("HOME", "LANG", "LANGUAGE", "LC_*", "LOGNAME", "PATH", "SHELL", "TMPDIR", "TZ", "USER")
"""The variables that every program may see."""
NETWORK = ("*_PROXY", "*_proxy", "SSL_CERT_DIR", "SSL_CERT_FILE")
"""Those of a program that asks servers."""


def child_environment(
    keeps: Iterable[str] = (), adds: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The usual variables, those that match one of these patterns, and these values."""
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
    """Start a program; `how` is what `subprocess.Popen` takes."""
    return subprocess.Popen(words, env=child_environment(keeps, adds), **how)  # noqa: S603 - the callers' own words


def run(
    words: Sequence[str],
    *,
    keeps: Iterable[str] = (),
    adds: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a program to its end; `how` is what `subprocess.run` takes."""
    return subprocess.run(words, env=child_environment(keeps, adds), **how)  # noqa: PLW1510, S603 - as above


async def run_in_background(
    words: Sequence[str],
    *,
    keeps: Iterable[str] = (),
    adds: Mapping[str, str] | None = None,
    **how: Any,
) -> subprocess.CompletedProcess[bytes]:
    """Run it to its end, or kill it if cancelled; `how` is what `anyio.run_process` takes."""
    return await anyio.run_process(words, env=child_environment(keeps, adds), **how)
