"""What a terminal may show: text without control characters, and markdown as it comes in."""

from __future__ import annotations

import re
from functools import lru_cache
from io import StringIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_PICTURES = 0x2400
_LAST_C0 = 0x1F
_DELETE = 0x7F


def printable(text: str) -> str:
    """The text with a picture in place of each control character but newline and tab."""
    return _CONTROL.sub(_picture, text.replace("\r", ""))


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == _DELETE:
        return "\u2421"
    return chr(_PICTURES + code) if code <= _LAST_C0 else "\ufffd"


@lru_cache(maxsize=2)
def rendered(markdown: str, columns: int) -> str:
    """Markdown as lines with colours, for a terminal of that width."""
    from rich.console import Console  # noqa: PLC0415 - only an interactive chat needs it
    from rich.markdown import Markdown  # noqa: PLC0415

    page = StringIO()
    console = Console(file=page, width=columns, force_terminal=True, color_system="256")
    # A link in an escape sequence would hide where it leads.
    console.print(Markdown(markdown, hyperlinks=False))
    return re.sub(r" +$", "", page.getvalue(), flags=re.MULTILINE).strip("\n")


def last_lines(text: str, count: int) -> str:
    """The end of a text that has more lines than that."""
    lines = text.split("\n")
    return text if len(lines) <= count else "\n".join(lines[-count:])


def unshown(answer: str, streamed: str) -> str | None:
    """What the pieces of an answer left to show; None where they don't fit it.

    More may have been streamed than the answer, before tools were called; pieces may be missing.
    """
    if streamed and streamed.rstrip().endswith(answer.strip()):
        return ""
    return answer[len(streamed) :] if answer.startswith(streamed) else None


class Blocks:
    """Streamed markdown, cut into blocks that no later piece can change."""

    def __init__(self) -> None:
        self.open = ""
        """What still grows."""
        self._whole = ""

    def feed(self, piece: str) -> str:
        """Take a piece in; returns the blocks that it finished, or nothing."""
        self._whole += piece
        self.open += piece
        return self._cut(_last_block(self.open)) if "\n" in piece else ""

    def settle(self, answer: str | None = None) -> str:
        """Return what is not shown yet, and begin afresh; pieces may have been dropped."""
        streamed, rest = self._whole, self._cut(len(self.open))
        self._whole = ""
        if answer is None:
            return rest
        missing = unshown(answer, streamed)
        return answer if missing is None else rest + missing

    def _cut(self, end: int) -> str:
        finished, self.open = self.open[:end], self.open[end:]
        return finished


def _last_block(text: str) -> int:
    """Where the last block of the complete lines begins."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 - comes with rich

    lines = text.split("\n")[:-1]
    blocks = MarkdownIt().enable("table").parse("\n".join(lines))
    starts = [token.map[0] for token in blocks if token.level == 0 and token.map]
    return sum(len(line) + 1 for line in lines[: starts[-1]]) if starts else 0
