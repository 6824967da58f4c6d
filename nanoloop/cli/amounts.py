"""Formats ages, sizes and durations for display, and parses them."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta, timezone
from math import inf

_KILO = 1000
_AGES = ((86400 * 2, 86400, "days"), (3600 * 2, 3600, "hours"), (60 * 2, 60, "minutes"))
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age(moment: datetime) -> str:
    """Describe roughly how long ago a moment was, such as `3 days ago`."""
    seconds = (datetime.now(timezone.utc) - moment).total_seconds()
    for least, unit, name in _AGES:
        if seconds >= least:
            return f"{seconds // unit:.0f} {name} ago"
    return "just now"


def size(count: int) -> str:
    """Format a number of bytes for display: 950 B, 1.2 kB, 3.4 MB."""
    number = float(count)
    for unit in ("B", "kB", "MB"):
        if number < _KILO:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= _KILO
    return f"{number:.1f} GB"


def whole(text: str, *, least: int = 0, most: float = inf) -> int:
    """Parse a whole number within these bounds; raises an error that argparse shows the user."""
    number = int(text) if re.fullmatch(r"\s*-?[0-9]{1,18}\s*", text) else None
    if number is None or not least <= number <= most:
        bounds = f"of at least {least}" if most == inf else f"from {least} to {most}"
        raise ArgumentTypeError(f"{text!r} is not a whole number {bounds}")
    return number


def size_in(text: str) -> int:
    """Parse `1200`, `1.5 kB`, `3MB` or `1GB`; raises an error that argparse shows the user."""
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)\s*([kmg]?)b?", text.strip().lower())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not a size: write 1200, 20kB, 1.5MB or 1GB")
    return int(float(match[1]) * _KILO ** " kmg".index(match[2] or " "))


def duration(text: str) -> timedelta:
    """Parse `30d`, `12h`, `45m` or `2w`; raises an error that argparse shows the user."""
    match = re.fullmatch(r"(\d{1,5})([mhdw])", text.strip().lower())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is not an age: write 45m, 12h, 30d or 2w")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})
