"""Whether a call that failed is worth another try, and after how long. Pure."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime

BUSY = {408, 409, 425, 429}
"""Statuses with which a server refuses for now; those from 500 up are its own trouble."""
FIRST_SECONDS, LONGEST_SECONDS = 0.5, 8.0
SPREAD = 0.25
"""By how much of it a wait is shortened at random, so that not all come back at once."""
PATIENCE_SECONDS = 120
"""A server that wants a longer wait is not waited for: whoever asked has gone by then."""


def pause_after(status: int, headers: Mapping[str, str], *, tried: int) -> float | None:
    """Seconds until the next try after this refusal; None where there should be none."""
    asked = _asked_for(headers)
    if not _is_worth_it(status, headers.get("x-should-retry", "")) or asked > PATIENCE_SECONDS:
        return None
    return asked if asked > 0 else pause(tried=tried)


def pause(*, tried: int) -> float:
    """Seconds until the next try, after so many tries before this one."""
    longest = min(FIRST_SECONDS * 2.0 ** min(tried, 10), LONGEST_SECONDS)
    return longest * random.uniform(1 - SPREAD, 1)  # noqa: S311 - no secret


def _is_worth_it(status: int, said: str) -> bool:
    if said in ("true", "false"):
        return said == "true"
    return status in BUSY or status >= 500  # noqa: PLR2004 - a status


def _asked_for(headers: Mapping[str, str]) -> float:
    """The seconds a server asks for; 0 where it says nothing that can be understood."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        with suppress(ValueError):
            seconds = float(headers.get(name, "")) * unit
            return 0.0 if math.isnan(seconds) else seconds
    with suppress(ValueError, TypeError, OverflowError):
        return parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time()
    return 0.0
