"""The newest events of all rooms: what an edit, an answer or a redaction is about."""

from __future__ import annotations

from collections import OrderedDict

from nanoloop.channels.matrix.event import Event, content, edited, redacted, table
from nanoloop.channels.matrix.homeserver import Homeserver
from nanoloop.errors import Declined

REMEMBERED = 5000


class Recent:
    """Remembers so many, and asks the homeserver for older ones."""

    def __init__(self, homeserver: Homeserver) -> None:
        self._homeserver = homeserver
        self._events: OrderedDict[str, Event] = OrderedDict()

    def learn(self, event: Event) -> None:
        """Remember it; one that was edited says what it says now."""
        if taken_back := redacted(event):
            self._change(taken_back, {})
        elif earlier := edited(content(event)):
            known = self._events.get(earlier)
            if known is not None and known.get("sender") == event.get("sender"):
                self._change(earlier, _anew(known, event))
        else:
            self._keep(event)

    def known(self, message: str) -> Event | None:
        """What is remembered of it; its content is empty where it was taken back."""
        return self._events.get(message)

    async def find(self, room: str, message: str) -> Event | None:
        """The event, from the homeserver if need be; None where it may not be seen."""
        if message in self._events:
            return self._events[message]
        ask = self._homeserver.ask
        try:
            answer = await ask(self._homeserver.client.room_get_event(room, message))
        except Declined:
            return None
        event: Event = answer.event.source
        edit = table(event, "unsigned", "m.relations", "m.replace")
        if edit:
            event = {**event, "content": _anew(event, edit)}
        self._keep(event)
        return event

    def _keep(self, event: Event) -> None:
        # What is sent comes back, and may have been edited by then.
        self._events.setdefault(str(event.get("event_id")), event)
        while len(self._events) > REMEMBERED:
            self._events.popitem(last=False)

    def _change(self, message: str, said: Event) -> None:
        if message in self._events:
            self._events[message] = {**self._events[message], "content": said}


def _anew(event: Event, edit: Event) -> Event:
    """What it says now; where it stands doesn't change with that."""
    relation = table(event, "content", "m.relates_to")
    return {**table(edit, "content", "m.new_content"), "m.relates_to": relation}
