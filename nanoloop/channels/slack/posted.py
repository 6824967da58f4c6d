"""What of ours a chat shows already: Slack takes no ids of ours, so it is looked up if in doubt."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from nanoloop.channels.platform.errors import Refused
from nanoloop.channels.platform.platform import Place
from nanoloop.channels.slack.web import Web
from nanoloop.errors import Declined

KIND = "nanoloop_message"
"""The kind of metadata that our messages carry."""
START_SECONDS = 600.0
"""For so long after the start a chat may hold what was posted before it."""
REMEMBERED = 10_000
_LOOK_BACK = 100
_THREAD_SECONDS = 86_400.0


class Posted:
    """Finds what may have been posted without our hearing of it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._sure: OrderedDict[Place, None] = OrderedDict()
        self._doubtful: set[Place] = set()
        self._found: OrderedDict[str, str] = OrderedDict()

    def begin(self) -> None:
        """From now on messages can be posted."""
        if self._began is None:
            self._began = self._clock()

    def doubt(self, place: Place) -> None:
        """Something may be there that we don't know of."""
        self._doubtful.add(place)

    async def find(self, web: Web, place: Place, name: str) -> str | None:
        """The message that was posted under this name, where that is in doubt."""
        if self._is_in_doubt(place):
            # Before the look: what fails meanwhile is in doubt again.
            self._doubtful.discard(place)
            try:
                await self._look(web, place)
            except (Declined, Refused):
                pass  # a chat whose history is closed to us
            except BaseException:
                self._doubtful.add(place)
                raise
            _note(self._sure, place, None)
        return self._found.get(name)

    def _is_in_doubt(self, place: Place) -> bool:
        is_early = self._began is not None and self._clock() - self._began < START_SECONDS
        return place in self._doubtful or (is_early and place not in self._sure)

    async def _look(self, web: Web, place: Place) -> None:
        method = "conversations.replies" if place.thread else "conversations.history"
        answer = await web.call(
            method,
            channel=place.chat,
            ts=place.thread or None,
            # A thread is told from its begin on, all else from its end.
            oldest=f"{time.time() - _THREAD_SECONDS:.6f}" if place.thread else None,
            limit=_LOOK_BACK,
            include_all_metadata=True,
        )
        for message in answer.get("messages") or ():
            name = _name(message)
            if name is not None:
                _note(self._found, name, str(message.get("ts")))


def metadata(name: str) -> dict[str, Any]:
    """What a message is marked with, so that it is found by that name."""
    return {"event_type": KIND, "event_payload": {"name": name}}


def _name(message: dict[str, Any]) -> str | None:
    marked = message.get("metadata") or {}
    if marked.get("event_type") != KIND:
        return None
    name = (marked.get("event_payload") or {}).get("name")
    return name if isinstance(name, str) else None


def _note(known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
    known[key] = value
    known.move_to_end(key)
    while len(known) > REMEMBERED:
        known.popitem(last=False)
