"""The built-in tool `recall`: the model looks up what left its window."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from nanoloop.errors import ToolError
from nanoloop.session.session import Session
from nanoloop.tools.function import FunctionTool
from nanoloop.tools.here import here

NAME = "recall"
MOST = 20
"""Hits that one call brings at most."""


class Recalls(Protocol):
    """What finds things that were said."""

    async def told(self, session: Session, words: str, limit: int = 5) -> str:
        """What fits, in words for a model."""
        ...


def make_recall_tool(
    recall: Recalls, session: Callable[[], Session] = here.get
) -> FunctionTool[Any, Any]:
    """The tool, which searches the session of the turn that calls it."""

    async def look_up(words: str, limit: int = 5) -> str:
        """Search this conversation for what was said earlier and is no longer in view.

        Args:
            words: what to look for: names, things, dates, as they may have been said
            limit: how many hits to bring
        """
        try:
            there = session()
        except LookupError:
            raise ToolError("there is no conversation here to look through") from None
        return await recall.told(there, words, max(1, min(limit, MOST)))

    return FunctionTool(look_up, name=NAME)
