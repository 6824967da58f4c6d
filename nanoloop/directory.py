"""Sessions as single files in a folder, one of them the current one: for scripts and editors."""

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
"""The format of the files; those without a number are older, and can be read too."""
FOLDER = "directory"
"""The folder's name in the data folder, if no other folder is given."""


class SessionDirectory:
    """A folder of saved sessions; nothing is read or written until asked for."""

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
        """By default, the folder is `directory` in the data folder; each scope has a subfolder.

        A scope is any text: a project's path, a buffer's name. `new_id` makes the ids; one that is
        taken gets the suffix -01, -02 …. With `autosave`, the sessions that it makes and loads are
        saved after each answer, and after each new summary and memo.
        """
        whole = data_folder(os.environ) / FOLDER if folder is None else Path(folder).expanduser()
        self.folder = whole / file_name(scope) if scope else whole
        self.max_history = max_history
        """The `max_history` of new sessions, unless they are given their own."""
        self._agents = agents
        self._new_id = new_id
        self._autosave = autosave
        self._current: Session | None = None
        self._given: set[str] = set()

    def current(self) -> Session:
        """The current session, the same one until `reset`; made when first asked for."""
        if self._current is None:
            self._current = self.create()
        return self._current

    def reset(self) -> None:
        """Drop the current session; the next `current()` is a new, empty one."""
        self._current = None

    def switch(self, session: Session) -> Session:
        """Make this one the current session."""
        self._current = session
        return session

    def create(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the seed's name for it
        agent: str | None = None,
        max_history: int | None = None,
    ) -> Session:
        """A new session, neither current nor saved; its id is new unless one is given."""
        names = numbered(self._new_id() if id is None else id)
        session_id = next(name for name in names if id is not None or not self._is_taken(name))
        self._given.add(session_id)
        limit = self.max_history if max_history is None else max_history
        return self._kept(Session(about=Identity(id=session_id, agent=agent, max_history=limit)))

    def _kept(self, session: Session) -> Session:
        """The same session, which saves itself if `autosave` is on."""
        if not self._autosave:
            return session
        saved = AutosavedSession().load_dict(session.to_dict())
        saved.autosave = self._try_to_save
        return saved

    def _try_to_save(self, session: Session) -> None:
        """Save it; a failure only warns and loses no answer: the next save has everything."""
        try:
            self.save(session)
        except (OSError, StoreError) as error:
            warnings.warn(f"session {session.id} was not saved: {error}", stacklevel=2)

    def _is_taken(self, session_id: str) -> bool:
        return session_id in self._given or self._saved(session_id).exists()

    def path(self, session_id: str) -> Path:
        """Where a session with this id is saved; no two ids share a file."""
        return self.folder / (file_name(checked_id(session_id)) + SUFFIX)

    def _saved(self, session_id: str) -> Path:
        """Where it is saved now: earlier versions gave some files a different name."""
        path = self.path(session_id)
        former = self.folder / (former_file_name(session_id) + SUFFIX)
        if former == path or path.exists():
            return path
        # A file system that ignores case may take another session's for it.
        return former if former in self.list_saved() else path

    def save(self, session: Session | None = None, path: str | Path | None = None) -> Path:
        """Write a session, by default the current one, whole or not at all; returns its file.

        Raises `StoreError` if that would replace a file of a newer format.
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
        """The session in a file, or with this id in the folder; it doesn't become current.

        Raises FileNotFoundError, ValueError for broken JSON, TypeError if it isn't a session,
        and `StoreError` for a newer format. An agent that isn't known is left out, with a warning.
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
            if file.parent != self.folder:  # a file that the program chose, wherever it leads
                return file.read_text(encoding="utf-8")
            with os.fdopen(open_beneath(self.folder, file.name), encoding="utf-8") as opened:
                return opened.read()
        except UnicodeDecodeError as broken:
            raise ValueError(f"{file} is not a text file: {broken}") from broken

    def _with_rest(self, session: Session, data: dict[str, Any]) -> Session:
        """Add all that the messages don't contain, unless they were changed since."""
        rest = data.get("session")
        if not isinstance(rest, dict):
            return session
        whole = Session.load({**rest, "id": session.id})
        if whole.messages != session.messages:
            return session
        whole.agent, whole.max_history = session.agent, session.max_history
        return whole

    def list_saved(self) -> list[Path]:
        """The saved sessions' files, sorted by name; none if there is no folder."""
        return sorted(file for file in self.folder.glob(f"*{SUFFIX}") if file.is_file())

    def prune(self, *, keep: int, dry_run: bool = False) -> list[Path]:
        """Remove all but the newest `keep` files; returns the ones removed.

        Files made by a later version stay.
        """
        by_age = sorted(self.list_saved(), key=lambda file: file.stat().st_mtime, reverse=True)
        gone = [file for file in by_age[max(0, keep) :] if _format_of(_data(file)) <= FORMAT]
        for file in gone if not dry_run else ():
            file.unlink(missing_ok=True)
        return gone


class AutosavedSession(Session):
    """A session that is saved after each answer, and after each new summary and memo."""

    autosave: Callable[[Session], object] | None = None

    def _append(self, entry: Entry) -> Entry:
        entry = super()._append(entry)
        if entry.role == "assistant" and self.autosave is not None:
            self.autosave(self)
        return entry

    def touch(self, *parts: str, by_user: bool = False) -> None:
        """Note that these parts have changed; a new summary or memo is saved."""
        super().touch(*parts, by_user=by_user)
        if self.autosave is not None and not {SUMMARY, MEMO}.isdisjoint(parts):
            self.autosave(self)


def _file_form(session: Session) -> dict[str, Any]:
    rest = session.to_dict()
    # The entries say it all; the messages once more are for people and for older programs.
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
    """The format of a file; 0 if it names none."""
    found = data.get("format") if isinstance(data, dict) else None
    return found if isinstance(found, int) else 0


def _data(file: Path) -> Any:
    """What a file contains; None if it is missing or not JSON."""
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, ValueError):
        return None


def _warn_of_agent(name: str) -> None:
    warnings.warn(f"agent {name!r} is unknown: the default agent answers", stacklevel=5)
