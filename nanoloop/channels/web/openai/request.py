"""Parses requests in OpenAI's format, and turns errors into its format."""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from nanoloop import errors
from nanoloop.addresses import check_address
from nanoloop.attachments import mime_type_of
from nanoloop.channels.web.access import LATER_SECONDS, Refusal, sentence_of, try_later
from nanoloop.channels.web.api import (
    Backend,
    Operation,
    problem_of,
    quoted,
    read_body,
)
from nanoloop.errors import (
    AddressRefused,
    AnswerRefused,
    AttachmentsFull,
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
    PictureRefused,
    ProviderError,
    ProviderTimeout,
    SessionError,
    SessionNotFound,
    StoreError,
)
from nanoloop.messages import Attachment
from nanoloop.protocols import ToolSpec
from nanoloop.session.entry import SCHEME

JSON_BYTES = 1_000_000
"""The maximum size of a body without its images."""
NESTED = 50_000
"""How many lists and objects a body may contain."""


class ClientOperation(Operation):
    """Accepts bodies up to the upload size limit if they consist mostly of images."""

    async def given(self, request: Request, backend: Backend) -> BaseModel:
        """Read the body of a request; raise `Refusal` if it can't be accepted."""
        limits = backend.limits
        data = await read_body(request, limits.upload_bytes, limits.body_seconds)
        return await backend.work(partial(self._parsed, data), size=len(data))

    def _parsed(self, data: bytes) -> BaseModel:
        assert self.body is not None  # noqa: S101 - every operation with parameters has a body
        # Checked first, because parsing in a thread blocks all other threads.
        if _bytes_beside_images(data) > JSON_BYTES:
            raise ClientRefusal(
                413, f"the request has more than {JSON_BYTES} bytes apart from its images"
            )
        if data.count(b"[") + data.count(b"{") > NESTED:
            raise ClientRefusal(413, f"there are more than {NESTED} lists and objects: send fewer")
        try:
            return self.body.model_validate_json(data)
        except ValidationError as error:
            where, sentence = problem_of(error, self.body)
        raise ClientRefusal(400, sentence, param=where or None, code="invalid_value")

    def refused(self, error: Exception, request: Request, backend: Backend) -> Response:  # noqa: ARG002 - as in `Operation`
        """Return the response to any error, in OpenAI's format."""
        return client_error_response(refusal_of(error, backend, path=self.path))


_IMAGE = b'"data:image/'
_LEAST_IMAGE = 1000
"""Smaller images count as text, so that their number is limited."""


def _bytes_beside_images(data: bytes) -> int:
    """Return the size of a body without its images; an image ends before the next quote."""
    images, end = 0, 0
    while end >= 0 and (start := data.find(_IMAGE, end)) >= 0:
        end = data.find(b'"', start + len(_IMAGE))
        images += end - start if end - start > _LEAST_IMAGE else 0
    return len(data) - images


PASSED = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "parallel_tool_calls",
        "presence_penalty",
        "reasoning_effort",
        "response_format",
        "seed",
        "stop",
        "temperature",
        "top_p",
        "verbosity",
    }
)
"""Options passed to the model with a whole conversation, if the provider takes options.

Otherwise, and always in a session, they are ignored, and a response header names them.
"""
REFUSED: Mapping[str, str] = {
    "audio": "only text answers are supported",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "logprobs": "not supported",
    "top_logprobs": "not supported",
    "web_search_options": "not supported: give the agent a tool",
}
"""Options that are refused because clients rely on them. All others are ignored."""


TOOLS = 512
"""How many tools a client may send."""


class ChatRequest(BaseModel):
    """A conversation to continue, in OpenAI's format."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    model: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of an agent."""
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    user: Annotated[str, Field(max_length=500)] | None = None
    """The name of a session; the X-Nanoloop-Session header takes precedence."""
    n: int | None = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=TOOLS)] | None = None
    """The client's tools; the agent's own tools are always available."""
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether to report the usage at the end of a stream."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def wants_form(self) -> bool:
        """Whether the answer must be in a format other than text."""
        return bool((self.response_format or {}).get("type", "text") != "text")

    def options(self) -> dict[str, Any]:
        """Return the options to pass to the model."""
        given = {"response_format": self.response_format, **(self.model_extra or {})}
        return {
            name: given[name] for name in sorted(PASSED & set(given)) if given[name] is not None
        }

    def check(self) -> None:
        """Raise `Refusal` if the request asks for anything unsupported."""
        if self.n not in {None, 1}:
            raise invalid_field("n", f"must be 1, not {self.n}")
        extra = self.model_extra or {}
        if extra.get("modalities") not in (None, ["text"]):
            raise invalid_field("modalities", "only text answers are supported")
        for name, sentence in REFUSED.items():
            if extra.get(name):
                raise invalid_field(name, sentence)


Message = dict[str, Any]
IMAGE_PREFIXES = ("data:image/", "https://")
"""The prefixes that an image URL may have; URLs with internal addresses are always rejected."""
SYSTEM = {"system", "developer"}


def checked_messages(given: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return the messages' known fields; raise `Refusal` if a message is invalid."""
    return [_checked_message(message, f"messages[{index}]") for index, message in enumerate(given)]


def _checked_message(message: Mapping[str, Any], where: str) -> Message:
    role = message.get("role")
    take = _ROLES.get(role) if isinstance(role, str) else None
    if take is None:
        raise invalid_field(
            f"{where}.role", f"one of {', '.join(sorted(_ROLES))}, not {quoted(role)}"
        )
    taken = take(message, where)
    name = message.get("name")
    return {**taken, "name": name} if isinstance(name, str) and role != "tool" else taken


def _system(message: Mapping[str, Any], where: str) -> Message:
    return {"role": "system", "content": _text(message.get("content"), where)}


def _user(message: Mapping[str, Any], where: str) -> Message:
    return {"role": "user", "content": _content(message.get("content"), where)}


def _assistant(message: Mapping[str, Any], where: str) -> Message:
    content = message.get("content") or message.get("refusal")
    said: Message = {"role": "assistant", "content": _text(content, where) if content else None}
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise invalid_field(f"{where}.tool_calls", "must be a list of calls")
    if calls:
        said["tool_calls"] = [_checked_call(call, f"{where}.tool_calls") for call in calls]
    return said if calls or content else {**said, "content": ""}


def _checked_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        raise invalid_field(where, "must be function calls")
    known = {"name": function.get("name"), "arguments": function.get("arguments") or "{}"}
    if not all(isinstance(value, str) for value in (*known.values(), call.get("id"))):
        raise invalid_field(where, "each must have an id, a name and arguments, as strings")
    return {"id": call["id"], "type": "function", "function": known}


def _tool(message: Mapping[str, Any], where: str) -> Message:
    call_id = message.get("tool_call_id")
    if not isinstance(call_id, str):
        raise invalid_field(
            f"{where}.tool_call_id", "must be the id of the call that this result belongs to"
        )
    content = _text(message.get("content"), where)
    return {"role": "tool", "tool_call_id": call_id, "content": content}


_ROLES: Mapping[str, Callable[[Mapping[str, Any], str], Message]] = {
    "assistant": _assistant,
    "developer": _system,
    "system": _system,
    "tool": _tool,
    "user": _user,
}


def _content(content: Any, where: str) -> Any:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid_field(f"{where}.content", "must be a string or a list of parts")
    return [_part(part, f"{where}.content[{index}]") for index, part in enumerate(content)]


def _text(content: Any, where: str) -> str:
    parts = _content(content, where)
    if isinstance(parts, str):
        return parts
    if any(part["type"] != "text" for part in parts):
        raise invalid_field(f"{where}.content", "only text is allowed here")
    return "\n".join(part["text"] for part in parts)


def _part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in {"text", "refusal"} and isinstance(part.get(kind), str):
        return {"type": "text", "text": part[kind]}
    if kind == "image_url":
        return {"type": "image_url", "image_url": _image(part.get("image_url"), where)}
    raise invalid_field(where, "a part must be text or an image_url")


def _image(image: Any, where: str) -> dict[str, str]:
    known = {"url": image} if isinstance(image, str) else image
    url = known.get("url") if isinstance(known, Mapping) else None
    if not isinstance(url, str) or not url.startswith(IMAGE_PREFIXES):
        raise invalid_field(
            f"{where}.image_url", "must be a URL that begins with https: or data:image/"
        )
    if not url.startswith("data:"):
        try:
            check_address(url)
        except AddressRefused as refused:
            raise invalid_field(f"{where}.image_url", str(refused)) from None
    detail = known.get("detail")
    return {"url": url, "detail": detail} if isinstance(detail, str) else {"url": url}


async def check_images(backend: Backend, messages: Sequence[Message]) -> None:
    """Raise `Refusal` if the host name of an image resolves to a private address."""
    contents = (said["content"] for said in messages if isinstance(said.get("content"), list))
    parts = (part for content in contents for part in content if part["type"] == "image_url")
    urls = (part["image_url"]["url"] for part in parts)
    try:
        await backend.addresses.check(url for url in urls if not url.startswith("data:"))
    except AddressRefused as refused:
        raise invalid_field("messages", f"an image: {refused}") from None


def image_bytes(url: str) -> bytes:
    """Return the content of a data URL; raises `Refusal` if it is invalid."""
    head, _, data = url.partition(",")
    try:
        if head.endswith(";base64"):
            return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        pass
    raise ClientRefusal(
        400, "an image is not valid base64", param="messages", code="invalid_base64_image"
    )


def parted(messages: Sequence[Message]) -> tuple[str, list[Message]]:
    """Split off the text of the system messages at the beginning."""
    first = next((i for i, said in enumerate(messages) if said["role"] != "system"), len(messages))
    told = [said["content"] for said in messages[:first] if said["content"].strip()]
    return "\n\n".join(told), list(messages[first:])


def new_parts(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return users' messages after the last answer, as parts; raises `Refusal` if there are none.

    The session already has the earlier messages, and the agent has its own prompt.
    """
    answered = max(
        (i for i, m in enumerate(messages) if m["role"] in {"assistant", "tool"}), default=-1
    )
    new = [message for message in messages[answered + 1 :] if message["role"] == "user"]
    parts = [part for message in new for part in _parts_of(message["content"])]
    if not any(part["type"] != "text" or part["text"].strip() for part in parts):
        raise invalid_field("messages", "the last message must be a user's and must not be empty")
    return parts


def _parts_of(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


TEXT_CHARS = 100_000
"""The longest text that may be sent at a time."""
IMAGES_AT_ONCE = 10
IMAGE_NAME = "image"


async def new_in(
    backend: Backend, owner: str, messages: Sequence[Message]
) -> tuple[str, Sequence[Attachment]]:
    """Return the text and images that are new to a session.

    Raise `Refusal` if there are none or they can't be accepted.
    """
    parts = new_parts(messages)
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    images = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    if len(text) > TEXT_CHARS:
        raise invalid_field(
            "messages", f"too much text: at most {TEXT_CHARS} characters are allowed"
        )
    if len(images) > IMAGES_AT_ONCE:
        raise invalid_field("messages", f"too many images: at most {IMAGES_AT_ONCE} are allowed")
    return text, [await _attached(backend, owner, url) for url in images]


async def _attached(backend: Backend, owner: str, url: str) -> Attachment:
    if not url.startswith("data:"):
        return Attachment(kind="image", ref=url)
    data = await backend.work(partial(image_bytes, url), size=len(url))
    mime_type = mime_type_of(data) or ""
    if not mime_type.startswith("image/"):
        raise invalid_field("messages", "an image must be png, jpeg, gif or webp")
    try:
        kept = await backend.attachments.keep(
            data, owner=owner, name=IMAGE_NAME, mime_type=mime_type
        )
    except AttachmentsFull:
        raise ClientRefusal(413, backend.parts.sentences.text("files_full")) from None
    except PictureRefused as refused:
        raise ClientRefusal(400, str(refused), param="messages", code="invalid_image") from None
    return Attachment(
        kind="image",
        ref=f"{SCHEME}{kept.id}",
        name=IMAGE_NAME,
        mime_type=kept.mime_type,
        size=kept.size,
    )


NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}


def client_tools(asked: ChatRequest, ours: Collection[ToolSpec]) -> Sequence[ToolSpec]:
    """Return the tools that the model may use; raise `Refusal` if the request is invalid."""
    if asked.tool_choice not in (None, "auto", "none"):
        raise invalid_field(
            "tool_choice", "must be auto or none: the model chooses among all tools"
        )
    specs = [_tool_spec(tool) for tool in asked.tools or ()]
    names = Counter(spec.name for spec in (*ours, *specs))
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise invalid_field("tools", f"two tools are named {twice!r}: rename yours")
    return () if asked.tool_choice == "none" else specs


def _tool_spec(tool: Mapping[str, Any]) -> ToolSpec:
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str):
        raise invalid_field("tools", "each must be a function with a name")
    parameters = function.get("parameters") or NO_PARAMETERS
    if not isinstance(parameters, Mapping):
        raise invalid_field("tools", f"the parameters of {name[:64]!r} must be a JSON schema")
    return ToolSpec(
        name=name, description=str(function.get("description") or ""), parameters=parameters
    )


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
"""The status and code for each error; the first match counts."""
_LATER = {429, 503}


class ClientRefusal(Refusal):
    """A refusal with a machine-readable code."""

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


def invalid_field(param: str, sentence: str) -> ClientRefusal:
    """Return a refusal that is caused by one field."""
    return ClientRefusal(400, f"{param}: {sentence}", param=param, code="invalid_value")


def error_form(refusal: Refusal) -> dict[str, Any]:
    """Return the body of a refusal in OpenAI's format."""
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"  # noqa: PLR2004
    return {
        "error": {
            "message": str(refusal),
            "type": _TYPES.get(refusal.status, kind),
            "param": getattr(refusal, "param", None),
            "code": getattr(refusal, "code", None) or _CODES.get(refusal.status),
        }
    }


def client_error_response(refusal: Refusal) -> JSONResponse:
    """Return the response for a refusal in OpenAI's format."""
    return JSONResponse(error_form(refusal), refusal.status, headers=refusal.headers)


def refusal_of(error: Exception, backend: Backend, *, path: str) -> Refusal:
    """Convert an error to a refusal without details, which the operator finds in the log."""
    parts = backend.parts
    match error:
        case Refusal():
            return error
        case SessionNotFound():
            text = "there is no such session"
        case InvalidSessionId():
            text = "not a valid session id: use a-z, A-Z, 0-9 and _ . : @ -"
        case NotPossible():
            text = str(error)
        case BusFull():
            text = parts.sentences.text("full")
        case _:
            text = sentence_of(error, parts.sentences, path=path)
    return refusal_of_kind(type(error), text)


def refusal_of_name(name: str, sentence: str) -> Refusal:
    """Like `refusal_of`, but for when only the error's name and the chat text are known."""
    kind: Any = getattr(errors, name, None)
    is_ours = isinstance(kind, type) and issubclass(kind, NanoloopError)
    return refusal_of_kind(kind if is_ours else Exception, sentence)


def refusal_of_kind(kind: type[Exception], sentence: str) -> Refusal:
    """Return the refusal for errors of this kind."""
    for known, status, code in _STATUSES:
        if issubclass(kind, known):
            later = try_later(status, "", seconds=LATER_SECONDS).headers
            headers = later if status in _LATER else None
            return ClientRefusal(status, sentence, code=code, headers=headers)
    return ClientRefusal(500, sentence, code="failed")
