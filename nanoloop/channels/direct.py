"""Provides `DirectChannel` beside the other channels; `AgentLoop.ask` works without it."""

from nanoloop.embedding import DirectChannel

__all__ = ["DirectChannel"]
