"""What a platform says went wrong, where the kit acts on it; anything else is just a failure.

Refused         the token is wrong or a right is missing: said once, never tried again
FormatRefused   the platform doesn't take this formatting: the same is sent as plain text
TooLong         the platform takes no message of that length: it is split further
MessageGone     the message to edit isn't there any more: it is posted anew
Declined        (nanoloop.errors) it will never be done, and the reason may be logged
SendLater       (nanoloop.errors) the network, or a rate limit: the same again, `seconds` later
"""

from __future__ import annotations

from nanoloop.errors import NanoloopError


class Refused(NanoloopError):
    """A wrong token or a missing right; the text is a sentence with the next step, and no token."""


class FormatRefused(NanoloopError):
    """The platform doesn't take a text that is formatted like this."""


class TooLong(NanoloopError):
    """The platform takes no message of that length."""


class MessageGone(NanoloopError):
    """The message that was to be edited is not there, or may not be edited any more."""
