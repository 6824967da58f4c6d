"""The questions about tool calls in the chats, so that a reply to one can answer it."""

from __future__ import annotations

import json
import sqlite3
import time
import unicodedata
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from nanoloop.channels.kit.backlog import Notebook
from nanoloop.channels.kit.platform import Heard, Place, is_choice
from nanoloop.messages import Choice
from nanoloop.sentences import Say, in_english

DAYS = 30
"""How long a question can be answered by a reply; most expire much earlier."""
QUESTIONS = 2000
"""How many messages with questions are remembered for each channel."""
WORD_CHARS = 20
_DAY = 86_400.0
_ENDS = " \t\n.!。、,"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS questions (
    message TEXT, chat TEXT, place TEXT, choices TEXT, has_talk INTEGER, time REAL,
    PRIMARY KEY (message, chat));
CREATE INDEX IF NOT EXISTS questions_by_time ON questions (time);
"""


class Questions:
    """Remembers which messages ask about tool calls, in memory or in a file that is shared.

    Of a question about several calls, a word names none, so it has no choices here.
    The file holds ids and the texts of choices. If it can't be used, replies are ordinary messages.
    """

    def __init__(self, file: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        self._notebook = Notebook(file, _SCHEMA)
        self._clock = clock

    def keep(self, place: Place, messages: Sequence[str], choices: Sequence[Choice]) -> None:
        """Remember that these messages ask a question with these choices."""
        texts = json.dumps([choice.text for choice in choices if choice.is_only])
        rows = [(message, place.chat, str(place), texts, self._clock()) for message in messages]
        with suppress(sqlite3.Error, OSError):  # a failing disk must not stop an answer
            database = self._notebook.open()
            database.executemany("INSERT OR REPLACE INTO questions VALUES (?, ?, ?, ?, 0, ?)", rows)
            database.execute(
                "DELETE FROM questions WHERE time <= ? OR rowid IN "
                "(SELECT rowid FROM questions ORDER BY time DESC, rowid DESC LIMIT -1 OFFSET ?)",
                (self._clock() - DAYS * _DAY, QUESTIONS),
            )

    def answered(self, heard: Heard, say: Say) -> Heard:
        """Return a reply of one word to a question as the choice; any other message as it is.

        Where people reply in threads, the first message in a question's thread is a reply.
        """
        with suppress(sqlite3.Error, OSError):
            found = self._choice(heard, _word(heard, say))
            if found is not None:
                place, text = found
                return replace(
                    heard, text=text, thread=place.thread, addressed=True, quotes=(), quote=""
                )
        return heard

    def close(self) -> None:
        """Close the file; it is reopened when needed."""
        self._notebook.close()

    def _choice(self, heard: Heard, word: str | None) -> tuple[Place, str] | None:
        """Return the choice that this word means, and the place where the question was asked."""
        asked = heard.reply_to or heard.thread
        row = self._row(asked, heard.chat) if asked and (word or heard.thread) else None
        if row is None:
            return None
        place, texts, has_talk = row
        if not heard.reply_to and (word is None or has_talk):
            # From now on it is a conversation, in which a yes can mean something else.
            self._notebook.open().execute(
                "UPDATE questions SET has_talk = 1 WHERE message = ? AND chat = ?",
                (asked, heard.chat),
            )
            return None
        meant = next((text for text in json.loads(texts) if text.startswith(f"/{word} ")), None)
        return (Place.of(place), meant) if meant is not None and is_choice(meant) else None

    def _row(self, message: str, chat: str) -> tuple[str, str, bool] | None:
        found = self._notebook.open().execute(
            "SELECT place, choices, has_talk FROM questions"
            " WHERE message = ? AND chat = ? AND time > ?",
            (message, chat, self._clock() - DAYS * _DAY),
        )
        row: tuple[str, str, bool] | None = found.fetchone()
        return row


def _word(heard: Heard, say: Say) -> Literal["yes", "no"] | None:
    """Return which answer the whole text is a word for, in the channel's language or in English."""
    if heard.files or len(heard.text) > WORD_CHARS:
        return None
    text = unicodedata.normalize("NFKC", heard.text).strip(_ENDS).casefold()
    if text in _words(say("approval_yes_words"), in_english("approval_yes_words")):
        return "yes"
    is_no = text in _words(say("approval_no_words"), in_english("approval_no_words"))
    return "no" if is_no else None


def _words(*lists: str) -> set[str]:
    return {word.casefold() for words in lists for word in words.split()}


def questions_file(notes: Path | None) -> Path | None:
    """Return the path of a channel's file of questions, beside the channel's notes."""
    return None if notes is None else notes.with_suffix(".questions.sqlite")
