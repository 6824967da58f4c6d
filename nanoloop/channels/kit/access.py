"""Who may talk to the bot: rules, pairing by code, and how often a stranger is answered."""

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

from nanoloop.bounded import BoundedDict
from nanoloop.channels.kit.backlog import Notebook
from nanoloop.channels.kit.platform import Heard
from nanoloop.events import NobodyMayTalk, PairingApproved, PairingAsked, SenderRefused, announce
from nanoloop.settings.channels import PlatformSettings

EVERYONE = "*"
MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0
READ_ONLY = frozenset({"help", "history", "recall", "status", "stop"})
"""Commands that leave a group's conversation as it is; in a private chat all are one's own."""

STRANGER = "This is a private bot. Its operator can let you in: your id here is {person}."
PAIR = (
    "This is a private bot. Ask its operator to let you in with this code, within an hour:\n"
    "{code}\n(`nanoloop pair approve {code}`, or `/pair {code}` in a chat with me.)"
)
TOO_MUCH = "This chat has had all its answers for today. Please come back tomorrow."
OPERATORS_ONLY = "Only an operator of this bot may do that here."
NO_SUCH_CODE = "Nobody waits with that code, or not any more."


class AccessControl:
    """Lets messages in, or says why not. A text that it returns is for the sender."""

    def __init__(
        self,
        channel: str,
        *,
        rules: PlatformSettings,
        pairing: Pairing,
    ) -> None:
        self._channel = channel
        self.rules = rules
        """May be set anew while the channel runs."""
        self._pairing = pairing
        self._senders = Rate(MINUTE)
        self._chats = Rate(DAY)
        self._strangers = Rate(HOUR)

    @property
    def closed(self) -> str | None:
        """What to do so that someone may talk; None where someone may."""
        rules = self.rules
        if rules.users or rules.chats or rules.roles or rules.operators or self._has_people():
            return None
        advice = f"set users or chats in [channels.{self._channel}]"
        if rules.pairing:
            advice += ", or write to the bot and approve its code: nanoloop pair approve CODE"
        return advice

    def announce_closed(self) -> None:
        """Say at the start if nobody may talk, and what to do about it."""
        if (advice := self.closed) is not None:
            announce(NobodyMayTalk(channel=self._channel, advice=advice))

    def may_talk(self, heard: Heard) -> bool:
        """Whether the sender is known here."""
        rules = self.rules
        return bool(
            {EVERYONE, heard.sender} & {*rules.users, *rules.operators}
            or heard.chat in rules.chats
            or {*rules.roles} & {*heard.roles}
            or (rules.pairing and self._pairing.is_in(self._channel, heard.sender))
        )

    def welcomes(self, heard: Heard) -> bool:
        """Whether the sender is known here, or may ask to be."""
        return self.may_talk(heard) or (heard.private and self.rules.pairing)

    def is_operator(self, heard: Heard) -> bool:
        """Whether the sender may do everything."""
        return heard.sender in self.rules.operators

    def refusal(self, heard: Heard) -> str | None:
        """What a stranger is told; None where silence is best."""
        self._refused(heard, "not allowed")
        if not heard.private:
            return None
        if self.rules.pairing:
            return self._code(heard)
        told = self._strangers.is_to_be_told(heard.sender)
        return STRANGER.format(person=heard.sender) if told else None

    def excess(self, heard: Heard) -> tuple[bool, str | None]:
        """Whether it is too much, counted with this message, and what to say then."""
        if self._chats.allows(heard.chat, self.rules.per_day):
            return False, None
        self._refused(heard, "too much for a day")
        return True, TOO_MUCH if self._chats.is_to_be_told(heard.chat) else None

    def early_seconds(self, heard: Heard) -> float:
        """How long its sender has to wait for an answer, counted with this message."""
        if command(heard.text) == "stop":
            return 0
        return self._senders.early_seconds(heard.sender, self.rules.per_minute)

    def is_forbidden(self, heard: Heard) -> bool:
        """Whether it is a command that only an operator may use here."""
        name = command(heard.text)
        if name is None or self.is_operator(heard):
            return False
        return name == "pair" or not (heard.private or name in READ_ONLY)

    def approve(self, code: str) -> Person | None:
        """Let the person in who has this code here."""
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
        return PAIR.format(code=code)

    def _refused(self, heard: Heard, reason: str) -> None:
        announce(
            SenderRefused(
                channel=self._channel, chat=heard.chat, sender=heard.sender, reason=reason
            )
        )

    def _has_people(self) -> bool:
        return any(person.channel == self._channel for person in self._pairing.people())


def command(text: str) -> str | None:
    """The name of the command that a text is; None where it is none."""
    if not text.startswith("/") or text.startswith("//"):
        return None
    words = text[1:].split(maxsplit=1)
    return words[0].partition("@")[0].lower() if words else None


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


KNOWN = 10_000
"""How many senders and chats are counted at once; the one heard longest ago is forgotten."""


class Rate:
    """Counts what each of many does within a time."""

    def __init__(self, seconds: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._times: BoundedDict[str, deque[float]] = BoundedDict(KNOWN)
        self._told: BoundedDict[str, float] = BoundedDict(KNOWN)

    def allows(self, who: str, limit: int | None) -> bool:
        """Whether one more is allowed; it is counted then."""
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
        """How long one more has to wait for its time, which is its own from now on."""
        now = self._clock()
        self._times[who] = times = self._times.get(who, deque())
        while len(times) > limit:
            times.popleft()
        due = now if len(times) < limit else max(now, times.popleft() + self._seconds)
        times.append(due)
        return due - now

    def is_to_be_told(self, who: str) -> bool:
        """Whether to say no in words: once within the time, then in silence."""
        told = self._told.get(who)
        if told is not None and self._clock() - told < self._seconds:
            return False
        self._told[who] = self._clock()
        return True
