"""Who is let in: known, not sent by another site, and not too often."""

from __future__ import annotations

from typing import NoReturn

from starlette.requests import Request

from nanoloop.channels.web.callers import EVERYONE, Caller
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.refusal import Refusal, try_later

ASKED_BY_SCRIPT = "x-nanoloop"
"""A header that no form and no other site can send."""
_SAFE = {"GET", "HEAD"}


def admitted(
    request: Request, desk: Desk, *, is_public: bool = False, is_counted: bool = True
) -> Caller | None:
    """Who calls; raises a refusal for who may not, None only for what is public."""
    refuse_other_sites(request, desk)
    caller = _caller(request, desk)
    if caller is None and not is_public:
        raise Refusal(401, "log in, or send a token", headers={"WWW-Authenticate": "Bearer"})
    if is_counted and (seconds := desk.rates.take(_bucket(request, caller))):
        raise try_later(429, "too many requests: try again later", seconds=seconds)
    return caller


def _bucket(request: Request, caller: Caller | None) -> str:
    if caller is None or caller is EVERYONE:
        return address_of(request)
    return f"token {caller.name}"


def address_of(request: Request) -> str:
    """Where the request comes from."""
    return request.client.host if request.client else ""


def refuse_other_sites(request: Request, desk: Desk) -> None:
    """Raise a refusal for what the page of another site has sent."""
    origin = request.headers.get("origin")
    if origin is not None and origin not in desk.origins and not _is_ours(request, origin):
        raise Refusal(403, "pages of other sites may not call this one")
    is_asked_for = "authorization" in request.headers or ASKED_BY_SCRIPT in request.headers
    if request.method not in _SAFE and not is_asked_for:
        raise Refusal(403, "send the header X-Nanoloop: 1, or a token")


def _is_ours(request: Request, origin: str) -> bool:
    return origin.partition("://")[2].lower() == request.headers.get("host", "").lower()


def _caller(request: Request, desk: Desk) -> Caller | None:
    if not desk.callers.are_named:
        return EVERYONE
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme:
        caller = desk.callers.of_token(secret.strip()) if scheme.lower() == "bearer" else None
        return caller or refuse_token(request, desk)
    return desk.callers.of_cookie(request.cookies.get(desk.cookie, ""))


def refuse_token(request: Request, desk: Desk) -> NoReturn:
    """Raise what a wrong token gets: the more of them, the later the answer."""
    if seconds := desk.failures.take(address_of(request)):
        raise try_later(429, "too many wrong tokens: try again later", seconds=seconds)
    raise Refusal(401, "that token is not known here", headers={"WWW-Authenticate": "Bearer"})
