"""Who was let in by a one-time code: asked for in a private chat, approved by an operator."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nanoloop.channels.platform.notebook import Notebook

CODE_SECONDS = 3600
"""How long a code can be approved."""
AGAIN_SECONDS = 600
"""How long the same person waits for another one."""
CODES = 50
"""How many may be open in one channel: then nobody gets another."""
_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_LENGTH = 8
FILE = "pairing.sqlite"
"""Its name in the data folder."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS people (
    channel TEXT, person TEXT, name TEXT, chat TEXT, since REAL, PRIMARY KEY (channel, person));
CREATE TABLE IF NOT EXISTS codes (
    digest TEXT PRIMARY KEY, channel TEXT, person TEXT, name TEXT, chat TEXT, made REAL,
    UNIQUE (channel, person));
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Someone on a platform."""

    channel: str
    id: str
    name: str
    chat: str
    """Their private chat with the bot."""
    time: float
    """When they were let in, or asked to be."""


class Pairing:
    """Keeps it in the data folder, for the daemon and the command line at once; or in memory."""

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._notebook = Notebook(folder and folder / FILE, _SCHEMA)

    def code_for(self, person: Person) -> str | None:
        """A new code for them, or None where they have one or too many wait."""
        now = self._clock()
        with self._writing() as database:
            database.execute("DELETE FROM codes WHERE made <= ?", (now - CODE_SECONDS,))
            database.execute(
                "DELETE FROM codes WHERE channel = ? AND person = ? AND made <= ?",
                (person.channel, person.id, now - AGAIN_SECONDS),
            )
            if self._may_not_ask(database, person):
                return None
            code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
            known = (_digest(code), person.channel, person.id, person.name, person.chat, now)
            database.execute("INSERT INTO codes VALUES (?, ?, ?, ?, ?, ?)", known)
        return code

    def approve(self, code: str, *, channel: str | None = None) -> Person | None:
        """Let the person in who has this code; None where nobody has it, or not any more."""
        digest, now = _digest(code), self._clock()
        with self._writing() as database:
            row = database.execute(
                "DELETE FROM codes WHERE digest = ? AND made > ? AND channel = ifnull(?, channel)"
                " RETURNING channel, person, name, chat",
                (digest, now - CODE_SECONDS, channel),
            ).fetchone()
            if row is None:
                return None
            database.execute("INSERT OR REPLACE INTO people VALUES (?, ?, ?, ?, ?)", (*row, now))
        return _person((*row, now))

    def revoke(self, channel: str, person: str) -> bool:
        """Let them in no more; False where they were not."""
        with self._writing() as database:
            gone = database.execute(
                "DELETE FROM people WHERE channel = ? AND person = ?", (channel, person)
            )
            return gone.rowcount > 0

    def is_in(self, channel: str, person: str) -> bool:
        """Whether they were let in."""
        found = self._notebook.open().execute(
            "SELECT 1 FROM people WHERE channel = ? AND person = ?", (channel, person)
        )
        return found.fetchone() is not None

    def people(self) -> list[Person]:
        """Everyone who was let in."""
        rows = self._notebook.open().execute(
            "SELECT channel, person, name, chat, since FROM people ORDER BY channel, since"
        )
        return [_person(row) for row in rows]

    def waiting(self) -> list[Person]:
        """Everyone whose code can be approved."""
        rows = self._notebook.open().execute(
            "SELECT channel, person, name, chat, made FROM codes WHERE made > ? ORDER BY made",
            (self._clock() - CODE_SECONDS,),
        )
        return [_person(row) for row in rows]

    def close(self) -> None:
        """Let go of the file; closing twice is fine."""
        self._notebook.close()

    def _may_not_ask(self, database: sqlite3.Connection, person: Person) -> bool:
        mine, all_of_them = database.execute(
            "SELECT count(*) FILTER (WHERE person = ?), count(*) FROM codes WHERE channel = ?",
            (person.id, person.channel),
        ).fetchone()
        return bool(mine or all_of_them >= CODES)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        database = self._notebook.open()
        with database:
            # At once: two processes that read first and write then would fail.
            database.execute("BEGIN IMMEDIATE")
            yield database


def _digest(code: str) -> str:
    return hashlib.sha256(code.strip().upper().encode("utf-8", "replace")).hexdigest()


def _person(row: tuple[str, str, str, str, float]) -> Person:
    channel, person, name, chat, moment = row
    return Person(channel=channel, id=person, name=name, chat=chat, time=moment)
