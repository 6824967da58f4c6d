"""An asyncio message-bus agent loop with a background summariser.

Names are imported when they are first asked for, so that `import nanoloop` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanoloop.agents import Agent
    from nanoloop.errors import SessionExists, SessionNotFound
    from nanoloop.loop import AgentLoop
    from nanoloop.memory.summarizer import Summarizer
    from nanoloop.messages import Attachment, Inbound, Outbound
    from nanoloop.session.entry import Entry
    from nanoloop.session.session import Session
    from nanoloop.tools.function import tool

_HOME = {
    "Agent": "nanoloop.agents",
    "AgentLoop": "nanoloop.loop",
    "Attachment": "nanoloop.messages",
    "Entry": "nanoloop.session.entry",
    "Inbound": "nanoloop.messages",
    "Outbound": "nanoloop.messages",
    "Session": "nanoloop.session.session",
    "SessionExists": "nanoloop.errors",
    "SessionNotFound": "nanoloop.errors",
    "Summarizer": "nanoloop.memory.summarizer",
    "tool": "nanoloop.tools.function",
}

__all__ = [
    "Agent",
    "AgentLoop",
    "Attachment",
    "Entry",
    "Inbound",
    "Outbound",
    "Session",
    "SessionExists",
    "SessionNotFound",
    "Summarizer",
    "tool",
]


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name not in _HOME:
        raise AttributeError(f"module 'nanoloop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
