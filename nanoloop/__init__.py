"""An asyncio message-bus agent loop with a background summariser.

Names are imported on first use, so that `import nanoloop` costs next to nothing.
"""

import sys

# Given `python -m nanoloop`, Python searches the current folder for modules first, and anyone may
# have written files there. Remove that folder before any other import, even of `__future__`, so
# that no file in it can replace a module.
if sys.argv[:1] == ["-m"] and sys.orig_argv[-len(sys.argv)] in ("nanoloop", "-mnanoloop"):
    sys.path[:] = sys.path[not sys.flags.safe_path :]

from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from nanoloop.agents import Agent, AgentLimits
    from nanoloop.app import App
    from nanoloop.context import build_messages
    from nanoloop.directory import SessionDirectory
    from nanoloop.embedding import DirectChannel
    from nanoloop.errors import NotRunning, SessionExists, SessionNotFound, TurnFailed
    from nanoloop.events import hearing
    from nanoloop.hooks import Hooks
    from nanoloop.loop import AgentLoop
    from nanoloop.memory.recall import Recall
    from nanoloop.memory.summarizer import Summarizer
    from nanoloop.messages import Attachment, Inbound, Outbound
    from nanoloop.protocols import Reply, Store
    from nanoloop.providers.anthropic import AnthropicProvider
    from nanoloop.providers.openai import OpenAIProvider
    from nanoloop.providers.scripted import ScriptedProvider
    from nanoloop.recording import Recording
    from nanoloop.session.entry import Entry
    from nanoloop.session.head import Identity
    from nanoloop.session.session import Session
    from nanoloop.stores.in_memory import InMemoryStore
    from nanoloop.stores.jsonl.store import JsonlStore
    from nanoloop.stores.sqlite import SqliteStore
    from nanoloop.tools.call import current_call
    from nanoloop.tools.file_results import FileResult
    from nanoloop.tools.function import tool

_HOME = {
    "Agent": "nanoloop.agents",
    "AgentLimits": "nanoloop.agents",
    "AgentLoop": "nanoloop.loop",
    "AnthropicProvider": "nanoloop.providers.anthropic",
    "App": "nanoloop.app",
    "Attachment": "nanoloop.messages",
    "DirectChannel": "nanoloop.embedding",
    "Entry": "nanoloop.session.entry",
    "FileResult": "nanoloop.tools.file_results",
    "Hooks": "nanoloop.hooks",
    "Identity": "nanoloop.session.head",
    "InMemoryStore": "nanoloop.stores.in_memory",
    "Inbound": "nanoloop.messages",
    "JsonlStore": "nanoloop.stores.jsonl",
    "NotRunning": "nanoloop.errors",
    "OpenAIProvider": "nanoloop.providers.openai",
    "Outbound": "nanoloop.messages",
    "Recall": "nanoloop.memory.recall",
    "Recording": "nanoloop.recording",
    "Reply": "nanoloop.protocols",
    "ScriptedProvider": "nanoloop.providers.scripted",
    "Session": "nanoloop.session.session",
    "SessionDirectory": "nanoloop.directory",
    "SessionExists": "nanoloop.errors",
    "SessionNotFound": "nanoloop.errors",
    "SqliteStore": "nanoloop.stores.sqlite",
    "Store": "nanoloop.protocols",
    "Summarizer": "nanoloop.memory.summarizer",
    "TurnFailed": "nanoloop.errors",
    "build_messages": "nanoloop.context",
    "current_call": "nanoloop.tools.call",
    "hearing": "nanoloop.events",
    "tool": "nanoloop.tools.function",
}

__all__ = [
    "Agent",
    "AgentLimits",
    "AgentLoop",
    "AnthropicProvider",
    "App",
    "Attachment",
    "DirectChannel",
    "Entry",
    "FileResult",
    "Hooks",
    "Identity",
    "InMemoryStore",
    "Inbound",
    "JsonlStore",
    "NotRunning",
    "OpenAIProvider",
    "Outbound",
    "Recall",
    "Recording",
    "Reply",
    "ScriptedProvider",
    "Session",
    "SessionDirectory",
    "SessionExists",
    "SessionNotFound",
    "SqliteStore",
    "Store",
    "Summarizer",
    "TurnFailed",
    "build_messages",
    "current_call",
    "hearing",
    "tool",
]


def __getattr__(name: str) -> object:
    """Import a public name from the module that defines it."""
    if name not in _HOME:
        raise AttributeError(f"module 'nanoloop' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
