"""Who answers: a name, a prompt, a model and tools; usable alone, with or without a session."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from nanoloop.context import build_messages
from nanoloop.protocols import OnText, Provider, Tool
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session
from nanoloop.tools.toolbox import Toolbox
from nanoloop.turn import Turn

PROMPT = "You are a helpful assistant. Answer briefly and to the point."


class Agent:
    """A named way to answer. It keeps its own history, unless a session is attached."""

    def __init__(
        self,
        name: str = "assistant",
        *,
        prompt: str = PROMPT,
        provider: Provider | None = None,
        model: str | None = None,
        tools: Iterable[Tool] = (),
        max_steps: int = 20,
        tool_timeout_seconds: float = 60,
        tool_result_chars: int = 16_000,
    ) -> None:
        self.name = name
        self.prompt = prompt
        self.provider = provider
        self.model = model
        self.max_steps = max_steps
        self.toolbox = Toolbox(
            tuple(tools), timeout_seconds=tool_timeout_seconds, result_chars=tool_result_chars
        )
        self._own = Session()
        self._session: Session | None = None

    @property
    def session(self) -> Session | None:
        """The session attached, if any."""
        return self._session

    def get_session(self) -> Session | None:
        """The session attached, if any."""
        return self._session

    def attach_session(self, session: Session | None = None) -> Agent:
        """Let this session, or a new one, hold the history from now on."""
        self._session = Session() if session is None else session
        return self

    def detach_session(self) -> Agent:
        """Hold the history itself again; the session keeps what it has."""
        self._session = None
        return self

    @property
    def _history(self) -> Session:
        return self._own if self._session is None else self._session

    @property
    def chat_history(self) -> list[dict[str, Any]]:
        """What the model will see of the conversation."""
        return self._history.current_chat_history

    def set_chat_history(self, messages: Sequence[Mapping[str, Any]]) -> Agent:
        """Begin the history anew with these messages."""
        self._history.reset_history()
        return self.add_chat_history(messages)

    def add_chat_history(self, messages: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Agent:
        """Append one message or several."""
        for message in [messages] if isinstance(messages, Mapping) else messages:
            self._history.append_message(message)
        return self

    def reset_chat_history(self) -> Agent:
        """Empty the history."""
        self._history.reset_history()
        return self

    async def ask(self, text: str, *, on_text: OnText | None = None) -> str:
        """The model's answer; raises `ProviderError`. With `on_text` it comes in pieces too."""
        if self.provider is None:
            raise ValueError(f"agent {self.name!r} has no provider: Agent(provider=...)")
        session = self._history
        turn = Turn(
            provider=self.provider,
            toolbox=self.toolbox,
            model=self.model,
            max_steps=self.max_steps,
            on_text=on_text,
            session_id=session.id,
        )
        session.add_entry(Entry.message("user", text))
        answer = await turn.run(_InMemory(self, session))
        for entry in answer.entries:
            session.add_entry(entry)
        return answer.text


class _InMemory:
    """A conversation that only a session object holds."""

    def __init__(self, agent: Agent, session: Session) -> None:
        self._agent = agent
        self._session = session

    def request(self) -> list[dict[str, Any]]:
        return build_messages(
            self._agent.prompt, self._session.window, summary=self._session.summary
        )

    async def record(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._session.add_entry(entry)

    def shrink(self) -> int:
        return len(self._session.window) if self._session.shrink() else 0
