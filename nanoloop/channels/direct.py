"""The channel for code, next to the other channels; `AgentLoop.ask` works without it."""

from nanoloop.embedding import DirectChannel

__all__ = ["DirectChannel"]
