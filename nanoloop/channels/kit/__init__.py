"""Everything you need to turn a chat platform into a channel; import it from here."""

from nanoloop.channels.kit.platform import (
    File,
    FormatRefused,
    Hear,
    Heard,
    Limits,
    MessageGone,
    Place,
    Platform,
    Refused,
    Text,
    TooLong,
    Upload,
    is_choice,
)
from nanoloop.messages import Choice, Quote, Speaker
from nanoloop.plugins import Plugin
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.keys import Folder, Names

__all__ = [
    "Choice",
    "File",
    "Folder",
    "FormatRefused",
    "Hear",
    "Heard",
    "Limits",
    "MessageGone",
    "Names",
    "Place",
    "Platform",
    "PlatformSettings",
    "Plugin",
    "Quote",
    "Refused",
    "Speaker",
    "Text",
    "TooLong",
    "Upload",
    "is_choice",
]
