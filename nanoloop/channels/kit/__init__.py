"""What a chat platform needs to be a channel; the names here are all that one has to import."""

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
)
from nanoloop.plugins import Plugin
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.keys import Names

__all__ = [
    "File",
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
    "Refused",
    "Text",
    "TooLong",
    "Upload",
]
