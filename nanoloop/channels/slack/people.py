"""What people are called: asked of Slack once for each, and known for a while."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from nanoloop.channels.slack.web import Web
from nanoloop.errors import NanoloopError

KNOWN = 5000


class People:
    """Knows names by ids; who has none is called by the id."""

    def __init__(self, web: Web) -> None:
        self._web = web
        self._names: OrderedDict[str, str] = OrderedDict()

    async def name(self, person: str) -> str:
        """What this person is called."""
        if person not in self._names:
            try:
                answer = await self._web.call("users.info", user=person)
            except NanoloopError:
                return person  # asked again the next time
            self._names[person] = _name(answer.get("user") or {}) or person
            while len(self._names) > KNOWN:
                self._names.popitem(last=False)
        return self._names[person]

    async def names(self, people: Iterable[str]) -> Mapping[str, str]:
        """What each of them is called."""
        return {person: await self.name(person) for person in people}


def _name(user: Mapping[str, Any]) -> str:
    profile = user.get("profile") or {}
    return str(
        profile.get("display_name") or profile.get("real_name") or user.get("name") or ""
    ).strip()
