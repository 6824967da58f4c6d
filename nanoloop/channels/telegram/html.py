"""Markdown as the HTML that Telegram takes in messages: few tags, each closed, no nested quotes."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from nanoloop.channels.platform.markdown import Form, render


def rendered(markdown: str) -> str:
    """The text with Telegram's tags; what looks like a tag in it is text."""
    return render(markdown, _FORM)


def _tag(name: str) -> Callable[[str], str]:
    return lambda text: f"<{name}>{text}</{name}>"


def _block(code: str, language: str) -> str:
    if not language:
        return f"<pre>{_escaped(code)}</pre>"
    return f'<pre><code class="language-{escape(language)}">{_escaped(code)}</code></pre>'


def _link(text: str, address: str) -> str:
    return f'<a href="{escape(address)}">{text}</a>'


def _quote(text: str) -> str:
    # What stands in text and code is escaped: only a tag looks like one.
    flat = text.replace("<blockquote>", "").replace("</blockquote>", "")
    return f"<blockquote>{flat}</blockquote>"


def _escaped(text: str) -> str:
    return escape(text, quote=False)


_FORM = Form(
    escape=_escaped,
    bold=_tag("b"),
    italic=_tag("i"),
    strike=_tag("s"),
    code=lambda code: f"<code>{_escaped(code)}</code>",
    block=_block,
    link=_link,
    quote=_quote,
)
