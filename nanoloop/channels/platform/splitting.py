"""A long text as several messages: cut where it hurts least, code fences closed and reopened."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,20}|~{3,20})(?P<info>[^\n`]*)")
_INFO_LIMIT = 40
"""How much of what stands behind an opening fence is said again where it is reopened."""
_EARLIEST = 0.3
"""How full a message has to be at least for a good place to be taken."""
_SENTENCE = re.compile("[.!?\u2026][\"'\u201d\u2019)\\]]*\\s|[\u3002\uff01\uff1f]")
"""The end of one, in scripts with spaces and in those without."""
_JOINED = "\u200d\ufe0f\ufe0e"


def utf16(text: str) -> int:
    """How long a text is as Telegram counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8(text: str) -> int:
    """How many bytes a text has."""
    return len(text.encode("utf-8", "surrogatepass"))


def split(markdown: str, limit: int, size: Callable[[str], int] = len) -> list[str]:
    """The text as parts that are each at most `limit` long; of no text there are none."""
    return [part for part in _parts(markdown.strip("\n"), limit, size) if part.strip()]


def closed(markdown: str) -> str:
    """The text with its open code fence closed: an answer that is still growing."""
    fence = _fence_at(markdown)
    return f"{markdown.rstrip()}\n{fence.close}" if fence else markdown


@dataclass(frozen=True, slots=True)
class _Fence:
    """A code fence that is open."""

    begin: int
    open: str
    close: str


def _parts(rest: str, limit: int, size: Callable[[str], int]) -> Iterator[str]:
    head = ""
    while size(head + rest) > limit:
        text = head + rest
        # Room for the closing fence, whether it will be needed or not.
        end = _longest(text, limit - size("\n" + "`" * 20), size)
        end = max(_good_place(text[:end], after=len(head)), len(head) + 1)
        fence = _fence_at(text[:end])
        part, rest = text[:end], text[end:]
        if fence is None:
            yield part.rstrip()
            head, rest = "", rest.lstrip("\n")
        else:
            yield f"{part.removesuffix(chr(10))}\n{fence.close}"
            head = f"{fence.open}\n"
            rest = rest.removeprefix("\n")
    yield head + rest


def _longest(text: str, limit: int, size: Callable[[str], int]) -> int:
    """How many characters fit."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(text[:middle]) <= limit else (low, middle - 1)
    return low


def _good_place(text: str, *, after: int) -> int:
    """Where to cut at the latest: between paragraphs, lines, sentences, words, characters."""
    earliest = max(after, int(len(text) * _EARLIEST))
    fence = _fence_at(text)
    if fence is not None and fence.begin > earliest:
        return fence.begin  # it is kept whole, if it fits in one message at all
    whole = text if fence is None else text[: max(fence.begin, 0)]
    places = (
        _last(r"\n\s*\n", whole, earliest),
        _last(r"\n", text, earliest),
        _last(_SENTENCE, text, earliest),
        _last(r"\s", text, earliest),
    )
    return next((place for place in places if place), _between_characters(text))


def _last(pattern: str | re.Pattern[str], text: str, earliest: int) -> int:
    """Behind the last match that isn't too early; 0 where there is none."""
    found = [match.end() for match in re.finditer(pattern, text) if match.end() > earliest]
    return found[-1] if found else 0


def _between_characters(text: str) -> int:
    """The end, or a little before it: what is one character to a reader stays together."""
    end = len(text)
    for place in range(end, max(0, end - 16), -1):
        if not _continues(text, place):
            return place
    return end


def _continues(text: str, place: int) -> bool:
    # The last character can't tell what follows it: it might be the begin of a longer one.
    before = text[place - 1]
    return before in _JOINED or (place < len(text) and _is_joined(text[place]))


def _is_joined(character: str) -> bool:
    return character in _JOINED or unicodedata.combining(character) > 0


def _fence_at(text: str) -> _Fence | None:
    """The fence that is open at the end of this text."""
    fence: _Fence | None = None
    begin = 0
    for line in text.split("\n"):
        match = _FENCE.match(line)
        if fence is None and match:
            info = match["info"].strip()[:_INFO_LIMIT]
            fence = _Fence(begin, f"{match['mark']}{info}", match["mark"])
        elif fence is not None and _closes(line, fence):
            fence = None
        begin += len(line) + 1
    return fence


def _closes(line: str, fence: _Fence) -> bool:
    line = line.strip()
    return line.startswith(fence.close) and not line.strip(fence.close[0])
