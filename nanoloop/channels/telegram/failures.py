"""What Telegram's refusals mean for the kit, and for who runs the bot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from telegram.error import (
    BadRequest,
    Conflict,
    EndPointNotFound,
    InvalidToken,
    NetworkError,
    TelegramError,
)

from nanoloop.channels.platform.errors import FormatRefused, MessageGone, Refused, TooLong
from nanoloop.channels.telegram.request import Limited
from nanoloop.errors import NanoloopError, SendLater

UNKNOWN_BOT = (
    "Telegram does not know this token: get it from @BotFather with /mybots, and set "
    "NANOLOOP_CHANNELS__TELEGRAM__TOKEN or channels.telegram.token"
)
OTHER_POLLER = "another program reads this bot's messages: stop it, or use another bot"
OTHER_WEBHOOK = (
    "a webhook was set for this bot elsewhere: stop who set it, or set "
    "channels.telegram.webhook_url"
)
_GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")


@contextmanager
def explained() -> Iterator[None]:
    """Raise what the kit understands; what it can't act on is raised as the library has it.

    The library's errors may hold an address with the token in it: none is shown as a cause.
    """
    try:
        yield
    except TelegramError as error:
        raise _meaning(error) from None


@contextmanager
def answered() -> Iterator[None]:
    """The same while a message is sent: a token that is refused is the listener's to tell."""
    try:
        with explained():
            yield
    except Refused:
        raise SendLater("the token is refused") from None


def is_unchanged(error: BadRequest) -> bool:
    """Whether a message says already what it was to say."""
    return "message is not modified" in str(error).lower()


def _meaning(error: TelegramError) -> Exception:
    match error:
        case Limited():
            return SendLater("rate limit", seconds=error.seconds)
        case InvalidToken() | EndPointNotFound():  # the latter where it is asked by name
            return Refused(UNKNOWN_BOT)
        case Conflict():
            return SendLater(OTHER_WEBHOOK if "webhook" in str(error).lower() else OTHER_POLLER)
        case BadRequest():  # a network error to the library
            return _refusal(error)
        case NetworkError():
            return SendLater("the network failed")
    return error if type(error) is not TelegramError else SendLater("the answer can't be read")


def _refusal(error: BadRequest) -> NanoloopError | BadRequest:
    words = str(error).lower()
    if "can't parse entities" in words:
        return FormatRefused()
    if "is too long" in words:
        return TooLong()
    return MessageGone() if any(gone in words for gone in _GONE) else error
