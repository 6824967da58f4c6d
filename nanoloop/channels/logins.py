"""Logins to the web page, and the token that this machine generates for it."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex, token_urlsafe
from typing import TYPE_CHECKING, Any

from nanoloop.errors import SessionExists, SessionNotFound, SettingsError
from nanoloop.files import make_folder, refusal
from nanoloop.protocols import ARCHIVED, LOGINS

if TYPE_CHECKING:
    from nanoloop.session.session import Session
    from nanoloop.sessions import Sessions

_TABLE = "logins"
OF_ONE = 50
"""The maximum number of open logins per token; a further login ends the oldest."""
_SHOWN = 12
"""How many characters of a login's digest serve as its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLogin:
    """A login to the web page; nobody can log in with just the stored fields."""

    digest: str
    """The hash of the login's cookie."""
    name: str
    """The name of the token that was used."""
    since: float
    until: float

    @property
    def id(self) -> str:
        """The login's id on the command line."""
        return self.digest[:_SHOWN]


class Logins:
    """The open logins in the store, identified only by hashes of their cookies."""

    def __init__(self, sessions: Sessions, *, now: Callable[[], float] = time.time) -> None:
        self._sessions = sessions
        self._now = now

    async def begin(self, cookie: str, *, name: str, seconds: float) -> None:
        """Store a new login that lasts this long; durable when this returns."""
        now = self._now()
        new = PageLogin(digest=_digest(cookie), name=name, since=now, until=now + seconds)
        await self._change(await self._kept(), lambda known: _bounded([*known, new]))

    async def is_open(self, cookie: str) -> bool:
        """Return whether this cookie's login is still open, even if another process ended it."""
        return bool(await self.open_of({cookie}))

    async def open_of(self, cookies: Collection[str]) -> set[str]:
        """Return the cookies whose logins are still open, reading the store only once."""
        known = {login.digest for login in await self.open()}
        return {cookie for cookie in cookies if _digest(cookie) in known}

    async def end(self, cookie: str) -> None:
        """End this cookie's login; durable when this returns."""
        digest = _digest(cookie)
        await self._end(lambda login: login.digest == digest)

    async def revoke(self, login_id: str) -> bool:
        """End the login with this id; return False if there is none."""
        return await self._end(lambda login: login.id == login_id)

    async def open(self) -> list[PageLogin]:
        """Return all open logins, oldest first."""
        try:
            session = await self._sessions.fresh(LOGINS)
        except SessionNotFound:
            return []
        return [login for login in _known(session) if login.until > self._now()]

    async def _end(self, is_meant: Callable[[PageLogin], bool]) -> bool:
        if not any(map(is_meant, await self.open())):
            return False
        with suppress(SessionNotFound):  # the session was deleted meanwhile, along with all logins
            session = await self._sessions.open(LOGINS)
            await self._change(
                session, lambda known: [each for each in known if not is_meant(each)]
            )
        return True

    async def _kept(self) -> Session:
        with suppress(SessionExists):  # another process was first
            try:
                return await self._sessions.fresh(LOGINS)
            except SessionNotFound:
                # Archived, so that it is not listed among the conversations.
                await self._sessions.store.create(id=LOGINS, metadata={ARCHIVED: True})
        return await self._sessions.fresh(LOGINS)

    async def _change(
        self, session: Session, act: Callable[[list[PageLogin]], Iterable[PageLogin]]
    ) -> None:
        now = self._now()

        def changed(session: Session) -> None:
            left = act([login for login in _known(session) if login.until > now])
            table = {login.digest: [login.name, login.since, login.until] for login in left}
            metadata = {**session.metadata, _TABLE: table}
            session.load_dict({"metadata": metadata})

        await self._sessions.change(session, changed)


def _digest(cookie: str) -> str:
    return hashlib.sha256(cookie.encode("utf-8", "surrogatepass")).hexdigest()


def _known(session: Session) -> list[PageLogin]:
    table: Mapping[str, Any] = session.metadata.get(_TABLE) or {}
    return [
        PageLogin(digest=digest, name=str(name), since=float(since), until=float(until))
        for digest, (name, since, until) in table.items()
    ]


def _bounded(logins: list[PageLogin]) -> list[PageLogin]:
    """Drop the oldest logins of each token that has too many."""
    left: dict[str, int] = {}
    kept = []
    for login in reversed(logins):
        left[login.name] = left.get(login.name, 0) + 1
        if left[login.name] <= OF_ONE:
            kept.append(login)
    return kept[::-1]


TOKEN_BYTES = 24


def token_in(path: Path) -> tuple[str, bool]:
    """Return the token in this file, and whether it was just generated.

    Links and other users' files are rejected, so only this user can have written the file or can
    read it. Raise `SettingsError` if the file can't be used.
    """
    is_new = False
    while (token := known_token(path)) is None:
        with _in_a_sentence(path):
            is_new = _make(path)
    return token, is_new


def known_token(path: Path) -> str | None:
    """Return the token in this file, or None if the file does not exist.

    Raise `SettingsError` if the file can't be used.
    """
    with _in_a_sentence(path):
        token = _read(path)
    if token is not None and not re.fullmatch(r"[\w-]{16,200}", token, re.ASCII):
        raise SettingsError(f"{path} does not contain a token: remove it, and start again")
    return token


@contextmanager
def _in_a_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SettingsError(
            f"the page's token can't be stored in {path}: {refusal(error)}"
        ) from error


def _make(path: Path) -> bool:
    """Create the file with a new token; return False if another process has just created it."""
    make_folder(path.parent)
    fresh = path.with_name(f".{token_hex(8)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(f"{token_urlsafe(TOKEN_BYTES)}\n")
        path.hardlink_to(fresh)  # unlike a rename, this replaces nothing
    except FileExistsError:
        return False
    finally:
        fresh.unlink()
    return True


def _read(path: Path) -> str | None:
    """Return the content of this file, or None if it does not exist."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise SettingsError(f"{path} is a link: remove it, and start again") from None
    try:
        about = os.fstat(fd)
        if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode):
            raise SettingsError(f"{path} is not a file that you own: remove it, and start again")
        if about.st_mode & 0o077:
            os.fchmod(fd, 0o600)
        return os.read(fd, 1000).decode("utf-8", "replace").strip()
    finally:
        os.close(fd)
