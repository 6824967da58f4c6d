"""What the stand-in of Telegram shows, refuses, and does wrong when it is told to."""

from dataclasses import dataclass, field


class Refusal(Exception):
    """An answer that says no."""

    def __init__(self, code, words, **parameters):
        super().__init__(words)
        self.code, self.words, self.parameters = code, words, parameters


@dataclass(slots=True)
class Post:
    """A message as the chat shows it."""

    id: int
    sender: int
    text: str
    reply_to: int | None = None
    thread: int | None = None
    edits: int = 0
    file: bytes | None = None


@dataclass(slots=True)
class Faults:
    """What goes wrong next."""

    lost: int = 0
    unconfirmed: int = 0
    limited: int = 0
    seconds: int = 1
    failing: int = 0
    """Requests of any kind that are answered with 502."""
    plain_only: bool = False
    refused: bool = False
    blocked: set = field(default_factory=set)
    rate: tuple[int, float] | None = None
    """So many messages in a chat in so many seconds."""
