"""Telegram as its settings want it."""

import pytest

from nanoloop.channels.telegram import TelegramSettings, make
from nanoloop.channels.telegram.receiving import Webhook
from nanoloop.errors import SettingsError
from tests.servers.telegram import TOKEN


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
