"""What Telegram's refusals mean for the kit, and for who runs the bot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from telegram.error import (
    BadRequest,
    ChatMigrated,
    Conflict,
    EndPointNotFound,
    InvalidToken,
    NetworkError,
    TelegramError,
)

from nanoloop.channels.platform.errors import FormatRefused, MessageGone, Refused, TooLong
from nanoloop.channels.telegram.request import Limited
from nanoloop.errors import Declined, NanoloopError, SendLater

UNKNOWN_BOT = (
    "Telegram does not know this token: get it from @BotFather with /mybots, and set "
    "NANOLOOP_CHANNELS__TELEGRAM__TOKEN or channels.telegram.token"
)
OTHER_POLLER = "another program reads this bot's messages: stop it, or use another bot"
OTHER_WEBHOOK = (
    "a webhook was set for this bot elsewhere: stop who set it, or set "
    "channels.telegram.webhook_url"
)
UNCHANGED = "message is not modified"
"""Why an edit is declined that changes nothing."""
_KNOWN = (
    UNCHANGED,
    "bad webhook",
    "blocked by the user",
    "chat not found",
    "file is too big",
    "group chat was deactivated",
    "have no rights to send",
    "message thread not found",
    "not a member of",
    "not enough rights",
    "can't initiate conversation",
    "topic_closed",
    "user is deactivated",
    "was kicked from",
)
"""What Telegram says of chats, as far as it stands in its documents and holds nobody's words."""
_GONE = ("message to edit not found", "message can't be edited", "message_id_invalid")


@contextmanager
def explained() -> Iterator[None]:
    """Raise what the kit understands; that a group has moved is raised as the library has it.

    The library's errors may hold an address with the token in it: none is shown as a cause.
    """
    try:
        yield
    except ChatMigrated:
        raise
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


def _meaning(error: TelegramError) -> Exception:
    match error:
        case Limited():
            return SendLater("rate limit", seconds=error.seconds)
        case InvalidToken() | EndPointNotFound():  # the latter where it is asked by name
            return Refused(UNKNOWN_BOT)
        case Conflict():
            return SendLater(OTHER_WEBHOOK if "webhook" in str(error).lower() else OTHER_POLLER)
        case NetworkError() if not isinstance(error, BadRequest):  # which is one to the library
            return SendLater("the network failed")
        case _ if type(error) is TelegramError:
            return SendLater("the answer can't be read")
    return _refusal(error)


def _refusal(error: TelegramError) -> NanoloopError:
    words = str(error).lower()
    if "can't parse entities" in words:
        return FormatRefused()
    if "is too long" in words:
        return TooLong()
    if any(gone in words for gone in _GONE):
        return MessageGone()
    # Its whole text may quote what was sent.
    known = next((phrase for phrase in _KNOWN if phrase in words), None)
    return Declined(known or type(error).__name__)
