"""A request that is not served: its status, and a sentence that is fit to be shown."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from starlette.responses import JSONResponse

from nanoloop.events import Announce, RequestFailed
from nanoloop.sentences import Sentences, incident_of

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


def try_later(status: int, sentence: str, *, seconds: float) -> Refusal:
    """A refusal that says when to come again."""
    return Refusal(status, sentence, headers={"Retry-After": str(max(1, ceil(seconds)))})


def sentence_of(error: Exception, sentences: Sentences, announce: Announce, *, path: str) -> str:
    """What a client is told of a failure; what the operator is told of it goes to the log."""
    incident = incident_of(error)
    announce(RequestFailed(path=path, **incident.facts))
    return sentences.apology(error, incident.incident).text


def error_response(
    status: int, sentence: str, *, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """What went wrong, as JSON."""
    error = {"message": sentence, "type": KINDS.get(status, "failed")}
    return JSONResponse({"error": error}, status_code=status, headers=headers)
