"""Logins to tool servers (OAuth), each in a file in the data folder, encrypted if the store is.

Processes share these files: a login applies to all of them at once, and only one process at a time
renews it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import anyio

from nanoloop.errors import DiskRefused, LoginFailed, SettingsError
from nanoloop.files import load_file, locked_file, make_folder, refusal, replace_file

if TYPE_CHECKING:
    from nanoloop.stores.sealed_files import FolderSealing

FOLDER = "tool_logins"
"""The folder for these files, in the data folder."""
LOCK_SECONDS = 60.0
"""How long to wait while another process renews the same login."""
_LOOK_SECONDS = 0.02
_EARLY_SECONDS = 60.0
"""A token is renewed this long before it expires, or after nine tenths of its lifetime."""

_LONGEST_SECONDS = 10 * 366 * 86_400
"""The longest lifetime of a token that is believed."""


def login_wanted(server: str) -> str:
    """Return the sentence for a server to which nobody has logged in."""
    return f"{server} needs a login: nanoloop tools login {server}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLogin:
    """A login to a server, with everything needed to renew it without asking anybody."""

    url: str
    """The server's address; the login is not used for any other."""
    client: Mapping[str, Any] = field(repr=False)
    """nanoloop's client at the authorization server, perhaps with a secret."""
    token: str = field(repr=False)
    """The access token."""
    refresh: str = field(default="", repr=False)
    """The refresh token; empty if there is none."""
    until: float | None = None
    """When to renew the token, by the clock; None if that is unknown."""
    scope: str = ""
    resource: str = ""
    token_url: str = ""
    """The address at which tokens are renewed."""
    revocation_url: str = ""

    def is_good(self, *, refused: str) -> bool:
        """Return True if the token can be used and is not the one that was refused."""
        return self.token != refused and (self.until is None or time.time() < self.until)

    @classmethod
    def load(cls, data: bytes) -> Self:
        """Read a login from a file's content; raise ValueError or TypeError if it is invalid."""
        known = json.loads(data)
        if not isinstance(known, dict) or not isinstance(known.get("token"), str):
            raise TypeError("not a login")
        return cls(**known)


def renewed_at(seconds: int | None) -> float | None:
    """Return when to renew a token that lasts this long from now on."""
    if seconds is None:
        return None
    seconds = min(max(seconds, 0), _LONGEST_SECONDS)
    return time.time() + seconds - min(_EARLY_SECONDS, seconds / 10)


class ServerLogins:
    """The folder of logins. All methods except `alone` block: call them in worker threads."""

    def __init__(self, folder: Path, make_sealing: Callable[[Path], FolderSealing]) -> None:
        """Use this data folder; `make_sealing` is called for the first login."""
        self._folder = folder / FOLDER
        self._make_sealing = make_sealing
        self._not_stored: dict[str, tuple[ServerLogin, tuple[int, int] | None]] = {}
        """Logins that can't be written to disk, each with the stamp of the file to replace.

        The token in that file may no longer be valid; another file is a later login or logout.
        """

    @cached_property
    def _sealing(self) -> FolderSealing:
        return self._make_sealing(self._folder)

    def _file(self, server: str) -> Path:
        return self._folder / f"{server}.json"

    def stamp(self, server: str) -> tuple[int, int] | None:
        """Return a value that changes whenever the login does; None without a login."""
        try:
            about = self._file(server).stat()
        except OSError:
            return None
        return about.st_mtime_ns, about.st_ino

    def of(self, server: str) -> ServerLogin | None:
        """Return the login to this server, if any; raise `SettingsError` if it can't be read."""
        login, stamp = self._not_stored.get(server, (None, None))
        if login is not None and stamp == self.stamp(server):
            return login
        file = self._file(server)
        try:
            data = self._sealing.opened(file.name, load_file(file))
            return None if data is None else ServerLogin.load(data)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingsError(f"{file} can't be read: {refusal(error)}") from None
        except (ValueError, TypeError):
            return None  # treated as missing: the next login replaces it

    def keep(self, server: str, login: ServerLogin) -> None:
        """Store the login durably, readable only by its owner.

        Raise `SettingsError` if it can't be written to disk; this process keeps using the login
        anyway.
        """
        file = self._file(server)
        self._not_stored[server] = login, self.stamp(server)
        try:
            make_folder(self._folder)
            data = json.dumps(asdict(login)).encode()
            replace_file(file, self._sealing.sealed(file.name, data), durable=True)
        except (OSError, DiskRefused) as error:
            why = refusal(error) if isinstance(error, OSError) else str(error)
            raise SettingsError(f"{file} can't be written: {why}") from None
        self._not_stored.pop(server, None)

    def remove(self, server: str) -> ServerLogin | None:
        """Remove and return the login, if any; raise `SettingsError` if it can't be removed."""
        login, file = self.of(server), self._file(server)
        self._not_stored.pop(server, None)
        if self.stamp(server) is None:
            return login
        try:
            self._sealing.destroy(file.name)
            file.unlink(missing_ok=True)
        except OSError as error:
            raise SettingsError(f"{file} can't be removed: {refusal(error)}") from None
        return login

    @asynccontextmanager
    async def alone(self, server: str) -> AsyncIterator[None]:
        """Keep all others, including other processes, from renewing this login during the block."""
        with ExitStack() as stack:
            with anyio.move_on_after(LOCK_SECONDS) as limit:
                while not self._is_locked(server, stack):  # noqa: ASYNC110 - another process decides
                    await anyio.sleep(_LOOK_SECONDS)
            if limit.cancelled_caught:
                raise LoginFailed("another process has been renewing its login for too long")
            yield

    def _is_locked(self, server: str, stack: ExitStack) -> bool:
        try:
            make_folder(self._folder)
            stack.enter_context(locked_file(self._folder / f"{server}.lock"))
        except BlockingIOError:
            return False
        except (OSError, DiskRefused) as error:
            raise SettingsError(f"{self._folder} can't be used: {error}") from None
        return True
