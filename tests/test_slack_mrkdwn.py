"""Slack's marks, read and written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.slack.hearing import escaped, read, written


@pytest.mark.parametrize(
    ("raw", "seen"),
    [
        ("a &lt;b&gt; &amp;amp;", "a <b> &amp;"),
        ("<@U1> and <@U2|x>", "@Ann and <@U2>"),
        ("<!here> <!subteam^S1|@team> <!subteam^S2>", "@here @team @subteam"),
        ("<#C1|tea> <#C2>", "#tea #C2"),
        ("<https://a.example/x?a=1&amp;b=2>", "https://a.example/x?a=1&b=2"),
        (
            "<http://a.example|a.example> <http://a.example|here>",
            "http://a.example [here](http://a.example)",
        ),
        ("<mailto:ann@a.example|ann@a.example>", "ann@a.example"),
        ("a < b", "a < b"),
    ],
)
def test_marks_are_read_as_people_see_them(raw, seen):
    assert read(raw, {"U1": "Ann"}) == seen


@pytest.mark.parametrize(
    ("markdown", "mrkdwn"),
    [
        ("**bold** *italic* ~~gone~~", "*bold* _italic_ ~gone~"),
        ("# A **big** title", "A *big* title"),
        ("`a < b`", "`a &lt; b`"),
        ("```python\nif a < b:\n```", "```\nif a &lt; b:\n```"),
        ("[tea](https://a.example?a=1&b=2)", "<https://a.example?a=1&amp;b=2|tea>"),
        ("[tea](ftp://a.example)", "tea (ftp://a.example)"),
        ("- one\n- two", "• one\n• two"),
        ("> said", "> said"),
        ("<!channel> <@U1>", "&lt;!channel&gt; &lt;@U1&gt;"),
    ],
)
def test_markdown_is_written_in_slacks_marks(markdown, mrkdwn):
    assert written(markdown) == mrkdwn


@given(st.text())
def test_an_escaped_text_is_read_as_it_was(text):
    assert read(escaped(text), {}) == text


@given(st.text(alphabet="ab<>!@#*_~`|[](): \n/h"))
def test_no_markdown_calls_anyone(markdown):
    mrkdwn = written(markdown)
    assert "<!" not in mrkdwn
    assert "<@" not in mrkdwn
