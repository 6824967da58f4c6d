"""Which agent answers in a session: chosen with the first prompt, kept, changed on request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from nanoloop.agents.agent import Agent
from nanoloop.events import AgentUnknown, Announce, silent
from nanoloop.session.session import Session


class Agents(Mapping[str, Agent]):
    """The agents there are, by name, and the one that answers where none was chosen."""

    def __init__(
        self,
        default: Agent,
        named: Mapping[str, Agent] | None = None,
        *,
        by_channel: Mapping[str, str] | None = None,
    ) -> None:
        """`by_channel` names the agent for new sessions of a channel."""
        # The user's own come later: one that is named like the default takes its place.
        self._agents = {default.name: default, **(named or {})}
        self.default = self._agents[default.name]
        self._by_channel = dict(by_channel or {})

    def renew(self, agents: Agents) -> None:
        """From the next turn on these are the agents there are."""
        self._agents, self.default = agents._agents, agents.default
        self._by_channel = agents._by_channel

    def __getitem__(self, name: str) -> Agent:
        return self._agents[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._agents)

    def __len__(self) -> int:
        return len(self._agents)

    def of(self, session: Session) -> Agent:
        """The agent that answers in this session."""
        return self._agents.get(session.agent or "", self.default)

    def choose(
        self,
        session: Session,
        *,
        wanted: str | None = None,
        channel: str = "",
        announce: Announce = silent,
    ) -> Agent:
        """The agent for the next prompt here, whose name the session keeps.

        With the first prompt: the one wanted, else the session's, else the channel's, else the
        default. Later: the session's. One that there is not counts as none, and is told.
        """
        is_first = session.last_seq == 0
        names = [wanted, session.agent] if is_first else [session.agent or wanted]
        for name in names:
            if name is not None and name not in self:
                announce(AgentUnknown(session_id=session.id, agent=name))
        if is_first:
            names += [self._by_channel.get(channel), self.default.name]
        chosen = next((name for name in names if name in self), None)
        if chosen != session.agent:
            session.agent = chosen
        return self.of(session)

    def nearest(self, name: str) -> str | None:
        """The name that was perhaps meant."""
        return next(iter(get_close_matches(name, self._agents, n=1)), None)
