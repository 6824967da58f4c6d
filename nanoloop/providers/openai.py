"""A provider for any server with OpenAI's chat completions API, through OpenAI's own SDK."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from copy import copy
from hashlib import sha256
from itertools import repeat
from operator import contains
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit, urlunsplit

from nanoloop import defaults
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec, Usage
from nanoloop.providers.answer import AnswerLimits, PartialAnswer, count
from nanoloop.providers.hosted import (
    OF_THIS_MACHINE,
    SDK,
    HostedServer,
    Terms,
    asked_of,
    clean_key,
    clean_options,
    clean_url,
    headers_in,
)
from nanoloop.providers.vendors import Quirks
from nanoloop.session.chat import REASONING
from nanoloop.tools.toolbox import here

if TYPE_CHECKING:  # slow to import
    import httpx2

DEFAULT_BASE_URL = "https://api.openai.com/v1"
OWN = {"messages", "model", "stream", "tools"}
"""The parts of a request that options may not set."""
LIMITS = {"max_tokens", "max_completion_tokens"}
"""The names that servers use for an answer's token limit."""
HEADERS = {
    "Accept-Encoding": "identity",
    "User-Agent": "nanoloop",
}
UNSAID = ("Accept", "OpenAI-Organization", "OpenAI-Project", *OF_THIS_MACHINE)
"""SDK headers that are useless, meant only for OpenAI, or reveal too much."""


class OpenAIProvider:
    """A model on a server with the chat completions API."""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        first_token_timeout_seconds: float = defaults.FIRST_TOKEN_TIMEOUT_SECONDS,
        call_timeout_seconds: float = defaults.CALL_TIMEOUT_SECONDS,
        max_retries: int = defaults.MAX_RETRIES,
        options: Mapping[str, Any] | None = None,
        quirks: Quirks | None = None,
        key_name: str = "OPENAI_API_KEY",
        limits: AnswerLimits | None = None,
    ) -> None:
        """Create the provider; `options` (such as `temperature`) are added to each request as is.

        An option of None is left out. `key_name` is the variable that errors mention if the key is
        refused.
        """
        self._model = model
        self._key = clean_key(api_key)
        self._url = clean_url(base_url or DEFAULT_BASE_URL)
        self._asked_of = asked_of(self._url, key=self._key, key_name=key_name)
        self._options = clean_options(options, OWN)
        self._quirks = quirks or Quirks(takes_cache_key=base_url is None)
        self._max_retries = max_retries
        self._user, place = _without_user(self._url)
        self._server = HostedServer(
            place,
            _completions(place),
            make_sdk=self._sdk,
            terms=Terms(
                first_token_timeout_seconds=first_token_timeout_seconds,
                call_timeout_seconds=call_timeout_seconds,
                max_retries=max_retries,
                limits=limits or AnswerLimits(),
            ),
        )

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer, streaming text to `on_text` if given; raises only `ProviderError`."""
        model = model or self._model
        body = request_bytes(
            model=model,
            options={**self._own_options(is_streamed=on_text is not None), **self._options},
            tools=tools or (),
            messages=messages,
        )
        return await self._server.ask(self._asked_of(model, body), take, on_text)

    def with_options(self, options: Mapping[str, Any]) -> OpenAIProvider:
        """Return a copy whose requests also have these options; it shares the connections.

        An answer's token limit is renamed as this server requires.
        """
        field = self._quirks.max_tokens_field
        own = {field if key in LIMITS else key: value for key, value in options.items()}
        replaced = LIMITS if LIMITS & options.keys() else set()
        usual = {key: value for key, value in self._options.items() if key not in replaced}
        other = copy(self)
        other._options = {**usual, **clean_options(own, OWN)}  # noqa: SLF001 - its own
        return other

    async def load(self) -> None:
        """Load the SDK in a thread; the first call also does this."""
        await self._server.load()

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self._server.close()

    def _own_options(self, *, is_streamed: bool) -> dict[str, Any]:
        options: dict[str, Any] = {"stream": True} if is_streamed else {}
        if is_streamed and self._quirks.streams_usage:
            options["stream_options"] = {"include_usage": True}
        session = here.get(None)
        if self._quirks.takes_cache_key and session is not None and session.last_seq:
            # Hashed, because the id may contain someone's name on a platform.
            options["prompt_cache_key"] = sha256(session.id.encode()).hexdigest()[:32]
        return options

    def _sdk(self, http_client: httpx2.AsyncClient) -> SDK:
        import openai  # noqa: PLC0415 - already imported

        # Headers set in the environment for OpenAI's servers must not reach other servers.
        unsaid = [*UNSAID, *headers_in("OPENAI_CUSTOM_HEADERS")]
        own = dict(HEADERS) | ({"Authorization": self._user} if self._user else {})
        headers: dict[str, Any] = {**dict.fromkeys(unsaid, openai.omit), **own}
        client = openai.AsyncOpenAI(
            api_key=self._key or "none",
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            base_url=self._url,
            max_retries=self._max_retries,
            default_headers=headers,
            http_client=http_client,
        )
        # All options are passed, because the SDK is slow to fill in missing ones.
        options = {
            "extra_json": None,
            "follow_redirects": True,
            "headers": {} if self._key or self._user else {"Authorization": openai.omit},
            "idempotency_key": "",
            "max_retries": self._max_retries,
            "params": {},
            "post_parser": openai.not_given,
            "security": {"bearer_auth": True},
            "synthesize_event_and_data": False,
            "timeout": http_client.timeout,
        }
        return SDK(client=client, options=options, error=openai.OpenAIError)


# Requests


def _plain(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be converted to JSON")


_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode


def request_bytes(
    *,
    model: str,
    options: Mapping[str, Any],
    tools: Sequence[ToolSpec],
    messages: Sequence[ChatMessage],
) -> bytes:
    """Return the body of a request; equal input gives equal bytes."""
    head = {"model": model, **options}
    form: dict[str, Any] = {key: value for key, value in head.items() if value is not None}
    if tools:
        form["tools"] = [tool_form(tool) for tool in tools]
    # Last, so that each request extends the previous one byte for byte.
    form["messages"] = _without_reasoning(messages)
    return _json(form).encode("utf-8", "replace")


def _without_reasoning(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Remove the reasoning, which only one vendor accepts, from the messages."""
    if not any(map(contains, messages, repeat(REASONING))):  # runs in C, for speed
        return list(messages)
    return [{k: v for k, v in message.items() if k != REASONING} for message in messages]


def tool_form(tool: ToolSpec) -> dict[str, Any]:
    """Describe a tool in the server's format."""
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    return {"type": "function", "function": function}


# Answers


def take(draft: PartialAnswer, data: Mapping[str, Any]) -> str:
    """Add a chunk or a whole answer to the draft; return the new text."""
    draft.model = draft.model or _string(data.get("model"))
    if isinstance(counted := data.get("usage"), dict):
        draft.usage = _usage(counted)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return ""
    draft.has_begun = True
    draft.finish_reason = _string(choices[0].get("finish_reason")) or draft.finish_reason
    return _said(draft, _mapping(choices[0].get("delta") or choices[0].get("message")))


def _said(draft: PartialAnswer, said: Mapping[str, Any]) -> str:
    thought = _string(said.get("reasoning_content") or said.get("reasoning"))
    if thought:
        draft.think(thought)
    calls = said.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        _call(draft, _mapping(call))
        if draft.is_full:
            break
    text = _text(said.get("content")) or _string(said.get("refusal"))
    return draft.say(text) if text else ""


def _call(draft: PartialAnswer, part: Mapping[str, Any]) -> None:
    index, function = part.get("index"), _mapping(part.get("function"))
    arguments = function.get("arguments")
    draft.call(
        index if isinstance(index, int) else None,
        _string(part.get("id")),
        _string(function.get("name")),
        _json(arguments) if isinstance(arguments, dict) else _string(arguments),
    )


def _usage(counted: Mapping[str, Any]) -> Usage:
    details = _mapping(counted.get("prompt_tokens_details"))
    tokens_in = count(counted.get("prompt_tokens"))
    cached = details.get("cached_tokens") or counted.get("prompt_cache_hit_tokens")
    return Usage(
        tokens_in=tokens_in,
        tokens_out=count(counted.get("completion_tokens")),
        tokens_cached=min(count(cached), tokens_in),
    )


def _text(content: object) -> str:
    """Return a string unchanged, or the text from the text parts in a list."""
    if isinstance(content, list):
        return "".join(_string(_mapping(part).get("text")) for part in content)
    return _string(content)


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


# URLs


def _without_user(url: str) -> tuple[str, str]:
    """Split the login from a URL: return it as a header, or "", and the URL without the login."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    header = f"Basic {b64encode(unquote(user).encode()).decode()}" if at else ""
    return header, urlunsplit(parts._replace(netloc=place))


def _completions(url: str) -> str:
    parts = urlsplit(url)
    path = parts.path.rstrip("/") + "/chat/completions"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
