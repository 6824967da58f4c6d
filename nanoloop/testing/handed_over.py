"""A ledger of what a provider was really handed, in calls that came to an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanoloop.protocols import ChatMessage, OnText, Provider, Reply, ToolSpec
from nanoloop.session.entry import plain_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One call that returned: what it was handed, as text, and what it said."""

    begun: int
    """How many calls had begun before it."""
    text: str
    reply: Reply


class HandedOver:
    """Passes calls on to a provider, and notes those that returned."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self.begun = 0
        """Calls so far, also those that never return."""
        self.finished: list[Finished] = []
        """Calls that returned, in the order in which they did."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Ask the provider; raises what it raises, and then notes nothing."""
        begun, self.begun = self.begun, self.begun + 1
        # Read before the call: a list that changes meanwhile was not handed over.
        text = "\n".join(plain_text(message.get("content")) for message in messages)
        reply = await self._provider.chat(
            messages=messages, tools=tools, model=model, on_text=on_text
        )
        self.finished.append(Finished(begun=begun, text=text, reply=reply))
        return reply

    async def close(self) -> None:
        """Close the provider."""
        await self._provider.close()

    def has(self, text: str) -> bool:
        """Whether a call that returned was handed this text."""
        return any(text in call.text for call in self.finished)
