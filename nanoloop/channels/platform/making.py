"""The channels that the settings want: ours by name, those of other packages by entry point."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nanoloop.channels.attachments import Attachments
from nanoloop.channels.platform.channel import PlatformChannel
from nanoloop.channels.platform.enclosures import fetched_from
from nanoloop.channels.platform.files import kept_in
from nanoloop.channels.platform.platform import Platform
from nanoloop.channels.platform.rules import Rules
from nanoloop.channels.platform.transcriber import Transcriber
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.events import Announce
from nanoloop.protocols import Channel

if TYPE_CHECKING:
    from nanoloop.settings import Settings
    from nanoloop.settings.channels import PlatformSettings

OURS = ("telegram", "matrix", "discord", "slack")
"""Each is in `nanoloop.channels.NAME.making`, with a library that is an extra of that name."""
GROUP = "nanoloop.channels"
"""The entry points of other packages; each is a `Make`, given the table's `options`."""

Make = Callable[[Any, Path], Platform | Channel]
"""Given a channel's own settings and the data folder, makes it; raises `SettingsError`."""


def wanted(settings: Settings) -> Iterator[tuple[str, PlatformSettings]]:
    """The channels that are to be served, each with its settings."""
    for name in OURS:
        own: PlatformSettings = getattr(settings.channels, name)
        if own.is_wanted:
            yield name, own
    for name, other in settings.channels.others.items():
        if other.is_wanted:
            yield name, other


def make_channel(
    name: str,
    own: PlatformSettings,
    *,
    folder: Path,
    attachments: Attachments,
    transcriber: Transcriber | None = None,
    announce: Announce,
) -> Channel:
    """The channel of that name; its library is loaded only now. Raises `SettingsError`."""
    make, given = _ours(name) if name in OURS else _other(name), getattr(own, "options", own)
    made = make(given, folder)
    if not isinstance(made, Platform):
        return made
    return PlatformChannel(
        made,
        rules=rules_of(own),
        folder=folder,
        agent=own.agent,
        keep=kept_in(attachments, owner=f"{name}:"),
        transcriber=transcriber,
        fetch=fetched_from(attachments),
        announce=announce,
    )


def rules_of(own: PlatformSettings) -> Rules:
    """What its settings say of who may talk, and how much."""
    said: dict[str, Any] = {field.name: getattr(own, field.name) for field in fields(Rules)}
    said |= {name: frozenset(value) for name, value in said.items() if isinstance(value, tuple)}
    return Rules(**said)


def _ours(name: str) -> Make:
    try:
        make: Make = import_module(f"nanoloop.channels.{name}.making").make
    except ModuleNotFoundError as missing:
        if (missing.name or "").startswith("nanoloop"):
            raise
        raise SettingsError(
            f"channels.{name} needs {missing.name}, which is not installed: {how_to_install(name)}"
        ) from None
    return make


def _other(name: str) -> Make:
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise SettingsError(
            f"channels.others.{name} names no channel: install the package that has it "
            f"(there are: {known})"
        )
    make: Make = next(iter(found)).load()
    return make
