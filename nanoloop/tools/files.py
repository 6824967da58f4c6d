"""The tools `files__*`: list, read, search, send and write files in one folder."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from operator import attrgetter
from pathlib import Path, PurePosixPath
from secrets import token_hex
from typing import Annotated

from anyio.to_thread import run_sync
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nanoloop.documents import Documents, kind_of
from nanoloop.errors import FileRefused, SettingsError, ToolError
from nanoloop.files import folder_beneath, open_beneath, place_beneath, read_plain, write_all
from nanoloop.plugins import Plugin
from nanoloop.tools.file_results import MOST_BYTES, FileResult, shown_path, why_refused
from nanoloop.tools.function import FunctionTool
from nanoloop.tools.toolbox import here

NAME = "files"
MOST_LISTED = 500
"""How many names one call lists."""
MOST_WRITTEN = 1_000_000
"""How many characters one call writes."""
MOST_FOUND = 30
"""How many places one search returns."""
MOST_SEARCHED = 5_000
"""How many files one search examines."""
SEARCH_SECONDS = 20
SEARCHED_BYTES = 5_000_000
"""The maximum size of a file whose text is searched."""
AROUND = 100
"""How many characters are shown on each side of a match."""
MOST_PATH = 4_000
MOST_FOLDERS = 50
"""How many folders deep a path may lead."""


class FilesSettings(BaseModel):
    """The folder whose files agents may list, read, search and send, as the tools `files__*`."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    folder: Annotated[Path, Field(strict=False), AfterValidator(Path.expanduser)] = Field(
        examples=["/srv/docs"]
    )
    """The folder; links in it are not followed, and no path leads out of it."""
    write: bool = False
    """Whether agents may also write files there."""


class SharedFolder:
    """A folder whose files a model may use."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._documents = Documents()

    def list(self, folder: str = "") -> str:
        """List the files and folders in a folder of the shared files.

        Args:
            folder: a path such as "reports/2025"; by default, the top
        """
        with self._told(folder), folder_beneath(self._folder, _path(folder)) as there:
            with os.scandir(there) as entries:
                found = sorted(entries, key=attrgetter("name"))
            rows = [_row(entry) for entry in found[:MOST_LISTED]]
        more = [f"[and {len(found) - MOST_LISTED:,} more]"] if len(found) > MOST_LISTED else []
        return "\n".join([*rows, *more]) or "[the folder is empty]"

    async def read(self, path: str, begin: int = 0) -> str:
        """Read a shared file: text, PDF, Word or Excel.

        Args:
            path: a path such as "reports/2025.pdf"
            begin: the character to begin at, to read on
        """
        with self._told(path):
            data = await run_sync(self._data, path)
        session = here.get(None)
        found = await self._documents.read(data, owner="" if session is None else session.id)
        if not found.text:
            raise ToolError(f"{path!r} can't be read: {found.problem}")
        return "\n".join(filter(None, (found.text[max(0, begin) :], found.problem)))

    def search(self, words: str, folder: str = "") -> str:
        """Find shared files by words in their names or in their text.

        Args:
            words: a phrase; capitals don't matter
            folder: the folder to search, with those in it; by default, all
        """
        if not words.strip():
            raise ToolError("argument 'words': it is empty: give words to look for")
        found, until = list[str](), time.monotonic() + SEARCH_SECONDS
        phrase = re.compile(r"\s+".join(map(re.escape, words.split())), re.IGNORECASE)
        number = 0
        with self._told(folder):
            for path in self._files(_path(folder)):
                if number == MOST_SEARCHED or time.monotonic() > until:
                    return "\n".join([*found, f"[only {number} files were searched]"])
                number += path is not None
                found += self._places(path, phrase) if path is not None else ()
                if len(found) >= MOST_FOUND:
                    found[MOST_FOUND:] = ["[there may be more: search one folder]"]
                    break
        return "\n".join(found) or f"[no file has {words!r}]"

    def send(self, path: str) -> FileResult:
        """Send a shared file to the user, with your answer.

        Args:
            path: a path such as "reports/2025.pdf"
        """
        with self._told(path):
            os.close(open_beneath(self._folder, _path(path)))
        return FileResult(_path(path), beneath=self._folder)

    def write(self, path: str, text: str) -> str:
        """Write a text to a shared file, which is replaced if it is there.

        Args:
            path: a path such as "notes/today.md"; missing folders are created
            text: the whole text of the file
        """
        if len(text) > MOST_WRITTEN:
            raise ToolError(f"the text has more than {MOST_WRITTEN:,} characters: write less")
        data = text.encode("utf-8", "replace")
        with self._told(path):
            is_new = _written(self._folder, _path(path), data)
        return f"{shown_path(path)} {'created' if is_new else 'replaced'}: {len(data):,} bytes"

    @contextmanager
    def _told(self, path: str) -> Iterator[None]:
        """Turn a file system error into a sentence for the model, and follow no new link."""
        try:
            if self._folder.resolve() != self._folder:
                raise ToolError(_REPLACED)
            yield
        except FileNotFoundError:
            raise ToolError(f"there is no {path!r}: files__list shows what is there") from None
        except OSError as error:
            is_ours = isinstance(error, FileRefused)
            why = why_refused(error) if is_ours else str(error.strerror).lower()
            raise ToolError(f"{path!r} can't be used: {why}") from None

    def _data(self, path: str) -> bytes:
        return read_plain(_path(path), most_bytes=MOST_BYTES, beneath=self._folder)

    def _files(self, folder: str) -> Iterator[str | None]:
        """Yield the paths of the files in a folder and in all folders in it, sorted.

        Also yield None for each folder, since empty ones take time too.
        """
        with folder_beneath(self._folder, folder) as there:
            for place, folders, files, _ in os.fwalk(".", dir_fd=there):
                yield None
                inside = PurePosixPath(folder, place)
                folders[:] = sorted(folders) if len(inside.parts) < MOST_FOLDERS else ()
                yield from (str(inside / name) for name in sorted(files))

    def _places(self, path: str, phrase: re.Pattern[str]) -> Sequence[str]:
        """Return where a file has these words; if it can't be read, search only its name."""
        shown = shown_path(path)
        found = [shown] if phrase.search(path) else []
        try:
            data = read_plain(path, most_bytes=SEARCHED_BYTES, beneath=self._folder)
        except OSError:
            return found
        if kind_of(data) != "text":
            return found
        return [*found, *islice(_lines(shown, _decoded(data), phrase), MOST_FOUND)]


_REPLACED = (
    "the shared folder has been replaced by a link since the start: whoever runs this can allow "
    "that by restarting nanoloop"
)


def _lines(path: str, text: str, phrase: re.Pattern[str]) -> Iterator[str]:
    at, line = 0, 1
    for match in phrase.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        around = text[max(0, at - AROUND) : match.end() + AROUND]
        yield f"{path}:{line}: {' '.join(around.split())}"


def _decoded(data: bytes) -> str:
    is_wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    return data.decode("utf-16" if is_wide else "utf-8-sig", "replace")


def _row(entry: os.DirEntry[str]) -> str:
    shown = shown_path(entry.name)
    with suppress(FileNotFoundError):
        there = entry.stat(follow_symlinks=False)
        if stat.S_ISDIR(there.st_mode):
            return f"{shown}/"
        if stat.S_ISREG(there.st_mode):
            return f"{shown}  {there.st_size:,} bytes"
    return f"{shown}  (not a file: a link, say)"


def _written(folder: Path, name: str, data: bytes) -> bool:
    """Replace or create a file, completely or not at all; return True if it is new.

    A file that is replaced keeps its permissions.
    """
    with place_beneath(folder, name, creates=True) as (within, last):
        fresh = f".{token_hex(8)}"
        fd, has_name = _made(within, fresh)
        try:
            is_new = not _takes_permissions(fd, within, last)
            write_all(fd, data)
            os.fsync(fd)
            if not has_name:
                os.link(f"{_OPEN_FILES}/{fd}", fresh, dst_dir_fd=within, follow_symlinks=True)
            os.replace(fresh, last, src_dir_fd=within, dst_dir_fd=within)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(fresh, dir_fd=within)
            raise
        finally:
            os.close(fd)
        os.fsync(within)
        return is_new


_OPEN_FILES = "/proc/self/fd"


def _made(folder: int, name: str) -> tuple[int, bool]:
    """Create a file without a name, which is gone if we are killed; return it, and False.

    If that is not possible in this folder, create it with this name, and return it, and True.
    """
    how = os.O_WRONLY | os.O_CLOEXEC
    if hasattr(os, "O_TMPFILE") and Path(_OPEN_FILES).is_dir():
        with suppress(OSError):
            return os.open(".", how | os.O_TMPFILE, 0o666, dir_fd=folder), False
    return os.open(name, how | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder), True


def _takes_permissions(fd: int, folder: int, name: str) -> bool:
    """Give an open file those of the file with this name; return False if there is none."""
    try:
        there = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    os.fchmod(fd, there.st_mode & 0o777)  # the new content must not run as the file's owner
    return True


def _path(said: str) -> str:
    """Return a path in the form for opening it, which rejects paths that leave the folder."""
    if len(said) > MOST_PATH:
        raise ToolError(f"a path has at most {MOST_PATH:,} characters")
    if _HALVES.search(said):
        raise ToolError(f"{said!r} can't be used: half of a character is in it")
    parts = [part for part in said.split("/") if part not in {"", "."}]
    if len(parts) > MOST_FOLDERS:
        raise ToolError(f"a path leads through at most {MOST_FOLDERS} folders")
    return "/".join(parts)


_HALVES = re.compile("[\ud800-\udfff]")


def make(own: FilesSettings) -> Sequence[FunctionTool[..., object]]:
    """Return the tools for this folder; raise `SettingsError` if there is no such folder."""
    if not own.folder.is_dir():
        raise SettingsError(
            f'tools.files.folder is "{own.folder}", but there is no such folder: create it, or '
            "choose another one"
        )
    files = SharedFolder(own.folder)
    tools: list[FunctionTool[..., object]] = [
        FunctionTool(files.list, name="files__list", effect="reads"),
        FunctionTool(files.read, name="files__read", effect="reads"),
        FunctionTool(files.search, name="files__search", effect="reads"),
        FunctionTool(files.send, name="files__send", effect="reads"),
    ]
    if own.write:
        # Writing the same text to the same place twice does no harm.
        tools.append(FunctionTool(files.write, name="files__write", idempotent=True))
    for tool in tools:
        tool.origin = str(own.folder.absolute())
    return tools


PLUGIN = Plugin(name=NAME, settings=FilesSettings, make=make)
