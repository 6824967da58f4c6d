"""Suggests the word that someone who mistyped it may have meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word with the closest spelling; None if none is close."""
    return next(iter(get_close_matches(word, known, n=1)), None)


def did_you_mean(
    word: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    shown: Callable[[str], str] = repr,
    most: int = 1,
) -> str:
    """Ask whether the words with the closest spelling were meant; `otherwise` if none is close."""
    near = get_close_matches(word, known, n=most)
    return f"did you mean {' or '.join(map(shown, near))}?" if near else otherwise
