"""Access control for the web channel: tokens, logins, other sites, rate limits, and refusals."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import ip_network
from math import ceil
from secrets import token_hex

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse

from nanoloop.addresses import known_address, network_of
from nanoloop.bounded import BoundedDict
from nanoloop.channels.logins import Logins
from nanoloop.events import RequestFailed, announce
from nanoloop.protocols import LOGINS
from nanoloop.sentences import Sentences

ASKED_BY_SCRIPT = "x-nanoloop"
"""A header that neither a form nor another site can send."""
_SAFE_METHODS = {"GET", "HEAD"}
COMMANDS, METRICS = "commands", "metrics"
"""Rights that a token has only if its settings grant them."""


class WebAccess:
    """Admits requests whose caller and site are allowed, up to the rate limit."""

    def __init__(
        self,
        callers: Callers,
        *,
        logins: Logins,
        cookie: str,
        origins: Collection[str],
        requests_per_minute: int,
        proxies: TrustedProxies,
    ) -> None:
        """Create it; `cookie` names this server's cookie; pages from `origins` may call the API."""
        self.callers = callers
        self.logins = logins
        self.cookie = cookie
        self.origins = frozenset(origins)
        self._rates = RateLimit(requests_per_minute)
        self._login_rates = RateLimit(LOGINS_A_MINUTE)
        self._guesses = Guesses(callers)
        self._proxies = proxies

    async def admit(
        self, request: Request, *, is_public: bool = False, is_counted: bool = True
    ) -> Caller | None:
        """Return the caller, or None for public operations; raises `Refusal` if not allowed."""
        self._refuse_other_sites(request)
        caller = await self._caller(request)
        if caller is None and not is_public:
            says = f"log in, or send a token{self.callers.where}"
            raise Refusal(401, says, headers={"WWW-Authenticate": "Bearer"})
        if is_counted and (seconds := self._rates.take(self._bucket(request, caller))):
            raise try_later(429, "too many requests: try again later", seconds=seconds)
        return caller

    def owner_of(self, request: Request) -> str:
        """Return the caller or address whose share of the capacity the request uses."""
        if self.callers.is_open:
            return self._address_of(request)
        secret = _token_in(request)
        known = self._of_cookie(request) if secret is None else self.callers.of_token(secret)
        return self._bucket(request, known)

    def is_page_of(self, request: Request) -> bool:
        """Return whether a request comes from a page rather than a program with a token."""
        return _token_in(request) is None

    def login_of(self, request: Request) -> str:
        """Return the cookie that admitted a request, or an empty string if it had none."""
        if self.callers.is_open or _token_in(request) is not None:
            return ""
        return request.cookies.get(self.cookie, "")

    def log_in(self, request: Request, secret: str) -> Caller | None:
        """Return the owner of this token; raises `Refusal` after too many logins or guesses."""
        address = self._address_of(request)
        if seconds := self._login_rates.take(address):
            raise try_later(429, "too many logins from here: try again later", seconds=seconds)
        if self.callers.is_open:
            return None
        return self._guesses.owner_of(secret, address, kind="login")

    async def valid_of(self, cookies: Collection[str]) -> set[str]:
        """Return the cookies that are still valid, without those whose logins have ended."""
        known = {cookie for cookie in cookies if self.callers.of_cookie(cookie) is not None}
        return await self.logins.open_of(known)

    def _refuse_other_sites(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins and not _is_ours(request, origin):
            raise Refusal(403, "pages on other sites may not call this API")
        is_asked_for = "authorization" in request.headers or ASKED_BY_SCRIPT in request.headers
        if request.method not in _SAFE_METHODS and not is_asked_for:
            raise Refusal(403, "send the header X-Nanoloop: 1, or a token")

    async def _caller(self, request: Request) -> Caller | None:
        if self.callers.is_open:
            return EVERYONE
        secret = _token_in(request)
        if secret is None:
            return await self._logged_in(request)
        return self._guesses.owner_of(secret, self._address_of(request), kind="token")

    async def _logged_in(self, request: Request) -> Caller | None:
        # Check the signature first, so that the store is asked only about genuine cookies.
        caller = self._of_cookie(request)
        if caller is None or not await self.logins.is_open(request.cookies[self.cookie]):
            return None
        return caller

    def _of_cookie(self, request: Request) -> Caller | None:
        return self.callers.of_cookie(request.cookies.get(self.cookie, ""))

    def _bucket(self, request: Request, caller: Caller | None) -> str:
        if caller is None or caller is EVERYONE:
            return self._address_of(request)
        return f"token {caller.name}"

    def _address_of(self, request: Request) -> str:
        peer = request.client.host if request.client else ""
        return network_of(self._proxies.client_of(peer, request.headers))


def _token_in(request: Request) -> str | None:
    """Return the request's token, "" if the header is malformed, or None without a header."""
    said = request.headers.get("authorization", "")
    scheme, _, secret = said.partition(" ")
    if not scheme:
        return None
    return secret.strip() if scheme.lower() == "bearer" else ""


def _is_ours(request: Request, origin: str) -> bool:
    return origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


FORWARDED, FORWARDED_FOR = "forwarded", "x-forwarded-for"


class TrustedProxies:
    """Finds the address of a client behind trusted proxies; others can't forge an address."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Only headers set by these addresses and networks are trusted."""
        self._networks = [ip_network(network, strict=False) for network in networks]

    def client_of(self, peer: str, headers: Headers) -> str:
        """Return the client's address: the last one that does not belong to a trusted proxy.

        A proxy sets one of the two headers; if the client adds the other, the proxy's address is
        used.
        """
        if not self._is_trusted(peer):
            return peer
        said = (_forwarded_for(headers), _forwarded(headers))
        found = {self._client_in(hops, peer) for hops in said if hops}
        return found.pop() if len(found) == 1 else peer

    def _client_in(self, hops: Sequence[str], peer: str) -> str:
        client = peer
        for hop in reversed(hops):
            address = _address_in(hop)
            if address is None:  # the addresses before this one may be forged
                return client
            client = address
            if not self._is_trusted(client):
                return client
        return client

    def _is_trusted(self, address: str) -> bool:
        known = known_address(address)
        return known is not None and any(known in network for network in self._networks)


def _forwarded_for(headers: Headers) -> list[str]:
    return [hop.strip() for said in headers.getlist(FORWARDED_FOR) for hop in said.split(",")]


def _forwarded(headers: Headers) -> list[str]:
    """Return the `for` value of each hop, or an empty string for a hop without one."""
    hops = [hop for said in headers.getlist(FORWARDED) for hop in said.split(",")]
    pairs = [[pair.partition("=") for pair in hop.split(";")] for hop in hops]
    return [
        next((v.strip() for n, _, v in pair if n.strip().lower() == "for"), "") for pair in pairs
    ]


def _address_in(hop: str) -> str | None:
    """Return the address in `192.0.2.1:80`, `"[2001:db8::1]:80"` or similar; None if invalid."""
    hop = hop.strip().strip('"')
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::\d+)?", hop)
    with_port = re.fullmatch(r"([\d.]+):\d+", hop)
    found = known_address(bracketed[1] if bracketed else with_port[1] if with_port else hop)
    return None if found is None else str(found)


FAILURES_A_MINUTE = 20
"""How many wrong tokens per minute and address are checked before all are refused."""
LOGINS_A_MINUTE = 60
"""How many logins per minute and address are accepted."""


class Guesses:
    """Finds the owners of tokens, and slows down guessing.

    After too many wrong tokens from an address, no more are checked, because guessing would
    otherwise be as fast as sending. A token accepted from that address before still passes.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._wrong = RateLimit(FAILURES_A_MINUTE)
        self._right: BoundedDict[tuple[str, Caller], None] = BoundedDict(CALLERS_KNOWN)

    def owner_of(self, secret: str, address: str, *, kind: str) -> Caller:
        """Return this token's owner, or raise `Refusal`; each kind of use is counted separately."""
        caller, bucket = self._callers.of_token(secret), f"{kind} {address}"
        if caller is not None and (address, caller) in self._right:
            self._right[address, caller] = None  # now the most recently used
            return caller
        if seconds := self._wrong.wait(bucket):
            raise try_later(429, "too many wrong tokens: try again later", seconds=seconds)
        if caller is None:
            self._wrong.take(bucket)
            wrong = f"the token is unknown{self._callers.where or ': check it'}"
            raise Refusal(401, wrong, headers={"WWW-Authenticate": "Bearer"})
        self._right[address, caller] = None
        return caller


COOKIE_SECONDS = 30 * 24 * 3600
"""How long a page stays logged in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The owner of a token, who may see certain sessions."""

    name: str
    patterns: tuple[str, ...]
    """The ids of the caller's sessions; `*` matches anything."""
    agents: tuple[str, ...] | None = None
    """The agents the caller may use; None means the default one, or all for an operator."""
    rights: frozenset[str] = frozenset()
    """Additional rights: to send commands through the API, or to read the metrics."""

    @property
    def account(self) -> str:
        """The account that the caller's turns, streams and requests count against."""
        return f"web:{self.name}"

    @property
    def is_operator(self) -> bool:
        """Whether the caller may see all sessions."""
        return "*" in self.patterns

    def sees(self, session_id: str) -> bool:
        """Return whether the caller may see this session."""
        if session_id == LOGINS:
            return False
        return any(fnmatchcase(session_id, pattern) for pattern in self.patterns)

    def owns(self, owner: str) -> bool:
        """Return whether the caller uploaded a file; earlier versions stored a prefix as owner."""
        return bool(owner) and owner in {self.account, self.prefix}

    def may_use(self, owner: str, sessions: Iterable[str] | None) -> bool:
        """Return whether the caller uploaded a file or may see a session that refers to it."""
        return self.owns(owner) or any(map(self.sees, sessions or ()))

    @property
    def prefix(self) -> str:
        """The prefix for the ids of new sessions that the caller creates."""
        own = f"web:{self.name}."
        return own if self.sees(own) else self.patterns[0].partition("*")[0]


EVERYONE = Caller(name="local", patterns=("*",))
"""The owner of the generated token, and with `open_on_loopback` anyone on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret and its owner."""

    caller: Caller
    secret: str


class Callers:
    """Finds a caller by token or cookie, without revealing why one is invalid."""

    def __init__(
        self,
        tokens: Iterable[Token],
        *,
        is_open: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create the object; with `is_open`, everyone may call without a token."""
        self._by_digest = [(_digest(token.secret), token) for token in tokens]
        self.is_open = is_open
        self.where = ""
        """The place to find a token, appended to error messages."""
        self._now = now

    def add(self, token: Token, *, where: str) -> None:
        """Add a token; `where` says where to find it."""
        self._by_digest.append((_digest(token.secret), token))
        self.where = f": {where}"

    def of_token(self, secret: str) -> Caller | None:
        """Return the owner of this token; a wrong token takes just as long to check."""
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
        """Return a new signed cookie for this token, or None if the token is unknown."""
        token = self._token(secret)
        if token is None:
            return None
        until, salt = str(int(self._now()) + COOKIE_SECONDS), token_hex(SALT_BYTES)
        return f"{token.caller.name}.{until}.{salt}{_signed(token, until, salt)}"

    def of_cookie(self, cookie: str) -> Caller | None:
        """Return the owner of a genuine, current cookie; its login may have ended."""
        name, _, rest = cookie.partition(".")
        until, _, signature = rest.partition(".")
        if (number_in(until) or 0) < self._now():
            return None
        salt, signature = signature[: 2 * SALT_BYTES], signature[2 * SALT_BYTES :]
        for _, token in self._by_digest:
            expected = _signed(token, until, salt).encode()
            if token.caller.name == name and hmac.compare_digest(expected, signature.encode()):
                return token.caller
        return None


SALT_BYTES = 16
"""How many random bytes a cookie contains, so that each login has a different one."""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _signed(token: Token, until: str, salt: str) -> str:
    said = f"nanoloop cookie {token.caller.name} {until} {salt}".encode()
    return hmac.new(_digest(token.secret), said, hashlib.sha256).hexdigest()


CALLERS_KNOWN = 10_000
"""How many callers are remembered; the least recently seen one is forgotten first."""


class RateLimit:
    """Limits each caller to `per_minute` requests, with a token bucket."""

    def __init__(self, per_minute: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_minute = per_minute
        self._clock = clock
        self._buckets: BoundedDict[str, tuple[float, float]] = BoundedDict(CALLERS_KNOWN)

    def take(self, caller: str) -> float:
        """Take one slot; return 0 if successful, else the seconds until one is free."""
        level = self._level(caller)
        self._buckets[caller] = (level - 1 if level >= 1 else level, self._clock())
        return self._seconds(level)

    def wait(self, caller: str) -> float:
        """Return the seconds until a slot is free, without taking one."""
        return self._seconds(self._level(caller))

    def _seconds(self, level: float) -> float:
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
        """Return the response in the format that all errors share."""
        return error_response(self.status, str(self), headers=self.headers)


LATER_SECONDS = 5
"""When a client may retry if no better estimate is known."""


def try_later(status: int, sentence: str, *, seconds: float) -> Refusal:
    """Return a refusal that says when to retry."""
    return Refusal(status, sentence, headers={"Retry-After": str(max(1, ceil(seconds)))})


def sentence_of(error: Exception, sentences: Sentences, *, path: str) -> str:
    """Log a failure and return the text for the client, with an incident id but no details."""
    incident = sentences.incidents.of(error, place=path)
    announce(RequestFailed(path=path, **incident.facts))
    return sentences.apology(error, incident.incident).text


def error_response(
    status: int, sentence: str, *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return an error as a JSON response."""
    error = {"message": sentence, "type": KINDS.get(status, "failed")}
    return JSONResponse({"error": error}, status_code=status, headers=headers)


DIGITS = 18
"""More digits than any valid number in a request has."""


def number_in(text: str) -> int | None:
    """Return this text as a number, or None if it is not a decimal number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS else None
