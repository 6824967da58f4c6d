"""Markdown in a platform's own form: every mark is one of the platform's, no word is lost."""

import re
from html import escape, unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.kit.markdown import Markup, html, render

FORM = Markup(
    escape=escape,
    bold=lambda text: f"<b>{text}</b>",
    italic=lambda text: f"<i>{text}</i>",
    strike=lambda text: f"<s>{text}</s>",
    code=lambda code: f"<code>{escape(code)}</code>",
    block=lambda code, language: f"<pre>{language}:{escape(code)}</pre>",
    link=lambda text, url: f'<a href="{escape(url)}">{text}</a>',
    quote=lambda text: f"<blockquote>{text}</blockquote>",
)
MARKS = ("*", "**", "_", "~~", "`c`", "> ", "- ", "1. ", "# ", "    ", "\\", "<b>", "&amp;")
LINES = ("\n", "\n\n", "```\n", "---\n", "| a | b |\n", "|---|---|\n")
PIECES = st.sampled_from((*MARKS, *LINES, "[x](http://y.z)", "![i](http://y.z)"))
WORDS = st.text("abc äß中文<>&\"'", max_size=8)
TEXTS = st.lists(PIECES | WORDS, max_size=40).map("".join)


class Balanced(HTMLParser):
    """Notes what is opened and closed in the wrong order."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


def is_balanced(text):
    parser = Balanced()
    parser.feed(text)
    parser.close()
    return not (parser.open or parser.wrong)


def letters(text):
    return re.findall(r"[äß中文]", unescape(text))


@given(TEXTS)
def test_whatever_is_written_the_tags_are_balanced(text):
    assert is_balanced(render(text, FORM))
    assert is_balanced(html(text))


@given(TEXTS)
def test_no_letter_is_lost(text):
    assert letters(render(text, FORM)) == letters(text)


@pytest.mark.parametrize(
    ("markdown", "said"),
    [
        ("**b** *i* ~~s~~ `c<`", "<b>b</b> <i>i</i> <s>s</s> <code>c&lt;</code>"),
        ("# One\ntwo", "<b>One</b>\n\ntwo"),
        ("a\nb", "a\nb"),
        ("<script>", "&lt;script&gt;"),
        ("[a **b**](http://x.y)", '<a href="http://x.y">a <b>b</b></a>'),
        ("![](http://x.y/i.png)", '<a href="http://x.y/i.png">http://x.y/i.png</a>'),
        ("[a](javascript:b)", "[a](javascript:b)"),
        ("- a\n  - b\n- c", "• a\n  • b\n• c"),
        ("3. a\n4. b", "3. a\n4. b"),
        ("> a\n> b", "<blockquote>a\nb</blockquote>"),
        ("```py x\n1 < 2\n```", "<pre>py:x\n1 &lt; 2</pre>"),
        ("| a | bb |\n|---|---|\n| 中 | **c** |", "<pre>:a  | bb\n---+---\n中 | c</pre>"),
        ("a\n\n---\n\nb", "a\n\n———\n\nb"),
        ("[x]: http://x.y", "[x]: http://x.y"),
        ("**not closed", "**not closed"),
        ("", ""),
    ],
)
def test_each_mark_is_the_platforms(markdown, said):
    assert render(markdown, FORM) == said
