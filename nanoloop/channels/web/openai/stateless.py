"""A question that brings its whole conversation: answered with an agent's tools, kept nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanoloop.agents import Agent
from nanoloop.channels.web.openai.answer import Completion
from nanoloop.channels.web.openai.request import Message, parted
from nanoloop.context import Views
from nanoloop.events import Announce
from nanoloop.protocols import OnText, Provider, ToolSpec, vendor_of
from nanoloop.session.chat import openai_call
from nanoloop.session.session import Session
from nanoloop.turn import Keeping, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConversation:
    """What a question brings along."""

    id: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec] = ()
    """The client's own."""


class StatelessQuestion:
    """A turn in a session that no store knows; nothing of it is ever left out."""

    def __init__(
        self, asked: ClientConversation, *, agent: Agent, provider: Provider, announce: Announce
    ) -> None:
        self._asked = asked
        self._agent = agent
        self._provider = provider
        self._announce = announce

    async def ask(self, hear: OnText) -> Completion:
        """As `Question`."""
        answer = await self._turn(hear).run()
        return Completion(
            text=answer.text,
            tool_calls=[openai_call(call) for call in answer.calls],
            finish_reason=answer.finish_reason,
            usage=answer.usage,
        )

    def _turn(self, hear: OnText) -> Turn:
        told, said = parted(self._asked.messages)
        session = Session(id=self._asked.id).add_chat_history(said)
        agent, provider = self._agent, self._provider
        view = Views().of(
            session,
            prompt="\n\n".join(filter(None, (agent.prompt, told))),
            vendor=vendor_of(provider, agent.model),
        )
        return Turn(
            session,
            agent=agent,
            provider=provider,
            view=view,
            keeping=Keeping(),
            cutting=None,
            theirs=self._asked.tools,
            on_text=hear,
            announce=self._announce,
        )
