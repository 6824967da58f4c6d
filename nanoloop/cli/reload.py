"""Reloads settings while a daemon runs; some changes apply at once, others need a restart."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
from anyio.to_thread import run_sync

from nanoloop.agents import Agents
from nanoloop.channels.kit.channel import PlatformChannel, wanted
from nanoloop.cli.config import values
from nanoloop.errors import SettingsError
from nanoloop.events import SettingsRefused, SettingsReloaded, announce
from nanoloop.files import user_folder
from nanoloop.parts import check_models, make_agents, renew_agents
from nanoloop.protocols import Channel
from nanoloop.settings import Settings
from nanoloop.settings.channels import PlatformSettings
from nanoloop.settings.files import NAME
from nanoloop.settings.trust import FILE as TRUSTED
from nanoloop.settings.vendors import suited
from nanoloop.skills import FILE as SKILL
from nanoloop.tool_sources import server_places
from nanoloop.tools.functions import files_run
from nanoloop.tools.servers import ToolServerPlace

if TYPE_CHECKING:
    from nanoloop.app import App

LOOK_SECONDS = 1.0
"""How often the files are checked; a file that is being written waits for the next check."""

_RULES = "|".join(PlatformSettings.model_fields.keys() - {"enabled"})
_CODE, _SKILLS = "tools.functions", "skills.folders"
LIVE = re.compile(
    r"prompt|log\.level|agents\..*|skills\..*|tools\.(functions|budget_tokens|servers\..*)"
    rf"|channels\.(?!web\.)\w+\.({_RULES})"
)
"""Matches the settings that can change at runtime."""

_OF_MODELS = ("providers", "api_key", "base_url", "model", "summary_model", "summary")
"""The settings that determine the models in use; changes to them need a restart."""


Stamps = dict[Path, tuple[int, int, int]]


class Fresh(NamedTuple):
    """The reloaded settings and agents."""

    settings: Settings
    agents: Agents
    places: Sequence[ToolServerPlace]
    changed: Sequence[str]
    """The settings whose files have changed: modules of functions, or skills."""


class Reload:
    """Applies changed settings to a running app."""

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
        self._folders = settings.skills.folders
        self._applied = self._stamps()
        self._reading = Lock()

    async def keep(self) -> None:
        """Reload the files whenever they have changed, until cancelled."""
        before = self._applied
        while True:
            await anyio.sleep(LOOK_SECONDS)
            now = await run_sync(self._stamps)
            if now == before != self._applied:
                # In a thread: modules are run, which may take long.
                self._apply(await run_sync(self._read, abandon_on_cancel=True))
            before = now

    def _stamps(self) -> Stamps:
        """Return the existing files, each with a stamp that shows whether it has changed."""
        usual = user_folder("config", os.environ)
        files = [*self._settings.files]
        if self._settings.own_file not in files[:1]:  # another file may take priority later
            files = [Path(NAME), usual / NAME]
        places = [*files, usual / TRUSTED, *files_run(), *self._skills()]
        found = {}
        for file in files:
            with suppress(OSError):
                places += (file.parent / "agents").iterdir()
        for place in places:
            with suppress(OSError):
                about = place.stat()
                found[place] = (about.st_mtime_ns, about.st_size, about.st_ino)
        return found

    def _skills(self) -> Iterable[Path]:
        """Return a value that changes when a skill is added, changed or removed."""
        for folder in self._folders:
            yield from (folder, folder / SKILL, *folder.glob(f"*/{SKILL}"))

    def __call__(self) -> None:
        """Reload the files; if they contain a mistake, report it and change nothing."""
        self._apply(self._read())

    def _read(self) -> Fresh | SettingsError:
        """Read the files and the tool modules; return a description of the mistake, if any."""
        with self._reading:
            before = self._applied
            self._applied = self._stamps()  # first, so that later changes are noticed next time
            places_of = {_CODE: [*files_run()], _SKILLS: [*self._skills()]}
            changed = [
                key
                for key, files in places_of.items()
                if any(before.get(file) != self._applied.get(file) for file in files)
            ]
            try:
                fresh = self._fresh()
                self._folders = fresh.skills.folders
                places = server_places(fresh)
                agents = make_agents(suited(fresh), self._app.loop.recall, self._app.tool_servers)
                check_models(fresh)
                self._check_agents(fresh)
            except SettingsError as error:
                return error
            finally:
                # Modules that have just been loaded must not be noticed next time.
                self._applied = self._stamps() | self._applied
            return Fresh(fresh, agents, places, changed)

    def _apply(self, read: Fresh | SettingsError) -> None:
        if isinstance(read, SettingsError):
            announce(SettingsRefused(reason=str(read)))
            return
        fresh = read.settings
        self._app.loop.agents.renew(read.agents)
        if (servers := self._app.tool_servers) is not None:
            servers.changed = partial(renew_agents, suited(fresh), self._app.loop, servers)
            servers.set_places(read.places)
            servers.changed()
        self._app.telemetry.set_level(fresh.log.level)
        rules = dict(wanted(fresh))
        for channel in self._channels:
            own = rules.get(channel.name)
            if isinstance(channel, PlatformChannel) and isinstance(own, PlatformSettings):
                channel.access.rules = own
        self._tell(dict(values(fresh)), also=read.changed)

    def _fresh(self) -> Settings:
        """Load the settings; raises `SettingsError` if a file is no longer trusted."""
        fresh = self._load()
        if fresh.left_out and not self._settings.left_out:
            raise SettingsError(fresh.left_out.sentence)
        return fresh

    def _check_agents(self, fresh: Settings) -> None:
        """Raise `SettingsError` if an agent's model can't be used before a restart."""
        old = {name: getattr(self._settings, name) for name in _OF_MODELS}
        try:
            check_models(fresh.model_copy(update=old))
        except SettingsError as error:
            raise SettingsError(f"{error}; if you have just set it, restart to apply it") from None

    def _tell(self, fresh: dict[str, Any], *, also: Iterable[str]) -> None:
        known = self._values
        changed = sorted(
            key for key in fresh.keys() | known.keys() if fresh.get(key) != known.get(key)
        )
        applied = tuple(sorted({*also, *(key for key in changed if LIVE.fullmatch(key))}))
        waiting = tuple(key for key in changed if key not in applied)
        self._values = {**fresh, **{key: known.get(key) for key in waiting}}
        announce(SettingsReloaded(applied=applied, needs_restart=waiting))
