"""The keys file: a key for each conversation, person and upload, outside the store.

Once a key is destroyed, what it encrypted is lost in every copy of the store.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from secrets import token_bytes, token_hex
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from nanoloop.bounded import BoundedDict
from nanoloop.errors import DiskRefused, NotReadable, StoreError
from nanoloop.files import (
    make_folder,
    open_file,
    refusal,
    replace_file,
    waited_lock,
    write_all,
)
from nanoloop.session.head import ABOUT, WAITING
from nanoloop.session.speech import (
    Person,
    erased_quote,
    person_in,
    sender_in,
    stored_quotes,
    with_quotes,
)

if TYPE_CHECKING:
    from nanoloop.stores.encryption import Cipher, KeySeal

PIECES, PIECE = "_pieces", "_piece"
"""The fields for the parts of a text that have other keys, and for the place of each part."""
MARK_OF_KEYS = "n3"
"""The start of each text that is encrypted with keys from the file."""
KEPT_CIPHERS = 4096
_KEY_BYTES = 32
_GONE = "gone"
_HEADER = re.compile(rb"nanoloop-keys 1 ([0-9a-f]{16}) ([0-9a-f]{16}) (\d{12})\n")
_HEADER_BYTES = 63
_Stamp = tuple[int, int, int]


class KeyDestroyed(Exception):
    """A key was destroyed on purpose, so everything encrypted with it is permanently lost."""


class KeysWanted(Exception):
    """Data can't be encrypted before these keys are made, which blocks."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names


class KeysFile:
    """Random keys by name, each encrypted with the store's key; a destroyed key leaves a tombstone.

    The part of a name before the first hyphen identifies the key's owner. Keys are appended to the
    file, and are durable before they are used. To destroy keys, the whole file is replaced. Any
    number of processes may share the file; changing it blocks.
    """

    def __init__(self, path: Path, seal: KeySeal) -> None:
        self.path = path
        self._seal = seal
        self._guard = RLock()
        self._changing = Lock()
        self.id = ""
        """The file's random name; "" while there is none."""
        self._keys: dict[str, str] = {}
        self._gone: dict[str, tuple[float, str]] = {}
        self._edition = ""
        """A random name that changes whenever the file is replaced."""
        self._end = 0
        self._last = b""
        """The last line that was read, and where it ends."""
        self._stamp: _Stamp | None = None
        self._ciphers: BoundedDict[str, Cipher] = BoundedDict(KEPT_CIPHERS)

    # Does it fit?

    def check(self, file_id: str) -> None:
        """Raise `NotReadable` unless the file has this id and is complete."""
        self.refresh()
        if not self.id:
            raise NotReadable(
                f"the keys to the data stored here are missing: {self.path} does not exist. "
                "Restore the keys file, or set store.keys_file to where it is; nothing was written"
            )
        if self.id != file_id:
            raise NotReadable(
                f"{self.path} has the keys of another store: set store.keys_file to the keys file "
                "of this one; nothing was written"
            )

    def begin(self) -> str:
        """Return the file's id; create the file if there is none."""
        with self._alone():
            if not self.id:
                self._replace({}, {}, file_id=token_hex(8))
        return self.id

    # Keys

    def has(self, name: str) -> bool:
        """Return True if there is a key with this name."""
        return name in self._keys

    def is_gone(self, name: str) -> bool:
        """Return True if this key was destroyed, alone or with all keys of its owner."""
        return name in self._gone or name.partition("-")[0] in self._gone

    def gone_at(self, name: str) -> float | None:
        """Return when this key was destroyed, in seconds since 1970; None if it was not."""
        return self._gone[name][0] if name in self._gone else None

    def missing(self, names: Iterable[str]) -> list[str]:
        """Return which of these keys are missing, after reading what other processes have added."""
        self.refresh()
        return [name for name in dict.fromkeys(names) if name not in self._keys]

    def add(self, names: Iterable[str]) -> str:
        """Create those of these keys that are missing, durably; return the last name.

        Raise `KeyDestroyed` if one of them was destroyed.
        """
        names = [*names]
        with self._alone() as is_there:
            if not is_there:
                raise self._gone_itself()
            if any(map(self.is_gone, names)):
                raise KeyDestroyed
            fresh = {
                name: self._wrapped(name, token_bytes(_KEY_BYTES))
                for name in dict.fromkeys(names)
                if name not in self._keys
            }
            if fresh:
                self._append(fresh)
        return names[-1]

    def check_has(self, name: str) -> None:
        """Raise `NotReadable` if this key is missing, as in an older version of the file."""
        if not (self.has(name) or self.is_gone(name)):
            raise self._lacks(name)

    def destroy(
        self,
        names: Iterable[str] = (),
        *,
        all_of: Mapping[str, str] | None = None,
        now: float | None = None,
    ) -> None:
        """Permanently destroy these keys and all keys of the owners in `all_of`.

        `all_of` maps each owner to a note. On return, no file in the folder contains the keys.
        """
        whole, moment = dict(all_of or {}), time.time() if now is None else now
        with self._alone() as is_there:
            named = [name for name in names if not self.is_gone(name)]
            owners = {owner for owner in whole if owner not in self._gone}
            if not (named or owners):
                return
            if not is_there:  # the file may come back, with these keys
                raise self._gone_itself()
            gone = {n: s for n, s in self._gone.items() if n.partition("-")[0] not in owners}
            gone |= dict.fromkeys(named, (moment, ""))
            gone |= {owner: (moment, self._note(owner, whole[owner])) for owner in sorted(owners)}
            left = {
                name: token
                for name, token in self._keys.items()
                if name not in gone and name.partition("-")[0] not in owners
            }
            self._replace(left, gone, file_id=self.id)

    def unsettled(self) -> dict[str, str]:
        """Return the notes of owners whose keys are all destroyed, unless `settle` dropped them."""
        self.refresh()
        notes = [(owner, note) for owner, (_, note) in self._gone.items() if note]
        return {owner: self._opened_note(owner, note) for owner, note in notes}

    def settle(self, owners: Collection[str]) -> None:
        """Drop the notes of these owners; their keys still count as destroyed."""
        with self._alone() as is_there:
            gone = {n: (at, "" if n in owners else note) for n, (at, note) in self._gone.items()}
            if is_there and gone != self._gone:
                self._replace(self._keys, gone, file_id=self.id)

    def rewrap(self) -> None:
        """Encrypt all keys with the store's first key, unless that is already done."""
        with self._alone() as is_there:
            first = self._seal.names[0]
            if not is_there or all(t.split(".")[1] == first for t in self._keys.values()):
                return
            keys = {name: self._wrapped(name, self._key(name)) for name in self._keys}
            notes = [(owner, at, note) for owner, (at, note) in self._gone.items()]
            gone = {
                owner: (at, self._note(owner, self._opened_note(owner, note)) if note else "")
                for owner, at, note in notes
            }
            self._replace(keys, gone, file_id=self.id)

    # Sealing

    def seal(self, names: Sequence[str], data: bytes, place: bytes) -> str:
        """Encrypt these bytes as text; decrypting it needs all of these keys and this place.

        Raise `KeysWanted` if one of the keys has yet to be made.
        """
        joined = "+".join(names)
        if joined not in self._ciphers and (wanted := self.missing(names)):
            raise KeysWanted(wanted)
        return f"{MARK_OF_KEYS}.{joined}.{self._cipher(joined).seal(data, place)}"

    def open(self, text: str, place: bytes) -> bytes:
        """Return the decrypted bytes; raise ValueError for a text that is not from this place.

        Raise `KeyDestroyed` if one of its keys was destroyed, and `NotReadable` if one is missing.
        """
        mark, joined, code = text.split(".")
        if mark != MARK_OF_KEYS:
            raise ValueError("this text was not encrypted with any of these keys")
        try:
            return self._cipher(joined).open(code, place)
        except KeyDestroyed:
            # In a place where it never encrypted anything, naming a destroyed key erases nothing.
            if any(name.partition("-")[0].encode() not in place for name in joined.split("+")):
                raise ValueError("this text was not encrypted for this place") from None
            raise

    def _cipher(self, joined: str) -> Cipher:
        with self._guard:
            if (known := self._ciphers.get(joined)) is not None:
                return known
            names = joined.split("+")
            if any(name not in self._keys for name in names):
                self.refresh()
            if any(self.is_gone(name) for name in names):
                raise KeyDestroyed
            if lacking := [name for name in names if name not in self._keys]:
                raise self._lacks(lacking[0])
            self._ciphers[joined] = made = self._seal.cipher([self._key(name) for name in names])
            return made

    def _key(self, name: str) -> bytes:
        try:
            return self._seal.open(self._keys[name], self._place(name))
        except ValueError:
            raise NotReadable(
                f"a key in {self.path} can't be opened ({name}): append the key that "
                "store.encryption_key had before, after a comma"
            ) from None

    def _wrapped(self, name: str, key: bytes) -> str:
        return self._seal.seal(key, self._place(name))

    def _place(self, *names: str) -> bytes:
        return "\0".join(("keys", self.id, *names)).encode()

    def _note(self, owner: str, note: str) -> str:
        return self._seal.seal(note.encode(), self._place(owner, "note")) if note else ""

    def _opened_note(self, owner: str, note: str) -> str:
        try:
            return self._seal.open(note, self._place(owner, "note")).decode()
        except ValueError:
            return ""

    # The file

    def refresh(self) -> None:
        """Read what other processes have changed; if nothing changed, check only the file's status.

        Raise `NotReadable` if the file was damaged.
        """
        try:
            if (there := self._changed()) is not None:
                with self._guard:
                    self._read(there)
        except StoreError:
            raise
        except OSError as error:
            raise DiskRefused(self.path, refusal(error)) from error

    def is_behind(self) -> bool:
        """Return True if others changed the file; `refresh` may then take a while."""
        try:
            return self._changed() is not None
        except OSError:  # `refresh` reports it
            return True

    def _changed(self) -> os.stat_result | None:
        try:
            there = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return there if _stamp_of(there) != self._stamp else None

    def _read(self, there: os.stat_result, *, is_ours: bool = False) -> None:
        """Read the new lines, or all of them if the file was replaced."""
        fd = open_file(self.path)
        try:
            header = _HEADER.match(os.pread(fd, _HEADER_BYTES, 0))
            if header is None:
                raise self._invalid("is not a keys file")
            file_id, edition = header[1].decode(), header[2].decode()
            if self.id not in {"", file_id}:
                raise self._invalid("was replaced by that of another store")
            # An older copy that was put back has the same edition.
            is_same = edition == self._edition and self._last == os.pread(
                fd, len(self._last), self._end - len(self._last)
            )
            data = _read_from(fd, self._end if is_same else _HEADER_BYTES)
            if not is_ours:  # another process may have been killed before that
                os.fsync(fd)
        finally:
            os.close(fd)
        # Keys cut off by a kill were never used.
        whole = data[: data.rfind(b"\n") + 1]
        try:
            fresh_keys, fresh_gone = _parsed(whole.decode())
        except ValueError:
            raise self._invalid("was changed by something else") from None
        keys, gone = (self._keys, self._gone) if is_same else ({}, {})
        keys.update(fresh_keys)
        gone.update(fresh_gone)
        if len(keys) + len(gone) < int(header[3]):
            raise self._invalid("ends too early, so that keys are missing")
        self._keys, self._gone, self.id, self._edition = keys, gone, file_id, edition
        self._end = (self._end if is_same else _HEADER_BYTES) + len(whole)
        if whole or not is_same:
            self._last = whole[whole.rfind(b"\n", 0, -1) + 1 :]
        self._stamp = _stamp_of(there)
        if not is_same:
            self._ciphers.clear()

    def _invalid(self, what: str) -> NotReadable:
        return NotReadable(
            f"the keys file {self.path} {what}: restore its newest copy; nothing was written"
        )

    def _lacks(self, name: str) -> NotReadable:
        return NotReadable(
            f"a key is missing in {self.path} ({name}): restore the newest version of the keys file"
        )

    def _gone_itself(self) -> NotReadable:
        return NotReadable(f"the keys file {self.path} is gone: restore it")

    def _append(self, fresh: Mapping[str, str]) -> None:
        fd = open_file(self.path, os.O_RDWR)
        try:
            os.ftruncate(fd, self._end)
            os.lseek(fd, 0, os.SEEK_END)
            added = "".join(f"{name} {token}\n" for name, token in fresh.items()).encode()
            write_all(fd, added)
            os.fsync(fd)
            # After the keys, so that it never counts a key that is not there.
            lines = len({*self._keys, *fresh}) + len(self._gone)
            os.pwrite(fd, self._header(self.id, self._edition, lines).encode(), 0)
        finally:
            os.close(fd)
        self._read_again()

    def _replace(
        self, keys: Mapping[str, str], gone: Mapping[str, tuple[float, str]], *, file_id: str
    ) -> None:
        header = self._header(file_id, token_hex(8), len(keys) + len(gone))
        lines = [f"{name} {token}\n" for name, token in keys.items()]
        for name, (at, note) in gone.items():
            lines.append(" ".join(filter(None, (name, _GONE, f"{at:.3f}", note))) + "\n")
        replace_file(self.path, (header + "".join(lines)).encode(), durable=True)
        self._read_again()

    def _read_again(self) -> None:
        with self._guard:
            self._read(self.path.stat(), is_ours=True)

    def _header(self, file_id: str, edition: str, lines: int) -> str:
        return f"nanoloop-keys 1 {file_id} {edition} {lines:012}\n"

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Prevent others from changing the file; yield True if it exists. This blocks.

        Meanwhile, threads that only read don't wait.
        """
        with self._changing:
            try:
                make_folder(self.path.parent)
                with waited_lock(self.path.with_name(f"{self.path.name}.lock")):
                    self.refresh()
                    yield self.path.exists()
            except StoreError:
                raise
            except OSError as error:
                raise DiskRefused(self.path, refusal(error)) from error


class SessionKeys:
    """The names of a session's keys, which reveal neither the session nor the people in it."""

    def __init__(
        self, file: KeysFile, secret: bytes, born: str, *, edition: int, dying: Collection[str]
    ) -> None:
        """Create the names; `born` is the session's random name; keys in `dying` are not used."""
        self._file = file
        self._secret = secret
        self._born = born
        self._dying = dying
        self.log = (f"{born}-log",)
        """The key for texts that quote no person."""
        self.mixed = (f"{born}-mixed-{edition}",)
        """The key for texts made from several people's words."""

    def person(self, person: Person) -> str:
        """Return a digest that stands for this account, in this session only."""
        return _digest(self._secret, self._born, *person)

    def of(self, people: Iterable[str]) -> tuple[str, ...]:
        """Return the keys for a text that must be lost once any of these people is erased."""
        return tuple(sorted(map(self._newest, people))) or self.log

    def erased_at(self, person: Person) -> float | None:
        """Return when this person's words were last erased here, or None if they never were."""
        moments = [self._file.gone_at(name) for name in self._names(self.person(person))]
        return max((moment for moment in moments if moment is not None), default=None)

    def _newest(self, digest: str) -> str:
        """Return the name of the person's current key; after each erasure, a new key is used."""
        return self._names(digest)[-1]

    def _names(self, digest: str) -> list[str]:
        names = [f"{self._born}-{digest}-1"]
        while names[-1] in self._dying or self._file.is_gone(names[-1]):
            names.append(f"{self._born}-{digest}-{len(names) + 1}")
            if self._file.is_gone(self._born):
                break
        return names


@lru_cache(maxsize=4096)
def _digest(secret: bytes, *names: str) -> str:
    data = "\0".join(names).encode("utf-8", "surrogatepass")
    return hmac.new(secret, data, hashlib.sha256).hexdigest()[:20]


def _stamp_of(there: os.stat_result) -> _Stamp:
    return there.st_ino, there.st_size, there.st_mtime_ns


def _read_from(fd: int, start: int) -> bytes:
    pieces = []
    while piece := os.pread(fd, 1 << 20, start):
        pieces.append(piece)
        start += len(piece)
    return b"".join(pieces)


def _parsed(text: str) -> tuple[dict[str, str], dict[str, tuple[float, str]]]:
    """Return the keys and the tombstones in these lines; raise ValueError for an invalid line."""
    keys: dict[str, str] = {}
    gone: dict[str, tuple[float, str]] = {}
    for line in text.splitlines():
        name, word, *more = line.split(" ")
        if word == _GONE:
            at, note = (*more, "")[:2]
            gone[name] = float(at), note
        else:
            keys[name] = word
    return keys, gone


Piece = tuple[Any, Sequence[str]]
"""A value, and the names of the keys that encrypt it."""


def apart(
    said: Mapping[str, Any], keys: SessionKeys, pieces: list[Piece]
) -> tuple[dict[str, Any], tuple[str, ...], list[Piece]]:
    """Return a stored message without its quotes of other people, which have other keys.

    Also return the sender's keys, and the pieces that contain the quotes.
    """
    metadata = said["metadata"]
    sender = sender_in(metadata)
    told = []
    for quote in stored_quotes(metadata):
        person = person_in(quote.get("by")) if isinstance(quote, Mapping) else None
        if person is None or person == sender:
            told.append(quote)
        else:
            told.append({"kind": quote.get("kind"), PIECE: len(pieces)})
            pieces.append((quote, keys.of([keys.person(person)])))
    names = keys.of([keys.person(sender)] if sender else [])
    metadata = with_quotes(metadata, told) if told else metadata
    return {**said, "metadata": metadata}, names, pieces


def apart_in(name: str, value: Any, keys: SessionKeys, pieces: list[Piece]) -> Any:
    """Return a section without the parts that have other keys; add these parts to the pieces."""
    if name == ABOUT and value.get("title"):
        pieces.append((value["title"], keys.mixed))
        return {**value, "title": {PIECE: 0}}
    if name != WAITING:
        return value
    places = []
    for item in value:
        told, own, _ = apart(item, keys, pieces)
        places.append({PIECE: len(pieces)})
        pieces.append((told, own))
    return places


def beside(where: bytes, pieces: Any) -> bytes:
    """Return the place of a text with these pieces; without all of them, it can't be decrypted."""
    count = len(pieces) if isinstance(pieces, list) else 0
    return b"%b with %d pieces" % (where, count) if count else where


def nth(where: bytes, number: int) -> bytes:
    """Return the place of the piece with this number."""
    return b"%b piece %d" % (where, number)


def together(said: Mapping[str, Any], pieces: Sequence[Any]) -> dict[str, Any]:
    """Return a stored message with its quotes; destroyed quotes are marked as erased."""
    quotes = [_quote(quote, pieces) for quote in stored_quotes(said["metadata"])]
    return {**said, "metadata": with_quotes(said["metadata"], quotes)} if quotes else {**said}


def _quote(quote: Any, pieces: Sequence[Any]) -> Any:
    if not isinstance(quote, Mapping) or PIECE not in quote:
        return quote
    found = pieces[quote[PIECE]]
    return erased_quote(quote) if found is None else found


def together_in(name: str, said: Any, pieces: Sequence[Any]) -> Any:
    """Return a section with its pieces, except the erased ones."""
    if name == ABOUT:
        return {**said, "title": pieces[said["title"][PIECE]] or ""}
    found = (pieces[item[PIECE]] for item in said)
    return [together(item, pieces) for item in found if item is not None]
