"""The model's Markdown in a platform's own form: its marks are the platform's, all else is here."""

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
"""What stands behind an opening fence."""
_OPTIONS = {"html": False, "breaks": True}
"""A tag that a model writes is text; a line that it begins is a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """How a platform writes things. What a function is given is in that form already, save code."""

    escape: Callable[[str], str]
    """A text, so that nothing in it is taken for a mark."""
    bold: Callable[[str], str]
    italic: Callable[[str], str]
    strike: Callable[[str], str]
    code: Callable[[str], str]
    """Some words of code, as they are."""
    block: Callable[[str, str], str]
    """A block of code, as it is, and its language or nothing."""
    link: Callable[[str, str], str]
    """What it says, and the address as it is."""
    quote: Callable[[str], str]
    heading: Callable[[str, int], str] | None = None
    """What it says, and its level; left out, it is bold."""
    bullet: str = "• "
    rule: str = "———"


def render(markdown: str, form: Form) -> str:
    """The text in this form; nothing that it says is lost."""
    from markdown_it.tree import SyntaxTreeNode  # noqa: PLC0415 - only where a platform renders

    tree = SyntaxTreeNode(_parser().parse(markdown))
    return _Rendering(form).blocks(tree.children)


def html(markdown: str) -> str:
    """The text as HTML, every tag of it closed and none of them the model's own."""
    return str(_parser().render(markdown)).strip()


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt  # noqa: PLC0415 - as above

    # A definition of an address is no text to Markdown; here it has to be read.
    return (
        MarkdownIt("commonmark", _OPTIONS).enable(["table", "strikethrough"]).disable("reference")
    )


class _Rendering:
    """One text on its way into a form."""

    def __init__(self, form: Form) -> None:
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
        """What stands beside the language is shown too: it may be the code's first line."""
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
    """Columns of the same width each, as no platform knows tables."""
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
    """What a cell says, without marks."""
    if not node.children:
        return "\n" if node.type.endswith("break") else _content(node)
    return "".join(map(_words, node.children))


def _content(node: Any) -> str:
    return str(node.content)


def _width(text: str) -> int:
    """How wide it is in letters of one width: Chinese ones count twice."""
    return sum(2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text)
