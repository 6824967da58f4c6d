"""Markdown as Telegram's HTML: never malformed, and nothing that it says is lost."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.telegram.platform import rendered
from tests.servers.telegram import Malformed, shown

BEGINS = ["> ", ">> ", "- ", "1. ", "# ", "|", "\n|---|---|\n", "\n", "\n\n"]
MARKS = ["**", "_", "~~", "`", "```", "[", "](", ")", "\\"]
TRAPS = ["<b>", "</i>", "&", "&amp;", "<", "http://a.b/?c=\"d\"&e='f'"]
PIECES = st.sampled_from([*BEGINS, *MARKS, *TRAPS])
WORDS = st.text("abc xyzé🙂", min_size=1, max_size=6)


@given(st.lists(PIECES | WORDS | st.text(max_size=5), max_size=30).map("".join))
def test_whatever_the_model_writes_is_html_that_telegram_takes(markdown):
    html = rendered(markdown)
    shown(html)
    assert not re.search(r"<blockquote>(?:(?!</blockquote>).)*<blockquote>", html, re.DOTALL)


@given(st.lists(WORDS, min_size=1).map(" ".join))
def test_words_are_shown_as_they_are(text):
    assert shown(rendered(text)).split() == text.split()


def test_each_mark_has_its_tag():
    markdown = "# H\n**b** *i* ~~s~~ `c<d` [t](http://x/?a&b)\n\n> q\n> > r\n\n```py\n1 < 2\n```"
    assert rendered(markdown) == (
        "<b>H</b>\n\n<b>b</b> <i>i</i> <s>s</s> <code>c&lt;d</code> "
        '<a href="http://x/?a&amp;b">t</a>\n\n<blockquote>q\n\nr</blockquote>\n\n'
        '<pre><code class="language-py">1 &lt; 2</code></pre>'
    )


@pytest.mark.parametrize(
    ("html", "words"),
    [
        ("<b>a", "Can't find end tag"),
        ("a</b>", "Unexpected end tag"),
        ("<b><i>a</b></i>", "Unmatched end tag"),
        ("<table>", "Unsupported start tag"),
        ("1 < 2", "Unsupported start tag"),
        ("<a href='x", "Unclosed start tag"),
        ("<b>a</b", "Unclosed end tag"),
        ("<span>a</span>", "must have class"),
    ],
)
def test_the_stand_in_takes_no_other_html(html, words):
    with pytest.raises(Malformed, match=words):
        shown(html)
