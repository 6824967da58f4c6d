"""What of answers and events is told to whom: each session's readers, and those of the list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanoloop.channels.web.feed import Feed, Feeds, Running
from nanoloop.channels.web.receipts import Receipts
from nanoloop.events import (
    Event,
    LoopStarted,
    LoopStopped,
    SessionReset,
    SessionStarted,
    SummaryCommitted,
    SummaryDropped,
    SummaryFailed,
    SummaryPostponed,
    SummaryStarted,
    TextStreamed,
    ToolFinished,
    ToolStarted,
    TurnFailed,
    TurnFinished,
    TurnStarted,
    TurnStopped,
    WindowTrimmed,
)
from nanoloop.messages import Outbound

_TURN: Mapping[type[Event], str] = {
    TurnStarted: "started",
    TurnFinished: "finished",
    TurnFailed: "failed",
    TurnStopped: "stopped",
}
_MEMORY: Mapping[type[Event], str] = {
    WindowTrimmed: "trimmed",
    SummaryStarted: "summary_started",
    SummaryCommitted: "summary_committed",
    SummaryFailed: "summary_failed",
    SummaryPostponed: "summary_postponed",
    SummaryDropped: "summary_dropped",
}

_FACTS = ("error", "seconds", "tokens_in", "tokens_out", "tokens_cached")
"""What is told of a turn besides its state."""


class News:
    """Turns what the loop says and does into what readers are told; it never waits."""

    def __init__(self) -> None:
        self.feeds = Feeds()
        self.receipts = Receipts()
        self._is_serving = False

    def is_serving(self) -> bool:
        """Whether the loop takes messages."""
        return self._is_serving

    def take(self, item: Outbound | TextStreamed) -> None:
        """Tell of an answer, or of a piece of one."""
        feed = self.feeds.of(item.chat)
        if isinstance(item, TextStreamed):
            _take_piece(feed, item)
            return
        if feed.running is not None and feed.running.message_id == item.reply_to:
            feed.running = None
        answer = {"message_id": item.reply_to, "text": item.text, "kind": item.kind}
        feed.add("answer", answer)

    def hear(self, event: Event) -> None:
        """Tell of what happened."""
        kind = type(event)
        if kind in _TURN:
            self._hear_turn(event, _TURN[kind])
        elif kind in _MEMORY:
            self._hear_memory(event, _MEMORY[kind])
        elif isinstance(event, (ToolStarted, ToolFinished)):
            self._tell(event.session_id, "tool", _tool(event))
        elif isinstance(event, (SessionStarted, SessionReset)):
            self._hear_session(event)
        elif isinstance(event, (LoopStarted, LoopStopped)):
            self._is_serving = isinstance(event, LoopStarted)

    def _hear_turn(self, event: Any, state: str) -> None:
        facts = {name: getattr(event, name) for name in _FACTS if hasattr(event, name)}
        self._tell(event.session_id, "turn", {"state": state, **facts})
        if state != "started":
            self._tell_changed(event.session_id)

    def _hear_memory(self, event: Any, reason: str) -> None:
        if isinstance(event, SummaryCommitted):
            self.receipts.add(event)
        self._tell(event.session_id, "memory", {"reason": reason})

    def _hear_session(self, event: SessionStarted | SessionReset) -> None:
        if isinstance(event, SessionReset):
            self._tell(event.old_session_id, "session", {"moved_to": event.session_id})
        self._tell_changed(event.session_id)

    def _tell(self, session_id: str, name: str, data: Mapping[str, Any]) -> None:
        # A session that nobody reads and that isn't the web's own needs no feed.
        feed = self.feeds.known(session_id)
        if feed is not None:
            feed.add(name, data)

    def _tell_changed(self, session_id: str) -> None:
        self.feeds.changes.add("sessions", {"id": session_id}, about=session_id)


def _take_piece(feed: Feed, piece: TextStreamed) -> None:
    running = feed.running
    if running is None or running.message_id != piece.reply_to:
        running = feed.running = Running(piece.reply_to)
    data = {"message_id": piece.reply_to, "piece": piece.text, "at": running.length}
    running.pieces.append(piece.text)
    running.length += len(piece.text)
    feed.add("text", data)


def _tool(event: ToolStarted | ToolFinished) -> dict[str, Any]:
    told = {"call_id": event.call_id, "tool": event.tool}
    if isinstance(event, ToolStarted):
        return {**told, "state": "started"}
    return {**told, "state": "finished", "success": event.success, "seconds": event.seconds}
