"""What a request for a completion says: heeded, passed on to the model, refused, or ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from nanoloop.channels.web.openai.refusing import unfit

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
"""What the model hears of, where everything is sent along and its provider takes options.

Else, above all in a session, it does not, and a header of the response names them.
"""
REFUSED: Mapping[str, str] = {
    "audio": "only text is answered",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "logprobs": "they are not known here",
    "top_logprobs": "they are not known here",
    "web_search_options": "give the agent a tool",
}
"""What would change the answer so that a client relies on it. Anything else is ignored."""


class ChatRequest(BaseModel):
    """A conversation to go on with, as OpenAI's API has it."""

    model_config = ConfigDict(extra="allow", hide_input_in_errors=True)

    model: Annotated[str, Field(min_length=1, max_length=200)]
    """The name of an agent."""
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=10_000)]
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    user: Annotated[str, Field(max_length=500)] | None = None
    """Names a session; the header X-Nanoloop-Session does so too, and counts first."""
    n: int | None = None
    tools: list[dict[str, Any]] | None = None
    """Tools of the client; those of the agent are there without being named."""
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream is to end with what it took."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def wants_form(self) -> bool:
        """Whether the answer has to be in another form than text."""
        return bool((self.response_format or {}).get("type", "text") != "text")

    def options(self) -> dict[str, Any]:
        """What is passed on."""
        given = {"response_format": self.response_format, **(self.model_extra or {})}
        return {
            name: given[name] for name in sorted(PASSED & set(given)) if given[name] is not None
        }

    def check(self) -> None:
        """Raise a refusal for what can't be done."""
        if self.n not in {None, 1}:
            raise unfit("n", f"there is one answer to a question, not {self.n}")
        extra = self.model_extra or {}
        if extra.get("modalities") not in (None, ["text"]):
            raise unfit("modalities", "only text is answered")
        for name, sentence in REFUSED.items():
            if extra.get(name):
                raise unfit(name, sentence)
