"""What the calls of one turn did, so that none is done twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio

from nanoloop.protocols import ToolCall
from nanoloop.session.chat import decoded, result_text, results_by_call
from nanoloop.session.entry import Entry
from nanoloop.tools.toolbox import Toolbox

UNKNOWN = "unknown"
"""The metadata key of the result of a call that was broken off: it may have taken effect."""
_DONE = (
    "Already done: the same call, with the same arguments, succeeded earlier in this turn and was "
    "not run again. Its result was:\n"
)
_NOT_KNOWN = (
    "not run: the same call was broken off earlier in this turn, and whether it took effect is "
    "not known; find out before you ask for it again, or leave it to the user"
)


class Effects:
    """Knows the writing calls of a turn by tool and arguments."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._results: dict[str, Entry] = {}
        """Of each call that must not run again, by what it asks for."""
        self._running: dict[str, anyio.Lock] = {}

    def recall(self, entries: Sequence[Entry]) -> None:
        """Know what the turn did before it was interrupted."""
        for call, result in results_by_call(entries).items():
            said = entries[call].content
            self._note(str(said.get("tool")), said.get("parameters"), entries[result])

    def alone(self, call: ToolCall) -> AbstractAsyncContextManager[Any]:
        """Have an equal call wait until this one is done, where only one of them may run."""
        if not self._runs_once(call.name):
            return nullcontext()
        return self._running.setdefault(_key(call.name, decoded(call.arguments)), anyio.Lock())

    def instead(self, call: ToolCall) -> Entry | None:
        """The result to give without running the call; None where it is to be run."""
        first = self._results.get(_key(call.name, decoded(call.arguments)))
        if first is None:
            return None
        if first.metadata.get(UNKNOWN):
            return Entry.tool_result(call.name, None, _NOT_KNOWN, call_id=call.id)
        return Entry.tool_result(call.name, _DONE + result_text(first), call_id=call.id)

    def note(self, call: ToolCall, result: Entry) -> None:
        """Know what this call came to; one that failed may be tried again."""
        self._note(call.name, decoded(call.arguments), result)

    def _note(self, tool: str, arguments: Any, result: Entry) -> None:
        may_have_happened = result.content.get("success") or result.metadata.get(UNKNOWN)
        if may_have_happened and self._runs_once(tool):
            self._results.setdefault(_key(tool, arguments), result)

    def _runs_once(self, tool: str) -> bool:
        return self._toolbox.writes(tool) and not self._toolbox.is_repeatable(tool)


def _key(tool: str, arguments: Any) -> str:
    return json.dumps([tool, arguments], sort_keys=True, default=str)
