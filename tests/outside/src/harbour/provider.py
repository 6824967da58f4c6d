"""A provider with two models: `talk` answers chats, and `gist` summarises them."""

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from nanoloop.errors import UnknownModel
from nanoloop.plugins import Plugin
from nanoloop.protocols import ChatMessage, OnText, Reply, ToolCall, ToolSpec

OLD = re.compile(r"Previous summary:\n(.*?)\n=== previous summary ends ===", re.DOTALL)
SMALL_TALK = re.compile(r"\?$|\bbored\b|^Tell me")


class HarbourSettings(BaseModel):
    """What `[providers.harbour]` takes."""

    greeting: str = "Ahoy!"


class Harbour:
    """No language model, but it keeps what one promises."""

    def __init__(self, own: HarbourSettings | None, model: str) -> None:
        if model not in {"talk", "gist"}:
            raise UnknownModel(f"harbour has no model {model!r}: talk and gist are there")
        self._own = own or HarbourSettings()
        self._model = model

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer; asked for a tide it calls the tool."""
        text = str(messages[-1]["content"])
        if (model or self._model).endswith("gist"):
            return Reply(text=gist(text), model="gist")
        at = re.search(r"tide at (\w+)", text)
        if (
            at
            and messages[-1]["role"] == "user"
            and any(each.name == "tide" for each in tools or ())
        ):
            call = ToolCall(id="1", name="tide", arguments=json.dumps({"place": at[1]}))
            return Reply(tool_calls=(call,), finish_reason="tool_calls", model="talk")
        answer = f"{self._own.greeting} {text}"
        if on_text is not None:
            on_text(answer)
        return Reply(text=answer, model="talk")

    async def close(self) -> None:
        """Nothing is open."""


def gist(request: str) -> str:
    """What people stated, and what was known before."""
    old = OLD.search(request)
    new = re.findall(r"^user: (.*)$", request, re.MULTILINE)
    known = old[1].splitlines() if old else []
    said = [line for line in new if not SMALL_TALK.search(line)]
    return "\n".join(dict.fromkeys([*known, *said])) or "They talked."


def make(own: HarbourSettings | None, model: str) -> Any:
    """The provider for one model."""
    return Harbour(own, model)


PLUGIN = Plugin(name="harbour", settings=HarbourSettings, make=make)
