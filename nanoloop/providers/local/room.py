"""How much a model may read at once: what is wished, as far as model and memory allow."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nanoloop.providers.local.gguf import Gguf

LEAST_TOKENS = 2048
"""With less than this there is no talking."""
WORKING_BYTES = 300_000_000
"""What running a model takes besides its weights and its cache."""
CACHE_MIB = 1024
MEMORY_FILE = Path("/proc/meminfo")
LIMIT_FILE = Path("/sys/fs/cgroup/memory.max")
"""The limit of a container, on Linux."""


def context_tokens(model: Gguf, *, wished: int, parallel: int, room: int) -> int:
    """Tokens for each of so many conversations, or 0 where there is no room for any."""
    tokens = min(wished, model.context_tokens or wished)
    while needed_bytes(model, tokens=tokens, parallel=parallel) > room:
        if tokens <= LEAST_TOKENS:
            return 0
        tokens = max(LEAST_TOKENS, tokens // 2)
    return tokens


def needed_bytes(model: Gguf, *, tokens: int, parallel: int) -> int:
    """What this model takes, with so many tokens for each of so many conversations."""
    return model.size + WORKING_BYTES + model.token_bytes * tokens * parallel


def cache_mib(model: Gguf, *, tokens: int, parallel: int, room: int) -> int:
    """For conversations that had to leave their place, so that they need not be read again."""
    left = room - needed_bytes(model, tokens=tokens, parallel=parallel)
    return max(0, min(CACHE_MIB, left // 2 // 2**20))


def free_bytes() -> int:
    """Memory that can be had without swapping, as far as the system tells."""
    try:
        free = _available() or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 0
    return min(free, _limit() or free)


def _available() -> int:
    if not MEMORY_FILE.exists():
        return 0
    found = re.search(r"MemAvailable:\s+(\d+) kB", MEMORY_FILE.read_text())
    return int(found[1]) * 1024 if found else 0


def _limit() -> int:
    try:
        return int(LIMIT_FILE.read_text())
    except (OSError, ValueError):  # no Linux, or "max"
        return 0
