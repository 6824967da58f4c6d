"""Slack, held to the suite, and texts in its form and out of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.slack.hearing import escaped, read, written
from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.traffic import day
from tests.servers.slack import SlackServer
from tests.stages.slack import SlackStage


@pytest.fixture
async def stage(tmp_path):
    async with SlackServer().serving() as server:
        yield SlackStage(server, tmp_path)


class TestSlack(ChannelSuite):
    """Slack keeps what every channel promises."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "messages"), [(1, 1000), pytest.param(2, 5000, marks=pytest.mark.long)]
)
async def test_after_a_day_of_traffic_and_faults_the_ledger_is_clean(
    stage, tmp_path, seed, messages
):
    ledger = await day(stage, tmp_path, seed=seed, messages=messages)
    assert ledger.is_clean, ledger
    assert ledger.answered == ledger.said
    assert ledger.faults


@pytest.mark.slow
async def test_a_bot_that_is_killed_again_and_again_loses_nothing(stage, tmp_path):
    ledger = await day(stage, tmp_path, seed=4, messages=300, chats=5, restarts=15)
    assert ledger.is_clean, ledger


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
