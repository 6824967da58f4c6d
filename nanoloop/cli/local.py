"""A model on this machine, ready for a command: what runs it is installed, and its file is here."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from nanoloop.cli.download import fetched
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.models.catalogue import CATALOGUE, SMALLEST, find
from nanoloop.models.naming import PREFIX, file_of
from nanoloop.settings import Settings

EXTRA = f"a model on this machine needs xllamacpp: {how_to_install('local')}"
_TINY = f"{SMALLEST.name} is tiny; to talk: nanoloop chat --local {CATALOGUE[1].name}"


def can_run() -> bool:
    """Whether what runs a model is installed."""
    return find_spec("xllamacpp") is not None


def make_ready(settings: Settings) -> None:
    """Fetch the model's file where it is missing: whoever names a model wants it."""
    if not can_run():
        raise SettingsError(EXTRA)
    path = file_of(settings.model, settings.models)
    if not path.exists():
        if not settings.model.startswith(PREFIX):
            raise SettingsError(f"there is no model file {path}: check the path")
        fetched(find(path.stem), settings)
    if path.stem == SMALLEST.name and sys.stderr.isatty():
        print(_TINY, file=sys.stderr)
