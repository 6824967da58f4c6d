"""Sessions saved as single files in a folder, with one current session, for scripts and editors."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Container
from datetime import datetime
from pathlib import Path
from typing import Any

from nanoloop.errors import StoreError
from nanoloop.files import (
    data_folder,
    file_name,
    former_file_name,
    make_folder,
    open_beneath,
    replace_file,
)
from nanoloop.session.entry import Entry
from nanoloop.session.head import MEMO, SUMMARY, Identity, checked_id, numbered, timestamp_id
from nanoloop.session.imports import from_magent
from nanoloop.session.session import Session

TIMESTAMP = "%Y-%m-%dT%H:%M:%S%z"
SUFFIX = ".json"
FORMAT = 1
"""The format of the files; files without a number are older and can also be read."""
FOLDER = "directory"
"""The folder's name inside the data folder, if no other folder is given."""


class SessionDirectory:
    """A folder of saved sessions. Nothing is read or written before a method is called."""

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        scope: str | None = None,
        agents: Container[str] | None = None,
        max_history: int | None = 100,
        new_id: Callable[[], str] = timestamp_id,
        autosave: bool = False,
    ) -> None:
        """Use `directory`, by default in the data folder; each scope has a subfolder.

        A scope is any text, such as a project's path or a buffer's name. `new_id` generates ids; a
        duplicate gets the suffix -01, -02 …. With `autosave`, created and loaded sessions are saved
        after each answer and after each new summary or memo.
        """
        whole = data_folder(os.environ) / FOLDER if folder is None else Path(folder).expanduser()
        self.folder = whole / file_name(scope) if scope else whole
        self.max_history = max_history
        """The default `max_history` for new sessions."""
        self._agents = agents
        self._new_id = new_id
        self._autosave = autosave
        self._current: Session | None = None
        self._given: set[str] = set()

    def current(self) -> Session:
        """Return the current session, creating it on first use; it stays the same until `reset`."""
        if self._current is None:
            self._current = self.create()
        return self._current

    def reset(self) -> None:
        """Drop the current session, so that the next `current()` creates an empty one."""
        self._current = None

    def switch(self, session: Session) -> Session:
        """Make this session the current one."""
        self._current = session
        return session

    def create(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the original API's name
        agent: str | None = None,
        max_history: int | None = None,
    ) -> Session:
        """Create a session without making it current or saving it.

        The id is generated unless it is passed.
        """
        names = numbered(self._new_id() if id is None else id)
        session_id = next(name for name in names if id is not None or not self._is_taken(name))
        self._given.add(session_id)
        limit = self.max_history if max_history is None else max_history
        return self._kept(Session(about=Identity(id=session_id, agent=agent, max_history=limit)))

    def _kept(self, session: Session) -> Session:
        """Return the session; if `autosave` is on, convert it to one that saves itself."""
        if not self._autosave:
            return session
        saved = AutosavedSession().load_dict(session.to_dict())
        saved.autosave = self._try_to_save
        return saved

    def _try_to_save(self, session: Session) -> None:
        """Save the session, but only warn if that fails, as the next save includes everything."""
        try:
            self.save(session)
        except (OSError, StoreError) as error:
            warnings.warn(f"session {session.id} was not saved: {error}", stacklevel=2)

    def _is_taken(self, session_id: str) -> bool:
        return session_id in self._given or self._saved(session_id).exists()

    def path(self, session_id: str) -> Path:
        """Return the path for a session with this id; no two ids share a file."""
        return self.folder / (file_name(checked_id(session_id)) + SUFFIX)

    def _saved(self, session_id: str) -> Path:
        """Return the session's current path; earlier versions named some files differently."""
        path = self.path(session_id)
        former = self.folder / (former_file_name(session_id) + SUFFIX)
        if former == path or path.exists():
            return path
        # A file system that ignores case may return another session's file.
        return former if former in self.list_saved() else path

    def save(self, session: Session | None = None, path: str | Path | None = None) -> Path:
        """Write a session, by default the current one, completely or not at all; return its path.

        Raise `StoreError` if the write would replace a file in a newer format.
        """
        session = self.current() if session is None else session
        target = self.path(session.id) if path is None else Path(path).expanduser()
        saved = target if path is not None else self._saved(session.id)
        _check_format(saved)
        make_folder(target.parent)
        if saved != target:
            saved.rename(target)
        text = json.dumps(_file_form(session), ensure_ascii=False, indent=2, default=str)
        data = f"{text}\n".encode("utf-8", "surrogatepass")
        replace_file(target, data, durable=False)
        return target

    def load(self, path: str | Path) -> Session:
        """Load a session by its file's path or by its id, without making it current.

        Raise FileNotFoundError if it is missing, ValueError for broken JSON, TypeError if the file
        has no session, and `StoreError` for a newer format. An unknown agent is left out with a
        warning.
        """
        file = self._file(path)
        data = json.loads(self._text(file))
        _check_format(file, data)
        session = from_magent(data, agents=self._agents, unknown_agent=_warn_of_agent)
        self._given.add(session.id)
        return self._kept(self._with_rest(session, data))

    def _file(self, path: str | Path) -> Path:
        file = Path(path).expanduser()
        if isinstance(path, str) and not file.exists() and file.suffix != SUFFIX:
            return self._saved(path)
        return file

    def _text(self, file: Path) -> str:
        try:
            if file.parent != self.folder:  # chosen by the program, so links may be followed
                return file.read_text(encoding="utf-8")
            with os.fdopen(open_beneath(self.folder, file.name), encoding="utf-8") as opened:
                return opened.read()
        except UnicodeDecodeError as broken:
            raise ValueError(f"{file} is not a text file: {broken}") from broken

    def _with_rest(self, session: Session, data: dict[str, Any]) -> Session:
        """Add the data that the messages lack, unless they were edited after being saved."""
        rest = data.get("session")
        if not isinstance(rest, dict):
            return session
        whole = Session.load({**rest, "id": session.id})
        if whole.messages != session.messages:
            return session
        whole.agent, whole.max_history = session.agent, session.max_history
        return whole

    def list_saved(self) -> list[Path]:
        """Return the saved sessions' files, sorted by name; none if the folder is missing."""
        return sorted(file for file in self.folder.glob(f"*{SUFFIX}") if file.is_file())

    def prune(self, *, keep: int, dry_run: bool = False) -> list[Path]:
        """Delete all but the newest `keep` files, and return the deleted ones.

        Files made by a later version are kept.
        """
        by_age = sorted(self.list_saved(), key=lambda file: file.stat().st_mtime, reverse=True)
        gone = [file for file in by_age[max(0, keep) :] if _format_of(_data(file)) <= FORMAT]
        for file in gone if not dry_run else ():
            file.unlink(missing_ok=True)
        return gone


class AutosavedSession(Session):
    """A session that is saved after each answer, and after each new summary or memo."""

    autosave: Callable[[Session], object] | None = None

    def append(self, entry: Entry) -> Entry:
        """Append a copy of the entry; an answer ends its turn, so the session is then saved."""
        entry = super().append(entry)
        if entry.role == "assistant" and self.autosave is not None:
            self.autosave(self)
        return entry

    def touch(self, *parts: str, by_user: bool = False) -> None:
        """Record that these parts have changed, and save a new summary or memo."""
        super().touch(*parts, by_user=by_user)
        if self.autosave is not None and not {SUMMARY, MEMO}.isdisjoint(parts):
            self.autosave(self)


def _file_form(session: Session) -> dict[str, Any]:
    rest = session.to_dict()
    # The entries contain everything; the messages repeat it for people and for older programs.
    del rest["full_chat_history"], rest["current_chat_history"]
    return {
        "format": FORMAT,
        "id": session.id,
        "messages": session.messages,
        "timestamp": datetime.now().astimezone().strftime(TIMESTAMP),
        "agent": session.agent,
        "max_history": session.max_history,
        "session": rest,
    }


def _check_format(file: Path, data: Any = None) -> None:
    found = _format_of(_data(file) if data is None else data)
    if found > FORMAT:
        raise StoreError(
            f"{file} has format {found}, but this version supports {FORMAT}: install a newer "
            "nanoloop, or choose another folder"
        )


def _format_of(data: Any) -> int:
    """Return the format of a file's data, or 0 if it has none."""
    found = data.get("format") if isinstance(data, dict) else None
    return found if isinstance(found, int) else 0


def _data(file: Path) -> Any:
    """Return a file's JSON data, or None if the file is missing or not JSON."""
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _warn_of_agent(name: str) -> None:
    warnings.warn(f"agent {name!r} is unknown: the default agent answers", stacklevel=5)
