"""What a group says beside the bot: kept for a while, and told with the next question."""

from __future__ import annotations

from collections import OrderedDict, deque

from nanoloop.channels.platform.platform import Heard

MESSAGES = 20
"""How much of it is kept of one chat."""
CHARS = 500
"""How much of one message."""
CHATS = 1000


class Overheard:
    """Keeps the newest of it for each place."""

    def __init__(self) -> None:
        self._said: OrderedDict[str, deque[Heard]] = OrderedDict()

    def keep(self, place: str, heard: Heard) -> None:
        """Remember what was said."""
        self.forget(place, heard.id)  # it may be delivered twice
        self._said.setdefault(place, deque(maxlen=MESSAGES)).append(heard)
        self._said.move_to_end(place)
        while len(self._said) > CHATS:
            self._said.popitem(last=False)

    def forget(self, place: str, message: str) -> Heard | None:
        """Forget one message, which was changed or taken back; returns it."""
        said = self._said.get(place, deque())
        found = next((heard for heard in said if heard.id == message), None)
        if found is not None:
            said.remove(found)
        return found

    def take(self, place: str) -> str:
        """What was said since the last time, a line each; empty where nothing was."""
        said = self._said.pop(place, ())
        return "\n".join(f"{heard.name or heard.sender}: {_short(heard)}" for heard in said)


def _short(heard: Heard) -> str:
    files = "".join(f" [{file.kind}]" for file in heard.files)
    text = " ".join(heard.text.split())
    return (text if len(text) <= CHARS else f"{text[:CHARS]}…") + files
