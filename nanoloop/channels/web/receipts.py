"""What the last summaries of each session took: told as long as the process lasts, bounded."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from nanoloop.events import SummaryCommitted
from nanoloop.session.entry import rfc3339

SESSIONS = 1000
OF_ONE = 20


class Receipts:
    """The newest receipts of the sessions that were summarised last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()

    def add(self, event: SummaryCommitted) -> None:
        """Keep this one."""
        receipt = asdict(event)
        session_id = receipt.pop("session_id")
        receipt["time"] = rfc3339(datetime.now(timezone.utc))
        self._kept.setdefault(session_id, deque(maxlen=OF_ONE)).append(receipt)
        self._kept.move_to_end(session_id)
        if len(self._kept) > SESSIONS:
            self._kept.popitem(last=False)

    def of(self, session_id: str) -> list[dict[str, Any]]:
        """Those of one session, the newest last."""
        return list(self._kept.get(session_id, ()))

    def forget(self, session_id: str) -> None:
        """Let go of a session's."""
        self._kept.pop(session_id, None)
