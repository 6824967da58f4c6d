"""Who answers: a name, a prompt, a model and tools; usable alone, with or without a session."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Self

from nanoloop.agents.history import AgentHistory
from nanoloop.agents.hooks import Hooks
from nanoloop.agents.portal import from_sync
from nanoloop.agents.recording import Paths, Recording
from nanoloop.agents.request import Request
from nanoloop.agents.serial import Serial
from nanoloop.agents.stream import Stream
from nanoloop.events import Announce, silent
from nanoloop.protocols import OnText, Provider, Store, Tool
from nanoloop.session.handler import Handler
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions
from nanoloop.tools.toolbox import Toolbox

PROMPT = "You are a helpful assistant. Answer briefly and to the point."


class Agent(AgentHistory):
    """A named way to answer. It keeps its own history, unless a session is attached."""

    def __init__(
        self,
        name: str = "assistant",
        *,
        prompt: str = PROMPT,
        provider: Provider | None = None,
        model: str | None = None,
        tools: Iterable[Tool | Callable[..., Any]] = (),
        session: Session | None = None,
        store: Store | None = None,
        settings: Mapping[str, Any] | None = None,
        max_steps: int = 20,
        tool_timeout_seconds: float = 60,
        tool_result_chars: int = 16_000,
        message_buffer_limit: int | None = None,
        message_buffer_min: int | None = None,
        record_input: Paths = (),
        record_output: Paths = (),
        record_handler: Handler | None = None,
        request_prefixes: Iterable[Handler] = (),
        afterwards: Iterable[Handler] = (),
        announce: Announce = silent,
    ) -> None:
        super().__init__(name=name, provider=provider, settings=settings)
        self.prompt = prompt
        self.model = model
        self.max_steps = max_steps
        self.message_buffer_limit = message_buffer_limit
        """With more messages the loop cuts the window; None: as the loop does for all."""
        self.message_buffer_min = message_buffer_min
        self.toolbox = Toolbox(
            tuple(tools), timeout_seconds=tool_timeout_seconds, result_chars=tool_result_chars
        )
        self.hooks = Hooks(request_prefixes, afterwards)
        self.recording = Recording(
            input_paths=record_input, output_paths=record_output, handler=record_handler
        )
        self.announce = announce
        self._sessions = Sessions(store, announce=announce) if store is not None else None
        self._serial = Serial()
        if session is not None:
            self.attach_session(session)

    def set_record_handler(self, handler: Handler | None) -> Self:
        """Let this say what is recorded: (given, answer) to messages; None or [] records nothing.

        Nothing is recorded then before the answer has come.
        """
        self.recording = replace(self.recording, handler=handler)
        return self

    # Asking

    async def ask(
        self, given: Any, *, session_id: str | None = None, on_text: OnText | None = None
    ) -> str:
        """The model's answer; raises `ProviderError`. With `on_text` it comes in pieces too.

        Text and lists of parts go to the model as they are, anything else as JSON. With
        `session_id` it is asked in that session of the agent's store, a new one if need be.
        """
        provider = self._able()
        session = await self._session_for(session_id)
        async with self._serial.turn_in(session):
            store = self._sessions.store if self._sessions and session is not self._own else None
            request = Request(self, provider, session, given, store=store, on_text=on_text)
            text = await request.answered()
            if session_id is not None:
                session.release()  # what left the window is in the store
            return text

    def ask_sync(
        self, given: Any, *, session_id: str | None = None, on_text: OnText | None = None
    ) -> str:
        """As `ask`, from code that can't await, inside or outside an event loop."""
        self._serial.check_may_block(self._history.id if session_id is None else session_id)
        return from_sync(partial(self.ask, given, session_id=session_id, on_text=on_text))

    def stream(self, given: Any, *, session_id: str | None = None) -> Stream:
        """As `ask`, in pieces: `async for piece in agent.stream(…)`."""
        return Stream(lambda hear: self.ask(given, session_id=session_id, on_text=hear))

    def _able(self) -> Provider:
        if self.provider is None:
            raise ValueError(f"agent {self.name!r} has no provider: Agent(provider=...)")
        return self.provider

    async def _session_for(self, session_id: str | None) -> Session:
        if session_id is None:
            return self._history
        if self._sessions is None:
            raise ValueError(f"agent {self.name!r} has no store: Agent(store=...)")
        session = await self._sessions.named(session_id, agent=self.name)
        session.settings.inherit(self.settings)
        self._lend_provider(session)
        return session
