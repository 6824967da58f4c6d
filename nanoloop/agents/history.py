"""What an agent remembers: in the session attached to it, else in a history of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from nanoloop.protocols import Provider
from nanoloop.session.history import ChatMessages
from nanoloop.session.session import Session


class AgentHistory:
    """Passes everything on to the session that holds the history; keeps nothing itself."""

    def __init__(
        self,
        *,
        name: str,
        provider: Provider | None,
        settings: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        self.provider = provider
        """Who is asked, also by a session that has no provider of its own."""
        self.settings: Mapping[str, Any] = {} if settings is None else settings
        """What the sessions that it makes go by: `session.mode`, `session.limit` …"""
        self._own = self._made()
        self._session: Session | None = None

    def _made(self) -> Session:
        return Session(settings=self.settings, provider=self.provider)

    # The session

    @property
    def session(self) -> Session | None:
        """The session attached, if any."""
        return self._session

    def get_session(self) -> Session | None:
        """The session attached, if any."""
        return self._session

    def attach_session(self, session: Session | None = None, *, mode: str | None = None) -> Self:
        """Let this session, or a new one, hold the history from now on.

        Nothing said before is taken along. `mode` is "lite" or "memo".
        """
        session = self._made() if session is None else session
        if mode is not None:
            session.configure(mode=mode)
        self._lend_provider(session)
        self._session = session
        return self

    def detach_session(self) -> Self:
        """Hold the history itself again; the session keeps what it has."""
        self._session = None
        return self

    def _lend_provider(self, session: Session) -> None:
        if session.provider is None:
            session.provider = self.provider

    # The history

    @property
    def _history(self) -> Session:
        return self._own if self._session is None else self._session

    @property
    def chat_history(self) -> list[dict[str, Any]]:
        """What the model will see of the conversation."""
        return self._history.current_chat_history

    def set_chat_history(self, messages: ChatMessages) -> Self:
        """Begin the history anew with these messages; the memo stays."""
        self._history.set_chat_history(messages)
        return self

    def add_chat_history(self, messages: ChatMessages) -> Self:
        """Append one message or several, then resize the history if it is time."""
        self._history.add_chat_history(messages).resize()
        return self

    def reset_chat_history(self) -> Self:
        """Empty the history; the memo stays."""
        self._history.reset_chat_history()
        return self
