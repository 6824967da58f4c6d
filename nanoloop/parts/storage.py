"""What is kept, and where, as the settings say: the store, its seal, uploaded files."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from nanoloop.channels.attachments import Attachments
from nanoloop.channels.forgetting import Forgetting
from nanoloop.protocols import Seal, Store
from nanoloop.settings import Settings
from nanoloop.stores.opening import Opening
from nanoloop.stores.place import default_url
from nanoloop.telemetry import Telemetry

ATTACHMENTS = "attachments"
"""The folder of uploaded files in that of the data."""


def make_store(settings: Settings, telemetry: Telemetry, *, read_only: bool = False) -> Store:
    """The store that these settings name; what was uploaded goes with what is erased there."""
    store = open_store(settings, telemetry, read_only=read_only)
    return cast("Store", Forgetting(store, settings.data / ATTACHMENTS))


def open_store(
    settings: Settings, telemetry: Telemetry, *, url: str | None = None, read_only: bool = False
) -> Store:
    """The store that these settings name, or one at another URL with all else as they say."""
    opening = Opening(
        data=settings.data,
        durability=settings.store.durability,
        seal=make_seal(settings),
        timeout_seconds=settings.store.timeout_seconds,
        cached_sessions=settings.store.cached_sessions,
        read_only=read_only,
        announce=telemetry,
    )
    return opening.open(url or settings.store.url or default_url(settings.data))


def make_seal(settings: Settings) -> Seal | None:
    """What seals the store's files, where these settings have a key for it."""
    if settings.store.encryption_key is None:
        return None
    from nanoloop.stores.encryption import FernetSeal  # noqa: PLC0415 - an extra of its own

    return FernetSeal(settings.store.encryption_key.get_secret_value())


def make_attachments(settings: Settings) -> Attachments:
    """Where uploaded files are kept."""
    limit = settings.channels.web.uploads_bytes
    return Attachments(settings.data / ATTACHMENTS, limit_bytes=limit, seal=make_seal(settings))


def recall_file(settings: Settings) -> Path:
    """Where the recall index is, where one is kept."""
    return settings.data / "recall.sqlite"


def spent_file(settings: Settings) -> Path | None:
    """Where the day's tokens for summaries are counted; None where no limit needs the count."""
    is_kept = settings.store.url != "memory:" and settings.summary.daily_tokens is not None
    return settings.data / "spent.json" if is_kept else None
