"""Files: safe names, atomic writes, private permissions, no links, short locks.

Every file in the data folder is opened by `open_file`, or checked by `check_file` if SQLite opens
it. A file whose name comes from outside is opened by `open_beneath`.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import hmac
import json
import os
import pwd
import re
import resource
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from secrets import token_bytes, token_hex
from threading import Lock
from typing import Any, Literal
from urllib.parse import quote, unquote

import aiofiles
import aiofiles.os
from aiofiles.os import wrap

from nanoloop.errors import FileRefused, StoreLocked
from nanoloop.events import FileNarrowed, announce
from nanoloop.session.entry import rfc3339

MOST_OPEN_FILES = 65_536
"""The maximum number of open files to request; child processes take long to close more."""
KEPT_FILES = 256
"""How many open files are reserved for the store, models, platforms and turns."""
MOST_CONNECTIONS = 10_000


Tell = Callable[[FileNarrowed], object]
PRIVATE = 0o600
"""The mode of all our files."""
_OTHERS = 0o077
_NEVER_THROUGH = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags for opening a file without following links or waiting for a pipe's other end."""


def open_file(path: Path | str, flags: int = os.O_RDONLY) -> int:
    """Open a file in the data folder; a new file is private, whatever the umask.

    Raise `FileRefused` for a link, for anything but a regular file, and for another user's file. If
    others may access one of our files, it is made private.
    """
    fd = _opened(path, path, flags)
    try:
        there = os.fstat(fd)
        _check_ours(path, there, writes=bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
        is_fresh = bool(flags & os.O_CREAT) and not there.st_size
        _narrow(path, there, partial(os.fchmod, fd), is_fresh=is_fresh)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _opened(name: Path | str, path: Path | str, flags: int, folder: int | None = None) -> int:
    """Open a name, relative to an open folder if one is given; `path` is for error messages."""
    try:
        return os.open(name, flags | _NEVER_THROUGH, PRIVATE, dir_fd=folder)
    except OSError as error:
        if error.errno in _LINKS:
            raise FileRefused(path, IS_LINK) from None
        if error.errno == errno.ENXIO:  # a pipe without a reader, or a socket
            raise FileRefused(path, NO_FILE) from None
        raise


_LINKS = {errno.ELOOP, errno.EMLINK}
IS_LINK = "is a link, which is not followed here: put the file itself there"
NO_FILE = "is not a file, but a device, a pipe or a folder: move it away"


def _check_ours(path: Path | str, there: os.stat_result, *, writes: bool) -> None:
    if not stat.S_ISREG(there.st_mode):
        # A folder has its own error, which some callers handle.
        if stat.S_ISDIR(there.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise FileRefused(path, NO_FILE)
    if there.st_uid == (me := os.geteuid()):
        return
    # Another user's folder may be read if that user allows it, but not a file planted in ours.
    if writes or there.st_uid != Path(path).parent.stat().st_uid:
        owner = _user(there.st_uid)
        advice = f"run this as {owner}, or make it yours with `chown {_user(me)} {path}`"
        raise FileRefused(path, f"belongs to {owner}: {advice}")


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _narrow(
    path: Path | str,
    there: os.stat_result,
    chmod: Callable[[int], None],
    *,
    is_fresh: bool = False,
    tell: Tell = announce,
) -> None:
    """Make one of our files private; a new file gets exactly this mode, whatever the umask."""
    mode = stat.S_IMODE(there.st_mode)
    if there.st_uid != os.geteuid() or not (mode & _OTHERS or (is_fresh and mode != PRIVATE)):
        return
    with suppress(OSError):  # a file system without modes, or a read-only one
        chmod(PRIVATE)
        if mode & _OTHERS:
            tell(FileNarrowed(file=str(path), mode=f"{mode:04o}"))


def check_file(path: Path, *, writes: bool = True, tell: Tell = announce) -> None:
    """Check a file that SQLite opens, as `open_file` would; the file may be missing.

    The file is not opened here, because closing it would release SQLite's locks on it. Without
    `writes`, its mode is not changed. `tell` receives the event.
    """
    try:
        there = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(there.st_mode):
        raise FileRefused(path, IS_LINK)
    _check_ours(path, there, writes=writes)
    if writes:
        _narrow(path, there, path.chmod, tell=tell)


_BESIDE = ("", "-wal", "-shm", "-journal")


def check_database(path: Path, *, writes: bool = True, tell: Tell = announce) -> None:
    """Check a database, and the files that SQLite keeps beside it, with `check_file`."""
    for suffix in _BESIDE:
        check_file(path.with_name(path.name + suffix), writes=writes, tell=tell)


def make_database_file(path: Path, *, tell: Tell = announce) -> None:
    """Create a private database file; SQLite gives its mode to the files beside it."""
    check_database(path, tell=tell)
    with suppress(FileExistsError):
        os.close(open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def load_file(path: Path | str) -> bytes:
    """Read a whole file in the data folder; raise the same errors as `open_file`."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read()


def opener(path: str, flags: int) -> int:
    """Adapt `open_file` for `open(..., opener=opener)`."""
    return open_file(path, flags)


def open_beneath(folder: Path, name: str, flags: int = os.O_RDONLY) -> int:
    """Open a file beneath a folder by a name that comes from outside.

    The name may include folders. Raise `FileRefused` if it leads out of the folder or through a
    link, or is not that of a regular file. Changes made at the same time can't defeat these checks.
    """
    path = folder / name.lstrip("/")
    with place_beneath(folder, name) as (within, last):
        fd = _opened(last, path, flags, within)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileRefused(path, NO_FILE)
        return fd


@contextmanager
def folder_beneath(folder: Path, name: str = "") -> Iterator[int]:
    """Open a folder beneath a folder by name, like `open_beneath`; "" is the folder itself."""
    parts = _parts(folder, name) if name else ()
    with _entered(folder, parts, folder / name.lstrip("/")) as within:
        yield within


@contextmanager
def place_beneath(folder: Path, name: str, *, creates: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder of a file beneath a folder, and yield it with the file's own name there.

    The name is as for `open_beneath`; there may be no file yet. With `creates`, missing folders are
    created.
    """
    *folders, last = _parts(folder, name)
    path = folder / name.lstrip("/")
    with _entered(folder, folders, path, creates=creates) as within:
        _check_file_in(within, last, path)
        yield within, last


def _parts(folder: Path, name: str) -> list[str]:
    parts = name.split("/")
    if "\0" in name or not {"", ".", ".."}.isdisjoint(parts):
        raise FileRefused(folder, f"has no file {name!r}: give a plain name inside it")
    return parts


@contextmanager
def _entered(
    folder: Path, names: Iterable[str], path: Path, *, creates: bool = False
) -> Iterator[int]:
    """Open a folder, then these nested folders, one after the other; `path` is for errors."""
    with ExitStack() as stack:

        def entered(name: Path | str, flags: int, within: int | None = None) -> int:
            fd = os.open(name, flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=within)
            stack.callback(os.close, fd)
            return fd

        within = entered(folder, os.O_RDONLY)
        for part in names:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(part, dir_fd=within)
            try:
                within = entered(part, os.O_RDONLY | os.O_NOFOLLOW, within)
            except OSError as error:
                if error.errno in {errno.ENOTDIR, *_LINKS}:
                    raise FileRefused(
                        path, f"leads through {part!r}, which is not a folder"
                    ) from None
                raise
        yield within


def read_plain(path: Path | str, *, most_bytes: int, beneath: Path | str | None = None) -> bytes:
    """Read a file that code named, or that somebody else named within `beneath`; this blocks.

    Raise `FileRefused` for a link, for anything but a regular file, and for a file of more than
    `most_bytes`, which is then not read. Raise `OSError` as `open` does.
    """
    if beneath is None:
        if not stat.S_ISREG((there := os.lstat(path)).st_mode) and not stat.S_ISLNK(there.st_mode):
            raise FileRefused(path, NO_FILE)  # opening a device can have side effects
        fd = _opened(path, path, os.O_RDONLY)
    else:
        fd = open_beneath(Path(beneath), str(path))
    with os.fdopen(fd, "rb") as file:
        there = os.fstat(file.fileno())
        if not stat.S_ISREG(there.st_mode):
            raise FileRefused(path, NO_FILE)
        data = file.read(most_bytes + 1) if there.st_size <= most_bytes else b""
    if max(there.st_size, len(data)) > most_bytes:
        raise FileRefused(path, f"has more than {most_bytes:,} bytes: make it smaller")
    return data


def _check_file_in(folder: int, name: str, path: Path) -> None:
    """Reject a device before it is opened, because opening one can have side effects."""
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            raise FileRefused(path, IS_LINK)
        if not stat.S_ISREG(mode):
            raise FileRefused(path, NO_FILE)


def replace_file(path: Path, data: bytes | Iterable[bytes], *, durable: bool) -> None:
    """Replace or create a file from bytes or pieces, completely or not at all.

    Several writers may call this at once; the last one wins.
    """
    with ExitStack() as stack:
        try:
            # Reuse the temporary file that a killed process may have left.
            fresh = unfinished(path)
            fd = stack.enter_context(locked_file(fresh))
        except BlockingIOError:  # another writer is using it
            fresh = path.with_name(f".{token_hex(8)}")
            fd = stack.enter_context(locked_file(fresh))
        try:
            os.ftruncate(fd, 0)
            for piece in (data,) if isinstance(data, bytes) else data:
                write_all(fd, piece)
            if durable:
                os.fsync(fd)
            fresh.replace(path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise
    if durable:
        sync_folder(path.parent)


def unfinished(path: Path) -> Path:
    """Return the temporary path of `replace_file`, where a killed process may leave a file."""
    return path.with_name(path.name + ".new")


_UNFINISHED = re.compile(r"\.[0-9a-f]{16}|.+\.new")


def remove_unfinished(folder: Path) -> None:
    """Delete the temporary files of killed processes; call this while nobody else writes there."""
    for file in folder.glob("*"):
        if _UNFINISHED.fullmatch(file.name) and not file.is_dir():
            file.unlink(missing_ok=True)


def save_json(path: Path, value: object) -> None:
    """Write a small value to its own file, creating the folder if it is missing."""
    make_folder(path.parent)
    replace_file(path, json.dumps(value).encode(), durable=False)


async def put_file(path: Path, data: bytes, *, durable: bool) -> None:
    """Like `replace_file`, but without blocking the event loop."""
    beside = path.with_name(f".{token_hex(8)}")
    try:
        async with aiofiles.open(beside, "xb", opener=opener) as file:
            await file.write(data)
            await file.flush()
            if durable:
                await wrap(os.fsync)(file.fileno())
        await aiofiles.os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    if durable:
        await wrap(sync_folder)(path.parent)


async def read_file(path: Path) -> bytes | None:
    """Return the whole file, or None if it doesn't exist."""
    try:
        async with aiofiles.open(path, "rb", opener=opener) as file:
            return await file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None


KEY_FILE = "own.key"
"""The file in the data folder that stores the key from `own_key`."""
_KEY_BYTES = 32
_PAUSE_SECONDS = 0.005


def own_key(folder: Path) -> bytes:
    """Return the data folder's secret key for keyed digests, creating it on first use.

    All processes get the same key, even if they ask at the same time. A key that was truncated by a
    power cut is replaced, because no process has used it yet.
    """
    path = folder / KEY_FILE
    make_folder(folder)
    while True:
        with suppress(BlockingIOError), locked_file(path) as fd:
            if len(key := os.pread(fd, _KEY_BYTES, 0)) == _KEY_BYTES:
                return key
            key = token_bytes(_KEY_BYTES)
            os.ftruncate(fd, 0)
            write_all(fd, key)
            os.fsync(fd)
            sync_folder(folder)
            return key
        time.sleep(_PAUSE_SECONDS)


def keyed_digest(key: bytes, text: str) -> str:
    """Return a keyed digest, 32 hex digits, to use in place of a text that must stay secret."""
    data = text.encode("utf-8", "surrogatepass")
    return hmac.new(key, data, hashlib.sha256).hexdigest()[:32]


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes at the file's current position."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def user_folder(kind: Literal["config", "data"], env: Mapping[str, str]) -> Path:
    """Return the user's folder for settings or data, following the XDG rules."""
    home = Path(env.get("HOME") or Path.home())
    usual = {"config": home / ".config", "data": home / ".local" / "share"}[kind]
    chosen = Path(env.get(f"XDG_{kind.upper()}_HOME", ""))
    return (chosen if chosen.is_absolute() else usual) / "nanoloop"


def data_folder(env: Mapping[str, str]) -> Path:
    """Return the folder for all stored data, as configured in the environment."""
    chosen = env.get("NANOLOOP_DATA")
    return Path(chosen).expanduser() if chosen else user_folder("data", env)


def shipped(name: str) -> Path:
    """Return the path of a bundled file or folder such as `docs`, in the package or source tree."""
    package = Path(__file__).parent
    tree = package.parent
    return (tree if (tree / "pyproject.toml").exists() else package) / name


def make_folder(folder: Path) -> None:
    """Create a folder and its parents; existing ones are left unchanged."""
    if not folder.is_dir():  # `mkdir` would create its parents with the umask's mode
        make_folder(folder.parent)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            folder.chmod(0o700)  # even if the umask removed permissions
        folder.mkdir(exist_ok=True)  # raises an error if there is a file


_ELSEWHERE = "check the permissions, or choose another place"
_NO_FOLDER = "there is a file in place of a folder: choose another place"
_ADVICE: Mapping[int | None, str] = {
    errno.EROFS: _ELSEWHERE,
    errno.EACCES: _ELSEWHERE,
    errno.EPERM: _ELSEWHERE,
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "allow larger files there, or choose another place",
    errno.ENOTDIR: _NO_FOLDER,
    errno.EEXIST: _NO_FOLDER,
    errno.EISDIR: "there is a folder in place of the file: move it away",
    errno.ENOENT: "the folder can't be created: choose another place",
    errno.EMFILE: "allow more open files, with `ulimit -n`",
    errno.ENFILE: "allow more open files, with `ulimit -n`",
}


def refusal(error: OSError) -> str:
    """Return the operating system's error message and the next step."""
    if isinstance(error, FileRefused):
        return str(error)
    return f"{error.strerror or error}: {_ADVICE.get(error.errno, 'check the disk')}"


@contextmanager
def locked_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    """Open the file and lock it against all others.

    Raise `BlockingIOError` if the lock is taken. The lock ends with the process, however it ends.
    """
    while True:
        fd = open_file(path, flags)
        try:
            lock(fd)
            if is_at(path, fd):  # otherwise, it was replaced or removed before it was locked
                yield fd
                return
        finally:
            os.close(fd)


@contextmanager
def waited_lock(path: Path) -> Iterator[None]:
    """Wait for the file's lock and hold it; this blocks the thread.

    Raise TimeoutError if another process, perhaps a suspended one, doesn't release the lock.
    """
    with ExitStack() as stack:
        give_up = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                stack.enter_context(locked_file(path))
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise TimeoutError(errno.ETIMEDOUT, f"{path} is held by a process") from None
                time.sleep(_PAUSE_SECONDS)
        yield


LOCK_SECONDS = 30.0
"""How long `waited_lock` waits; these locks are normally held only for a moment."""


def lock(fd: int) -> None:
    """Lock a file against others until `unlock`; raise `BlockingIOError` if it is locked."""
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def unlock(fd: int) -> None:
    """Release a file's lock."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def is_at(path: Path, fd: int) -> bool:
    """Return True if this path still names the open file."""
    try:
        there, mine = path.stat(), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (there.st_ino, there.st_dev) == (mine.st_ino, mine.st_dev)


class ProcessLock:
    """A lock held from `take` to `release`, or until the process ends."""

    def __init__(self, path: Path, *, of: Path, clock: Callable[[], datetime]) -> None:
        """Create the lock in the file `path`; `of` is the path that the lock protects."""
        self._path = path
        self._of = of
        self._clock = clock
        self._guard = Lock()
        self._fd: int | None = None

    @property
    def is_held(self) -> bool:
        """True while this object holds the lock."""
        return self._fd is not None

    def take(self) -> None:
        """Take the lock, creating its folder if missing; raise `StoreLocked` if it is taken."""
        with self._guard:
            if self._fd is not None:
                return
            make_folder(self._path.parent)
            # The owner isn't checked, because several users may share a models folder and its
            # locks.
            fd = _opened(self._path, self._path, os.O_RDWR | os.O_CREAT)
            try:
                self._lock(fd)
            except BaseException:
                os.close(fd)
                raise
            self._fd = fd

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(str(self._of), _owner(os.pread(fd, 4096, 0))) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(self._card()).encode(), 0)

    def _card(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": rfc3339(self._clock()),
            "command": Path(sys.argv[0]).name if sys.argv else "",
        }

    def release(self) -> None:
        """Release the lock; do nothing if it is not held."""
        with self._guard:
            if self._fd is not None:
                # Emptied but not deleted, because anyone who has already opened the file must lock
                # the same one.
                os.ftruncate(self._fd, 0)
                os.close(self._fd)
                self._fd = None


UPGRADE_SECONDS = 1.0
"""How long another process of this version may take to upgrade the format."""


def without_earlier(path: Path, *, of: Path) -> ExitStack:
    """Keep earlier versions from starting until the returned lock is closed.

    Earlier versions hold this lock while they run. Raise `StoreLocked` while one is running.
    """
    held, give_up = ExitStack(), time.monotonic() + UPGRADE_SECONDS
    while True:
        try:
            held.enter_context(locked_file(path))
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise StoreLocked(str(of), _owner(load_file(path))) from None
            time.sleep(_PAUSE_SECONDS)
        else:
            return held


def _owner(card: bytes) -> str:
    try:
        owner = json.loads(card)
        text = f"process {owner['pid']} on {owner['host']}, since {owner['since']}"
    except (ValueError, TypeError, KeyError):
        return "another process"
    return f"{text} ({owner['command']})" if owner.get("command") else text


NAME_LIMIT = 180
"""The maximum length of a name before its suffix; file systems allow 255 bytes in all."""
_READABLE = 100
_LONG = "%%"
"""Marks a shortened name; no percent-encoded name contains it."""


_CAPITAL = re.compile(r"(?P<encoded>%[0-9A-F]{2})|[A-Z]")


def file_name(name: str) -> str:
    """Return a safe file name, without a suffix, for any text.

    Two different texts never get the same name, even on file systems that ignore case.
    """
    former = former_file_name(name)
    if _LONG in former:  # shortened, with a digest
        return former
    encoded = _CAPITAL.sub(lambda m: m["encoded"] or f"%{ord(m[0]):02X}", former)
    return encoded if len(encoded) <= NAME_LIMIT else _shortened(former, name)


def former_file_name(name: str) -> str:
    """Return the name that earlier versions gave to the file for this text."""
    encoded = quote(name.encode("utf-8", "surrogatepass"), safe="@").replace("~", "%7E")
    if encoded.startswith("."):
        encoded = "%2E" + encoded[1:]
    return encoded if len(encoded) <= NAME_LIMIT else _shortened(encoded, name)


def _shortened(encoded: str, name: str) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{encoded[:_READABLE].rstrip('%')}{_LONG}{digest}"


def name_of(file: str) -> str | None:
    """Return the text that a file name was made from, or None if the name was shortened."""
    return None if _LONG in file else unquote(file, errors="surrogatepass")


def rename_former(folder: Path, suffix: str) -> None:
    """Rename files that earlier versions named differently."""
    for file in list(folder.glob(f"*{suffix}")):
        former = file.name.removesuffix(suffix)
        name = name_of(former)
        if name is None or former != former_file_name(name) or former == file_name(name):
            continue
        present = file.with_name(file_name(name) + suffix)
        if not present.exists():
            with suppress(FileNotFoundError):  # another thread has already done so
                file.rename(present)


def raise_open_files() -> int:
    """Raise this process's limit on open files as far as allowed, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # macOS reports no limit but has one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else min(soft, MOST_OPEN_FILES)


def connection_limit() -> int:
    """Return how many connections this process can serve within its limit on open files."""
    return max(16, min(raise_open_files() - KEPT_FILES, MOST_CONNECTIONS))
