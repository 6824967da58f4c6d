"""What is stored, as JSON: the same text in every store."""

from __future__ import annotations

import json
from typing import Any

from nanoloop.errors import StoreError


def encoded(value: Any, *, kind: str = "record") -> bytes:
    """A value as one line of JSON; raises `StoreError` where it can't be."""
    try:
        return _as_json(value, ascii_only=False).encode()
    except UnicodeEncodeError:  # half a surrogate pair: only an escape can carry it
        return _as_json(value, ascii_only=True).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(f"this {kind} can't be written as JSON ({error}): change it") from error


def _as_json(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only, default=str, separators=(",", ":"))
