"""The built-in tool `clock`."""

from __future__ import annotations

from datetime import datetime, timezone, tzinfo
from difflib import get_close_matches
from zoneinfo import ZoneInfo, available_timezones

from nanoloop.errors import ToolError
from nanoloop.tools.function import tool


@tool
def clock(zone: str = "UTC") -> str:
    """Tell the current date, weekday and time of day.

    Args:
        zone: an IANA time zone such as "Europe/Berlin" or "Asia/Shanghai"
    """
    now = datetime.now(_zone(zone))
    return f"{now.isoformat(timespec='seconds')} ({now:%A}, {zone})"


def _zone(name: str) -> tzinfo:
    if name.upper() == "UTC":
        return timezone.utc  # also where the system has no zone files
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ToolError(_unknown(name)) from None


def _unknown(name: str) -> str:
    known = {zone.casefold(): zone for zone in sorted(available_timezones())}
    near = get_close_matches(name.casefold().replace(" ", "_"), known, n=1)
    hint = f"did you mean {known[near[0]]!r}?" if near else 'use a name such as "Europe/Berlin"'
    return f"there is no time zone {name!r}: {hint}"
