from nanoloop.agents.agent import Agent
from nanoloop.agents.choice import Agents
from nanoloop.agents.hooks import Outcome

__all__ = ["Agent", "Agents", "Outcome"]
