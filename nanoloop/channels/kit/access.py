"""Access control for a chat platform: rules, pairing codes, and rate limits."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.backlog import Notebook
from nanoloop.channels.kit.platform import Heard
from nanoloop.events import NobodyMayTalk, PairingApproved, PairingAsked, SenderRefused, announce
from nanoloop.sentences import Sentences
from nanoloop.settings.channels import PlatformSettings

EVERYONE = "*"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
FOR_EVERYONE = frozenset({"help", "history", "recall", "status", "stop", "yes", "no", "answer"})
"""Commands allowed to everyone in a group: they change nothing, or check the sender themselves."""


class AccessControl:
    """Accepts or rejects messages, and words the replies to people who are rejected."""

    def __init__(
        self,
        channel: str,
        *,
        rules: PlatformSettings,
        pairing: Pairing,
        sentences: Sentences | None = None,
    ) -> None:
        self._channel = channel
        self.rules = rules
        """The current rules; they may be replaced while the channel runs."""
        self._pairing = pairing
        self._sentences = sentences or Sentences()
        self._senders = Rate(MINUTE)
        self._chats = Rate(DAY)
        self._strangers = Rate(HOUR)

    @property
    def closed(self) -> str | None:
        """Advice on how to give someone access, or None if at least one person already has it."""
        rules = self.rules
        if rules.users or rules.chats or rules.roles or rules.operators or self._has_people():
            return None
        advice = f"set users or chats in [channels.{self._channel}]"
        if rules.pairing:
            advice += ", or write to the bot and approve its code: nanoloop pair approve CODE"
        return advice

    def announce_closed(self) -> None:
        """Log how to give someone access if nobody may talk to the bot yet."""
        if (advice := self.closed) is not None:
            announce(NobodyMayTalk(channel=self._channel, advice=advice))

    def say(self, name: str, /, **facts: Any) -> str:
        """Return the sentence with this name in the platform's language."""
        return self._sentences.speaking(self.rules.language).text(name, **facts)

    def may_talk(self, heard: Heard) -> bool:
        """Return whether the sender has access."""
        rules = self.rules
        return bool(
            {EVERYONE, heard.sender} & {*rules.users, *rules.operators}
            or heard.chat in rules.chats
            or {*rules.roles} & {*heard.roles}
            or (rules.pairing and self._pairing.is_in(self._channel, heard.sender))
        )

    def welcomes(self, heard: Heard) -> bool:
        """Return whether the sender has access or may ask for it."""
        return self.may_talk(heard) or (heard.private and self.rules.pairing)

    def is_operator(self, heard: Heard) -> bool:
        """Return whether the sender is an operator."""
        return heard.sender in self.rules.operators

    def refusal(self, heard: Heard) -> str | None:
        """Return the reply to a stranger, or None to stay silent."""
        self._refused(heard, "not allowed")
        if not heard.private:
            return None
        if self.rules.pairing:
            return self._code(heard)
        told = self._strangers.is_to_be_told(heard.sender)
        return self.say("stranger", person=heard.sender) if told else None

    def excess(self, heard: Heard) -> tuple[bool, str | None]:
        """Return whether this message exceeds the chat's daily limit, with the reply, if any."""
        if self._chats.allows(heard.chat, self.rules.per_day):
            return False, None
        self._refused(heard, "too much for a day")
        return True, self.say("day_over") if self._chats.is_to_be_told(heard.chat) else None

    def early_seconds(self, heard: Heard) -> float:
        """Return how many seconds the sender must wait for an answer to this message."""
        if command(heard.text) == "stop":
            return 0
        return self._senders.early_seconds(heard.sender, self.rules.per_minute)

    def is_forbidden(self, heard: Heard) -> bool:
        """Return whether this is a command that only operators may use in this chat."""
        name = command(heard.text)
        if name is None or self.is_operator(heard):
            return False
        return name == "pair" or not (heard.private or name in FOR_EVERYONE)

    def approve(self, code: str) -> Person | None:
        """Give access to the person with this code; return None if it is unknown or expired."""
        person = self._pairing.approve(code, channel=self._channel)
        if person is not None:
            announce(PairingApproved(channel=self._channel, sender=person.id))
        return person

    def _code(self, heard: Heard) -> str | None:
        person = Person(
            channel=self._channel, id=heard.sender, name=heard.name, chat=heard.chat, time=0
        )
        code = self._pairing.code_for(person)
        if code is None:
            return None
        announce(PairingAsked(channel=self._channel, sender=heard.sender))
        return self.say("pair", code=code)

    def _refused(self, heard: Heard, reason: str) -> None:
        announce(
            SenderRefused(
                channel=self._channel, chat=heard.chat, sender=heard.sender, reason=reason
            )
        )

    def _has_people(self) -> bool:
        return any(person.channel == self._channel for person in self._pairing.people())


def command(text: str) -> str | None:
    """Return the command's name, or None if the text is not a command."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    words = text[1:].split(maxsplit=1)
    return words[0].partition("@")[0].lower() if words else None


CODE_SECONDS = 3600
"""How long a code is valid."""
AGAIN_SECONDS = 600
"""How long a person has to wait before getting another code."""
CODES = 1000
"""The maximum number of open codes per channel; a new code replaces the oldest."""
_LETTERS = "ABCDEFGHJKMNPQRSTUVWXYZ23456789"
_LENGTH = 8
FILE = "pairing.sqlite"
"""The name of the pairing file in the data folder."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS people (
    channel TEXT, person TEXT, name TEXT, chat TEXT, since REAL, PRIMARY KEY (channel, person));
CREATE TABLE IF NOT EXISTS codes (
    digest TEXT PRIMARY KEY, channel TEXT, person TEXT, name TEXT, chat TEXT, made REAL,
    UNIQUE (channel, person));
CREATE INDEX IF NOT EXISTS codes_by_age ON codes (channel, made);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """A person on a platform."""

    channel: str
    id: str
    name: str
    chat: str
    """The id of the person's private chat with the bot."""
    time: float
    """When the person got access or asked for it, as a Unix timestamp."""


class Pairing:
    """Stores pairing codes and access, in memory or in a file that the daemon and CLI share."""

    def __init__(
        self, folder: Path | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._notebook = Notebook(folder and folder / FILE, _SCHEMA)

    def code_for(self, person: Person) -> str | None:
        """Return a new code for this person, or None if the person already has one.

        The oldest codes are dropped first, so a new code works no matter how many strangers ask for
        one.
        """
        now = self._clock()
        with self._writing() as database:
            database.execute("DELETE FROM codes WHERE made <= ?", (now - CODE_SECONDS,))
            database.execute(
                "DELETE FROM codes WHERE channel = ? AND person = ? AND made <= ?",
                (person.channel, person.id, now - AGAIN_SECONDS),
            )
            if self._has_code(database, person):
                return None
            code = "".join(secrets.choice(_LETTERS) for _ in range(_LENGTH))
            name = person.name.encode("utf-8", "replace").decode()  # it may end in half an emoji
            known = (_digest(code), person.channel, person.id, name, person.chat, now)
            database.execute("INSERT INTO codes VALUES (?, ?, ?, ?, ?, ?)", known)
            database.execute(
                "DELETE FROM codes WHERE rowid IN (SELECT rowid FROM codes WHERE channel = ?1 ORDER"
                " BY made LIMIT max(0, (SELECT count(*) FROM codes WHERE channel = ?1) - ?2))",
                (person.channel, CODES),
            )
        return code

    def approve(self, code: str, *, channel: str | None = None) -> Person | None:
        """Give access to the person with this code; return None if it is unknown or expired."""
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
        """Revoke this person's access; return False if the person had none."""
        with self._writing() as database:
            gone = database.execute(
                "DELETE FROM people WHERE channel = ? AND person = ?", (channel, person)
            )
            return gone.rowcount > 0

    def is_in(self, channel: str, person: str) -> bool:
        """Return whether this person has access."""
        found = self._notebook.open().execute(
            "SELECT 1 FROM people WHERE channel = ? AND person = ?", (channel, person)
        )
        return found.fetchone() is not None

    def people(self) -> list[Person]:
        """Return everyone who has access."""
        rows = self._notebook.open().execute(
            "SELECT channel, person, name, chat, since FROM people ORDER BY channel, since"
        )
        return [_person(row) for row in rows]

    def waiting(self) -> list[Person]:
        """Return everyone who holds a code that is still valid."""
        rows = self._notebook.open().execute(
            "SELECT channel, person, name, chat, made FROM codes WHERE made > ? ORDER BY made",
            (self._clock() - CODE_SECONDS,),
        )
        return [_person(row) for row in rows]

    def close(self) -> None:
        """Close the file; safe to call twice."""
        self._notebook.close()

    def _has_code(self, database: sqlite3.Connection, person: Person) -> bool:
        found = database.execute(
            "SELECT 1 FROM codes WHERE channel = ? AND person = ?", (person.channel, person.id)
        )
        return found.fetchone() is not None

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        database = self._notebook.open()
        with database:
            # Take the write lock at once: if two processes both read first, one could not write.
            database.execute("BEGIN IMMEDIATE")
            yield database


def _digest(code: str) -> str:
    return hashlib.sha256(code.strip().upper().encode("utf-8", "replace")).hexdigest()


def _person(row: tuple[str, str, str, str, float]) -> Person:
    channel, person, name, chat, moment = row
    return Person(channel=channel, id=person, name=name, chat=chat, time=moment)


KNOWN = 10_000
"""How many senders or chats are counted at once; the least recently used is dropped first."""


class Rate:
    """Counts events per key within a period."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._times: BoundedDict[str, deque[float]] = BoundedDict(KNOWN)
        self._told: BoundedDict[str, float] = BoundedDict(KNOWN)

    def allows(self, who: str, limit: int | None) -> bool:
        """Return whether another event is within the limit; if so, count it."""
        if limit is None:
            return True
        self._times[who] = times = self._times.get(who, deque())
        while times and times[0] <= self._clock() - self._seconds:
            times.popleft()
        if len(times) >= limit:
            return False
        times.append(self._clock())
        return True

    def early_seconds(self, who: str, limit: int) -> float:
        """Reserve the next free slot for this key and return how many seconds away it is."""
        now = self._clock()
        self._times[who] = times = self._times.get(who, deque())
        while len(times) > limit:
            times.popleft()
        due = now if len(times) < limit else max(now, times.popleft() + self._seconds)
        times.append(due)
        return due - now

    def is_to_be_told(self, who: str) -> bool:
        """Return whether to explain a rejection, which is done only once per period."""
        told = self._told.get(who)
        if told is not None and self._clock() - told < self._seconds:
            return False
        self._told[who] = self._clock()
        return True
