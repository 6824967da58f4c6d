"""What chats are told when something failed: a closed list of sentences, to be translated.

Every failure has two texts. The chat gets one of these sentences, chosen by the error's class and
never from its text, and the incident's id; the operator gets the error's own text beside that id.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from types import MappingProxyType

from nanoloop.errors import (
    AnswerRefused,
    AttachmentsFull,
    BadImage,
    BusFull,
    ContextTooLong,
    EmptyAnswer,
    ImagesRefused,
    IndexUnusable,
    LaneFull,
    ModelResting,
    NanoloopError,
    OverQuota,
    ProviderError,
    ProviderTimeout,
    SessionDamaged,
    SessionNotFound,
    StoreConflict,
    StoreError,
    ToolError,
    UnknownModel,
    WrongKey,
    place_of,
)

ENGLISH: Mapping[str, str] = MappingProxyType(
    {
        "model_down": "The model can't answer right now. Please try again in a few minutes.",
        "model_busy": "The model takes no more requests right now. Please try again later.",
        "model_key": "The model refused me access. Please tell the person who runs this bot.",
        "model_unknown": "My model is not available. Please tell the person who runs this bot.",
        "too_long": "Our conversation is longer than the model can read. "
        "Please send something shorter, or begin a new conversation with /new.",
        "refused": "A content filter stopped the answer. Please say it in other words.",
        "no_images": "The model takes no pictures, or not so many. Please say it in words.",
        "bad_image": "The model can't read one of the pictures. Please send it in another form.",
        "empty": "The model gave no answer. Please ask again, perhaps for something shorter.",
        "timeout": "The model took too long to answer. Please try again in a few minutes.",
        "store_down": "Our conversation can't be read or saved right now. "
        "Please try again in a few minutes.",
        "changed": "Our conversation was changed somewhere else at the same moment. "
        "Please try again.",
        "damaged": "Our conversation can't be read any more. Please begin a new one with /new.",
        "gone": "This conversation was deleted or has expired. Please begin a new one.",
        "recall_down": "Earlier messages can't be searched right now. Please try again later.",
        "files_full": "There is no room for more files. Please tell the person who runs this bot.",
        "full": "I have too much to do right now and did not take your message. "
        "Please send it again soon.",
        "busy": "I am still busy with your earlier messages and did not take this one. "
        "Please send it again soon.",
        "interrupted": "I was restarted before I could answer your last message. "
        "Please send it again.",
        "crashed": "Something went wrong on my side. Please try again.",
        "kept": "Your message is kept.",
        "incident": "incident",
    }
)
"""All there are; the last two are added to the others."""

_NAMES: Mapping[type[BaseException], str] = {
    ProviderError: "model_down",
    OverQuota: "model_busy",
    ModelResting: "model_busy",
    WrongKey: "model_key",
    UnknownModel: "model_unknown",
    ContextTooLong: "too_long",
    AnswerRefused: "refused",
    ImagesRefused: "no_images",
    BadImage: "bad_image",
    EmptyAnswer: "empty",
    ProviderTimeout: "timeout",
    StoreError: "store_down",
    StoreConflict: "changed",
    SessionDamaged: "damaged",
    SessionNotFound: "gone",
    IndexUnusable: "recall_down",
    AttachmentsFull: "files_full",
    BusFull: "full",
    LaneFull: "busy",
    BaseException: "crashed",
}
"""The sentence for a class and for all below it that have none of their own."""

SAID_CHARS = 500
"""How much of an error's own text the operator is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """One failure as the operator is told of it; has no message text and no secret."""

    incident: str
    """Its id, which the chat is told too."""
    error: str
    """The error's class."""
    where: str
    said: str
    """Our own error's text; of any other only class and place."""

    @property
    def facts(self) -> dict[str, str]:
        """The same as an event takes it."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apology:
    """What a chat is told of a failure."""

    text: str
    incident: str


INCIDENTS = 100
"""Failures of all chats that are remembered; a terminal shows them below their apologies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentReport:
    """One incident, with when and where it was."""

    time: datetime
    place: str
    """The session, or the path of a request."""
    incident: Incident


class Incidents:
    """The last failures of which someone was told."""

    def __init__(self) -> None:
        self._reports: deque[IncidentReport] = deque(maxlen=INCIDENTS)

    def of(self, error: BaseException, *, place: str) -> Incident:
        """A new incident in this session, or at this path."""
        incident, now = incident_of(error), datetime.now(timezone.utc)
        self._reports.append(IncidentReport(time=now, place=place, incident=incident))
        return incident

    def last(self, count: int) -> list[IncidentReport]:
        """So many of the last, the newest last."""
        return list(self._reports)[-count:]

    def line(self, name: str | None) -> str:
        """What to show below the apology that names this incident; nothing where none is known."""
        known = (report.incident for report in self._reports)
        said = next((incident.said for incident in known if incident.incident == name), None)
        return "" if said is None else f"incident {name}: {said}\n"


class Sentences:
    """The closed list in the operator's own words; what is left out is in English."""

    def __init__(self, texts: Mapping[str, str] = ENGLISH) -> None:
        self._texts = {**ENGLISH, **texts}
        self.incidents = Incidents()
        """What these sentences were said of."""

    def text(self, name: str) -> str:
        """The sentence of that name."""
        return self._texts[name]

    def apology(self, error: BaseException, incident: str, *, is_kept: bool = False) -> Apology:
        """What the chat is told of an error; `is_kept` says that its message is durable."""
        parts = [self.text(name_of(error)), *([self.text("kept")] if is_kept else [])]
        told = f"{' '.join(parts)} ({self.text('incident')} {incident})"
        return Apology(text=told, incident=incident)


def name_of(error: BaseException) -> str:
    """The name of the sentence for an error, by its class alone."""
    return next(_NAMES[kind] for kind in type(error).__mro__ if kind in _NAMES)


def incident_of(error: BaseException) -> Incident:
    """A new incident, with what the operator may read of the error."""
    error_name, where = type(error).__name__, place_of(error)
    # A tool's error quotes what the model asked it for; any other's may hold anything.
    is_fit = isinstance(error, NanoloopError) and not isinstance(error, ToolError)
    said = " ".join(str(error).split())[:SAID_CHARS] if is_fit else ""
    return Incident(
        incident=os.urandom(3).hex(),
        error=error_name,
        where=where,
        said=said or f"{error_name} at {where}",
    )
