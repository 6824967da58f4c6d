"""Telegram, held to the suite; what it is sent, and what its settings make."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoloop.channels.telegram import TelegramSettings, make
from nanoloop.channels.telegram.platform import rendered
from nanoloop.channels.telegram.receiving import Webhook
from nanoloop.errors import SettingsError
from nanoloop.testing.channels import ChannelSuite
from nanoloop.testing.channels.traffic import day
from tests.servers.telegram import TOKEN, Malformed, shown
from tests.stages.telegram import free_port, telegram


class Telegram(ChannelSuite):
    @pytest.mark.slow
    async def test_after_a_day_of_traffic_and_faults_the_ledger_is_clean(self, stage, tmp_path):
        ledger = await day(stage, tmp_path, seed=1, messages=200, chats=10)
        assert ledger.is_clean, ledger
        assert ledger.answered == ledger.said
        assert ledger.faults

    @pytest.mark.slow  # of a picture Telegram doesn't say that it is alone: it is waited for more
    async def test_a_file_is_a_part_of_its_message(self, stage, tmp_path):
        await super().test_a_file_is_a_part_of_its_message(stage, tmp_path)

    @pytest.mark.long
    @pytest.mark.timeout(600)
    async def test_after_a_long_day_the_ledger_is_clean(self, stage, tmp_path):
        ledger = await day(
            stage, tmp_path, seed=2, messages=5000, chats=50, restarts=10, seconds=300
        )
        assert ledger.is_clean, ledger


class TestPolling(Telegram):
    @pytest.fixture
    async def stage(self):
        async with telegram() as stage:
            yield stage


class TestWebhook(Telegram):
    @pytest.fixture
    async def stage(self):
        async with telegram(webhook_port=free_port()) as stage:
            yield stage


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


def test_a_token_makes_a_platform(tmp_path):
    platform = make(TelegramSettings(token=f" {TOKEN}\n"), tmp_path)
    assert platform.name == "telegram"


@pytest.mark.parametrize("token", ["secret", "12:a/../getMe", "12:é", ""])
def test_what_is_no_token_is_told_without_showing_it(tmp_path, token):
    with pytest.raises(SettingsError) as no:
        make(TelegramSettings(token=token), tmp_path)
    assert "BotFather" in str(no.value)
    assert not token or token not in str(no.value)


def test_a_webhook_is_served_where_its_address_is_set(tmp_path):
    own = TelegramSettings(token=TOKEN, webhook_url="https://bot.example.org/telegram")
    assert isinstance(make(own, tmp_path)._way, Webhook)
