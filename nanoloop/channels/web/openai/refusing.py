"""What goes wrong, as clients of OpenAI's API understand it: status, type, code, a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from starlette.responses import JSONResponse

from nanoloop import errors
from nanoloop.channels.web.desk import Desk
from nanoloop.channels.web.refusal import Refusal, sentence_of, try_later
from nanoloop.errors import (
    AnswerRefused,
    BadImage,
    BusFull,
    ContextTooLong,
    ImagesRefused,
    InvalidSessionId,
    LaneFull,
    ModelResting,
    NanoloopError,
    NotPossible,
    OverQuota,
    ProviderError,
    ProviderTimeout,
    SessionError,
    SessionNotFound,
    StoreError,
)

LATER_SECONDS = 5
"""How soon a client may come again where nobody knows better."""
_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
_STATUSES: Sequence[tuple[type[Exception], int, str | None]] = (
    (ContextTooLong, 400, "context_length_exceeded"),
    (AnswerRefused, 400, "content_filter"),
    (BadImage, 400, "invalid_image"),
    (ImagesRefused, 400, "images_refused"),
    (OverQuota, 429, "rate_limit_exceeded"),
    (ProviderTimeout, 504, "timeout"),
    (ModelResting, 503, "model_resting"),
    (ProviderError, 502, "model_failed"),
    (SessionNotFound, 404, "session_not_found"),
    (InvalidSessionId, 400, "invalid_session"),
    (SessionError, 409, None),
    (BusFull, 503, None),
    (LaneFull, 429, "rate_limit_exceeded"),
    (StoreError, 503, None),
)
"""The first that fits counts."""
_LATER = {429, 503}


class Unfit(Refusal):
    """A request that is refused with a code for programs."""

    def __init__(
        self,
        status: int,
        sentence: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, sentence, headers=headers)
        self.code = code
        self.param = param


def unfit(param: str, sentence: str) -> Unfit:
    """What is refused because of one field."""
    return Unfit(400, f"{param}: {sentence}", param=param, code="invalid_value")


def error_form(refusal: Refusal) -> dict[str, Any]:
    """The refusal in OpenAI's form."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"  # noqa: PLR2004
    return {
        "error": {
            "message": str(refusal),
            "type": _TYPES.get(refusal.status, kind),
            "param": getattr(refusal, "param", None),
            "code": getattr(refusal, "code", None) or _CODES.get(refusal.status),
        }
    }


def error_response(refusal: Refusal) -> JSONResponse:
    """The refusal as a whole response."""
    return JSONResponse(error_form(refusal), refusal.status, headers=refusal.headers)


def refusal_of(error: Exception, desk: Desk, *, path: str) -> Refusal:
    """What a client is told of an error; what the operator is told of it goes to the log."""
    shop = desk.shop
    match error:
        case Refusal():
            return error
        case SessionNotFound():
            text = "there is no such session"
        case InvalidSessionId():
            text = "that is no session id: use a-z, A-Z, 0-9 and _ . : @ -"
        case NotPossible():
            text = str(error)
        case BusFull():
            text = shop.sentences.text("full")
        case _:
            text = sentence_of(error, shop.sentences, shop.announce, path=path)
    return refusal_of_kind(type(error), text)


def refusal_of_name(name: str, sentence: str) -> Refusal:
    """The same where only the error's name is known, and what the chat was told."""
    kind: Any = getattr(errors, name, None)
    is_ours = isinstance(kind, type) and issubclass(kind, NanoloopError)
    return refusal_of_kind(kind if is_ours else Exception, sentence)


def refusal_of_kind(kind: type[Exception], sentence: str) -> Refusal:
    """The refusal for errors of this kind."""
    for known, status, code in _STATUSES:
        if issubclass(kind, known):
            later = try_later(status, "", seconds=LATER_SECONDS).headers
            headers = later if status in _LATER else None
            return Unfit(status, sentence, code=code, headers=headers)
    return Unfit(500, sentence, code="failed")
