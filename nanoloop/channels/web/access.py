"""Access control: by a token or a page's login, from no other site, within limits; and refusals."""

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
"""A header that no form and no other site can send."""
_SAFE_METHODS = {"GET", "HEAD"}
COMMANDS, METRICS = "commands", "metrics"
"""What a token may use only if it is allowed to."""


class WebAccess:
    """Decides who has access: known, not sent by another site, and not too often."""

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
        """`cookie` is the name of this server's cookie; pages of `origins` may call too."""
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
        """The caller; raises a refusal if access is denied, None only for what is public."""
        self._refuse_other_sites(request)
        caller = await self._caller(request)
        if caller is None and not is_public:
            says = f"log in, or send a token{self.callers.where}"
            raise Refusal(401, says, headers={"WWW-Authenticate": "Bearer"})
        if is_counted and (seconds := self._rates.take(self._bucket(request, caller))):
            raise try_later(429, "too many requests: try again later", seconds=seconds)
        return caller

    def owner_of(self, request: Request) -> str:
        """Whose share of the requests this one uses: its caller's, else its address's."""
        if self.callers.is_open:
            return self._address_of(request)
        secret = _token_in(request)
        known = self._of_cookie(request) if secret is None else self.callers.of_token(secret)
        return self._bucket(request, known)

    def is_page_of(self, request: Request) -> bool:
        """Whether a person sent it with the page, and not a program with a token."""
        return _token_in(request) is None

    def login_of(self, request: Request) -> str:
        """The cookie by which it was admitted, "" if that was something else."""
        if self.callers.is_open or _token_in(request) is not None:
            return ""
        return request.cookies.get(self.cookie, "")

    def log_in(self, request: Request, secret: str) -> Caller | None:
        """The owner of this token; raises a refusal if there are too many logins or guesses."""
        address = self._address_of(request)
        if seconds := self._login_rates.take(address):
            raise try_later(429, "too many logins from here: try again later", seconds=seconds)
        if self.callers.is_open:
            return None
        return self._guesses.owner_of(secret, address, kind="login")

    async def is_valid(self, request: Request) -> bool:
        """Whether what it was admitted by still holds: a login may have ended since."""
        if self.callers.is_open or _token_in(request) is not None:
            return True
        return await self._logged_in(request) is not None

    def _refuse_other_sites(self, request: Request) -> None:
        origin = request.headers.get("origin")
        if origin is not None and origin not in self.origins and not _is_ours(request, origin):
            raise Refusal(403, "pages of other sites may not call this API")
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
        # First what costs nothing: the store is asked only about a cookie that was made here.
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
    """The token that the request carries, "" for something that can be none; None without any."""
    said = request.headers.get("authorization", "")
    scheme, _, secret = said.partition(" ")
    if not scheme:
        return None
    return secret.strip() if scheme.lower() == "bearer" else ""


def _is_ours(request: Request, origin: str) -> bool:
    return origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


FORWARDED, FORWARDED_FOR = "forwarded", "x-forwarded-for"


class TrustedProxies:
    """Finds the address of a client behind proxies; nobody else can choose theirs."""

    def __init__(self, networks: Iterable[str] = ()) -> None:
        """Only what these addresses and networks forward is believed."""
        self._networks = [ip_network(network, strict=False) for network in networks]

    def client_of(self, peer: str, headers: Headers) -> str:
        """The client's address: the last one that none of these proxies has.

        A proxy sets one of the two headers; if a client adds the other, the proxy's address counts.
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
            if address is None:  # what is behind it may be made up
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
    """The `for` of each hop; empty text for a hop that has none."""
    hops = [hop for said in headers.getlist(FORWARDED) for hop in said.split(",")]
    pairs = [[pair.partition("=") for pair in hop.split(";")] for hop in hops]
    return [
        next((v.strip() for n, _, v in pair if n.strip().lower() == "for"), "") for pair in pairs
    ]


def _address_in(hop: str) -> str | None:
    """The address in `192.0.2.1:80`, `"[2001:db8::1]:80"` and the like; None if it has none."""
    hop = hop.strip().strip('"')
    bracketed = re.fullmatch(r"\[([^\]]*)\](?::\d+)?", hop)
    with_port = re.fullmatch(r"([\d.]+):\d+", hop)
    found = known_address(bracketed[1] if bracketed else with_port[1] if with_port else hop)
    return None if found is None else str(found)


FAILURES_A_MINUTE = 20
"""How many wrong tokens a minute from one address are checked; then none is, right or wrong."""
LOGINS_A_MINUTE = 60
"""How many logins a minute from one address are taken."""


class Guesses:
    """Finds the owners of tokens, and makes guessing slow.

    After too many wrong ones from an address, none is checked: else the right one would be found
    as fast as anyone can send. A token that came from there before is no guess, and passes.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._wrong = RateLimit(FAILURES_A_MINUTE)
        self._right: BoundedDict[tuple[str, Caller], None] = BoundedDict(CALLERS_KNOWN)

    def owner_of(self, secret: str, address: str, *, kind: str) -> Caller:
        """The owner of this token; raises a refusal. Each kind of use is counted for itself."""
        caller, bucket = self._callers.of_token(secret), f"{kind} {address}"
        if caller is not None and (address, caller) in self._right:
            self._right[address, caller] = None  # the newest again
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
    """Someone who may see certain sessions."""

    name: str
    patterns: tuple[str, ...]
    """The ids of their sessions; `*` matches anything."""
    agents: tuple[str, ...] | None = None
    """The agents they may use; None means the default one, for an operator all of them."""
    rights: frozenset[str] = frozenset()
    """What else they may use: commands through the API, metrics."""

    @property
    def account(self) -> str:
        """The owner of their turns, streams and requests, whatever they open."""
        return f"web:{self.name}"

    @property
    def is_operator(self) -> bool:
        """Whether they see everything."""
        return "*" in self.patterns

    def sees(self, session_id: str) -> bool:
        """Whether they may see this session."""
        if session_id == LOGINS:
            return False
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
"""Anyone on this machine if `open_on_loopback` lets them in, and the owner of its own token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A secret, and its owner."""

    caller: Caller
    secret: str


class Callers:
    """Finds the caller by a token or a cookie; never says why one was wrong."""

    def __init__(
        self,
        tokens: Iterable[Token],
        *,
        is_open: bool = False,
        now: Callable[[], float] = time.time,
    ) -> None:
        """With `is_open` everyone may call, and nobody needs a token."""
        self._by_digest = [(_digest(token.secret), token) for token in tokens]
        self.is_open = is_open
        self.where = ""
        """Where the caller finds a token, for the end of a sentence."""
        self._now = now

    def add(self, token: Token, *, where: str) -> None:
        """Know one more token, which is kept there."""
        self._by_digest.append((_digest(token.secret), token))
        self.where = f": {where}"

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
        """A new cookie for this token; it reveals nothing of it, and is invalid without it."""
        token = self._token(secret)
        if token is None:
            return None
        until, salt = str(int(self._now()) + COOKIE_SECONDS), token_hex(SALT_BYTES)
        return f"{token.caller.name}.{until}.{salt}{_signed(token, until, salt)}"

    def of_cookie(self, cookie: str) -> Caller | None:
        """The owner of this cookie, while its token and its time last; its login may have ended."""
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
"""How much of a cookie is random, so that each login has another one."""


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _signed(token: Token, until: str, salt: str) -> str:
    said = f"nanoloop cookie {token.caller.name} {until} {salt}".encode()
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
        return self._seconds(level)

    def wait(self, caller: str) -> float:
        """Like `take`, but takes nothing."""
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
