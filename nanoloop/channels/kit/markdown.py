"""Converts Markdown to a platform's format and splits it into messages that fit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.tree import SyntaxTreeNode


_INFO = re.compile(r"^([\w+#.-]*)\s*(.*)$", re.DOTALL)
"""Matches the language, and any other text, after an opening fence."""
_OPTIONS = {"html": False, "breaks": True}
"""HTML tags are shown as text, and line breaks are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Markup:
    """Describes a platform's markup. Except for code, its functions get text already marked up."""

    escape: Callable[[str], str]
    """Escapes text so that no character in it counts as markup."""
    bold: Callable[[str], str]
    italic: Callable[[str], str]
    strike: Callable[[str], str]
    code: Callable[[str], str]
    """Formats inline code, which is passed to it unescaped."""
    block: Callable[[str, str], str]
    """Formats a code block, passed to it unescaped, along with its language or an empty string."""
    link: Callable[[str, str], str]
    """Formats a link, given its text and its unescaped address."""
    quote: Callable[[str], str]
    heading: Callable[[str, int], str] | None = None
    """Formats a heading, given its text and level; by default, headings are bold."""
    bullet: str = "• "
    rule: str = "———"


def render(markdown: str, form: Markup) -> str:
    """Convert Markdown to this markup without losing any text."""
    from markdown_it.tree import SyntaxTreeNode  # noqa: PLC0415 - only where a platform renders

    tree = SyntaxTreeNode(_parser().parse(markdown))
    return _Rendering(form).blocks(tree.children)


def html(markdown: str) -> str:
    """Convert Markdown to HTML with every tag closed; HTML written by the model is escaped."""
    return str(_parser().render(markdown)).strip()


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - as above

    # Markdown hides link definitions, but here they have to stay visible.
    return (
        MarkdownIt("commonmark", _OPTIONS).enable(["table", "strikethrough"]).disable("reference")
    )


class _Rendering:
    """The conversion of one text to a platform's markup."""

    def __init__(self, form: Markup) -> None:
        self._form = form

    def blocks(self, nodes: Sequence[SyntaxTreeNode], between: str = "\n\n") -> str:
        return between.join(filter(None, map(self._block, nodes)))

    def _block(self, node: SyntaxTreeNode) -> str:
        form = self._form
        match node.type:
            case "heading":
                return self._heading(node)
            case "fence" | "code_block":
                return self._code(node)
            case "blockquote":
                return form.quote(self.blocks(node.children))
            case "bullet_list" | "ordered_list":
                return "\n".join(self._items(node))
            case "table":
                return form.block(_table(node), "")
            case _:
                return self._inline(node)

    def _code(self, node: SyntaxTreeNode) -> str:
        """Convert a code block; text after the language is kept, as it may be code."""
        language, beside = _INFO.findall(node.info.strip())[0]
        code = node.content.removesuffix("\n")
        return self._form.block(f"{beside}\n{code}" if beside else code, language)

    def _heading(self, node: SyntaxTreeNode) -> str:
        text, form = self._inline(node), self._form
        return form.heading(text, int(node.tag[1:])) if form.heading else form.bold(text)

    def _items(self, node: SyntaxTreeNode) -> Iterator[str]:
        start = int(node.attrs.get("start", 1))
        for number, item in enumerate(node.children, start):
            mark = self._form.bullet if node.type == "bullet_list" else f"{number}. "
            text = self.blocks(item.children, "\n") or ""
            yield mark + text.replace("\n", "\n" + " " * len(mark))

    def _inline(self, node: SyntaxTreeNode) -> str:
        if node.type == "text":
            return self._form.escape(node.content)
        if not node.children:
            return self._leaf(node)
        text = "".join(map(self._inline, node.children))
        return self._marked(node, text) if text.strip() else text

    def _leaf(self, node: SyntaxTreeNode) -> str:
        match node.type:
            case "softbreak" | "hardbreak":
                return "\n"
            case "hr":
                return self._form.rule
            case "code_inline":
                return self._form.code(node.content)
            case "link":
                return self._form.escape(str(node.attrs.get("href", "")))
            case "image":
                return self._link(node, "")
            case _:
                return self._form.escape(node.content)

    def _marked(self, node: SyntaxTreeNode, text: str) -> str:
        form = self._form
        match node.type:
            case "strong":
                return form.bold(text)
            case "em":
                return form.italic(text)
            case "s":
                return form.strike(text)
            case "link" | "image":
                return self._link(node, text)
            case _:
                return text

    def _link(self, node: SyntaxTreeNode, text: str) -> str:
        address = str(node.attrs.get("src" if node.type == "image" else "href", ""))
        return self._form.link(text or self._form.escape(address), address) if address else text


def _table(node: SyntaxTreeNode) -> str:
    """Format a table as text with aligned columns, because no platform supports tables."""
    rows = [
        [_words(cell) for cell in row.children] for part in node.children for row in part.children
    ]
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    lines = [_row(row, widths) for row in rows]
    lines.insert(1, "-+-".join("-" * width for width in widths))
    return "\n".join(lines)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (
        cell + " " * (width - _width(cell)) for cell, width in zip(cells, widths, strict=True)
    )
    return " | ".join(padded).rstrip()


def _words(node: SyntaxTreeNode) -> str:
    """Return a cell's text without markup."""
    if not node.children:
        return "\n" if node.type.endswith("break") else _content(node)
    return "".join(map(_words, node.children))


def _content(node: Any) -> str:
    return str(node.content)


def _width(text: str) -> int:
    """Return the text's width in a monospace font, where Chinese characters count twice."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)


_FENCE = re.compile(r"[ \t]*(?P<mark>`{3,20}|~{3,20})(?P<info>[^\n`]*)")
_INFO_LIMIT = 40
"""How many characters after an opening fence are repeated when the block is reopened."""
_EARLIEST = 0.3
"""How full a message must be before it may be split."""
_SENTENCE = re.compile("[.!?\u2026][\"'\u201d\u2019)\\]]*\\s|[\u3002\uff01\uff1f]")
"""Matches the end of a sentence, in scripts with and without spaces."""
_JOINED = "\u200d\ufe0f\ufe0e"


def utf16(text: str) -> int:
    """Return the length of this text in UTF-16 code units, as Telegram counts it."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def utf8(text: str) -> int:
    """Return the length of this text in bytes."""
    return len(text.encode("utf-8", "surrogatepass"))


def split(markdown: str, limit: int, size: Callable[[str], int] = len) -> list[str]:
    """Split the text into parts no longer than `limit`; an empty text has no parts."""
    return [part for part in _parts(markdown.strip("\n"), limit, size) if part.strip()]


def closed(markdown: str) -> str:
    """Close the open code fence, if any, in an answer that is still being written."""
    fence = _fence_at(markdown)
    return f"{markdown.rstrip()}\n{fence.close}" if fence else markdown


@dataclass(frozen=True, slots=True)
class _Fence:
    """A code fence that has not been closed yet."""

    begin: int
    open: str
    close: str


def _parts(rest: str, limit: int, size: Callable[[str], int]) -> Iterator[str]:
    head = ""
    while size(head + rest) > limit:
        text = head + rest
        # Leave room for a closing fence, even if none is needed.
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
    """Return how many of the first characters fit within the limit."""
    low, high = 1, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if size(text[:middle]) <= limit else (low, middle - 1)
    return low


def _good_place(text: str, *, after: int) -> int:
    """Find where to split: between paragraphs if possible, or between lines, sentences or words."""
    earliest = max(after, int(len(text) * _EARLIEST))
    fence = _fence_at(text)
    if fence is not None and fence.begin > earliest:
        return fence.begin  # the code block moves to the next message, where it may fit whole
    whole = text if fence is None else text[: max(fence.begin, 0)]
    places = (
        _last(r"\n\s*\n", whole, earliest),
        _last(r"\n", text, earliest),
        _last(_SENTENCE, text, earliest),
        _last(r"\s", text, earliest),
    )
    return next((place for place in places if place), _between_characters(text))


def _last(pattern: str | re.Pattern[str], text: str, earliest: int) -> int:
    """Return the end of the last match after `earliest`, or 0 if there is none."""
    found = [match.end() for match in re.finditer(pattern, text) if match.end() > earliest]
    return found[-1] if found else 0


def _between_characters(text: str) -> int:
    """Return the text's length, or less if a split there would break a visible character."""
    end = len(text)
    for place in range(end, max(0, end - 16), -1):
        if not _continues(text, place):
            return place
    return end


def _continues(text: str, place: int) -> bool:
    # The last character alone can't tell: more characters may join it.
    before = text[place - 1]
    return before in _JOINED or (place < len(text) and _is_joined(text[place]))


def _is_joined(character: str) -> bool:
    return character in _JOINED or unicodedata.combining(character) > 0


def _fence_at(text: str) -> _Fence | None:
    """Return the fence that is still open at the end of this text."""
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
