"""A provider for Claude, or any server with the same API, through Anthropic's own SDK."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from nanoloop import defaults
from nanoloop.errors import ProviderError, SettingsError, how_to_install
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolSpec
from nanoloop.providers.answer import AnswerLimits
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
from nanoloop.providers.messages_api import VENDOR, Taking, request_bytes

if TYPE_CHECKING:  # slow to import
    import httpx2

KEY_NAME = "ANTHROPIC_API_KEY"
DEFAULT_BASE_URL = "https://api.anthropic.com"
OWN = {"messages", "model", "stream", "system", "tools"}
"""The parts of a request that options may not set."""
NOT_KNOWN = {
    "frequency_penalty",
    "logit_bias",
    "presence_penalty",
    "seed",
    "temperature",
    "top_p",
    "verbosity",
}
"""OpenAI options that clients may send but this API does not support."""


class AnthropicProvider:
    """A model behind Anthropic's Messages API, or behind a server with the same API."""

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
        limits: AnswerLimits | None = None,
    ) -> None:
        """Create the provider; `options` (such as `thinking`) are added to each request unchanged.

        An option of None is left out.
        """
        if find_spec("anthropic") is None:
            raise SettingsError(f"Anthropic's SDK is missing: {how_to_install('anthropic')}")
        self._model = model
        self._key = clean_key(api_key)
        self._url = clean_url(base_url or DEFAULT_BASE_URL)
        self._asked_of = asked_of(self._url, key=self._key, key_name=KEY_NAME)
        self._options = clean_options(options, OWN)
        self._max_retries = max_retries
        self._server = HostedServer(
            self._url,
            _messages(self._url),
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
        about: dict[str, Any] = {
            "model": model or self._model,
            "options": self._options,
            "tools": tools or (),
            "messages": messages,
            "stream": on_text is not None,
        }
        body = request_bytes(**about)
        heard: list[bool] = []

        def hear(piece: str) -> None:
            heard.append(True)
            if on_text is not None:
                on_text(piece)

        try:
            return await self._asked(about["model"], body, None if on_text is None else hear)
        except ProviderError as refused:
            is_plain = type(refused) is ProviderError and "(400" in str(refused)
            if heard or not is_plain:  # a specific error already says why
                raise
            # The API refuses earlier thinking if anything before it has changed, such as the system
            # prompt after a new summary.
            plain = request_bytes(**about, with_thoughts=False)
            if plain == body:
                raise
        return await self._asked(about["model"], plain, on_text)

    async def _asked(self, model: str, body: bytes, on_text: OnText | None) -> Reply:
        taking = Taking()
        reply = await self._server.ask(self._asked_of(model, body), taking, on_text)
        return replace(reply, reasoning=taking.reasoning) if reply.tool_calls else reply

    def with_options(self, options: Mapping[str, Any]) -> AnthropicProvider:
        """Return a copy whose requests also have these options, as far as the API supports them."""
        known = {key: value for key, value in options.items() if key not in NOT_KNOWN}
        other = copy(self)
        other._options = {**self._options, **clean_options(known, OWN)}  # noqa: SLF001 - its own
        return other

    def vendor_of(self, model: str | None) -> str:  # noqa: ARG002 - for all models
        """Return the vendor whose reasoning can be sent back."""
        return VENDOR

    async def load(self) -> None:
        """Load the SDK in a thread; the first call also does this."""
        await self._server.load()

    async def close(self) -> None:
        """Close the connections; safe to call twice."""
        await self._server.close()

    def _sdk(self, http_client: httpx2.AsyncClient) -> SDK:
        import anthropic  # noqa: PLC0415 - in a thread, because it is slow

        # Headers set in the environment for Anthropic's servers must not reach other servers.
        unsaid = [*OF_THIS_MACHINE, *headers_in("ANTHROPIC_CUSTOM_HEADERS")]
        if not self._key:
            unsaid += ["Authorization"]
        headers: dict[str, Any] = dict.fromkeys(unsaid, anthropic.omit)
        headers |= {"Accept-Encoding": "identity", "User-Agent": "nanoloop"}
        if self._key and urlsplit(self._url).netloc != urlsplit(DEFAULT_BASE_URL).netloc:
            headers["X-Api-Key"] = self._key  # for other servers, which expect the key in this form
        client = anthropic.AsyncAnthropic(
            api_key=self._key or "none",
            webhook_key="",
            base_url=self._url,
            max_retries=self._max_retries,
            default_headers=headers,
            http_client=http_client,
            open_telemetry=False,
        )
        options = {
            "headers": {},
            "max_retries": self._max_retries,
            "params": {},
            "timeout": http_client.timeout,
        }
        return SDK(client=client, options=options, error=anthropic.AnthropicError)


def _messages(url: str) -> str:
    """Return the URL of the Messages API, even if the base URL ends in /v1 like OpenAI's."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/messages"
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))
