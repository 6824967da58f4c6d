"""Suggest corrections for misspelt words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word with the closest spelling, or None if none are close."""
    return next(iter(get_close_matches(word, known, n=1)), None)


def did_you_mean(
    word: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    shown: Callable[[str], str] = repr,
    most: int = 1,
) -> str:
    """Return a question that suggests the closest known words, or `otherwise` if none are close."""
    near = get_close_matches(word, known, n=most)
    return f"did you mean {' or '.join(map(shown, near))}?" if near else otherwise
