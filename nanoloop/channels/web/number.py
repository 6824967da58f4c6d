"""Whole numbers out of headers and cookies, which may say anything."""

from __future__ import annotations

DIGITS = 18
"""More than any number that means something here."""


def number_in(text: str) -> int | None:
    """The number that a text is in decimal digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None
