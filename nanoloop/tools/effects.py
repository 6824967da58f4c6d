"""What the calls of one turn did, so that none is done twice."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

import anyio

from nanoloop.events import ToolFinished, ToolNotRepeated, ToolStarted, announce
from nanoloop.protocols import ToolCall
from nanoloop.session.chat import decoded, result_text, results_by_call
from nanoloop.session.entry import Entry
from nanoloop.tools.toolbox import Toolbox

UNKNOWN = "unknown"
"""Metadata key for the result of an interrupted call, which may have taken effect."""
_DONE = (
    "Already done: the same call, with the same arguments, succeeded earlier in this turn and was "
    "not run again. Its result was:\n"
)
_NOT_KNOWN = (
    "not run: the same call was interrupted earlier in this turn, and it is unknown whether it "
    "took effect; find out before you repeat it, or leave it to the user"
)


class Effects:
    """Runs the calls of a turn, and knows which of them must not run again."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox
        self._first: dict[str, Entry] = {}
        """The results of such calls, by tool and arguments."""
        self._running: dict[str, anyio.Lock] = {}

    def recall(self, entries: Sequence[Entry]) -> None:
        """Note what the turn did before it was interrupted."""
        for call, result in results_by_call(entries).items():
            said = entries[call].content
            self._note(str(said.get("tool")), said.get("parameters"), entries[result])

    async def run(self, call: ToolCall) -> Entry:
        """The result of this call; if the same call was made before, the result of that one."""
        arguments = decoded(call.arguments)
        async with self._alone(call.name, arguments):
            if first := self._first.get(_key(call.name, arguments)):
                return _not_repeated(call, first)
            result = await self._result(call)
            self._note(call.name, arguments, result)
            return result

    def _alone(self, tool: str, arguments: Any) -> AbstractAsyncContextManager[Any]:
        """Have an equal call wait until this one is done, if only one of them may run."""
        if not self._runs_once(tool):
            return nullcontext()
        return self._running.setdefault(_key(tool, arguments), anyio.Lock())

    async def _result(self, call: ToolCall) -> Entry:
        which = {"tool": call.name, "call_id": call.id}
        announce(ToolStarted(**which))
        outcome = await self._toolbox.run(call)
        announce(ToolFinished(**which, success=outcome.success, seconds=round(outcome.seconds, 3)))
        return Entry.tool_result(
            call.name,
            outcome.text if outcome.success else None,
            None if outcome.success else outcome.error,
            call_id=call.id,
        )

    def _note(self, tool: str, arguments: Any, result: Entry) -> None:
        """Note this result, unless the call failed and may be tried again."""
        may_have_happened = result.content.get("success") or result.metadata.get(UNKNOWN)
        if may_have_happened and self._runs_once(tool):
            self._first.setdefault(_key(tool, arguments), result)

    def _runs_once(self, tool: str) -> bool:
        return self._toolbox.writes(tool) and not self._toolbox.is_repeatable(tool)


def _not_repeated(call: ToolCall, first: Entry) -> Entry:
    announce(ToolNotRepeated(tool=call.name, call_id=call.id))
    if first.metadata.get(UNKNOWN):
        return Entry.tool_result(call.name, None, _NOT_KNOWN, call_id=call.id)
    return Entry.tool_result(call.name, _DONE + result_text(first), call_id=call.id)


def _key(tool: str, arguments: Any) -> str:
    return json.dumps([tool, arguments], sort_keys=True, default=str)
