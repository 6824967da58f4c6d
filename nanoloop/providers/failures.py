"""Explains a failed call in one sentence with the next step and no secrets, without I/O."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from nanoloop.errors import (
    AnswerRefused,
    BadAnswer,
    BadImage,
    ContextTooLong,
    ImagesRefused,
    NoConnection,
    OverQuota,
    ProviderError,
    ServerFailed,
    UnknownModel,
    WrongKey,
)

TOO_LONG = re.compile(
    r"context_length|exceed_context|maximum context|context (size|length|window)|n_ctx"
    r"|maximum model length|(prompt|input) is too long|too many (input )?tokens"
    r"|reduce the length of the (messages|prompt)|exceed context limit|request_too_large",
    re.IGNORECASE,
)
NO_MODEL = re.compile(
    r"model_not_found|not_found_error model\b|\b(invalid|unknown|no such) model"
    r"|\bmodel\b.{0,200}(not found|not exist|no access|not have access|not a valid)",
    re.IGNORECASE | re.DOTALL,
)
NO_CREDIT = re.compile(
    r"insufficient_quota|insufficient (balance|credit|fund)|(more|no|out of) credits?"
    r"|credit balance",
    re.IGNORECASE,
)
FILTERED = re.compile(
    r"content_filter|content_policy|content management policy|flagged|moderation", re.IGNORECASE
)
_IMAGES = r"(images?\b(?!\W(data|dimension|exten|file|format|of|size|type|with))|image_\w+|vision"
_IMAGES += r"|multi-?modal)"
NO_IMAGES = re.compile(
    rf"(n't|not|never) (accept|allow|support|take)(ed|ing|s)? (\w+ )?{_IMAGES}"
    r"|(images|image[ _](content|input|url)s?|vision)['\"`]?( modality)?( (is|are))?"
    r" (not|only) (\w+ )?(accepted|allowed|available|enabled|supported)"
    r"|no (endpoint|model|provider)s?\b.{0,40}\bsupport.{0,20}\bimage"
    r"|not (a )?(multi-?modal|vision)|\bmmproj\b|data required for image input"
    r"|unknown variant .?image|unsupported (image (content|input)|content\S* ?(part )?type)"
    r"|\b(text[- ]only (input|model)|only ['\"`]?text['\"`]? (content|input|is|parts?))",
    re.IGNORECASE,
)
"""Matches a message saying that the model or its server does not accept images."""
ONLY_TEXT = re.compile(
    r"content\W{1,10}(value )?(must|should) be a (valid )?string|sequence, expected a string"
    r"|untagged enum \w*content|unexpected item type in content|should be 'text'"
    r"|cannot unmarshal array into .*content of type string",
    re.IGNORECASE,
)
"""Matches a message from a server that accepts only text in place of an image."""
MANY_IMAGES = re.compile(
    r"at most \d+ image|up to \d+ images|too many images|(count|number) of images", re.IGNORECASE
)
_MOST_IMAGES = re.compile(
    r"(at most|limit\w*|max\w*|than|up to|>)( (is|of|allowed))?\W{0,3}(\d{1,4})\b(?! ?[kmg]?b)",
    re.IGNORECASE,
)
_CANNOT = r"(can't|cannot|could not|couldn't|failed to|unable to|error while)"
_READ = r"(decod|download|fetch|identify|load|open|pars|process|read|retriev)\w*"
BAD_IMAGE = re.compile(
    rf"{_CANNOT} {_READ} (\w+ ){{0,3}}images?\b|fetching images? failed"
    r"|(broken|corrupt(ed)?|invalid|malformed|truncated|unsupported)[ _]((base64|input)[ _])?image"
    r"|image\w*\b.{0,60}?\b(corrupt|exceeds?|invalid|not (a )?valid|truncated|unknown format)"
    r"|image\w*\b.{0,60}?(too (big|large|many pixels|small)|does not match|not represent a valid)"
    r"|image\w*\b.{0,60}?\b(can't|cannot|could not|not) be (decoded|loaded|processed|read)"
    r"|images? (of )?(format|type)\b.{0,40}not supported|not support images? (of )?(format|type)"
    r"|image_(file_)?(parse_error|too_(large|small))|when reading image",
    re.IGNORECASE,
)
"""Matches a message saying that an image can't be read."""
LOOKED_AT = 500
"""How many characters of a server's message are searched for words about images.

Anything later may quote the request.
"""
KEY_LIKE = re.compile(r"\b(sk|key)[-_][\w*.\-]{6,}|(Bearer|Basic) \S+")
SHORT_TEXT = re.compile(r'"content":"([^"]{2,15})"')
QUOTED = re.compile(r"(['\"`])(.{2,}?)\1")
MOST_PARTS = 50_000
"""The most lists and objects that an answer or event may contain; real ones have a few."""
SHOWN = 200
"""How many characters of a server's own message an error shows."""
READ = 2000
"""How many characters of each part of a server's message are examined."""
RUN = 16
"""A text that shares this many consecutive characters with the request counts as quoting it."""
TRY_AGAIN = "try again in a moment"
OTHER_MODEL = "choose another model"

ADDRESS = "the address (base_url in the settings, or OPENAI_BASE_URL)"
"""The setting to check if the address leads to something other than the model's server."""
CHECK_PROXY = "check HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A call, with the facts that its errors may mention and those that they must not reveal."""

    where: str
    """The base URL, without secrets."""
    model: str
    has_key: bool
    secrets: tuple[str, ...]
    body: bytes
    """The body of the request, none of which may appear in an error."""
    key_name: str = "OPENAI_API_KEY"
    """The environment variable that should hold the key."""


class ServerSaid(Exception):
    """The server sent an error object instead of an answer."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        super().__init__()
        self.said = said


def answered(asked: Asked, data: bytes) -> Mapping[str, Any]:
    """Parse an answer or one of its events.

    Raise `BadAnswer` if it is malformed, or `ServerSaid` if it reports an error.
    """
    found = decoded(data)
    if not isinstance(found, dict):
        raise no_answer(asked, data)
    if found.get("error"):
        raise ServerSaid(found)
    return found


def decoded(data: bytes) -> Any:
    """Parse JSON; return None if it is invalid or too complex."""
    if has_too_many_parts(data):
        return None
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def has_too_many_parts(data: bytes) -> bool:
    """Return whether parsing this JSON would take too long and delay all chats."""
    return data.count(b"[") + data.count(b"{") > MOST_PARTS


def shown_url(url: str) -> str:
    """Return the URL without login, query and fragment."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}".rstrip("/")


def url_secrets(url: str) -> tuple[str, ...]:
    """Return the secrets in a URL, including the login in the form in which it is sent."""
    parts = urlsplit(url)
    login = unquote(parts.netloc.rpartition("@")[0])
    sent = b64encode(login.encode()).decode()
    values = re.findall(r"=([^&]+)", parts.query)
    return tuple(filter(None, (sent, parts.username, parts.password, *values)))


def refusal(
    asked: Asked, *, status: int | None, said: object, retry_after: str | None = None
) -> ProviderError:
    """Return the error for a message that the server sent in place of an answer."""
    words = server_words(said)
    if FILTERED.search(words):
        return AnswerRefused("a content filter stopped the answer: rephrase the message")
    if status in (401, 403) and not NO_MODEL.search(words):
        return _wrong_key(asked, status)
    if TOO_LONG.search(words) and status != 429:  # noqa: PLR2004 - a status
        return _too_long(asked)
    if status in (402, 429) or (status in (None, 400) and NO_CREDIT.search(words)):
        return _over_quota(asked, no_credit=out_of_credit(status, said), retry_after=retry_after)
    return _about_images(asked, said) or _by_status(asked, status, words)


def out_of_credit(status: int | None, said: object) -> bool:
    """Return whether the credit is used up, so that waiting won't help."""
    return status == 402 or NO_CREDIT.search(server_words(said)) is not None  # noqa: PLR2004


def is_of_images(said: object) -> bool:
    """Return whether images are refused permanently, so that a retry is pointless."""
    words = _words_of_images(said)
    return any(known.search(words) for known in (MANY_IMAGES, NO_IMAGES, BAD_IMAGE))


def _wrong_key(asked: Asked, status: int | None) -> WrongKey:
    if not asked.has_key:
        return WrongKey(f"{asked.where} requires a key: set {asked.key_name}")
    return WrongKey(
        f"{asked.where} refused the key ({status}): check {asked.key_name}, and that the key "
        "belongs to this server and may use this model"
    )


def _too_long(asked: Asked) -> ContextTooLong:
    return ContextTooLong(
        f"the conversation is longer than {asked.model!r} can read: lower message_buffer_limit, "
        "or choose a model with a larger context"
    )


def _about_images(asked: Asked, said: object) -> ImagesRefused | BadImage | None:
    """Return the error for a server's message about images, or None if it is not about them."""
    words = _words_of_images(said)
    if MANY_IMAGES.search(words):
        return _too_many_images(asked, words)
    is_text_wanted = b'"image' in asked.body and ONLY_TEXT.search(words)
    if is_text_wanted or NO_IMAGES.search(words):
        return ImagesRefused(
            f"{asked.model!r} does not accept images: remove them, or {OTHER_MODEL}"
        )
    if BAD_IMAGE.search(words):
        return BadImage(f"{asked.model!r} can't read an image: send it in another format")
    return None


def _words_of_images(said: object) -> str:
    """Return the start of the server's message, and of the one it forwards from another server."""
    inner = said.get("error", said) if isinstance(said, Mapping) else None
    behind = inner.get("metadata") if isinstance(inner, Mapping) else None
    raw = behind.get("raw", "") if isinstance(behind, Mapping) else ""
    return f"{server_words(said)[:LOOKED_AT]} {str(raw)[:LOOKED_AT]}"


def _too_many_images(asked: Asked, words: str) -> ImagesRefused:
    found = _MOST_IMAGES.search(words)
    most = int(found[4]) if found else None
    count = "so many" if most is None else f"more than {most}"
    return ImagesRefused(
        f"{asked.model!r} does not accept {count} images at a time: remove some, or {OTHER_MODEL}",
        most=most,
    )


def _over_quota(asked: Asked, *, no_credit: bool, retry_after: str | None) -> OverQuota:
    if no_credit:
        return OverQuota(f"no credit is left at {asked.where}: top it up, or use another key")
    when = "in a moment"
    if retry_after and re.fullmatch(r"\d{1,9}(\.\d+)?", retry_after):
        when = f"in {retry_after} seconds"
    return OverQuota(f"{asked.where} accepts no more requests for now (429): try again {when}")


def _unknown_model(asked: Asked) -> UnknownModel:
    return UnknownModel(
        f"{asked.where} has no model {asked.model!r}: choose another with --model or NANOLOOP_MODEL"
    )


def _by_status(asked: Asked, status: int | None, words: str) -> ProviderError:
    if NO_MODEL.search(words):
        return _unknown_model(asked)
    if status in (404, 405) or (status is not None and 300 <= status < 400):  # noqa: PLR2004
        return NoConnection(
            f"{asked.where} has no chat completions API ({status}): check {ADDRESS}, "
            "which often ends in /v1"
        )
    facts = ": ".join(filter(None, (str(status or ""), _fit_to_show(asked, words))))
    what = f" ({facts})" if facts else ""
    if status is None or status >= 500:  # noqa: PLR2004
        return ServerFailed(f"{asked.where} failed on its side{what}: {TRY_AGAIN}")
    return ProviderError(
        f"{asked.where} refused the request{what}: check the model and its options"
    )


def server_words(said: object) -> str:
    """Return the type, code and message of an error body, whatever its format."""
    if not isinstance(said, Mapping):
        return said[:READ] if isinstance(said, str) else ""
    inner: Any = said.get("error", said)
    if not isinstance(inner, Mapping):
        return str(inner)[:READ]
    named = (inner.get(key) for key in ("type", "code", "message", "detail"))
    return " ".join(str(value)[:READ] for value in named if value)


def _fit_to_show(asked: Asked, words: str) -> str:
    """Return the server's message without secrets; "" if it quotes the request."""
    words = " ".join(words.split())
    if "<" in words:
        return ""
    for secret in asked.secrets:
        words = words.replace(secret, "…")
    words = KEY_LIKE.sub("…", words)[:SHOWN]
    sent = " ".join(re.sub(r"\\[nrt]", " ", asked.body.decode("utf-8", "replace")).split())
    words = QUOTED.sub(lambda found: "…" if found[2] in sent else found[0], words)
    return "" if _repeats(sent, words) else words.rstrip(".")


def _repeats(sent: str, words: str) -> bool:
    """Return whether a message quotes part of the request or an entire short message in it."""
    runs = (words[at : at + RUN] for at in range(len(words) - RUN + 1))
    return any(run in sent for run in runs) or any(
        text in words for text in SHORT_TEXT.findall(sent)
    )


def no_connection(asked: Asked, cause: str) -> NoConnection:
    """Return the error for a server that could not be reached."""
    if "CERTIFICATE" in cause.upper():
        return NoConnection(
            f"the certificate of {asked.where} is not trusted: check the address, or set "
            "SSL_CERT_FILE to "
            "your CA's certificate"
        )
    return NoConnection(
        f"nothing answers at {asked.where}: check that the server runs, and {ADDRESS}"
    )


def through(proxy: str | None, failed: ProviderError) -> ProviderError:
    """Return the same error with a mention of the proxy that may be its cause."""
    if proxy is None:
        return failed
    return type(failed)(f"{failed}; it is called through the proxy {proxy}: {CHECK_PROXY}")


def turned_away(asked: Asked, proxy: str) -> NoConnection:
    """Return the error for a proxy that refuses to connect to the server."""
    return NoConnection(
        f"the proxy {proxy} can't connect to {asked.where}: {CHECK_PROXY}, including the proxy's "
        "user name and password"
    )


def redirected(asked: Asked, place: str | None) -> NoConnection:
    """Return the error for a server that redirects elsewhere, or in a loop if `place` is None."""
    if place is None:
        return NoConnection(f"{asked.where} redirects endlessly: check {ADDRESS}")
    return NoConnection(
        f"{asked.where} redirects to {shown_url(place)[:SHOWN]}: if that is the right server, "
        f"set {ADDRESS} to it"
    )


def broken_off(asked: Asked) -> NoConnection:
    """Return the error for a connection that was lost before the answer was complete."""
    return NoConnection(f"{asked.where} closed the connection before it answered: {TRY_AGAIN}")


def no_answer(asked: Asked, body: bytes) -> BadAnswer:
    """Return the error for a body that is not an answer."""
    if body.lstrip()[:1] == b"<":
        return BadAnswer(
            f"{asked.where} sent a web page instead of an answer: check {ADDRESS}, which often "
            "ends in /v1"
        )
    return BadAnswer(f"{asked.where} sent something that is not an answer: {TRY_AGAIN}")
