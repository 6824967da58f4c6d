"""Access control: by a token or its cookie, from no other site, within limits; and refusals."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import ceil
from typing import NoReturn

from starlette.requests import Request
from starlette.responses import JSONResponse

from nanoloop.bounded import BoundedDict
from nanoloop.events import RequestFailed, announce
from nanoloop.sentences import Sentences

ASKED_BY_SCRIPT = "x-nanoloop"
"""A header that no form and no other site can send."""
_SAFE_METHODS = {"GET", "HEAD"}
FAILURES_A_MINUTE = 20
"""How many wrong tokens a minute from one address are answered without a wait."""


class WebAccess:
    """Decides who has access: known, not sent by another site, and not too often."""

    def __init__(
        self,
        callers: Callers,
        *,
        cookie: str,
        origins: Collection[str],
        requests_per_minute: int,
    ) -> None:
        """`cookie` is the name of this server's cookie; pages of `origins` may call too."""
        self.callers = callers
        self.cookie = cookie
        self.origins = frozenset(origins)
        self._rates = RateLimit(requests_per_minute)
        self._failures = RateLimit(FAILURES_A_MINUTE)

    def admit(
        self, request: Request, *, is_public: bool = False, is_counted: bool = True
    ) -> Caller | None:
        """The caller; raises a refusal if access is denied, None only for what is public."""
        self._refuse_other_sites(request)
        caller = self._caller(request)
        if caller is None and not is_public:
            raise Refusal(401, "log in, or send a token", headers={"WWW-Authenticate": "Bearer"})
        if is_counted and (seconds := self._rates.take(_bucket(request, caller))):
            raise try_later(429, "too many requests: try again later", seconds=seconds)
        return caller

    def owner_of(self, request: Request) -> str:
        """Whose share of the requests this one uses: its caller's, else its address's."""
        return _bucket(request, self._known(request))

    def _refuse_other_sites(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins and not _is_ours(request, origin):
            raise Refusal(403, "pages of other sites may not call this API")
        is_asked_for = "authorization" in request.headers or ASKED_BY_SCRIPT in request.headers
        if request.method not in _SAFE_METHODS and not is_asked_for:
            raise Refusal(403, "send the header X-Nanoloop: 1, or a token")

    def _caller(self, request: Request) -> Caller | None:
        caller = self._known(request)
        if caller is None and request.headers.get("authorization"):
            self.refuse_token(request)
        return caller

    def _known(self, request: Request) -> Caller | None:
        if not self.callers.are_named:
            return EVERYONE
        scheme, _, secret = request.headers.get("authorization", "").partition(" ")
        if scheme:
            return self.callers.of_token(secret.strip()) if scheme.lower() == "bearer" else None
        return self.callers.of_cookie(request.cookies.get(self.cookie, ""))

    def refuse_token(self, request: Request) -> NoReturn:
        """Raise the refusal of a wrong token: the more of them, the longer the wait."""
        if seconds := self._failures.take(_address_of(request)):
            raise try_later(429, "too many wrong tokens: try again later", seconds=seconds)
        raise Refusal(401, "the token is unknown: check it", headers={"WWW-Authenticate": "Bearer"})


def _bucket(request: Request, caller: Caller | None) -> str:
    if caller is None or caller is EVERYONE:
        return _address_of(request)
    return f"token {caller.name}"


def _address_of(request: Request) -> str:
    return request.client.host if request.client else ""


def _is_ours(request: Request, origin: str) -> bool:
    return origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


COOKIE_SECONDS = 30 * 24 * 3600
"""How long a page stays logged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Someone who may see certain sessions."""

    name: str
    patterns: tuple[str, ...]
    """The ids of their sessions; `*` matches anything."""

    @property
    def account(self) -> str:
        """The owner of their turns, streams and requests, whatever they open."""
        return f"web:{self.name}"

    def sees(self, session_id: str) -> bool:
        """Whether they may see this session."""
        return any(fnmatchcase(session_id, pattern) for pattern in self.patterns)

    def owns(self, owner: str) -> bool:
        """Whether it was they who uploaded a file; earlier versions noted their prefix."""
        return bool(owner) and owner in {self.account, self.prefix}

    def may_use(self, owner: str, sessions: Iterable[str] | None) -> bool:
        """Whether they uploaded a file, or may see a session that refers to it."""
        return self.owns(owner) or any(map(self.sees, sessions or ()))

    @property
    def prefix(self) -> str:
        """The prefix of the ids of their new sessions."""
        own = f"web:{self.name}."
        return own if self.sees(own) else self.patterns[0].partition("*")[0]


EVERYONE = Caller(name="local", patterns=("*",))
"""The caller if no tokens are configured, which is allowed on loopback only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret, and its owner."""

    caller: Caller
    secret: str


class Callers:
    """Finds the caller by a token or a cookie; never says why one was wrong."""

    def __init__(self, tokens: Iterable[Token], *, now: Callable[[], float] = time.time) -> None:
        self._by_digest = [(_digest(token.secret), token) for token in tokens]
        self._now = now

    @property
    def are_named(self) -> bool:
        """Whether a login is required."""
        return bool(self._by_digest)

    def of_token(self, secret: str) -> Caller | None:
        """The owner of this token; takes just as long for a wrong one."""
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
        """The cookie for this token; it reveals nothing of the token, and is invalid without it."""
        token = self._token(secret)
        if token is None:
            return None
        until = str(int(self._now()) + COOKIE_SECONDS)
        return f"{token.caller.name}.{until}.{_signed(token, until)}"

    def of_cookie(self, cookie: str) -> Caller | None:
        """The owner of this cookie, while it is valid."""
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


CALLERS_KNOWN = 10_000
"""How many callers are remembered; the least recent is forgotten, with a full bucket next time."""


class RateLimit:
    """A bucket per caller, refilled at `per_minute`."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: BoundedDict[str, tuple[float, float]] = BoundedDict(CALLERS_KNOWN)

    def take(self, caller: str) -> float:
        """Take one; returns 0 if there was one, else the seconds until there is."""
        level = self._level(caller)
        self._buckets[caller] = (level - 1 if level >= 1 else level, self._clock())
        return 0 if level >= 1 else (1 - level) * 60 / self._per_minute

    def _level(self, caller: str) -> float:
        now = self._clock()
        level, at = self._buckets.get(caller, (float(self._per_minute), now))
        return min(self._per_minute, level + (now - at) * self._per_minute / 60)


KINDS = {
    400: "bad_request",
    401: "not_logged_in",
    403: "not_allowed",
    404: "not_found",
    405: "wrong_method",
    408: "too_slow",
    409: "not_now",
    413: "too_large",
    415: "wrong_type",
    421: "wrong_host",
    422: "malformed",
    429: "too_many_requests",
    503: "busy",
}


class Refusal(Exception):
    """Ends a request with this status; the text never contains a secret."""

    def __init__(
        self, status: int, sentence: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """The response, in the form that all errors share."""
        return error_response(self.status, str(self), headers=self.headers)


LATER_SECONDS = 5
"""When a client may retry if nothing better is known."""


def try_later(status: int, sentence: str, *, seconds: float) -> Refusal:
    """A refusal that says when to retry."""
    return Refusal(status, sentence, headers={"Retry-After": str(max(1, ceil(seconds)))})


def sentence_of(error: Exception, sentences: Sentences, *, path: str) -> str:
    """What a client is told about a failure; the operator finds the rest in the log."""
    incident = sentences.incidents.of(error, place=path)
    announce(RequestFailed(path=path, **incident.facts))
    return sentences.apology(error, incident.incident).text


def error_response(
    status: int, sentence: str, *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """What went wrong, as JSON."""
    error = {"message": sentence, "type": KINDS.get(status, "failed")}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


DIGITS = 18
"""More digits than any meaningful number has here."""


def number_in(text: str) -> int | None:
    """The number in a text of decimal digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None
