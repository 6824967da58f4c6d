"""The word that was perhaps meant, for anyone who mistyped one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is spelled most like it; None if none is."""
    return next(iter(get_close_matches(word, known, n=1)), None)


def did_you_mean(
    word: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    shown: Callable[[str], str] = repr,
    most: int = 1,
) -> str:
    """Ask for the words that are spelled most like it; `otherwise` if none is."""
    near = get_close_matches(word, known, n=most)
    return f"did you mean {' or '.join(map(shown, near))}?" if near else otherwise
