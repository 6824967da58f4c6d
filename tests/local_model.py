"""Model files for tests: fetched once, kept in a folder of their own, skipped by name elsewhere.

`NANOLOOP_TEST_MODELS` names another folder, where the files are perhaps already.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import anyio
import pytest

from nanoloop.models.errors import ModelError
from nanoloop.models.fetching import fetch

TINY, USEFUL = "smollm2-135m", "qwen2.5-coder-1.5b"
FOLDER = Path(os.environ.get("NANOLOOP_TEST_MODELS") or "~/.cache/nanoloop-tests").expanduser()


@cache
def model_file(name: str = TINY) -> Path:
    """Where this model's file is; skips the test where it can't be had, and fails it under CI."""
    try:
        return anyio.run(fetch, name, FOLDER)
    except ModelError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"the model {name} can't be had: {error}")
