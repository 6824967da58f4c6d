"""What Discord's refusals mean for the kit, and for who runs the bot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import discord

from nanoloop.channels.platform.errors import MessageGone, Refused, TooLong
from nanoloop.errors import Declined, NanoloopError, SendLater

UNKNOWN_BOT = (
    "Discord refuses channels.discord.token: reset the token under Bot at "
    "discord.com/developers/applications, and set NANOLOOP_CHANNELS__DISCORD__TOKEN"
)
NO_CONTENT = (
    "Discord does not let the bot read messages: switch on Message Content Intent under Bot at "
    "discord.com/developers/applications"
)
_BAD_TOKEN, _BAD_INTENTS = 4004, (4013, 4014)
_GONE = {10008, 30046, 50005}
"""Unknown message; too many edits of an old one; not ours to edit."""
_UNAUTHORIZED, _LIMITED = 401, 429
_RESTS = 40062


@contextmanager
def explained() -> Iterator[None]:
    """Raise what the kit understands."""
    try:
        yield
    except discord.LoginFailure:
        raise Refused(UNKNOWN_BOT) from None
    except discord.PrivilegedIntentsRequired:
        raise Refused(NO_CONTENT) from None
    except discord.ConnectionClosed as error:
        raise _closed(error) from None
    except discord.RateLimited as error:
        raise SendLater("rate limit", seconds=error.retry_after) from None
    except discord.HTTPException as error:
        raise _refusal(error) from None
    except (aiohttp.ClientError, OSError, discord.GatewayNotFound) as error:
        raise SendLater(f"the network failed ({type(error).__name__})") from None


def _closed(error: discord.ConnectionClosed) -> Refused | SendLater:
    if error.code == _BAD_TOKEN:
        return Refused(UNKNOWN_BOT)
    if error.code in _BAD_INTENTS:
        return Refused(NO_CONTENT)
    return SendLater(f"the connection was closed ({error.code})")


def _refusal(error: discord.HTTPException) -> NanoloopError:
    if isinstance(error, discord.DiscordServerError) or error.code == _RESTS:
        return SendLater("Discord has a fault")
    if error.status == _LIMITED:
        return SendLater("rate limit")
    if error.status == _UNAUTHORIZED:
        return SendLater("the token is refused")
    if error.code in _GONE:
        return MessageGone()
    if "or fewer in length" in error.text:
        return TooLong()
    return Declined(f"Discord answers {error.status}, code {error.code}")
