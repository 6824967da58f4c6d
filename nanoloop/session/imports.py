"""Read other systems' files: Magent's JSON and nanobot's JSONL."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from typing import Any

from nanoloop.session.chat import begins_apart, entries_of
from nanoloop.session.entry import UNDATED, Entry, dated, from_rfc3339
from nanoloop.session.export import parsed
from nanoloop.session.head import Identity, id_for_key, new_id
from nanoloop.session.session import Session

_NANOBOT_OWN = {"timestamp", "_type"}


def from_magent(
    data: str | Mapping[str, Any],
    *,
    agents: Container[str] | None = None,
    newest_first: bool = False,
    unknown_agent: Callable[[str], object] = lambda _: None,
) -> Session:
    """Read a Magent file: id, messages and, if present, agent and max_history.

    An agent that is not in `agents` is ignored, and `unknown_agent` is called with its name.
    """
    data = parsed(data, "json")
    agent = data.get("agent") or None
    if agent is not None and agents is not None and agent not in agents:
        unknown_agent(str(agent))
        agent = None
    session_id = data.get("id")
    session = Session(
        about=Identity(
            id=new_id() if session_id is None else session_id,
            agent=agent,
            max_history=data.get("max_history"),
        )
    )
    messages = data.get("messages") or []
    if not isinstance(messages, list):
        raise TypeError(f"messages must be a list, not {type(messages).__name__}")
    for message in reversed(messages) if newest_first else messages:
        session.append_message(_checked(message))
    return session


def from_nanobot(text: str, *, key: str | None = None) -> Session:
    """Read a nanobot file: a metadata line, perhaps with a summary, then one message per line.

    The file doesn't say which messages the summary covers, so all of them are shown.
    """
    rows = [_checked(_row(line, n)) for n, line in enumerate(text.splitlines(), 1) if line.strip()]
    head = rows[0] if rows and rows[0].get("_type") == "metadata" else {}
    key = key or head.get("key")
    session_id = id_for_key(key) if key else new_id()
    session = Session(about=Identity(id=session_id, key=key, metadata=head.get("metadata") or {}))
    entries: list[Entry] = []
    for row in rows:
        if row.get("_type") != "metadata":
            entries += begins_apart(_entries(row), entries[-1] if entries else None)
    for entry in dated(entries):
        session.add_entry(entry)
    if head.get("summary"):
        session.update_summary(str(head["summary"]))
    return session


def _entries(row: Mapping[str, Any]) -> list[Entry]:
    message = {name: value for name, value in row.items() if name not in _NANOBOT_OWN}
    entries = entries_of(message)
    if not row.get("timestamp"):
        return entries
    try:
        moment = from_rfc3339(row["timestamp"])
    except ValueError:
        moment = UNDATED
    return [replace(entry, timestamp=moment) for entry in entries]


def _row(line: str, number: int) -> Any:
    try:
        return json.loads(line)
    except ValueError as broken:
        raise ValueError(f"line {number} is not valid JSON: {broken}") from broken


def _checked(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"a message must be an object with keys, not {type(value).__name__}")
    return value
