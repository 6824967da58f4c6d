"""A question that brings its whole conversation: answered with an agent's tools, kept nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from nanoloop.agents import Agent
from nanoloop.channels.web.openai.form import Completion
from nanoloop.channels.web.openai.messages import Message, parted
from nanoloop.channels.web.openai.tools import Offered
from nanoloop.context import build_messages
from nanoloop.events import Announce, Event, ModelAnswered
from nanoloop.protocols import OnText, Provider, ToolSpec, Usage, vendor_of
from nanoloop.session.chat import openai_call
from nanoloop.session.entry import TOOL_CALL, Entry
from nanoloop.session.session import Session
from nanoloop.tools.here import here
from nanoloop.turn import Turn


class _HandedOver(Exception):
    """The model asked for tools that the client has."""

    def __init__(self, text: str, calls: Sequence[Entry]) -> None:
        super().__init__()
        self.text = text
        self.calls = calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a question brings along."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    """The client's own."""


class Stateless:
    """The conversation of one turn; nothing of it is ever left out."""

    def __init__(
        self, asked: Asked, *, agent: Agent, provider: Provider, announce: Announce
    ) -> None:
        self._asked = asked
        self._agent = agent
        self._provider = provider
        self._announce = announce
        told, self._said = parted(asked.messages)
        self._prompt = "\n\n".join(filter(None, (agent.prompt, told)))
        self._entries: list[Entry] = []
        self._client_tools = {spec.name for spec in asked.tools}
        self._usage = Usage()

    async def ask(self, hear: OnText) -> Completion:
        """As `Question`."""
        here.set(Session())  # tools that look at theirs find an empty one
        turn = Turn(
            provider=self._agent.hooks.before(self._provider, self._agent),
            toolbox=Offered(self._agent.toolbox, self._asked.tools),
            model=self._agent.model,
            max_steps=self._agent.max_steps,
            on_text=hear,
            announce=self._count,
            session_id=self._asked.id,
        )
        try:
            answer = await turn.run(self)
        except _HandedOver as handed:
            calls = [openai_call(call) for call in handed.calls]
            return Completion(
                text=handed.text, tool_calls=calls, finish_reason="tool_calls", usage=self._usage
            )
        return Completion(text=answer.text, finish_reason=answer.finish_reason, usage=answer.usage)

    def _count(self, event: Event) -> None:
        if isinstance(event, ModelAnswered):
            self._usage += Usage(
                tokens_in=event.tokens_in,
                tokens_out=event.tokens_out,
                tokens_cached=event.tokens_cached,
            )
        self._announce(event)

    # What a turn needs of it

    def request(self) -> list[dict[str, Any]]:
        """All the client sent, and what was said and done since."""
        vendor = vendor_of(self._provider, self._agent.model)
        return build_messages(self._prompt, [*self._said, *self._entries], vendor=vendor)

    async def record(self, entries: Sequence[Entry]) -> None:
        """Go on with these; what the client has tools for ends the turn."""
        calls = [entry for entry in entries if entry.type == TOOL_CALL]
        theirs = [call for call in calls if call.content["tool"] in self._client_tools]
        if theirs:
            said = [str(entry.content["text"]) for entry in entries if entry.role == "assistant"]
            raise _HandedOver("".join(said), theirs)
        self._entries += entries

    def shrink(self) -> int:
        """Nothing goes: what is too long is for the client to shorten."""
        return 0
