"""Tools that are not announced in full: a model finds them by keywords, and may then call them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoloop.errors import BadArguments, ToolError
from nanoloop.protocols import Effect, Tool, ToolSpec
from nanoloop.session.entry import TOOL_RESULT, Entry
from nanoloop.tokens import tools_tokens

FIND_TOOLS = "find_tools"
MOST_FOUND = 8
"""The maximum number of tools that one search returns."""
LONGEST_NAMES = 6_000
"""The maximum length of the list of tool names, in characters."""
LONGEST_WORDS = 200
_FOUND = "You may call these now: "
_WORD = re.compile(r"[^\W_]+")


class Finder:
    """The tool that finds others, which stay announced as long as its result is in the window."""

    effect: Effect = "reads"

    def __init__(self, later: Iterable[Tool]) -> None:
        self.later: Mapping[str, Tool] = {tool.spec.name: tool for tool in later}
        """The tools that can be found, by name; they may be called but aren't announced in full."""
        names = ", ".join(self.later)
        if len(names) > LONGEST_NAMES:
            names = f"{names[:LONGEST_NAMES].rpartition(', ')[0]}, …"
        self.spec = ToolSpec(
            name=FIND_TOOLS,
            description=(
                f"Find tools by words, such as those of their names, and get ready to call them. "
                f"There are: {names}"
            ),
            parameters={
                "type": "object",
                "properties": {
                    "words": {"type": "string", "description": "names, or what the tool should do"}
                },
                "required": ["words"],
                "additionalProperties": False,
            },
        )

    async def call(self, arguments: Mapping[str, Any]) -> str:
        """Find tools by keywords; raise `ToolError` if none matches."""
        words = arguments.get("words")
        if not isinstance(words, str) or not words.strip():
            raise BadArguments("argument 'words': it is required, as a string")
        found = self._found(words[:LONGEST_WORDS])
        if not found:
            raise ToolError(f"no tool has any of these words; there are: {', '.join(self.later)}")
        return f"{_FOUND}{', '.join(found)}"

    def _found(self, words: str) -> list[str]:
        """Return the tools that fit best: those named in full, or else those with most keywords."""
        written = set(re.findall(r"[\w-]+", words))
        named = [name for name in self.later if name in written]
        if named:
            return named[:MOST_FOUND]
        wanted = _words_in(words)
        points = {name: _points(tool.spec, wanted) for name, tool in self.later.items()}
        best = sorted((name for name in points if points[name]), key=lambda name: -points[name])
        return best[:MOST_FOUND]

    def loaded(self, window: Sequence[Entry]) -> list[ToolSpec]:
        """Return the tools found in the conversation, in the order in which they were found."""
        names: dict[str, None] = {}
        for entry in window:
            if entry.type == TOOL_RESULT and entry.content.get("tool") == FIND_TOOLS:
                text = entry.content.get("result")
                if isinstance(text, str) and text.startswith(_FOUND):
                    names |= dict.fromkeys(text.removeprefix(_FOUND).split(", "))
        return [self.later[name].spec for name in names if name in self.later]


def _points(spec: ToolSpec, wanted: set[str]) -> int:
    """Return how well a tool fits; a word in its name counts more than one in its description."""
    return 3 * len(wanted & _words_in(spec.name)) + len(wanted & _words_in(spec.description))


def _words_in(text: str) -> set[str]:
    return {word.casefold().removesuffix("s") for word in _WORD.findall(text)}


def within_budget(
    tools: Sequence[Tool], groups: Iterable[Mapping[str, Tool]], *, tokens: int
) -> list[Tool]:
    """Return these tools, replacing groups that exceed the budget with a tool that finds them."""
    later: list[Tool] = []
    taken = {tool.spec.name for tool in tools}
    for group in groups:
        used = [tool for name, tool in group.items() if name in taken]
        tokens -= (cost := tools_tokens(tool.spec for tool in used))
        if tokens < 0:
            tokens += cost
            later += used
    if not later:
        return list(tools)
    hidden = {tool.spec.name for tool in later}
    return [*(tool for tool in tools if tool.spec.name not in hidden), Finder(later)]
