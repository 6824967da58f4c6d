"""Exports `DirectChannel` together with the other channels; `AgentLoop.ask` does not need it."""

from nanoloop.embedding import DirectChannel

__all__ = ["DirectChannel"]
