"""Files that tools return: stored for the session, named to the model, sent with the answer."""

from __future__ import annotations

import mimetypes
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from anyio.to_thread import run_sync

from nanoloop.errors import AttachmentsFull, DiskRefused, FileRefused, ToolError
from nanoloop.files import read_plain, refusal
from nanoloop.session.entry import SCHEME, TOOL_RESULT, Entry
from nanoloop.session.speech import FILES, file_mark

if TYPE_CHECKING:
    from nanoloop.attachments import Attachments

MOST_BYTES = 50_000_000
"""The size of the largest file that a tool may return."""
MOST_FILES = 10
"""How many files one call may return."""
NAME_CHARS = 120
SENT = "send"
"""The key that marks a tool's file to be sent with the turn's answer."""
files_here: ContextVar[tuple[Attachments, str] | None] = ContextVar("files of tools", default=None)
"""Where the turn's tools store their files, and for which session; set by each turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptResults:
    """What happened to the files that one call returned."""

    told: str = ""
    """What the model reads about these files."""
    facts: tuple[dict[str, Any], ...] = ()
    """The facts about these files that are stored with the tool's result."""


@dataclass(frozen=True, slots=True)
class FileResult:
    """A file that a tool returns: alone, in a list, or in a list with text.

    Give its bytes, or a path, which is read after the tool has returned. If a model or a person
    chose the path, also give `beneath`, the folder that the path must not leave.
    """

    content: bytes | str | Path = field(repr=False)
    """The bytes, or the path of a file."""
    name: str = ""
    """The name that people see; by default, that of the path."""
    mime_type: str = ""
    """The MIME type; by default, it is guessed from the name."""
    beneath: str | Path | None = None
    """The folder that the path is relative to and must not leave; links in it are not followed."""
    send: bool = True
    """Whether to send the file with the answer even if the model doesn't name it there."""

    def __post_init__(self) -> None:
        # Here, so that the tool's author sees the error.
        if isinstance(self.content, bytes | bytearray | memoryview):
            object.__setattr__(self, "content", bytes(self.content))
        elif not isinstance(self.content, str | Path):
            raise TypeError(f"a file is {type(self.content).__name__}: give bytes or a path")

    @property
    def shown_name(self) -> str:
        """Return the last part of the file's name, without invisible characters."""
        path = "" if isinstance(self.content, bytes) else str(self.content)
        last = (self.name or path).replace("\\", "/").rstrip("/").rpartition("/")[2]
        visible = "".join(sign if sign.isprintable() else " " for sign in last).strip()
        return visible[:NAME_CHARS] or "file"

    @property
    def shown_type(self) -> str:
        """Return the file's MIME type, as given or guessed from the name."""
        return mime_type_or_unknown(
            self.mime_type or mimetypes.guess_type(self.shown_name)[0] or ""
        )

    def read(self) -> bytes:
        """Read the file, at most `MOST_BYTES`; this blocks, and raises `OSError` on failure."""
        if not isinstance(self.content, bytes):
            return read_plain(self.content, most_bytes=MOST_BYTES, beneath=self.beneath)
        if len(self.content) > MOST_BYTES:
            raise FileRefused(
                self.shown_name, f"has more than {MOST_BYTES:,} bytes: make it smaller"
            )
        return self.content


def shown_path(path: str) -> str:
    """Return a path as the model reads it: in one line, without invisible characters."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in path)


_MIME_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}", re.ASCII)


def mime_type_or_unknown(said: str) -> str:
    """Return a MIME type that somebody else wrote; if it can't be one, that of unknown bytes."""
    known, _, _ = said.partition(";")
    return known.strip() if _MIME_TYPE.fullmatch(known.strip()) else "application/octet-stream"


class AttachedFiles:
    """The files that a tool attaches to its call while running, from any thread."""

    def __init__(self) -> None:
        self._files: list[FileResult] | None = None
        self._guard = Lock()

    def open(self, session_id: str | None) -> None:
        """Accept files from now on, if files can be kept for this session."""
        with self._guard:
            if self._files is None and _kept_for(session_id) is not None:
                self._files = []

    def add(self, file: FileResult) -> bool:
        """Accept a file, unless the call has ended or already has the maximum number of files."""
        if not isinstance(file, FileResult):
            raise TypeError(f"a {type(file).__name__} can't be attached: give a FileResult")
        with self._guard:
            if self._files is None or len(self._files) == MOST_FILES:
                return False
            self._files.append(file)
            return True

    def close(self) -> Sequence[FileResult]:
        """Accept no more files, and return those that were accepted."""
        with self._guard:
            files, self._files = self._files or (), None
            return files


def parted(result: Any) -> tuple[Any, Sequence[FileResult]]:
    """Return a tool's result without its files, and the files."""
    if isinstance(result, FileResult):
        return "", (result,)
    if not isinstance(result, list | tuple):
        return result, ()
    files = [item for item in result if isinstance(item, FileResult)]
    if not files:
        return result, ()
    rest = [item for item in result if not isinstance(item, FileResult)]
    if all(isinstance(item, str) for item in rest):
        return "\n".join(rest), files
    return (rest[0] if len(rest) == 1 else rest), files


async def kept_results(files: Sequence[FileResult], *, session_id: str | None) -> KeptResults:
    """Store these files for the current turn's session; they are durable on return.

    If a file can't be stored, a sentence tells the model why; the call itself counts as successful.
    """
    told: list[str] = []
    facts: list[dict[str, Any]] = []
    for number, file in enumerate(files):
        try:
            if number >= MOST_FILES:
                raise ToolError(f"a call may return at most {MOST_FILES} files")  # noqa: TRY301
            known = await _kept(file, session_id)
        except (ToolError, AttachmentsFull, DiskRefused, OSError, ValueError) as error:
            told.append(f"[the file {file.shown_name} is missing: {why_refused(error)}]")
        else:
            facts.append(known)
            told.append(_named(known))
    return KeptResults(told="\n".join(told), facts=tuple(facts))


def _kept_for(session_id: str | None) -> Attachments | None:
    """Return where this session's files are kept; None if nowhere, as when a tool asks an agent."""
    here = files_here.get()
    return here[0] if here is not None and here[1] == session_id else None


async def _kept(file: FileResult, session_id: str | None) -> dict[str, Any]:
    attachments = _kept_for(session_id)
    if attachments is None or session_id is None:
        raise ToolError("files can't be kept in this conversation")
    kept = await attachments.keep_made(
        await run_sync(file.read),
        session_id=session_id,
        name=file.shown_name,
        mime_type=file.shown_type,
    )
    known: dict[str, Any] = {"kind": kept.kind, "ref": f"{SCHEME}{kept.id}", "name": kept.name}
    known |= {"mime_type": kept.mime_type, "size": kept.size}
    return known | ({SENT: True} if file.send else {})


def why_refused(error: Exception) -> str:
    """Return why a file can't be used, as the model and people may read it."""
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, FileRefused):
        return f"it {error.why}"  # without the folders above it, which are private
    if isinstance(error, OSError) and not isinstance(error, DiskRefused):
        return refusal(error)
    return str(error)


def _named(known: dict[str, Any]) -> str:
    what = "It is sent with your answer." if known.get(SENT) else "Name it in your answer to send."
    return f"{file_mark(known)} {known['ref']}. {what}"


def sent_with(entries: Iterable[Entry]) -> Iterator[dict[str, Any]]:
    """Yield the facts about files in these entries that are sent with the answer."""
    results = (entry.metadata.get(FILES) for entry in entries if entry.type == TOOL_RESULT)
    for files in results:
        for known in files if isinstance(files, list) else ():
            if isinstance(known, Mapping) and known.get(SENT):
                yield {name: value for name, value in known.items() if name != SENT}
