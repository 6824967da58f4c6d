"""Everything that can go wrong, in one tree.

NanoloopError
├── SettingsError            a setting is unknown, malformed or contradicts another
│   └── Refused              (settings/problems.py) all that is wrong with them, a line each
├── SessionError
│   ├── SessionNotFound      (also a KeyError)
│   ├── SessionExists
│   ├── InvalidSessionId     (also a ValueError)
│   ├── NotPossible          what a person asked of a session; the text is for them
│   ├── TurnLost             another one has answered the question
│   ├── StepRefused          a change would leave out what a chat owes first
│   └── HistoryNotLoaded     only the window is in memory, the whole history was asked for
├── StoreError               (the store can't do it; nothing was half-written)
│   ├── StoreLocked          an earlier version owns the folder
│   ├── StoreConflict        another writer committed first
│   ├── SessionDamaged       what is stored of it is not what was written
│   ├── NotReadable          a key is missing, or a newer version wrote it
│   └── SessionDiffers       a copy would replace another session of that name
├── AlreadyHeard             the message was taken before; nothing was written
├── IndexUnusable            nothing can be recalled; all else goes on
├── AttachmentsFull          a file was not kept: all together take as much as they may
├── PictureRefused           a picture was not kept: it is damaged, or larger than it may be
├── BusFull                  the sender has to try again
├── LaneFull                 this chat has too many messages waiting
├── SendLater                the chat can't be reached now; the same is sent again
├── Declined                 a platform will never do it, and gives a reason that may be logged
├── Refused, FormatRefused, TooLong, MessageGone
│                            (channels/kit/platform.py) what a platform says went wrong
├── ModelError               a model file can't be had
│   ├── NoSuchModel
│   ├── NotFetched           no source could give it
│   ├── NoRoom               the disk has less room than it needs
│   └── SourceFailed         one source could not give it
├── ToolError                (data for the model, never an end of the turn)
│   ├── UnknownTool
│   ├── BadArguments
│   └── ToolTimeout
└── ProviderError            (one human sentence and the next step)
    ├── WrongKey
    ├── UnknownModel
    ├── NoConnection
    ├── ProviderTimeout
    ├── OverQuota
    ├── ContextTooLong       the turn trims harder, once
    ├── AnswerRefused        a content filter stopped it
    ├── ServerFailed         the model's server failed on its side
    ├── ImagesRefused        the model takes no images, or not so many
    ├── BadImage             the model can't read one of the images
    ├── ModelResting         it failed too often in a row and is left alone for now
    └── BadAnswer            the server said something that is no answer
        ├── BrokenOff        it ended in the middle
        └── EmptyAnswer      the model said nothing
"""

from __future__ import annotations

from traceback import walk_tb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class NanoloopError(Exception):
    """What every error of this package is."""


class SettingsError(NanoloopError):
    """A setting is unknown, malformed or contradicts another."""


class SessionError(NanoloopError):
    """A session can't be had or used that way."""


class SessionNotFound(SessionError, KeyError):
    """No such session, or it has expired."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return f"no session {self.session_id!r}: create it first, or list the ones there are"


class SessionExists(SessionError):
    """A session with this id is there already."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} exists already: choose another id (in code, replace=True)"
        )
        self.session_id = session_id


class InvalidSessionId(SessionError, ValueError):
    """The id could not name a session safely."""

    def __init__(self, session_id: object) -> None:
        super().__init__(
            f"{session_id!r} is no session id: use a-z, A-Z, 0-9 and _ . : @ - "
            "(none of those five first, at most 200 characters)"
        )


class NotPossible(SessionError):
    """What a person asked of a session can't be done; the text says why, and may be shown."""


class HistoryNotLoaded(SessionError):
    """Only the window of this session is in memory."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"only the window of session {session_id!r} is in memory: "
            "read the whole with `await store.get(id)`"
        )


class TurnLost(SessionError):
    """The question that a turn answers is answered, changed or gone: somebody else was first."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"another one has answered in {session_id!r}: this answer is dropped")


class StepRefused(SessionError):
    """A change would bring a chat where it can't come from where it stands; nothing was written."""

    def __init__(self, session_id: str, before: str, after: str) -> None:
        super().__init__(
            f"session {session_id!r} would go from {before} to {after}, and nothing was written: "
            "do first what it owes first (docs/architecture.md has the steps that there are)"
        )


class StoreError(NanoloopError):
    """The store can't do it; what was durable before still is."""


class StoreLocked(StoreError):
    """A process of an earlier version, which shares nothing, owns this data folder."""

    def __init__(self, where: str, owner: str) -> None:
        super().__init__(
            f"{where} is in use by {owner}: stop that process, or choose another folder with --data"
        )


class StoreConflict(StoreError):
    """Another writer committed this session first."""

    def __init__(self, session_id: str, *, mine: int, theirs: int) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id!r} is at revision {theirs}, not {mine}: another writer "
            "committed first; load it again"
        )


class AlreadyHeard(NanoloopError):
    """A message that a commit takes was taken before: nothing of the commit was written."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"what session {session_id!r} is to take was said before, under the same id: once is "
            "enough"
        )
        self.session_id = session_id


class SessionDamaged(StoreError):
    """What is stored of a session is not what was written."""

    def __init__(self, session_id: str, what: str) -> None:
        super().__init__(
            f"what is stored of session {session_id!r} makes no sense ({what}): `nanoloop store "
            "check` names all that are damaged, `nanoloop store copy` takes the others elsewhere"
        )
        self.session_id = session_id
        self.what = what


class NotReadable(StoreError):
    """What is stored of a session is whole, but can't be read: a key or a version is missing."""


class SessionDiffers(StoreError):
    """A session of that name is there already, and is another one."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is in the target already and differs: --replace puts this one "
            "in its place, or delete it there first; what was copied so far stays"
        )


class IndexUnusable(NanoloopError):
    """The index of what was said can't be used; nothing but recall depends on it."""


class AttachmentsFull(NanoloopError):
    """A file was not kept: all together would take more than they may."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"all files together would take more than {limit_bytes} bytes: raise "
            "channels.web.uploads_bytes, or delete some"
        )


class PictureRefused(NanoloopError):
    """A picture was not kept; `reason` is a known phrase, and nobody's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this picture can't be used: {reason}")
        self.reason = reason


class BusFull(NanoloopError):
    """No room on the bus: the message was not taken."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} messages are waiting already: try again in a moment")


class LaneFull(NanoloopError):
    """No room in this lane: the item was not taken."""

    def __init__(self, key: str, limit: int) -> None:
        super().__init__(f"{key!r} has {limit} waiting already: try again in a moment")


class SendLater(NanoloopError):
    """A channel can't send this now: the same is tried again, after `seconds` if it knows."""

    def __init__(self, reason: str, *, seconds: float | None = None) -> None:
        super().__init__(f"not sent for now ({reason}): it is tried again")
        self.reason = reason
        self.seconds = seconds


class Declined(NanoloopError):
    """A platform will never do that; `reason` is a code or a known phrase, and nobody's words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ModelError(NanoloopError):
    """A model file can't be had."""


class NoSuchModel(ModelError):
    """Neither the catalogue nor the folder has a model of that name."""

    def __init__(self, name: str, advice: str = "") -> None:
        advice = advice or "`nanoloop model list` shows what there is"
        super().__init__(f"no model {name!r}: {advice}")


class NotFetched(ModelError):
    """No source could give the file; has a line for each."""

    def __init__(self, name: str, reasons: Sequence[str], *, typed: str = "") -> None:
        """`typed` is what to get it by, where that is not its name."""
        advice = f"`nanoloop model get {typed or name}` resumes it"
        super().__init__("\n".join((f"model {name} can't be fetched; {advice}", *reasons)))


class NoRoom(ModelError):
    """The disk has less room than the file needs."""

    def __init__(self, folder: Path, *, needed: int, free: int) -> None:
        super().__init__(
            f"{needed / 1e6:,.0f} MB are needed in {folder} and {free / 1e6:,.0f} MB are free: "
            "make room (`nanoloop model remove NAME`), or take another folder with NANOLOOP_MODELS"
        )


class SourceFailed(ModelError):
    """One source could not give the file."""


class ToolError(NanoloopError):
    """A tool call failed; its text is for the model."""


class UnknownTool(ToolError):
    """The model asked for a tool that isn't there."""


class BadArguments(ToolError):
    """The arguments do not fit the tool's schema."""


class ToolTimeout(ToolError):
    """The tool took longer than it may."""


class ProviderError(NanoloopError):
    """The model could not answer; the text is a sentence with the next step."""


class WrongKey(ProviderError):
    """The server refused the key."""


class UnknownModel(ProviderError):
    """The server has no model of that name."""


class NoConnection(ProviderError):
    """Nothing answers at that address."""


class ProviderTimeout(ProviderError):
    """The model took longer than it may."""


class OverQuota(ProviderError):
    """Too many requests, or no credit left."""


class ContextTooLong(ProviderError):
    """The request is longer than the model can read."""


class AnswerRefused(ProviderError):
    """A content filter stopped the answer."""


class ServerFailed(ProviderError):
    """The model's server failed on its side; it may do better in a moment."""


class ImagesRefused(ProviderError):
    """The model takes no images, or at most so many; None if it didn't say how many."""

    def __init__(self, sentence: str, *, most: int | None = 0) -> None:
        super().__init__(sentence)
        self.most = most


class BadImage(ProviderError):
    """The model can't read one of the images; which one is not said."""


class ModelResting(ProviderError):
    """It failed too often in a row, and is left alone for a while."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"{model or 'the model'} failed too often in a row and is left alone for now: "
            "try again in a while"
        )


class BadAnswer(ProviderError):
    """The server said something that is no answer."""


class BrokenOff(BadAnswer):
    """The answer ended in the middle."""


class EmptyAnswer(BadAnswer):
    """The model said nothing."""


def how_to_install(extra: str) -> str:
    """How to get the packages of an extra, for a message that says what is missing.

    From its folder, never by name: on the package index that name is another project's.
    """
    return f"it comes with the extra \"{extra}\": in nanoloop's folder, pip install '.[{extra}]'"


def reason_of(error: BaseException) -> str:
    """Why something failed, in words that a log may show: any other error's may hold a secret."""
    known = (Declined, PictureRefused, SendLater)
    return error.reason if isinstance(error, known) else type(error).__name__


FRAMES = 12
"""Frames that are told of a crash, the innermost ones."""


def place_of(error: BaseException) -> str:
    """The frames it came through, the innermost first: what a log may say of a crash.

    `turn.py:88 ask < loop.py:20 answer`, without the error's words or anyone's values.
    """
    frames = [
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{line} {frame.f_code.co_name}"
        for frame, line in walk_tb(error.__traceback__)
    ]
    return " < ".join(frames[::-1][:FRAMES])
