"""One turn: ask, run the tools it calls for, ask again, until an answer. Holds no conversation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import uuid4

import anyio

from nanoloop.errors import ContextTooLong, EmptyAnswer
from nanoloop.events import (
    Announce,
    AnswerCut,
    ContextShrunk,
    ModelAnswered,
    ModelAsked,
    ToolFinished,
    ToolStarted,
    silent,
)
from nanoloop.protocols import OnText, Provider, Reply, ToolCall, Usage
from nanoloop.session.chat import REASONING, decoded
from nanoloop.session.entry import Entry, fresh_id
from nanoloop.tools.toolbox import Toolbox

SAME_CALLS = 4
"""So often in a row a model may ask for the very same calls; the last time they are not run."""


class Conversation(Protocol):
    """What a turn needs of whoever holds the conversation."""

    def request(self) -> list[dict[str, Any]]:
        """The messages for the model, as of now."""
        ...

    async def record(self, entries: Sequence[Entry]) -> None:
        """Add these entries; they are durable when this returns."""
        ...

    def shrink(self) -> int:
        """Cut the window harder; how many entries are left in it, or 0 if nothing more can go."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a turn came to."""

    text: str
    entries: tuple[Entry, ...]
    """What is still to be recorded: the last thought, and the answer."""
    steps: int
    usage: Usage
    finish_reason: str


class Turn:
    """One question on its way to an answer."""

    def __init__(
        self,
        *,
        provider: Provider,
        toolbox: Toolbox,
        model: str | None = None,
        max_steps: int = 20,
        on_text: OnText | None = None,
        announce: Announce = silent,
        session_id: str = "",
    ) -> None:
        self._provider = provider
        self._toolbox = toolbox
        self._model = model
        self._max_steps = max_steps
        self._on_text = on_text
        self._announce = announce
        self._session_id = session_id
        self.id = fresh_id()[8:20]  # of time, and of chance
        self.said = ""
        """The text of the step going on, as far as it has come."""
        self.finished: list[Entry] = []
        """Results of the step's tools that are done and not recorded yet."""
        self._usage = Usage()
        self._may_shrink = True
        self._spoke_before = False
        self._calls = ""
        """What the last step asked its tools for."""
        self._repeats = 0

    async def run(self, conversation: Conversation) -> Answer:
        """Ask until there is an answer; raises `ProviderError` when there is none to be had."""
        for step in range(1, self._max_steps + 1):
            reply = await self._ask(conversation, step)
            if not reply.tool_calls:
                return self._answer(reply, step)
            calls = _with_ids(reply.tool_calls)
            if self._goes_in_circles(calls):
                return self._given_up(step, "same_calls", self._circle(calls))
            # Recorded before they run: whatever a tool does, the log says who asked for it.
            self._spoke_before = self._spoke_before or bool(self.said)
            # Handed over before the wait: stopped while it is saved, it is not added again.
            self.said = ""
            await conversation.record([*_words(reply), *_call_entries(calls)])
            results = await self._run_tools(calls)
            self.finished = []
            await conversation.record(results)
        return self._given_up(self._max_steps, "max_steps", " without coming to an answer")

    async def _ask(self, conversation: Conversation, step: int) -> Reply:
        try:
            return await self._ask_once(conversation, step)
        except ContextTooLong:
            kept = conversation.shrink() if self._may_shrink else 0
            if not kept:
                raise
            self._may_shrink = False
            self._announce(ContextShrunk(session_id=self._session_id, turn_id=self.id, kept=kept))
            return await self._ask_once(conversation, step)

    async def _ask_once(self, conversation: Conversation, step: int) -> Reply:
        messages = conversation.request()
        self.said = ""
        self._announce(
            ModelAsked(
                session_id=self._session_id, turn_id=self.id, step=step, messages=len(messages)
            )
        )
        listening: dict[str, Any] = {"on_text": self._hear} if self._on_text else {}
        started = time.monotonic()
        reply = await self._provider.chat(
            messages=messages, tools=self._toolbox.specs or None, model=self._model, **listening
        )
        self._usage += reply.usage
        self._announce(self._receipt(reply, step, time.monotonic() - started))
        return reply

    def _hear(self, piece: str) -> None:
        if self._spoke_before and not self.said and self._on_text is not None:
            self._on_text("\n\n")
        self.said += piece
        if self._on_text is not None:
            self._on_text(piece)

    def _receipt(self, reply: Reply, step: int, seconds: float) -> ModelAnswered:
        return ModelAnswered(
            session_id=self._session_id,
            turn_id=self.id,
            step=step,
            model=reply.model,
            finish_reason=reply.finish_reason,
            tokens_in=reply.usage.tokens_in,
            tokens_out=reply.usage.tokens_out,
            tokens_cached=reply.usage.tokens_cached,
            seconds=round(seconds, 3),
        )

    def _answer(self, reply: Reply, step: int) -> Answer:
        if not reply.text.strip():
            raise EmptyAnswer(_empty_because(reply.finish_reason))
        if reply.finish_reason == "length":
            self._announce(AnswerCut(session_id=self._session_id, turn_id=self.id))
        return Answer(
            text=reply.text,
            entries=tuple(_words(reply)),
            steps=step,
            usage=self._usage,
            finish_reason=reply.finish_reason,
        )

    def _goes_in_circles(self, calls: Sequence[ToolCall]) -> bool:
        asked = repr([(call.name, decoded(call.arguments)) for call in calls])
        self._repeats = self._repeats + 1 if asked == self._calls else 1
        self._calls = asked
        return self._repeats == SAME_CALLS

    def _circle(self, calls: Sequence[ToolCall]) -> str:
        # Only tools that there are: any other name is whatever the model's server made up.
        asked = {call.name for call in calls}
        names = ", ".join(spec.name for spec in self._toolbox.specs if spec.name in asked)
        often = f": the model asked for the same thing {SAME_CALLS} times in a row"
        return f"{often} ({names})" if names else often

    def _given_up(self, steps: int, finish_reason: str, why: str) -> Answer:
        text = f"I stopped after {steps} steps{why}."
        return Answer(
            text=text,
            entries=(Entry.message("assistant", text, metadata={"finish_reason": finish_reason}),),
            steps=steps,
            usage=self._usage,
            finish_reason=finish_reason,
        )

    async def _run_tools(self, calls: Sequence[ToolCall]) -> list[Entry]:
        """Run them side by side; their results in call order."""
        results: dict[str, Entry] = {}
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self._run_tool, call, results, name=f"tool {call.name}")
        return [results[call.id] for call in calls]

    async def _run_tool(self, call: ToolCall, results: dict[str, Entry]) -> None:
        about = {
            "session_id": self._session_id,
            "turn_id": self.id,
            "tool": call.name,
            "call_id": call.id,
        }
        self._announce(ToolStarted(**about))
        outcome = await self._toolbox.run(call)
        results[call.id] = Entry.tool_result(
            call.name,
            outcome.text if outcome.success else None,
            None if outcome.success else outcome.error,
            call_id=call.id,
        )
        self.finished.append(results[call.id])
        self._announce(
            ToolFinished(**about, success=outcome.success, seconds=round(outcome.seconds, 3))
        )


def _with_ids(calls: Sequence[ToolCall]) -> list[ToolCall]:
    """The calls with ids that differ, also where the server gave none or the same twice."""
    seen: set[str] = set()
    distinct = []
    for call in calls:
        call_id = call.id if call.id and call.id not in seen else f"call_{uuid4().hex[:24]}"
        seen.add(call_id)
        distinct.append(ToolCall(id=call_id, name=call.name, arguments=call.arguments))
    return distinct


def _words(reply: Reply) -> list[Entry]:
    thought = _thought(reply)
    if not reply.text:
        return thought
    ended_oddly = reply.finish_reason not in {"stop", "tool_calls"}
    metadata = {"finish_reason": reply.finish_reason} if ended_oddly else None
    return [*thought, Entry.message("assistant", reply.text, metadata=metadata)]


def _thought(reply: Reply) -> list[Entry]:
    """What was thought; only before a call its vendor wants it back."""
    own = reply.reasoning if reply.tool_calls else None
    if own is None:
        return [Entry.thinking(reply.thinking)] if reply.thinking else []
    metadata = {REASONING: {"vendor": own.vendor, "blocks": own.blocks}}
    return [Entry.thinking(reply.thinking, metadata=metadata)]


def _call_entries(calls: Sequence[ToolCall]) -> list[Entry]:
    return [Entry.tool_call(call.name, decoded(call.arguments), call_id=call.id) for call in calls]


def _empty_because(finish_reason: str) -> str:
    if finish_reason == "length":
        return (
            "the model ran out of tokens before its answer began: "
            "allow it more, or ask for something shorter"
        )
    return f"the model gave an empty answer (finish reason {finish_reason!r}): ask again"
