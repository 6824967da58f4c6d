"""What a word is: for the index and for a query alike, in any script."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from nanoloop.memory.vocabulary import (
    FIRST_PERSON,
    FUNCTION_SIGNS,
    MONTHS,
    ONE_FORM,
    PHRASES,
    SECOND_PERSON,
    STOP_WORDS,
)

MOST_WORDS = 32
"""Words of a query that are looked for; of a longer one, the first."""

_UNSPACED = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\uac00-\ud7a3\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff"
)
"""Scripts that set no spaces, or (Korean) glue particles on: every two signs are a word there."""
_LETTER = rf"[^\W_{_UNSPACED}]"
_PIECE = re.compile(rf"([{_UNSPACED}]+)|(\d+(?:[.:/-]\d+)+)|({_LETTER}+(?:['\u2019]{_LETTER}+)*)")
_NUMBER_AND_SIGN = re.compile(rf"(\d+)([{_UNSPACED}])")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3})")
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_CLITICS = frozenset({"ll", "re", "ve"})
_HIRAGANA = re.compile("[\u3040-\u309f]+")
_PHRASE = re.compile("|".join(map(re.escape, PHRASES)))

_TIME = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|ago|since|"
    r"(?:last|next|this|past) (?:\w+ )?(?:night|day|week|weekend|month|year|"
    r"spring|summer|fall|autumn|winter|\w+day)|"
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day|(?:19|20)\d\d|\d+ ?[ap]m|\d+:\d\d|recently|"
    rf"{'|'.join(name for name in MONTHS if name not in {'may', 'march'})})\b"
    r"|[昨今明前后後][天日年]|[上下这這本][个個]?[周月週]|去年|星期|[周週][一二三四五六日末]"
    r"|\d[年月日号號点點]"
)
_AMOUNT = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|dozen|couple|"
    r"few|several|once|twice)\b"
    r"|[一二两三四五六七八九十百千万][个個位次只岁歲年月天元块小]"
)
_ASKS_TIME = re.compile(
    r"\bwhen\b|\bwhat (?:date|day|month|year|time)\b|\bwann\b|\bquand\b|\bcuándo\b|"
    r"什么时候|什麼時候|何时|几点|几号|几月|哪天|哪年|哪一天|哪一年|日期|いつ|何時|何日|언제"
)
_ASKS_AMOUNT = re.compile(
    r"\bhow (?:many|much|long|old|often|far|tall|big)\b|\bwie ?viele?\b|\bcombien\b|\bcuánt|"
    r"多少|几|幾|多久|多大|いくつ|いくら|何人|얼마|몇"
)
_SENTENCE = re.compile(r"[^.!?。！？\n]+[.!?。！？\n]*")  # noqa: RUF001 - sentences end so
_YEAR = re.compile(r"(?<!\d)((?:19|20)\d\d)(?!\d)")
_MONTH_SIGN = re.compile(r"(?<!\d)(1[0-2]|0?[1-9])[月월]")

TELLS_TIME, TELLS_AMOUNT, ONLY_ASKS, IS_TOOL = 1, 2, 4, 8
"""What is noted of a text beside its words."""


def plain(text: str) -> str:
    """The text as it is compared: one width, one case, no accents."""
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFKC", text).casefold()
    return "".join(map(_unaccented, text))


@lru_cache(maxsize=4096)
def _unaccented(sign: str) -> str:
    if sign < "\u00c0" or sign > "\u1eff":  # kana and Hangul must not fall apart
        return sign
    parts = unicodedata.normalize("NFD", sign)
    return "".join(part for part in parts if not unicodedata.combining(part)) or sign


def words_of(text: str) -> list[str]:
    """The words of a text, each once, in order; where there are no spaces, signs and pairs."""
    return list(dict.fromkeys(_words(_THOUSANDS.sub("", plain(text)))))


def _words(text: str) -> Iterator[str]:
    for run, numbers, word in _PIECE.findall(text):
        if run:
            yield from run
            yield from pairs_of(run)
        elif numbers:
            pieces = re.split("[.:/-]", numbers)
            yield from pieces
            yield "x".join(pieces)
        else:
            yield from _forms(word)
    if not text.isascii():
        yield from ("".join(pair) for pair in _NUMBER_AND_SIGN.findall(text))


def pairs_of(run: str) -> list[str]:
    """Every two neighbouring signs."""
    return [run[i : i + 2] for i in range(len(run) - 1)]


@lru_cache(maxsize=16_384)
def _forms(word: str) -> tuple[str, ...]:
    """The word in its plain form, without what an apostrophe ties to it."""
    parts = re.split("['\u2019]", word)
    if len(parts) > 1:
        parts = [part for part in parts if len(part) > 1 and part not in _CLITICS]
    return tuple(_one_form(part) for part in parts)


def _one_form(word: str) -> str:
    if ordinal := _ORDINAL.fullmatch(word):
        return ordinal[1]
    return ONE_FORM.get(word, word)


def marks_of(text: str) -> int:
    """What is noted of a text: whether it tells a time, an amount, or only asks."""
    text = plain(text)
    marks = TELLS_TIME if _TIME.search(text) else 0
    marks |= TELLS_AMOUNT if _AMOUNT.search(text) else 0
    return marks | (ONLY_ASKS if _only_asks(text) else 0)


def _only_asks(text: str) -> bool:
    """Whether nothing is told in it beside questions and a word or two."""
    if "?" not in text:
        return False
    told = (part for part in _SENTENCE.findall(text) if "?" not in part)
    return not any(len(part.split()) > 3 or len(words_of(part)) > 8 for part in told)  # noqa: PLR2004 - a greeting is shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What is looked for."""

    words: dict[str, float]
    """Each with how much it counts."""
    names: frozenset[str]
    """All its words, for those that may name a speaker."""
    wants: int = 0
    """What an answer tells: `TELLS_TIME`, `TELLS_AMOUNT`."""
    month: int = 0
    year: int = 0
    roles: frozenset[str] = frozenset()
    """Who is meant by I and you."""

    @classmethod
    def of(cls, text: str) -> Query:
        """Read a question or some words."""
        text = _THOUSANDS.sub("", plain(text))
        every = list(dict.fromkeys(_words(text)))
        counted = dict(list(_counted(text).items())[:MOST_WORDS])
        year, signed = _YEAR.search(text), _MONTH_SIGN.search(text)
        spoken = {part for word in text.split() for part in re.split(r"\W", word)} | set(text)
        return cls(
            words=counted or dict.fromkeys(every[:MOST_WORDS], 1.0),
            names=frozenset(every),
            wants=_wants(text),
            month=int(signed[1]) if signed else _month(every),
            year=int(year[1]) if year else 0,
            roles=_roles(spoken),
        )


def _counted(text: str) -> dict[str, float]:
    """The words that carry the search."""
    found: dict[str, float] = {}
    for run, numbers, word in _PIECE.findall(_PHRASE.sub(" ", text)):
        if run:
            for piece, counts in _signs(run):
                found[piece] = max(counts, found.get(piece, 0.0))
        elif word not in STOP_WORDS:
            found |= dict.fromkeys(_words(numbers or word), 1.0)
    return {word: counts for word, counts in found.items() if word not in STOP_WORDS}


def _signs(run: str) -> Iterator[tuple[str, float]]:
    """Pairs count most, single signs a little, and those of grammar hardly."""
    for pair in pairs_of(run):
        served = sum(sign in FUNCTION_SIGNS for sign in pair)
        yield pair, (1.0, 0.35, 0.1)[served] if not _HIRAGANA.fullmatch(pair) else 0.3
    single = 1.0 if len(run) == 1 else 0.25
    for sign in run:
        if sign not in FUNCTION_SIGNS:
            yield sign, single


def _wants(text: str) -> int:
    time = TELLS_TIME if _ASKS_TIME.search(text) else 0
    return time | (TELLS_AMOUNT if _ASKS_AMOUNT.search(text) else 0)


def _month(words: list[str]) -> int:
    return next((MONTHS[word] for word in words if word in MONTHS), 0)


def _roles(words: set[str]) -> frozenset[str]:
    roles = (("user", FIRST_PERSON), ("assistant", SECOND_PERSON))
    return frozenset(role for role, pronouns in roles if words & pronouns)
