"""An asyncio message-bus agent loop with a background summariser.

Names are imported when they are first asked for, so that `import nanoloop` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nanoloop.agents import Agent, AgentLimits
    from nanoloop.context import build_messages
    from nanoloop.directory import SessionDirectory
    from nanoloop.errors import SessionExists, SessionNotFound
    from nanoloop.events import hearing
    from nanoloop.loop import AgentLoop
    from nanoloop.memory.summarizer import Summarizer
    from nanoloop.messages import Attachment, Inbound, Outbound
    from nanoloop.protocols import Reply, Store
    from nanoloop.providers.openai import OpenAIProvider
    from nanoloop.providers.scripted import ScriptedProvider
    from nanoloop.session.entry import Entry
    from nanoloop.session.head import Identity
    from nanoloop.session.session import Session
    from nanoloop.stores.in_memory import InMemoryStore
    from nanoloop.stores.jsonl.store import JsonlStore
    from nanoloop.tools.function import tool
    from nanoloop.turn import Hooks, Recording

_HOME = {
    "Agent": "nanoloop.agents",
    "AgentLimits": "nanoloop.agents",
    "AgentLoop": "nanoloop.loop",
    "Attachment": "nanoloop.messages",
    "Entry": "nanoloop.session.entry",
    "Hooks": "nanoloop.turn",
    "Identity": "nanoloop.session.head",
    "InMemoryStore": "nanoloop.stores.in_memory",
    "Inbound": "nanoloop.messages",
    "JsonlStore": "nanoloop.stores.jsonl",
    "OpenAIProvider": "nanoloop.providers.openai",
    "Outbound": "nanoloop.messages",
    "Recording": "nanoloop.turn",
    "Reply": "nanoloop.protocols",
    "ScriptedProvider": "nanoloop.providers.scripted",
    "Session": "nanoloop.session.session",
    "SessionDirectory": "nanoloop.directory",
    "SessionExists": "nanoloop.errors",
    "SessionNotFound": "nanoloop.errors",
    "Store": "nanoloop.protocols",
    "Summarizer": "nanoloop.memory.summarizer",
    "build_messages": "nanoloop.context",
    "hearing": "nanoloop.events",
    "tool": "nanoloop.tools.function",
}

__all__ = [
    "Agent",
    "AgentLimits",
    "AgentLoop",
    "Attachment",
    "Entry",
    "Hooks",
    "Identity",
    "InMemoryStore",
    "Inbound",
    "JsonlStore",
    "OpenAIProvider",
    "Outbound",
    "Recording",
    "Reply",
    "ScriptedProvider",
    "Session",
    "SessionDirectory",
    "SessionExists",
    "SessionNotFound",
    "Store",
    "Summarizer",
    "build_messages",
    "hearing",
    "tool",
]


def __getattr__(name: str) -> object:
    """Import a public name from its home."""
    if name not in _HOME:
        raise AttributeError(f"module 'nanoloop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
