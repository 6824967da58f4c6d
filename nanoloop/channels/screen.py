"""Prepares text for a terminal: replaces control characters, and splits Markdown into blocks."""

from __future__ import annotations

import re
from functools import lru_cache
from io import StringIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_UNESCAPED = re.compile(r"[\x7f-\x9f]")
_PICTURES = 0x2400
_LAST_C0 = 0x1F
_DELETE = 0x7F


def printable(text: str) -> str:
    """Replace each control character except newline and tab with a visible symbol."""
    return _CONTROL.sub(_picture, text.replace("\r", ""))


def styled(text: str) -> str:
    """Replace control characters as `printable` does, but keep escape codes for colours."""
    return "\x1b".join(map(printable, text.split("\x1b")))


def escaped(text: str) -> str:
    """Escape the control characters that JSON may contain unescaped."""
    return _UNESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == _DELETE:
        return "\u2421"
    return chr(_PICTURES + code) if code <= _LAST_C0 else "\ufffd"


_NEAR = {
    **dict.fromkeys("·•–—−─━═", "-"),  # noqa: RUF001 - these are replaced
    **dict.fromkeys("‘’‚′", "'"),  # noqa: RUF001 - as above
    **dict.fromkeys("“”„″", '"'),
    "…": "...",
    "›": ">",  # noqa: RUF001 - as above
    "‹": "<",  # noqa: RUF001 - as above
    "→": "->",
    "←": "<-",
    "│": "|",
    "×": "x",  # noqa: RUF001 - as above
    "\u00a0": " ",
}
"""Replacements for characters that a terminal may be unable to show."""


def fitting(text: str, encoding: str | None) -> str:
    """Replace each character that this encoding lacks with a similar one."""
    encoding = encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return "".join(_nearest(char, encoding) for char in text)
    return text


def _nearest(char: str, encoding: str) -> str:
    for near in (char, _NEAR.get(char, "\ufffd")):
        try:
            near.encode(encoding)
        except UnicodeEncodeError:
            continue
        return near
    return "?"


@lru_cache(maxsize=2)
def rendered(markdown: str, columns: int) -> str:
    """Render Markdown as coloured lines for a terminal of this width."""
    from rich.console import Console  # noqa: PLC0415 - only an interactive chat needs it
    from rich.markdown import Markdown  # noqa: PLC0415

    page = StringIO()
    console = Console(file=page, width=columns, force_terminal=True, color_system="256")
    # With a hyperlink escape sequence, the address would be hidden.
    console.print(Markdown(markdown, hyperlinks=False))
    return re.sub(r" +$", "", page.getvalue(), flags=re.MULTILINE).strip("\n")


def last_lines(text: str, count: int) -> str:
    """Return the last `count` lines of a text, or the whole text if it has fewer."""
    lines = text.split("\n")
    return text if len(lines) <= count else "\n".join(lines[-count:])


def unshown(answer: str, streamed: str) -> str | None:
    """Return the part of the answer that is not in `streamed`, or None if the two don't match.

    The stream may contain more than the answer, such as text from before a tool call or text that
    the model repeated, and pieces may be missing.
    """
    if streamed and (streamed.rstrip().endswith(answer.strip()) or streamed.startswith(answer)):
        return ""
    return answer[len(streamed) :] if answer.startswith(streamed) else None


class Blocks:
    """Streamed Markdown, split into blocks that no later piece can change."""

    def __init__(self) -> None:
        self.open = ""
        """The block that is still growing."""
        self._whole = ""

    def feed(self, piece: str) -> str:
        """Add a piece; return the blocks that it completes, or an empty string."""
        self._whole += piece
        self.open += piece
        return self._cut(_last_block(self.open)) if "\n" in piece else ""

    def settle(self, answer: str | None = None) -> str:
        """Return the text that has not been shown yet, and start over for the next answer."""
        streamed, rest = self._whole, self._cut(len(self.open))
        self._whole = ""
        if answer is None:
            return rest
        if streamed.startswith(answer):  # drop repeated text that has not been shown yet
            return answer[len(streamed) - len(rest) :]
        missing = unshown(answer, streamed)
        return answer if missing is None else rest + missing

    def _cut(self, end: int) -> str:
        finished, self.open = self.open[:end], self.open[end:]
        return finished


def _last_block(text: str) -> int:
    """Return the position at which the last block of complete lines begins."""
    from markdown_it import MarkdownIt  # noqa: PLC0415 - installed with rich

    lines = text.split("\n")[:-1]
    blocks = MarkdownIt().enable("table").parse("\n".join(lines))
    starts = [token.map[0] for token in blocks if token.level == 0 and token.map]
    return sum(len(line) + 1 for line in lines[: starts[-1]]) if starts else 0
