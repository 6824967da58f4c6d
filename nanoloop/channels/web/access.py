"""Who is let in: by a token or its cookie, from no other site, not too often; and refusals."""

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
"""Wrong tokens from one address that are answered at once."""


class WebAccess:
    """Decides who is let in: known, not sent by another site, and not too often."""

    def __init__(
        self,
        callers: Callers,
        *,
        cookie: str,
        origins: Collection[str],
        requests_per_minute: int,
    ) -> None:
        """`cookie` is what this server's is called, `origins` other sites whose pages may call."""
        self.callers = callers
        self.cookie = cookie
        self.origins = frozenset(origins)
        self._rates = RateLimit(requests_per_minute)
        self._failures = RateLimit(FAILURES_A_MINUTE)

    def admit(
        self, request: Request, *, is_public: bool = False, is_counted: bool = True
    ) -> Caller | None:
        """Who calls; raises a refusal for who may not, None only for what is public."""
        self._refuse_other_sites(request)
        caller = self._caller(request)
        if caller is None and not is_public:
            raise Refusal(401, "log in, or send a token", headers={"WWW-Authenticate": "Bearer"})
        if is_counted and (seconds := self._rates.take(_bucket(request, caller))):
            raise try_later(429, "too many requests: try again later", seconds=seconds)
        return caller

    def owner_of(self, request: Request) -> str:
        """Whose share of all requests this one is: its caller's, else its address's."""
        return _bucket(request, self._known(request))

    def _refuse_other_sites(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins and not _is_ours(request, origin):
            raise Refusal(403, "pages of other sites may not call this one")
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
        """Raise what a wrong token gets: the more of them, the later the answer."""
        if seconds := self._failures.take(_address_of(request)):
            raise try_later(429, "too many wrong tokens: try again later", seconds=seconds)
        raise Refusal(401, "that token is not known here", headers={"WWW-Authenticate": "Bearer"})


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
    """Someone who may see some sessions and no others."""

    name: str
    patterns: tuple[str, ...]
    """Which session ids are theirs; `*` stands for anything."""

    @property
    def account(self) -> str:
        """Whose turns, streams and requests theirs are, whatever they open."""
        return f"web:{self.name}"

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


CALLERS_KNOWN = 10_000
"""Callers that are remembered; who was quiet longest is forgotten, and has a full bucket again."""


class RateLimit:
    """A bucket for each caller that fills up by `per_minute`."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: BoundedDict[str, tuple[float, float]] = BoundedDict(CALLERS_KNOWN)

    def take(self, caller: str) -> float:
        """Take one; 0 where there was one, else the seconds until there is."""
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
    """Ends a request with this status; the text never names a secret."""

    def __init__(
        self, status: int, sentence: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})

    def response(self) -> JSONResponse:
        """The answer in the form that all errors have."""
        return error_response(self.status, str(self), headers=self.headers)


LATER_SECONDS = 5
"""How soon a client may come again where nobody knows better."""


def try_later(status: int, sentence: str, *, seconds: float) -> Refusal:
    """A refusal that says when to come again."""
    return Refusal(status, sentence, headers={"Retry-After": str(max(1, ceil(seconds)))})


def sentence_of(error: Exception, sentences: Sentences, *, path: str) -> str:
    """What a client is told of a failure; what the operator is told of it goes to the log."""
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
"""More than any number that means something here."""


def number_in(text: str) -> int | None:
    """The number that a text is in decimal digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None
