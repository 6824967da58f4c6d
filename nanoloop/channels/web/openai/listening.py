"""Hears in a session's feed what becomes of one message."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import anyio

from nanoloop.channels.web.feed import Feed, Frame
from nanoloop.channels.web.openai.form import Completion
from nanoloop.protocols import OnText, Usage
from nanoloop.session.session import Session


class Listening:
    """Told of each event at once, so that it is asked how the session stands at that moment."""

    def __init__(self, feed: Feed, session: Session, message_id: str, hear: OnText) -> None:
        self._feed = feed
        self._session = session
        self._message_id = message_id
        self._hear = hear
        self._place = feed.last
        self._tells = {"text": self._piece, "turn": self._turn, "answer": self._answer}
        self._tells["session"] = self._changed
        self.is_answering = False
        """Whether the turn that goes on is this message's."""
        self.over = anyio.Event()
        self.text = ""
        self.kind = "error"
        """As of an `Outbound`: an answer, a word of the loop, or an apology."""
        self.said = ""
        """What was streamed."""
        self.was_stopped = False
        self.error = ""
        """What kind of error it was, where one is known."""
        self._usage = Usage()
        self._finish_reason = "stop"

    def set(self) -> None:
        """Take in what is new."""
        frames = self._feed.since(self._place)
        self._place = self._feed.last
        for frame in frames:
            if frame.name in self._tells and not self.over.is_set():
                self._tells[frame.name](frame)

    def completion(self, text: str) -> Completion:
        """The answer with what it took."""
        return Completion(text=text, finish_reason=self._finish_reason, usage=self._usage)

    def _piece(self, _: Frame) -> None:
        running = self._feed.running
        if running is not None and running.message_id == self._message_id:
            self.said += running.pieces[-1]
            self._hear(running.pieces[-1])

    def _turn(self, frame: Frame) -> None:
        told = _told(frame)
        if told["state"] == "started":
            self.is_answering = self._is_awaited()
        elif self.is_answering:
            self.is_answering = False
            self._end_turn(told)

    def _is_awaited(self) -> bool:
        """Whether this message is the one that its session owes an answer now."""
        session = self._session
        asked = next((e for e in session.window if e.seq == session.awaiting), None)
        return asked is not None and asked.metadata.get("message_id") == self._message_id

    def _end_turn(self, told: Mapping[str, Any]) -> None:
        self.was_stopped = told["state"] == "stopped"
        self.error = str(told.get("error") or "")
        names = ("tokens_in", "tokens_out", "tokens_cached")
        self._usage = Usage(**{name: int(told.get(name) or 0) for name in names})
        newest = self._session.newest
        if newest is not None and newest.role == "assistant":
            self._finish_reason = str(newest.metadata.get("finish_reason") or "stop")

    def _answer(self, frame: Frame) -> None:
        told = _told(frame)
        if told["message_id"] == self._message_id:
            self.text, self.kind = told["text"], told["kind"]
            self.over.set()

    def _changed(self, frame: Frame) -> None:
        if _told(frame).get("deleted"):
            self.error = "SessionNotFound"
            self.text = "the session was deleted"
            self.over.set()


def _told(frame: Frame) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(frame.data.partition(b"\ndata: ")[2])
    return told
