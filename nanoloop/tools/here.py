"""The session whose turn is going on, for tools that look at it."""

from __future__ import annotations

from contextvars import ContextVar

from nanoloop.session.session import Session

here: ContextVar[Session] = ContextVar("session of the turn that is going on")
