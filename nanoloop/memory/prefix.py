"""What the chat model was last asked, as far as the messages that have just left its window.

A summary call that begins with the same bytes is served from the provider's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.memory.transcript import PROMPT
from nanoloop.protocols import ChatMessage, ToolSpec
from nanoloop.session.entry import Entry

_NOW = """\
The messages above are about to leave the window. Do not answer them and call no tool: write the
summary of them now, and carry on the one in the system prompt, if there is one.

"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """A request as it was, or the beginning of it."""

    messages: Sequence[ChatMessage]
    tools: Sequence[ToolSpec] | None = None
    model: str | None = None

    def request(self, *, max_words: int, focus: str = "") -> list[dict[str, Any]]:
        """The messages of a summary call that begins with it."""
        asked = _NOW + PROMPT.format(max_words=max_words)
        if focus:
            asked += f"\nKeep in mind above all: {' '.join(focus.split())}\n"
        return [*map(dict, self.messages), {"role": "user", "content": asked}]


PrefixOf = Callable[[Sequence[Entry]], Prefix]
"""From entries that left the window to what the chat model was asked of them."""
