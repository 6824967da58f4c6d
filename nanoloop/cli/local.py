"""A model on this machine, ready for a command: what runs it is installed, and its file is here."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from nanoloop.cli.download import fetched
from nanoloop.errors import SettingsError, how_to_install
from nanoloop.models.catalogue import CATALOGUE, SMALLEST, find
from nanoloop.models.part import PREFIX, file_of, is_local
from nanoloop.settings import Settings
from nanoloop.settings.vendors import models_of

EXTRA = f"a model on this machine needs xllamacpp: {how_to_install('local')}"
_TINY = f"{SMALLEST.name} is tiny; to talk: nanoloop chat --local {CATALOGUE[1].name}"


def can_run() -> bool:
    """Whether what runs a model is installed."""
    return find_spec("xllamacpp") is not None


def make_ready(settings: Settings) -> None:
    """Fetch the local models' files where they are missing: whoever names a model wants it."""
    models = {model for _, model in models_of(settings) if is_local(model)}
    if models and not can_run():
        raise SettingsError(EXTRA)
    for model in sorted(models):
        _make_ready(model, settings)


def _make_ready(model: str, settings: Settings) -> None:
    path = file_of(model, settings.models)
    if not path.exists():
        if not model.startswith(PREFIX):
            raise SettingsError(f"there is no model file {path}: check the path")
        fetched(find(path.stem), settings)
    if model == settings.model and path.stem == SMALLEST.name and sys.stderr.isatty():
        print(_TINY, file=sys.stderr)
