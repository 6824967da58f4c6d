"""What a chat can tell the loop itself: /help, /new, /stop, /status, /agent and the like."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from nanoloop.agents import Agents
from nanoloop.commands.command import Command, Runner, messages
from nanoloop.commands.erasing import Erasing
from nanoloop.commands.memory import Memory
from nanoloop.commands.pinning import Pinning
from nanoloop.commands.shelf import Shelf
from nanoloop.events import Announce, silent
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.session.entry import MESSAGE
from nanoloop.session.window import message_count
from nanoloop.sessions import Sessions

if TYPE_CHECKING:
    from nanoloop.memory.recall import Recall

HISTORY_SHOWN = 10
"""Messages that `/history` shows when no number is given."""
HISTORY_LIMIT = 100
"""Messages that it shows at most: the whole is `/export`'s."""
ENTRIES_A_MESSAGE = 4
"""Entries read for each message that `/history` shows: tool calls and results lie between."""


def is_command(text: str) -> bool:
    """Whether this is for the loop and not for the model."""
    return text.startswith("/") and not text.startswith("//") and len(text) > 1


def is_stop(text: str) -> bool:
    """Whether this is the one command that waits for no other."""
    return text.split(maxsplit=1)[:1] == ["/stop"]


class Commands:
    """Answers commands beside the lanes: none waits for a turn."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        agents: Agents,
        summarizer: Summarizer,
        recall: Recall | None = None,
        runner: Runner,
        buffer_limit: int,
        buffer_min: int,
        announce: Announce = silent,
    ) -> None:
        self._sessions = sessions
        self._agents = agents
        self._found_by = recall
        self._runner = runner
        self._limit = buffer_limit
        self._memory = Memory(
            sessions=sessions, summarizer=summarizer, buffer_min=buffer_min, announce=announce
        )
        erasing = Erasing(
            sessions=sessions,
            summarizer=summarizer,
            recall=recall,
            runner=runner,
            announce=announce,
        )
        shelf = Shelf(sessions=sessions, runner=runner)
        known = (
            Command(name="help", usage="what there is to say", run=self._help),
            Command(name="new", usage="begin a new conversation; this one is kept", run=self._new),
            Command(name="stop", usage="stop the answer that is going on", run=self._stop),
            Command(name="status", usage="how this conversation stands", run=self._status),
            *self._memory.commands,
            *Pinning(sessions=sessions).commands,
            *erasing.commands,
            Command(name="history", usage="the last messages, /history 20", run=self._history),
            Command(name="recall", usage="find what was said, /recall WORDS", run=self._recall),
            Command(name="agent", usage="who there is to talk to, /agent NAME", run=self._agent),
            *shelf.commands,
        )
        self._commands = {command.name: command for command in known}

    async def answer(self, message: Inbound) -> str:
        """The answer to a command; an unknown one suggests the nearest."""
        word, _, rest = message.text[1:].strip().partition(" ")
        name = word.partition("@")[0].lower()  # chats write /help@bot
        if name not in self._commands:
            return self._unknown(name)
        return await self._commands[name].run(message, rest.strip())

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name, self._commands, n=1)
        hint = f"did you mean /{near[0]}?" if near else "/help lists what there is."
        return f"There is no /{name}: {hint}"

    async def _help(self, _: Inbound, __: str) -> str:
        return "\n".join(f"/{c.name} - {c.usage}" for c in self._commands.values())

    async def _new(self, message: Inbound, _: str) -> str:
        key = message.session_key
        stopped = self._runner.stop(key)
        await self._sessions.start_new(key, agent=message.agent)
        parts = ["A new conversation begins; the old one is kept."]
        if stopped:
            parts.append("The answer that was going on was stopped.")
        if waiting := self._runner.waiting(key):
            parts.append(f"{messages(waiting)} still waiting will be answered in the new one.")
        return " ".join(parts)

    async def _stop(self, message: Inbound, _: str) -> str:
        key = message.session_key
        said = "Stopped." if self._runner.stop(key) else "Nothing is going on."
        waiting = self._runner.waiting(key)
        return f"{said} {messages(waiting)} waiting will be answered next." if waiting else said

    async def _status(self, message: Inbound, _: str) -> str:
        session = await self._sessions.current(message.session_key)
        key = message.session_key
        rows = {
            "session": session.id,
            "agent": self._agents.of(session).name,
            "messages": f"{message_count(session.window)} in the window (at most {self._limit}), "
            f"{session.entry_count} entries in the log",
            "tokens": f"about {session.context_size()} in the window",
            **self._memory.rows(session),
            "now": "answering" if self._runner.is_answering(key) else "idle",
            "waiting": str(self._runner.waiting(key)),
            **self._runner.channels,
        }
        return "\n".join(f"{name}: {value}" for name, value in rows.items())

    async def _history(self, message: Inbound, rest: str) -> str:
        if rest and not (rest.isascii() and rest.isdigit()):
            return f"/history takes a number, not {rest!r}: /history 20"
        session = await self._sessions.current(message.session_key)
        shown = min(int(rest or HISTORY_SHOWN), HISTORY_LIMIT)
        after = max(0, session.last_seq - ENTRIES_A_MESSAGE * shown)
        entries = await self._sessions.store.entries(session.id, after=after)
        said = [e for e in entries if e.type == MESSAGE and e.content.get("text")]
        lines = [f"#{e.seq} {e.role}: {e.content['text']}" for e in said[-shown:]] if shown else []
        return "\n".join(lines) or "Nothing has been said yet."

    async def _recall(self, message: Inbound, words: str) -> str:
        if self._found_by is None:
            return "Nothing can be looked up here: recall is switched off."
        if not words:
            return "/recall takes the words to look for: /recall birthday"
        session = await self._sessions.current(message.session_key)
        return await self._found_by.recall_text(session, words)

    async def _agent(self, message: Inbound, name: str) -> str:
        session = await self._sessions.current(message.session_key, agent=message.agent)
        if not name:
            here = self._agents.of(session).name
            marks = {agent: " (here)" if agent == here else "" for agent in self._agents}
            return "\n".join(f"{agent}{mark}" for agent, mark in marks.items())
        if name not in self._agents:
            near = self._agents.nearest(name)
            hint = f"did you mean {near}?" if near else "/agent lists who there is."
            return f"There is no agent {name!r}: {hint}"
        session.agent = name
        await self._sessions.store.save(session)
        return f"From now on {name} answers here."
