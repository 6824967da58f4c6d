"""SIGHUP: the settings are read again, and what can be changed while it runs is taken over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from nanoloop.app import App
from nanoloop.channels.kit.access import Rules
from nanoloop.channels.kit.channel import PlatformChannel, rules_of, wanted
from nanoloop.cli.config import values
from nanoloop.errors import SettingsError
from nanoloop.events import SettingsRefused, SettingsReloaded
from nanoloop.parts import check_models, make_agents
from nanoloop.protocols import Channel
from nanoloop.settings import Settings

_RULES = "|".join(field.name for field in fields(Rules))
LIVE = re.compile(rf"prompt|log\.level|agents\..*|channels\.(others\.)?\w+\.({_RULES})")
"""What can be changed while it runs: prompts and agents, who may talk and how much, the log."""

_OF_MODELS = ("providers", "api_key", "base_url", "model", "summary_model", "summary")
"""What the models that are asked were made of; a restart takes it over."""


class Reload:
    """Takes fresh settings over, as far as that can be done."""

    def __init__(
        self,
        app: App,
        settings: Settings,
        *,
        channels: Iterable[Channel],
        load: Callable[[], Settings],
    ) -> None:
        self._app = app
        self._channels = [*channels]
        self._load = load
        self._settings = settings
        self._values = dict(values(settings))

    def __call__(self) -> None:
        """Read them again; what is wrong with them is told, and changes nothing."""
        try:
            fresh = self._load()
            agents = make_agents(fresh, self._app.loop.recall)
            check_models(fresh)
            self._check_agents(fresh)
        except SettingsError as error:
            self._app.telemetry(SettingsRefused(reason=str(error)))
            return
        self._app.loop.agents.renew(agents)
        self._app.telemetry.set_level(fresh.log.level)
        rules = {name: rules_of(own) for name, own in wanted(fresh)}
        for channel in self._channels:
            if isinstance(channel, PlatformChannel) and channel.name in rules:
                channel.rules = rules[channel.name]
        self._tell(dict(values(fresh)))

    def _check_agents(self, fresh: Settings) -> None:
        """Raise `SettingsError` where an agent's model can't be asked before a restart."""
        old = {name: getattr(self._settings, name) for name in _OF_MODELS}
        try:
            check_models(fresh.model_copy(update=old))
        except SettingsError as error:
            raise SettingsError(
                f"{error}; what is set for that is taken over by a restart"
            ) from None

    def _tell(self, fresh: dict[str, Any]) -> None:
        known = self._values
        changed = sorted(
            key for key in fresh.keys() | known.keys() if fresh.get(key) != known.get(key)
        )
        taken = tuple(key for key in changed if LIVE.fullmatch(key))
        left = tuple(key for key in changed if key not in taken)
        self._values = {**fresh, **{key: known.get(key) for key in left}}
        self._app.telemetry(SettingsReloaded(taken=taken, left=left))
