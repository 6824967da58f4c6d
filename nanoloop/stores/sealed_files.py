"""Sealed files: a folder, such as that of uploads, in which each file is encrypted for its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from nanoloop.errors import DiskRefused, FileRefused, NotReadable
from nanoloop.files import (
    keyed_digest,
    load_file,
    locked_file,
    make_folder,
    refusal,
    replace_file,
    waited_lock,
)
from nanoloop.protocols import Seal
from nanoloop.stores.keys import MARK_OF_KEYS, KeyDestroyed, KeysFile, KeysWanted
from nanoloop.stores.seal_record import MARK, place
from nanoloop.stores.sealing import Sealing

FOLDER_RECORD = ".seal"
"""The file that holds a folder's seal record."""
_SEALED_FILE = re.compile(rb"n2\.[0-9a-f]{8}\.|n3\.[0-9a-f]{32}-file\.")


class FolderSealing:
    """Encrypts each file in a folder for its name; without a seal, files stay in plain text.

    Methods block: call them in worker threads.
    """

    def __init__(self, folder: Path, seal: Seal | None = None) -> None:
        """Read the folder's record; raise `NotReadable` if a key is missing, or `DiskRefused`."""
        self.folder = folder
        self._sealing = Sealing(seal)
        self._read_record()

    @property
    def _file(self) -> Path:
        return self.folder / FOLDER_RECORD

    def _read_record(self) -> None:
        try:
            text = load_file(self._file).decode("utf-8", "replace")
        except (FileNotFoundError, NotADirectoryError):
            return
        except FileRefused:
            raise
        except OSError as error:
            raise DiskRefused(self.folder, refusal(error)) from error
        self._sealing.learn(text)

    def sealed(self, name: str, data: bytes) -> bytes:
        """Return the bytes to write to the file with this name."""
        sealing = self._sealing
        if sealing.seal is None:
            return data
        while not sealing.may_write:
            self._add_key()
        if (keys_file := self._keys_file) is None:
            return sealing.seal.seal(data, self._place(name)).encode()
        keys = [self._key_of(name)]
        with suppress(KeysWanted):
            return keys_file.seal(keys, data, self._place(name)).encode()
        keys_file.add(keys)
        return keys_file.seal(keys, data, self._place(name)).encode()

    def destroy(self, name: str) -> None:
        """Destroy the key of the files with this name, so that no copy can be decrypted."""
        if self._sealing.record is None:  # as in `opened`
            self._read_record()
        if self._keys_file is not None:
            key = self._key_of(name)
            if not self._keys_file.missing([key]):
                self._keys_file.destroy([key])

    def is_destroyed(self, name: str) -> bool:
        """Return True if the key of the files with this name was destroyed."""
        return self._keys_file is not None and self._keys_file.is_gone(self._key_of(name))

    @property
    def _keys_file(self) -> KeysFile | None:
        """The file with a key for each upload; None if uploads have no keys of their own."""
        return self._sealing.keys_file if self._sealing.is_keyed else None

    def _key_of(self, name: str) -> str:
        """Return the name of the key that a file shares with its record."""
        assert self._sealing.record is not None  # noqa: S101 - read, or written, before
        digest = keyed_digest(self._sealing.record.secret, name.partition(".")[0])
        return f"{digest}-file"

    def _add_key(self) -> None:
        make_folder(self.folder)
        with suppress(BlockingIOError), locked_file(self.folder / f"{FOLDER_RECORD}.lock"):
            self._read_record()
            if not self._sealing.may_write:
                is_empty = next(self._files(), None) is None
                if is_empty and self._sealing.keys_file is not None:
                    self._sealing.keys_file.begin()
                self._write_record(self._sealing.renewed(is_empty=is_empty))

    def _use_keys(self) -> None:
        """Give each file a key of its own from now on."""
        while not self._sealing.may_write:
            self._add_key()
        sealing = self._sealing
        if sealing.keys_file is not None and not sealing.is_keyed:
            with waited_lock(self.folder / f"{FOLDER_RECORD}.lock"):
                self._read_record()
                self._write_record(sealing.keyed(sealing.keys_file.begin()))
        if sealing.keys_file is not None:
            sealing.keys_file.rewrap()

    def _write_record(self, text: str) -> None:
        replace_file(self._file, text.encode(), durable=True)
        self._sealing.learn(text)

    def opened(self, name: str, data: bytes) -> bytes | None:
        """Return the decrypted bytes, or None if they were not written under this name."""
        sealing = self._sealing
        if sealing.seal is None:
            return data
        is_sealed = _SEALED_FILE.match(data) is not None
        if is_sealed and sealing.record is None:  # another process has sealed the first file
            self._read_record()
        with suppress(ValueError, KeyDestroyed, NotReadable):
            if is_sealed and sealing.record is not None:
                text, where = data.decode(), self._place(name)
                if text.startswith(MARK_OF_KEYS) and sealing.keys_file is not None:
                    sealing.keys_file.refresh()
                    return sealing.keys_file.open(text, where)
                return sealing.seal.open(text, where)
        if is_sealed or sealing.is_strict:
            return None
        with suppress(ValueError):
            return sealing.seal.open_former(data.decode())
        return data  # written before there was a key

    def _place(self, name: str) -> bytes:
        assert self._sealing.record is not None  # noqa: S101 - read, or written, before
        return place("file", self._sealing.record.id, name)

    def _files(self) -> Iterator[Path]:
        return (file for file in self.folder.glob("[!.]*.*") if file.suffix in {".json", ".data"})

    def reseal(self) -> Iterator[tuple[Path, bool]]:
        """Encrypt every file with the first key; yield each file, and whether it could be read."""
        if self._sealing.seal is None or not self.folder.is_dir():
            return
        self._use_keys()
        is_whole = True
        mark = MARK_OF_KEYS if self._keys_file else f"{MARK}.{self._sealing.seal.names[0]}"
        first = f"{mark}.".encode()
        for file in sorted(self._files()):
            data = load_file(file)
            own = self.opened(file.name, data)
            if own is not None and not (self._sealing.record and data.startswith(first)):
                replace_file(file, self.sealed(file.name, own), durable=True)
            is_whole &= own is not None
            yield file, own is not None
        if is_whole:
            self._write_record(self._sealing.completed())
