"""Who calls: by a bearer token, by the cookie that one was changed for, or from this machine."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from nanoloop.channels.web.number import number_in

COOKIE_SECONDS = 30 * 24 * 3600
"""How long a page stays logged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Someone who may see some sessions and no others."""

    name: str
    patterns: tuple[str, ...]
    """Which session ids are theirs; `*` stands for anything."""

    def sees(self, session_id: str) -> bool:
        """Whether this session is theirs."""
        return any(fnmatchcase(session_id, pattern) for pattern in self.patterns)

    @property
    def prefix(self) -> str:
        """How the ids of their new sessions begin."""
        own = f"web:{self.name}."
        return own if self.sees(own) else self.patterns[0].partition("*")[0]


EVERYONE = Caller(name="local", patterns=("*",))
"""Whoever calls where no tokens are set up, which is allowed on loopback only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret, and whose it is."""

    caller: Caller
    secret: str


class Callers:
    """Knows whoever shows a token or a cookie; never says why one was wrong."""

    def __init__(self, tokens: Iterable[Token], *, now: Callable[[], float] = time.time) -> None:
        self._by_digest = [(_digest(token.secret), token) for token in tokens]
        self._now = now

    @property
    def are_named(self) -> bool:
        """Whether one has to log in."""
        return bool(self._by_digest)

    def of_token(self, secret: str) -> Caller | None:
        """Whose token this is; takes as long for a wrong one."""
        token = self._token(secret)
        return token.caller if token else None

    def _token(self, secret: str) -> Token | None:
        digest = _digest(secret)
        found = None
        for known, token in self._by_digest:
            if hmac.compare_digest(known, digest):
                found = token
        return found

    def cookie_for(self, secret: str) -> str | None:
        """The cookie for who has this token; it says nothing of the token, and dies with it."""
        token = self._token(secret)
        if token is None:
            return None
        until = str(int(self._now()) + COOKIE_SECONDS)
        return f"{token.caller.name}.{until}.{_signed(token, until)}"

    def of_cookie(self, cookie: str) -> Caller | None:
        """Whose cookie this is, while it lasts."""
        name, _, rest = cookie.partition(".")
        until, _, signature = rest.partition(".")
        if (number_in(until) or 0) < self._now():
            return None
        for _, token in self._by_digest:
            is_meant = token.caller.name == name
            if is_meant and hmac.compare_digest(_signed(token, until).encode(), signature.encode()):
                return token.caller
        return None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _signed(token: Token, until: str) -> str:
    said = f"nanoloop cookie {token.caller.name} {until}".encode()
    return hmac.new(_digest(token.secret), said, hashlib.sha256).hexdigest()
