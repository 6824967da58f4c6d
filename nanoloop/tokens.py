"""Estimate the tokens of requests by kind of character, without a tokenizer.

The provider's own counts gradually correct the estimate for each model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from math import ceil
from string import ascii_letters, digits, whitespace
from typing import Any

from nanoloop.protocols import ToolSpec
from nanoloop.session.chat import result_text
from nanoloop.session.entry import MESSAGE, TOOL_CALL, TOOL_RESULT, Entry
from nanoloop.session.speech import is_told_apart, other_words, quotes_of

MESSAGE_TOKENS = 4
"""The number of tokens that each message costs besides its words."""
PART_TOKENS = 1000
"""The number of tokens assumed for a picture, or for any other part that isn't text."""
MARK_TOKENS = 12
"""The number of tokens that a speaker's name and handle cost."""

_WORDS = (ascii_letters + whitespace).encode()
_DIGITS = digits.encode()
_PER_LETTER, _PER_DIGIT, _PER_SIGN = 1 / 4.3, 1 / 2.5, 1 / 1.7
_ASCII = re.compile("[\x00-\x7f]+")
_SCRIPTS = (
    (re.compile("[\u2e80-\ua4cf\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]+"), 0.8),  # CJK
    (re.compile("[\u1100-\u11ff\ua960-\ua97f\uac00-\ud7ff]+"), 0.75),  # Korean
    (re.compile("[\u0370-\u058f\u10a0-\u10ff\u1f00-\u1fff]+"), 0.4),  # Greek, Cyrillic and the like
    (re.compile("[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefe]+"), 0.5),  # Hebrew, Arabic
    (re.compile("[\u0900-\u109f\u1200-\u137f\u1780-\u17ff]+"), 0.7),  # Indian scripts, Thai, Khmer
    (re.compile("[\u0080-\u036f\u1e00-\u1eff]+"), 0.6),  # letters with accents
    (re.compile("[\u2000-\u206f\ufe00-\ufe0f]+"), 0.8),  # dashes, quotes, joiners
)
_PER_OTHER = 2.0
"""The number of tokens for an emoji, or for anything rarer."""

LEAST, MOST = 0.5, 2.0
"""The lowest and the highest correction factor."""
_STEP = 0.2
"""How much of the difference in one measurement is applied to the correction."""


def text_tokens(text: str) -> int:
    """Estimate the text's tokens: one per four English letters, more in other scripts."""
    plain = text.encode("ascii", "ignore")
    tokens = _ascii_tokens(plain)
    if len(plain) < len(text):
        tokens += _other_tokens(_ASCII.sub("", text))
    return ceil(tokens)


def _ascii_tokens(plain: bytes) -> float:
    rest = plain.translate(None, _WORDS)
    signs = len(rest.translate(None, _DIGITS))
    letters, numbers = len(plain) - len(rest), len(rest) - signs
    return letters * _PER_LETTER + numbers * _PER_DIGIT + signs * _PER_SIGN


def _other_tokens(text: str) -> float:
    tokens = 0.0
    for script, each in _SCRIPTS:
        rest = script.sub("", text)
        tokens += (len(text) - len(rest)) * each
        text = rest
    return tokens + len(text) * _PER_OTHER


def entry_tokens(entry: Entry) -> int:
    """Estimate an entry's tokens in a request; 0 for entries that are not shown to the model."""
    if entry.type == TOOL_RESULT:
        return MESSAGE_TOKENS + text_tokens(result_text(entry))
    if entry.type == TOOL_CALL:
        return MESSAGE_TOKENS + text_tokens(_json(entry.content))
    if entry.type != MESSAGE:
        return 0
    parts = entry.content.get("parts")
    others = sum(not _is_text(part) for part in parts) if isinstance(parts, list) else 0
    words = text_tokens(str(entry.content.get("text") or ""))
    return (
        MESSAGE_TOKENS
        + words
        + others * PART_TOKENS
        + (_marks_tokens(entry) if entry.metadata else 0)
    )


def _marks_tokens(entry: Entry) -> int:
    """Estimate the tokens of quotes in a message, and of the marks that name the speakers."""
    if not is_told_apart(entry):
        return 0
    quotes = list(quotes_of(entry))
    return MARK_TOKENS * (1 + len(quotes)) + text_tokens(other_words(entry))


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (isinstance(part, Mapping) and "text" in part)


def tools_tokens(specs: Iterable[ToolSpec]) -> int:
    """Estimate the tokens of the tools' descriptions."""
    return sum(MESSAGE_TOKENS + text_tokens(_json(asdict(spec))) for spec in specs)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


class Ratios:
    """The ratio of counted to estimated tokens for each model, kept in memory only."""

    def __init__(self) -> None:
        self._by_model: dict[str | None, float] = {}

    def of(self, model: str | None) -> float:
        """Return the model's correction factor, which is 1 before the first measurement."""
        return self._by_model.get(model, 1.0)

    def learn(self, model: str | None, *, estimated: int, counted: int) -> None:
        """Adjust the model's factor to the provider's count; 0 means that there was none."""
        if estimated <= 0 or counted <= 0:
            return
        measured = min(MOST, max(LEAST, counted / estimated))
        now = self.of(model)
        self._by_model[model] = now + _STEP * (measured - now)
