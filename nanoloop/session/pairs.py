"""Which tool result belongs to which call."""

from __future__ import annotations

from collections.abc import Sequence

from nanoloop.session.entry import TOOL_CALL, TOOL_RESULT, Entry


def results_by_call(entries: Sequence[Entry]) -> dict[int, int]:
    """Index of each call that has a result → index of that result.

    They pair by call id, and a result answers the newest call with its id, since some servers
    number their calls anew each turn; without ids, it answers the oldest open call of its tool.
    """
    open_calls: dict[int, Entry] = {}
    pairs: dict[int, int] = {}
    for index, entry in enumerate(entries):
        if entry.type == TOOL_CALL:
            open_calls[index] = entry
        elif entry.type == TOOL_RESULT:
            call = _call_of(entry, open_calls)
            if call is not None:
                del open_calls[call]
                pairs[call] = index
    return pairs


def _call_of(result: Entry, open_calls: dict[int, Entry]) -> int | None:
    if result.call_id is not None:
        same_id = (i for i, call in open_calls.items() if call.call_id == result.call_id)
        return max(same_id, default=None)
    tool = result.content.get("tool")
    same_tool = (
        index
        for index, call in open_calls.items()
        if call.call_id is None and call.content.get("tool") == tool
    )
    return next(same_tool, None)


def open_calls(entries: Sequence[Entry]) -> list[Entry]:
    """The calls that nothing has answered, oldest first."""
    pairs = results_by_call(entries)
    return [e for i, e in enumerate(entries) if e.type == TOOL_CALL and i not in pairs]


def orphan_results(entries: Sequence[Entry]) -> set[int]:
    """Indexes of the results whose call is not among these entries."""
    answered = set(results_by_call(entries).values())
    return {i for i, e in enumerate(entries) if e.type == TOOL_RESULT and i not in answered}


def call_id_of(call: Entry) -> str:
    """The id a model sees: the one that was given, else one made from the entry's own."""
    return call.call_id or f"call_{call.id[:24]}"
