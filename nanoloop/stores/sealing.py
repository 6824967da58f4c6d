"""What is said and known, sealed before it is written; who and when stay readable.

Ids, numbers, types and times are left as they are, so that files can be repaired, searched and
listed without the key. What was written in plain text before stays readable too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from nanoloop.errors import StoreError
from nanoloop.protocols import Seal
from nanoloop.session.entry import Entry
from nanoloop.session.head import ABOUT, Changes
from nanoloop.stores.snapshot import StoredSnapshot, decoding

SEALED = "_sealed"
READABLE = ("id", "key", "created_at")
"""What stays readable of the section that says who the session is."""


class Sealing:
    """Seals changes and opens snapshots; without a seal it only lets plain ones through."""

    def __init__(self, seal: Seal | None = None) -> None:
        self._seal = seal

    def sealed(self, changes: Changes) -> Changes:
        """The changes as they may be written."""
        if self._seal is None:
            return changes
        entries = tuple(self._sealed_entry(entry) for entry in changes.entries)
        sections = {name: self._section(name, v) for name, v in changes.sections.items()}
        return replace(changes, entries=entries, sections=sections, head=self._head(changes.head))

    def _sealed_entry(self, entry: Entry) -> Entry:
        token = self._token({"content": entry.content, "metadata": entry.metadata})
        return replace(entry, content={SEALED: token}, metadata={})

    def _section(self, name: str, value: Any) -> dict[str, Any]:
        readable = {n: value[n] for n in READABLE if n in value} if name == ABOUT else {}
        return {**readable, SEALED: self._token(value)}

    def _head(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The head; a handler's window may show entries that stand in no log."""
        shown = [
            self._sealed_entry(Entry.from_dict(item)).to_dict() if isinstance(item, dict) else item
            for item in head.get("shown") or ()
        ]
        return {**head, "shown": shown} if shown else dict(head)

    def _token(self, value: Any) -> str:
        assert self._seal is not None  # noqa: S101 - asked for only where there is one
        try:
            return self._seal.seal(json.dumps(value, default=str).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"this can't be written as JSON ({error}): change it") from error

    def opened(self, snapshot: StoredSnapshot) -> StoredSnapshot:
        """What a store kept, readable again; raises `StoreError` where no key fits."""
        name = snapshot.name
        head = dict(snapshot.head)
        if head.get("shown"):
            head["shown"] = [self._shown(item, name) for item in head["shown"]]
        return replace(
            snapshot,
            head=head,
            sections={key: self._value(v, name) for key, v in snapshot.sections.items()},
            entries=[self.entry(entry, name) for entry in snapshot.entries],
        )

    def entry(self, entry: Entry, session_id: str) -> Entry:
        """One entry, readable again; raises as `opened`."""
        if SEALED not in entry.content:
            return entry
        with decoding(session_id):
            said = self._value(entry.content, session_id)
            return replace(entry, content=said["content"], metadata=said["metadata"])

    def _shown(self, item: Any, session_id: str) -> Any:
        is_entry = isinstance(item, dict)
        return self.entry(Entry.from_dict(item), session_id).to_dict() if is_entry else item

    def glance(self, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Who a session is, as far as the key goes."""
        try:
            value: Mapping[str, Any] = self._value(about, str(about.get("id")))
        except StoreError:
            return about
        return value

    def _value(self, value: Any, session_id: str) -> Any:
        if not isinstance(value, Mapping) or SEALED not in value:
            return value
        try:
            if self._seal is not None:
                return json.loads(self._seal.open(str(value[SEALED])))
        except ValueError:
            pass
        raise StoreError(
            f"session {session_id!r} is sealed, and no key here opens it: add the key that it was "
            "written with to store.encryption_key (NANOLOOP_STORE__ENCRYPTION_KEY), behind a comma"
        )
