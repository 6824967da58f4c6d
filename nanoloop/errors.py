"""All of the package's errors, in one tree.

NanoloopError
├── SettingsError            a setting is unknown, malformed or contradicts another
│   ├── StoreNotOurs         the store has none of this data folder's conversations
│   └── Refused              (settings/problems.py) everything wrong with them, one per line
├── NothingToServe           no channel is set up, and there is no usable standard input
├── SessionError
│   ├── SessionNotFound      (also a KeyError)
│   ├── SessionExists
│   ├── InvalidSessionId     (also a ValueError)
│   ├── NotPossible          a user's request can't be fulfilled; the text may be shown to the user
│   │   ├── StillAnswering   the exchange to undo has no answer yet
│   │   ├── PartOfSummary    the exchange to undo is covered by a summary
│   │   ├── NotPinnable      the message has no text to pin
│   │   └── PinsFull         no more messages can be pinned
│   ├── TurnLost             another process has answered the question
│   ├── StepRefused          a change would skip what the chat owes first
│   └── HistoryNotLoaded     the whole history was requested, only the window is loaded
├── StoreError               (the store can't do what was asked; nothing was half-written)
│   ├── StoreLocked          an earlier version owns the folder
│   ├── DiskRefused          a file of the store could not be read or written
│   ├── FileRefused          (also an OSError) a link, a device, or another user's file
│   ├── StoreConflict        another writer committed first
│   ├── SessionDamaged       the stored data is not what was written
│   ├── NotReadable          the key is missing, or a newer version wrote the data
│   └── SessionDiffers       a copy would replace a different session with the same id
├── AlreadyHeard             the message was accepted before; nothing was written
├── IndexUnusable            recall is unavailable; everything else still works
├── AttachmentsFull          a file was not stored: all files together would exceed the limit
├── PictureRefused           a picture was not stored: it is damaged or too large
├── AddressRefused           an address from outside may not be used
├── FetchFailed              an address from outside returned nothing usable
├── BusFull                  the sender must try again
│   └── BusClosed            the bus no longer accepts messages
├── NotRunning               (also a RuntimeError) the loop is not running
├── TurnFailed               a message has no answer; raised to the code that asked
├── LaneFull                 this chat has too many messages waiting
├── SendLater                the chat can't be reached now; the message is sent again later
├── Declined                 a platform will never accept this request; the reason may be logged
├── Refused, FormatRefused, TooLong, MessageGone
│                            (channels/kit/platform.py) what went wrong, according to the platform
├── ModelError               a model file is not available
│   ├── NoSuchModel
│   ├── NotFetched           no source could provide it
│   ├── NoRoom               there is not enough room on the disk
│   └── SourceFailed         one source could not provide it
├── ToolError                (data for the model; never ends the turn)
│   ├── UnknownTool
│   ├── BadArguments
│   ├── ServerGone
│   ├── LoginWanted          a tool server needs a login; nothing was sent to it
│   ├── LoginFailed          a login to a tool server went wrong
│   ├── QuestionAsked        a call waits for the person's answer to its tool's question
│   ├── ToolTimeout
│   └── CallHadNoEffect
└── ProviderError            (one plain sentence and the next step)
    ├── WrongKey
    ├── UnknownModel
    ├── NoConnection
    ├── ProviderTimeout
    ├── OverQuota
    ├── ContextTooLong       the turn retries once with a shorter request
    ├── AnswerRefused        a content filter stopped the answer
    ├── ServerFailed         the model's server failed on its side
    ├── ImagesRefused        the model accepts no images, or not this many
    ├── BadImage             the model can't read one of the images
    ├── ModelResting         the model failed too often in a row and is paused
    └── BadAnswer            the server's response is not an answer
        ├── BrokenOff        the answer stopped partway through
        └── EmptyAnswer      the answer has no content
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from shlex import quote
from traceback import walk_stack, walk_tb
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from types import FrameType

    from nanoloop.tools.questions import ToolQuestion

DISTRIBUTION = "nanoloop-agent"
"""The distribution's name; on the package index, "nanoloop" belongs to another project."""


class NanoloopError(Exception):
    """The base class of all errors in this package."""


class SettingsError(NanoloopError):
    """A setting is unknown, malformed or contradicts another."""


class StoreNotOurs(SettingsError):
    """The data folder's conversations were in another store, or have vanished from this one."""

    def __init__(self, place: str, *, used: str, is_empty: bool) -> None:
        ours = f"those of this data folder were in {used}"
        if is_empty:
            found = f"no conversations, but {'there were some' if used == place else ours}"
        else:
            ours = "none of this data folder's" if used == place else ours
            found = f"conversations of another installation, and {ours}"
        super().__init__(
            f"{place} has {found}: correct store.url, restore a backup, or copy them there with "
            "`nanoloop store copy FROM TO`; to use this store as it is, run `nanoloop store adopt`"
        )


class NothingToServe(NanoloopError):
    """No channel is set up, and standard input is neither a terminal nor a pipe."""

    def __init__(self) -> None:
        super().__init__(
            "there is nothing to serve: set up a channel, such as [channels.telegram] or "
            "[channels.web], or talk here with `nanoloop chat`"
        )


class SessionError(NanoloopError):
    """An operation on a session failed."""


class SessionNotFound(SessionError, KeyError):
    """There is no session with this id, or it has expired."""

    def __init__(self, session_id: str) -> None:
        super().__init__(session_id)
        self.session_id = session_id

    def __str__(self) -> str:
        return (
            f"there is no session {self.session_id!r}: create it first, or list the existing ones"
        )


class SessionExists(SessionError):
    """A session with this id already exists."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} already exists: choose another id (in code, replace=True)"
        )
        self.session_id = session_id


class InvalidSessionId(SessionError, ValueError):
    """The id is not safe to use as a session's name."""

    def __init__(self, session_id: object) -> None:
        super().__init__(
            f"{session_id!r} is not a valid session id: use a-z, A-Z, 0-9 and _ . : @ - (a letter "
            "or digit first, at most 200 characters)"
        )


class NotPossible(SessionError):
    """A user's request can't be fulfilled; the text says why, and may be shown to the user."""


class StillAnswering(NotPossible):
    """The last exchange has no answer yet."""

    def __init__(self) -> None:
        super().__init__("its answer is still being written: wait for it, or stop it first")


class PartOfSummary(NotPossible):
    """A summary covers the last exchange."""

    def __init__(self) -> None:
        super().__init__(
            "the last exchange is already part of the summary and can't be taken back: start a new "
            "conversation, or fork this one from an earlier message"
        )


class NotPinnable(NotPossible):
    """The message has no text to pin."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"message #{seq} has no text to pin")


class PinsFull(NotPossible):
    """No more messages can be pinned."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} messages are already pinned: /unpin one first")


class HistoryNotLoaded(SessionError):
    """Only the session's window is in memory."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"only the window of session {session_id!r} is in memory: "
            "load all of it with `await store.get(id)`"
        )


class TurnLost(SessionError):
    """A turn's question was already answered, changed or removed by another process."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"another process has answered in session {session_id!r}: this answer was dropped"
        )


class StepRefused(SessionError):
    """The chat's current state does not allow this step; nothing was written."""

    def __init__(self, session_id: str, before: str, after: str) -> None:
        super().__init__(
            f"session {session_id!r} can't go from {before} to {after}: nothing was written; first "
            "do what it owes (docs/architecture.md lists the allowed steps)"
        )


class StoreError(NanoloopError):
    """The store can't do what was asked; everything already stored is intact."""


class StoreLocked(StoreError):
    """The data folder is in use by a process of an earlier version, which can't share it."""

    def __init__(self, where: str, owner: str) -> None:
        super().__init__(
            f"{where} is in use by {owner}: stop that process, or choose another folder with --data"
        )


class DiskRefused(StoreError):
    """The store could not read or write a file; everything already saved is intact."""

    def __init__(self, where: object, what: str) -> None:
        super().__init__(f"the store in {where} failed: {what}; everything saved earlier is intact")


class FileRefused(StoreError, OSError):
    """A file was not opened: it isn't a regular file, or it belongs to another user."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(f"{path} {why}")
        self.why = why


class StoreConflict(StoreError):
    """Another writer has changed this session first."""

    def __init__(self, session_id: str, *, mine: int, theirs: int) -> None:
        self.session_id = session_id
        super().__init__(
            f"session {session_id!r} is at revision {theirs}, not {mine}: another writer "
            "committed first; load it again"
        )


class AlreadyHeard(NanoloopError):
    """A message in this commit was already accepted; nothing of the commit was written."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} has already accepted a message with this id: nothing was "
            "written"
        )
        self.session_id = session_id


class SessionDamaged(StoreError):
    """A session's stored data differs from what was written."""

    def __init__(self, session_id: str, what: str) -> None:
        super().__init__(
            f"the stored data of session {session_id!r} is damaged ({what}): `nanoloop store "
            "check` lists all damaged sessions, and `nanoloop store copy` copies the others to "
            "another store"
        )
        self.session_id = session_id
        self.what = what


class NotReadable(StoreError):
    """A stored session is intact but unreadable: a key is missing, or a newer version wrote it."""


class SessionDiffers(StoreError):
    """The target already has a different session with this id."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"session {session_id!r} is already in the target and differs: use --replace to "
            "overwrite it, or delete it there first; what was copied so far is kept"
        )


class IndexUnusable(NanoloopError):
    """The search index is unusable; only recall depends on it."""


class AttachmentsFull(NanoloopError):
    """A file was not stored, because all files together would exceed their limit."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(
            f"all files together would take more than {limit_bytes} bytes: raise "
            "channels.web.uploads_bytes, or delete some"
        )


class PictureRefused(NanoloopError):
    """A picture was not stored; `reason` is a fixed phrase and never contains user text."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"this picture can't be used: {reason}")
        self.reason = reason


class AddressRefused(NanoloopError):
    """An address from outside leads, or might lead, into this machine's network."""


class FetchFailed(NanoloopError):
    """An address from outside returned nothing usable."""


class BusFull(NanoloopError):
    """The bus is full; the message was not accepted."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"{limit} messages are already waiting: try again in a moment")


class BusClosed(BusFull):
    """The bus is closed; the message was not accepted."""

    def __init__(self) -> None:
        NanoloopError.__init__(
            self, "the loop has been stopped and accepts no more messages: start it again"
        )


class NotRunning(NanoloopError, RuntimeError):
    """The loop is not running, or is no longer running."""


class TurnFailed(NanoloopError):
    """A message has no answer; the text says why, for the operator."""

    def __init__(
        self, told: str, *, incident: str | None = None, error: str = "", why: str = ""
    ) -> None:
        super().__init__(f"{error}: {why} (incident {incident})" if incident else told)
        self.told = told
        """The sentence that may be sent to the chat."""
        self.incident = incident
        """The incident's id in the log."""
        self.error = error
        """The error's class, such as "WrongKey"; empty if the turn was stopped or refused."""


class LaneFull(NanoloopError):
    """The lane is full; the item was not accepted."""

    def __init__(self, key: str, limit: int) -> None:
        super().__init__(f"{limit} messages are already waiting in {key!r}: try again in a moment")


class SendLater(NanoloopError):
    """A channel can't send an item now; sending is retried, after `seconds` if given."""

    def __init__(self, reason: str, *, seconds: float | None = None) -> None:
        super().__init__(f"not sent yet ({reason}): it will be retried")
        self.reason = reason
        self.seconds = seconds


class Declined(NanoloopError):
    """A platform will never accept this; `reason` is a code or fixed phrase, never user text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ModelError(NanoloopError):
    """A model file is not available."""


class NoSuchModel(ModelError):
    """Neither the catalogue nor the models folder has a model with this name."""

    def __init__(self, name: str, advice: str = "") -> None:
        advice = advice or "`nanoloop model list` lists them"
        super().__init__(f"there is no model {name!r}: {advice}")


class NotFetched(ModelError):
    """No source could provide the file; the text has one line per source."""

    def __init__(self, name: str, reasons: Sequence[str], *, typed: str = "") -> None:
        """Create the error; `typed` is the name that the user typed, if it differs."""
        advice = f"`nanoloop model get {typed or name}` resumes it"
        super().__init__("\n".join((f"model {name} could not be downloaded; {advice}", *reasons)))


class NoRoom(ModelError):
    """The disk has too little free space for the file."""

    def __init__(self, folder: Path, *, needed: int, free: int) -> None:
        super().__init__(
            f"{folder} needs {needed / 1e6:,.0f} MB of free space and has {free / 1e6:,.0f} MB: "
            "free some space (`nanoloop model remove NAME`), or choose another folder with "
            "NANOLOOP_MODELS"
        )


class SourceFailed(ModelError):
    """One source could not provide the file."""


class ToolError(NanoloopError):
    """A tool call failed; the text is for the model."""


class UnknownTool(ToolError):
    """The model called a tool that does not exist."""


class BadArguments(ToolError):
    """The arguments don't match the tool's schema."""


class ServerGone(ToolError):
    """A tool's server went away before or during a call, whose effect is unknown."""


class LoginWanted(ToolError):
    """A tool's server needs a login by the operator; nothing was sent to it."""


class LoginFailed(ToolError):
    """A login to a tool's server failed, or could not be renewed now."""


class ToolTimeout(ToolError):
    """The tool exceeded its time limit."""


class QuestionAsked(ToolError):
    """A call continues only once the person has answered; its tool has a method `resume`."""

    def __init__(self, question: ToolQuestion) -> None:
        super().__init__("it asks the user something, and nobody can be asked here")
        self.question = question


class CallHadNoEffect(ToolError):
    """A tool found out that an interrupted call had no effect."""


class ProviderError(NanoloopError):
    """The model could not answer; the text is one sentence that includes the next step."""


class WrongKey(ProviderError):
    """The server rejected the API key."""


class UnknownModel(ProviderError):
    """The server has no model with that name."""


class NoConnection(ProviderError):
    """No server answers at the address."""


class ProviderTimeout(ProviderError):
    """The model exceeded its time limit."""


class OverQuota(ProviderError):
    """Too many requests were sent, or no credit is left."""


class ContextTooLong(ProviderError):
    """The request is longer than the model's context."""


class AnswerRefused(ProviderError):
    """A content filter stopped the answer."""


class ServerFailed(ProviderError):
    """The model's server failed, perhaps only for a moment."""


class ImagesRefused(ProviderError):
    """The model accepts no images, or at most `most`; None if the limit is unknown."""

    def __init__(self, sentence: str, *, most: int | None = 0) -> None:
        super().__init__(sentence)
        self.most = most


class BadImage(ProviderError):
    """The model can't read one of the images, and does not say which."""


class ModelResting(ProviderError):
    """The model failed too often in a row, and is paused for a while."""

    def __init__(self, model: str) -> None:
        super().__init__(
            f"{model or 'the model'} failed too many times in a row and is paused: try again in a "
            "minute"
        )


class BadAnswer(ProviderError):
    """The server's response is not a valid answer."""


class BrokenOff(BadAnswer):
    """The answer stopped partway through."""


class EmptyAnswer(BadAnswer):
    """The model's answer is empty."""


def how_to_install(extra: str) -> str:
    """Return a sentence that tells how to install an extra's packages, to end an error message."""
    return f"install the extra \"{extra}\": {installer()} '{DISTRIBUTION}[{extra}]'"


def installer() -> str:
    """Return the command that installs packages into this environment, from any folder."""
    python = quote(sys.executable or "python")
    has_pip = find_spec("pip") is not None
    return f"{python} -m pip install" if has_pip else f"uv pip install --python {python}"


def reason_of(error: BaseException) -> str:
    """Return why something failed, in words safe to log; other texts may contain secrets."""
    known = (Declined, PictureRefused, SendLater)
    return error.reason if isinstance(error, known) else type(error).__name__


FRAMES = 12
"""How many of a crash's innermost frames are logged."""


def place_of(error: BaseException) -> str:
    """Return the frames that an error came through, innermost first, safe to log.

    The result reads `turn.py:88 ask < loop.py:20 answer`, without the error's text or any values.
    """
    return _in_a_line([*walk_tb(error.__traceback__)][::-1])


def place_in(thread: FrameType | None) -> str:
    """Return a thread's current frames, innermost first, in the form that `place_of` uses."""
    return _in_a_line([] if thread is None else walk_stack(thread))


def _in_a_line(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Join function names and line numbers, but not code or values, which may be private."""
    return " < ".join(
        f"{frame.f_code.co_filename.rpartition('/')[2]}:{line} {frame.f_code.co_name}"
        for frame, line in [*frames][:FRAMES]
    )
