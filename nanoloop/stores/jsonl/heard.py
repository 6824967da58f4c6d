"""The record of accepted messages: one file per chat, beside the sessions."""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from secrets import token_hex
from threading import RLock
from typing import Any

from nanoloop.errors import AlreadyHeard, SessionDamaged
from nanoloop.files import (
    file_name,
    load_file,
    locked_file,
    make_folder,
    open_file,
    replace_file,
    write_all,
)
from nanoloop.stores.database import COMMIT_ID, HEARD_SECONDS, Commit, HeardMessage
from nanoloop.stores.jsonl.reading import SUFFIX, glance_at

FOLDER = "heard"
"""The name of the folder for these files."""
IN_MEMORY = 200_000
"""Roughly how many ids are kept in memory for all chats; other ids are read from disk again."""
FEW = 100
"""How many obsolete lines a file may have in any case."""


class HeardFiles:
    """The files of one folder, shared by any number of processes; methods block.

    Before a commit, its messages are written as a line without a newline, which is added after the
    commit. A process that finds such a line checks whether the commit was made. So each message is
    accepted only once, even if a process is killed between any two steps.
    """

    def __init__(self, sessions: Path) -> None:
        """Create the object; the folder is created in the sessions' folder with its first file."""
        self._sessions = sessions
        self._folder = sessions / FOLDER
        self._guard = RLock()
        self._chats: OrderedDict[str, ChatIds] = OrderedDict()
        """The ids in the chats' files; the most recently used file comes last."""
        self._learned = 0
        """How many ids were added since the ids were last counted."""
        self._since = 0
        """The last sweep forgot everything recorded before this time."""

    # Recording

    @contextmanager
    def taking(self, commit: Commit) -> Iterator[Callable[[], bool]]:
        """Make the commit inside the block, and then call the function that this yields.

        Meanwhile, nobody else can record its messages. The function returns True if they are
        recorded permanently; if not, call `settle` later. Raise `AlreadyHeard` if a message was
        recorded before, or `BlockingIOError` if another process is recording messages of the chat;
        in both cases, nothing was done.
        """
        wanted = _by_chat(commit.heard)
        with ExitStack() as stack:
            files = [stack.enter_context(self._locked(chat)) for chat in sorted(wanted)]
            if any(file.has_any(wanted[file.chat], self._since) for file in files):
                raise AlreadyHeard(commit.id)
            lines = [_line(wanted[f.chat], commit.updated_at, commit=commit) for f in files]
            for file, line in zip(files, lines, strict=True):
                _append(file.fd, line)

            def is_noted() -> bool:
                with suppress(OSError):  # the commit is valid, and a later check finds it
                    for file, line in zip(files, lines, strict=True):
                        self._end(file, line)
                        self._tidy(file)
                    return True
                return False

            yield is_noted

    def settle(self, chats: Iterable[str]) -> None:
        """Complete or drop these chats' unfinished lines; raise `BlockingIOError` if one is locked.

        The session must be locked, and its last commit must be the one that the unfinished lines
        belong to.
        """
        for chat in chats:
            with suppress(FileNotFoundError), self._locked(chat, os.O_RDWR):
                pass

    @contextmanager
    def _locked(self, chat: str, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[ChatFile]:
        """Open and lock a chat's file, load it, and make it end with a whole line."""
        with ExitStack() as stack:
            try:
                fd = stack.enter_context(locked_file(self._path(chat), flags))
            except FileNotFoundError:
                if not flags & os.O_CREAT:
                    raise
                make_folder(self._folder)
                fd = stack.enter_context(locked_file(self._path(chat), flags))
            with self._guard:
                file = ChatFile(chat=chat, fd=fd, known=self._caught_up(chat, fd))
                if file.known.rest:
                    self._settle(file)
                if file.known.size == 0:
                    self._end(file, b"", _first_line(chat))
            yield file

    def _settle(self, file: ChatFile) -> None:
        """Complete or drop the unfinished line that a process left when it died or failed."""
        rest, file.known.rest = file.known.rest, b""
        if self._is_made(rest):
            self._end(file, rest)
        else:
            os.ftruncate(file.fd, file.known.size)

    def _end(self, file: ChatFile, line: bytes, end: bytes = b"\n") -> None:
        """Write the newline, which makes the line valid."""
        with self._guard:
            _append(file.fd, end)
            self._learn(file.known, line + end)

    def _is_made(self, rest: bytes) -> bool:
        line = _read(rest)
        with suppress(OSError, SessionDamaged, KeyError):
            name = f"{file_name(str(line['in']))}{SUFFIX}"
            return bool(glance_at(self._sessions / name).head.get(COMMIT_ID) == line["by"])
        return False

    def _tidy(self, file: ChatFile) -> None:
        """Rewrite the file if most of it is obsolete; don't use the file afterwards."""
        with self._guard:
            file.known.forget(self._since)
            if file.known.obsolete > max(FEW, len(file.known.ids)):
                replace_file(self._path(file.chat), file.known.dumped(file.chat), durable=False)

    # Reading

    def has(self, chat: str, message_id: str) -> bool:
        """Like `Database.has_heard`, but blocking."""
        with self._guard, self._opened(chat) as known:
            if known is None:
                return False
            if known.ids.get(message_id, -1) >= self._since:
                return True
            line = _read(known.rest)
            return message_id in line.get("ids", ()) and self._is_made(known.rest)

    def all(self) -> list[Path]:
        """Return the files of all chats."""
        return sorted(self._folder.glob(f"*{SUFFIX}"))

    def messages(self, path: Path) -> list[HeardMessage]:
        """Return the messages recorded in this file."""
        try:
            first, *lines = load_file(path).split(b"\n")
        except FileNotFoundError:
            return []
        if lines and not self._is_made(lines[-1]):
            del lines[-1]
        chat = str(_read(first).get("chat", ""))
        found = [HeardMessage(chat=chat, id=name, at=at) for name, at in _ids_in(lines)]
        return [message for message in found if message.at >= self._since]

    @contextmanager
    def _opened(self, chat: str) -> Iterator[ChatIds | None]:
        try:
            fd = open_file(self._path(chat))
        except FileNotFoundError:
            yield None
            return
        try:
            yield self._caught_up(chat, fd)
        finally:
            os.close(fd)

    # Copies and removal

    def hear(self, messages: Sequence[HeardMessage]) -> None:
        """Like `Database.hear`; raise `BlockingIOError`, after which it can be called again."""
        by_chat = sorted(messages, key=lambda message: message.chat)
        for chat, group in groupby(by_chat, key=lambda message: message.chat):
            with self._locked(chat) as file:
                known = file.known.ids
                fresh = {each.id: each.at for each in group if each.id not in known}
                lines = [_line([name], at) + b"\n" for name, at in fresh.items()]
                self._end(file, b"", b"".join(lines))

    def forget(self, now: int) -> None:
        """Forget old messages, and delete the files of inactive chats."""
        with self._guard:
            self._since = max(self._since, now - HEARD_SECONDS * 1_000_000)
        for path in self.all():
            with suppress(FileNotFoundError, BlockingIOError), locked_file(path, os.O_RDWR) as fd:
                if os.fstat(fd).st_mtime_ns < self._since * 1000:
                    path.unlink()

    # Memory

    def _caught_up(self, chat: str, fd: int) -> ChatIds:
        """Return the chat's ids, including new ones in its file; the caller must hold `_guard`."""
        there, known = os.fstat(fd), self._chats.get(chat)
        if known is None or not known.is_of(fd, there):
            known = self._chats[chat] = ChatIds(path=self._path(chat), inode=there.st_ino)
        self._chats.move_to_end(chat)
        known.rest = b""
        if there.st_size > known.size:
            data = os.pread(fd, there.st_size - known.size, known.size)
            whole = data.rfind(b"\n") + 1
            self._learn(known, data[:whole])
            known.rest = data[whole:]
        return known

    def _learn(self, known: ChatIds, lines: bytes) -> None:
        """Add the ids in these lines; drop the least recently used chats to save memory."""
        before = len(known.ids)
        known.learn(lines)
        self._learned += len(known.ids) - before
        if self._learned > IN_MEMORY // 10:
            self._learned, total = 0, sum(len(each.ids) for each in self._chats.values())
            while total > IN_MEMORY and len(self._chats) > 1:
                total -= len(self._chats.popitem(last=False)[1].ids)

    def _path(self, chat: str) -> Path:
        known = self._chats.get(chat)
        if known is not None:
            return known.path
        return self._folder / f"{file_name(chat)}{SUFFIX}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFile:
    """A chat's file, open and locked."""

    chat: str
    fd: int
    known: ChatIds

    def has_any(self, names: Sequence[str], since: int) -> bool:
        """Return True if one of these ids was recorded at or after this time."""
        return any(self.known.ids.get(name, since - 1) >= since for name in names)


@dataclass(slots=True, kw_only=True)
class ChatIds:
    """The ids of one chat, as far as its file has been read."""

    path: Path
    inode: int
    first: bytes = b""
    """The file's first line, which is unique."""
    size: int = 0
    """The offset at which the known lines end."""
    rest: bytes = b""
    """The unfinished line after the known lines, as it was last read."""
    ids: dict[str, int] = field(default_factory=dict)
    """When each id was recorded, in the order of recording."""
    obsolete: int = 0
    """How many ids in the file are no longer in `ids`."""

    def is_of(self, fd: int, there: os.stat_result) -> bool:
        """Return True if this file is the one already read; compare a longer file first."""
        if there.st_ino != self.inode or there.st_size <= self.size:
            return there.st_ino == self.inode and there.st_size == self.size
        return os.pread(fd, len(self.first), 0) == self.first  # the inode may belong to a new file

    def learn(self, data: bytes) -> None:
        """Add whole lines, which start where the known lines end."""
        self.first = self.first or data[: data.find(b"\n") + 1]
        for name, at in _ids_in(data.splitlines()):
            self.obsolete += name in self.ids
            self.ids[name] = at
        self.size += len(data)

    def forget(self, since: int) -> None:
        """Drop the oldest ids, which were recorded before this time."""
        while self.ids and self.ids[first := next(iter(self.ids))] < since:
            del self.ids[first]
            self.obsolete += 1

    def dumped(self, chat: str) -> bytes:
        """Return the content of a new file with all known ids."""
        lines = [_line([name], at) + b"\n" for name, at in self.ids.items()]
        return b"".join([_first_line(chat), *lines])


def _by_chat(heard: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for chat, name in heard:
        found.setdefault(chat, []).append(name)
    return found


def _first_line(chat: str) -> bytes:
    return json.dumps({"chat": chat, "made": token_hex(8)}).encode() + b"\n"


_encoded = json.JSONEncoder(separators=(",", ":")).encode


def _line(names: Sequence[str], at: int, *, commit: Commit | None = None) -> bytes:
    """Return a line without its newline."""
    by = {"in": commit.id, "by": commit.commit_id} if commit else {}
    return _encoded({"at": at, "ids": names, **by}).encode()


def _append(fd: int, data: bytes) -> None:
    os.lseek(fd, 0, os.SEEK_END)
    write_all(fd, data)


def _read(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a line, or an empty one."""
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _ids_in(lines: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    for line in map(_read, lines):
        if isinstance(line.get("ids"), list) and isinstance(line.get("at"), int):
            yield from ((str(name), line["at"]) for name in line["ids"])
