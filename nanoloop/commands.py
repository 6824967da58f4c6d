"""Commands that a chat can give, /help among them: one table, and what each does."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import anyio

from nanoloop.errors import IndexUnusable, NotPossible
from nanoloop.events import RecallFailed, about, announce
from nanoloop.memory.summarizer import WAITS, Summarizer, state_text
from nanoloop.messages import Inbound
from nanoloop.protocols import SessionInfo
from nanoloop.session.entry import ERASED, MESSAGE
from nanoloop.session.log import message_count
from nanoloop.session.queue import last_exchange, messages_among
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions, matching, mentions
from nanoloop.words import did_you_mean

if TYPE_CHECKING:
    from nanoloop.agents import Agents
    from nanoloop.memory.recall import Recall


class Runner(Protocol):
    """What commands need of the loop."""

    is_serving: bool
    """Whether it takes messages."""

    @property
    def channels(self) -> Mapping[str, str]:
        """How each channel stands, of those that can tell."""
        ...

    def stop(self, key: str) -> bool:
        """Stop the turn that is going on in this lane; False where there is none."""
        ...

    async def stop_anywhere(self, key: str) -> bool:
        """The same, also where it goes on in another process, which hears of it soon."""
        ...

    def waiting(self, key: str) -> int:
        """Messages that wait in this lane."""
        ...

    def is_answering(self, key: str) -> bool:
        """Whether a turn is going on in this lane."""
        ...

    def is_busy(self, key: str) -> bool:
        """Whether this lane works on a message in any way, or one waits."""
        ...


def _never(_: str) -> bool:
    return False


def _always(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its name, its line in /help, and what it does."""

    name: str
    usage: str
    run: Callable[[Inbound, str], Awaitable[str]]
    writes: Callable[[str], bool] = _never
    """Whether it changes anything with these words behind it: then it waits for its turn."""


def messages(count: int) -> str:
    """So many messages, as people say it."""
    return "1 message" if count == 1 else f"{count} messages"


HISTORY_SHOWN = 10
"""Messages that `/history` shows when no number is given."""
HISTORY_LIMIT = 100
"""Messages that it shows at most: the whole is `/export`'s."""
ENTRIES_A_MESSAGE = 4
"""Entries read for each message that `/history` shows: tool calls and results lie between."""


class Commands:
    """Answers commands, each for its chat."""

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
    ) -> None:
        self._sessions = sessions
        self._agents = agents
        self._found_by = recall
        self._runner = runner
        self._limit = buffer_limit
        self._memory = MemoryCommands(
            sessions=sessions,
            summarizer=summarizer,
            recall=recall,
            buffer_min=buffer_min,
        )
        erasing = ErasingCommands(
            sessions=sessions,
            summarizer=summarizer,
            recall=recall,
            runner=runner,
        )
        shelf = SessionCommands(sessions=sessions, runner=runner)
        known = (
            Command(name="help", usage="what there is to say", run=self._help),
            Command(
                name="new",
                usage="begin a new conversation; this one is kept",
                run=self._new,
                writes=_always,
            ),
            Command(name="stop", usage="stop the answer that is going on", run=self._stop),
            Command(name="status", usage="how this conversation stands", run=self._status),
            *self._memory.commands,
            *PinCommands(sessions=sessions).commands,
            *erasing.commands,
            Command(name="history", usage="the last messages, /history 20", run=self._history),
            Command(name="recall", usage="find what was said, /recall WORDS", run=self._recall),
            Command(
                name="agent",
                usage="who there is to talk to, /agent NAME",
                run=self._agent,
                writes=bool,
            ),
            *shelf.commands,
        )
        self._commands = {command.name: command for command in known}

    def is_at_once(self, text: str) -> bool:
        """Whether it changes nothing, and waits for nothing that was said before."""
        name, rest = _parsed(text)
        return name not in self._commands or not self._commands[name].writes(rest)

    async def answer(self, message: Inbound) -> str:
        """The answer to a command; an unknown one suggests the nearest."""
        name, rest = _parsed(message.text)
        if name not in self._commands:
            return self._unknown(name)
        return await self._commands[name].run(message, rest)

    def _unknown(self, name: str) -> str:
        hint = did_you_mean(name, self._commands, "/help lists what there is.", shown="/{}".format)
        return f"There is no /{name}: {hint}"

    async def _help(self, _: Inbound, __: str) -> str:
        return "\n".join(f"/{c.name} - {c.usage}" for c in self._commands.values())

    async def _new(self, message: Inbound, _: str) -> str:
        key = message.session_key
        session = await self._sessions.start_new(key, agent=message.agent)
        said = "A new conversation begins; the old one is kept."
        waiting = len(messages_among(session.waiting))
        return f"{said} {messages(waiting)} waiting will be answered in it." if waiting else said

    async def _stop(self, message: Inbound, _: str) -> str:
        key = message.session_key
        said = "Stopped." if await self._runner.stop_anywhere(key) else "Nothing is going on."
        waiting = self._runner.waiting(key)
        return f"{said} {messages(waiting)} waiting will be answered next." if waiting else said

    async def _status(self, message: Inbound, _: str) -> str:
        session = await self._sessions.current_fresh(message.session_key)
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
        session = await self._sessions.current_fresh(message.session_key)
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
        session = await self._sessions.current_fresh(message.session_key)
        return await self._found_by.recall_text(session, words)

    async def _agent(self, message: Inbound, name: str) -> str:
        session = await self._sessions.current_fresh(message.session_key, agent=message.agent)
        if not name:
            here = self._agents.of(session).name
            marks = {agent: " (here)" if agent == here else "" for agent in self._agents}
            return "\n".join(f"{agent}{mark}" for agent, mark in marks.items())
        if name not in self._agents:
            hint = did_you_mean(name, self._agents, "/agent lists who there is.", shown=str)
            return f"There is no agent {name!r}: {hint}"
        await self._sessions.change(session, lambda now: setattr(now, "agent", name))
        return f"From now on {name} answers here."


def _parsed(text: str) -> tuple[str, str]:
    """A command's name, and what stands behind it."""
    word, _, rest = text[1:].strip().partition(" ")
    return word.partition("@")[0].lower(), rest.strip()  # chats write /help@bot


USAGE = "/forget takes a number from /history, or two: /forget 12, /forget 12-15, /forget last"
MOST = 1000
"""Entries that go at once."""
_RANGE = re.compile(r"#?(\d{1,9})(?:\s*-\s*#?(\d{1,9}))?")


class ErasingCommands:
    """Erases from the log, the summary, the ledger, the pins and the recall index."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        summarizer: Summarizer,
        recall: Recall | None,
        runner: Runner,
    ) -> None:
        self._sessions = sessions
        self._summarizer = summarizer
        self._found_by = recall
        self._runner = runner
        self.commands = (
            Command(
                name="forget",
                usage="erase a message for good, /forget NUMBER; the last exchange, /forget last",
                run=self._forget,
                writes=_always,
            ),
        )

    async def _forget(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        last = last_exchange(session.window) if rest == "last" else ()
        seqs = [entry.seq for entry in last] or numbers(rest)
        if not seqs:
            return "Nothing has been said yet." if rest == "last" else USAGE
        between = {"after": seqs[0] - 1, "upto": seqs[-1]}
        entries = await self._sessions.store.entries(session.id, **between)
        entries = [entry for entry in entries if entry.seq in seqs]
        # Those erased already are among them: what failed behind the store is done again so.
        said = [entry.seq for entry in entries]
        if not said:
            return f"There is no message #{rest} here: /history shows the numbers."
        new = sum(entry.type != ERASED for entry in entries)
        told = (f"Erased for good: {_entries(new)}.", *await self._erase(session, said))
        return " ".join(told)

    async def _erase(self, session: Session, seqs: list[int]) -> list[str]:
        """Erase them; returns what there is to say of it."""
        before = session.summary
        session = await self._sessions.erase(session.id, seqs)
        if session.summary == before:
            return await self._leave_index(session, seqs)
        self._summarizer.fire_and_forget(session, force=True)
        reach = f"all that is left up to #{session.pending_seq}"
        told = f"The summary told of it: it is gone, and made anew from {reach}."
        return [told, *await self._leave_index(session, seqs)]

    async def _leave_index(self, session: Session, seqs: list[int]) -> list[str]:
        """What is to be said of the recall index, which may be out of order."""
        try:
            if self._found_by is not None:
                await self._found_by.forget(session.id, seqs)
        except IndexUnusable as failure:
            with about(session_id=session.id):
                announce(RecallFailed(reason=str(failure)))
            return ["But /recall may still find it: say /forget once more later."]
        return []


def numbers(text: str) -> range:
    """The numbers that a text names, such as 12 or 12-15; empty where it names none."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return range(0)
    first, last = int(found[1]), int(found[2] or found[1])
    return range(first, last + 1) if 0 < first <= last < first + MOST else range(0)


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


class MemoryCommands:
    """Shows, corrects and hurries what stands for the messages that left the window."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        summarizer: Summarizer,
        recall: Recall | None,
        buffer_min: int,
    ) -> None:
        self._sessions = sessions
        self._summarizer = summarizer
        self._found_by = recall
        self._keep = buffer_min
        self.commands = (
            Command(
                name="summary",
                usage="what stands for older messages, /summary edit TEXT sets it right",
                run=self._summary,
                writes=bool,
            ),
            Command(
                name="compact",
                usage="summarise older messages now, /compact WHAT TO KEEP IN MIND",
                run=self._compact,
                writes=_always,
            ),
        )

    def rows(self, session: Session) -> dict[str, str]:
        """How the summaries stand, for `/status`."""
        return {
            "summary": self._summary_state(session),
            "summaries": state_text(self._summarizer),
        }

    def _summary_state(self, session: Session) -> str:
        reach = f"covers the first {session.covered_seq} entries" if session.summary else "none yet"
        waiting = max(0, session.pending_seq - session.covered_seq)
        if session.summary_in_progress:
            return f"{reach}; {waiting} entries are being folded in"
        if not waiting:
            return reach
        why = self._summarizer.waits_for(session.id)
        return f"{reach}; {waiting} entries wait {WAITS[why] if why else 'for the next try'}"

    async def _summary(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        if not rest:
            return session.summary or "There is no summary yet: nothing has left the window."
        word, *text = rest.split(maxsplit=1)
        if word != "edit" or not text:
            return "/summary shows it; /summary edit TEXT puts TEXT in its place."
        await self._sessions.correct_summary(session, text[0])
        return "This is the summary now."

    async def _compact(self, message: Inbound, focus: str) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        evicted = await self._summarizer.compact(session, keep=self._keep, focus=focus)
        if evicted is not None:
            if self._found_by is not None:
                self._found_by.follow(session.id)
            return f"{messages(evicted)} left the window and go into the summary."
        if session.summary_in_progress:
            return "A summary is being written already."
        return f"Nothing to do: the last {self._keep} messages always stay word for word."


SHOWN_CHARS = 60
"""How much of a pinned message the list shows."""


class PinCommands:
    """Pins messages and unpins them; what is pinned goes with /forget like all the rest."""

    def __init__(self, *, sessions: Sessions) -> None:
        self._sessions = sessions
        self.commands = (
            Command(
                name="pin", usage="keep a message in view, /pin NUMBER", run=self._pin, writes=bool
            ),
            Command(
                name="unpin",
                usage="no longer, /unpin NUMBER; /unpin for all",
                run=self._unpin,
                writes=_always,
            ),
        )

    async def _pin(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        if not rest:
            return _listed(session) or "Nothing is pinned: /pin NUMBER, as /history shows them."
        seq = _number(rest)
        store = self._sessions.store
        entries = await store.entries(session.id, after=seq - 1, upto=seq) if seq else []
        if not entries:
            return f"There is no message #{rest} here: /history shows the numbers."
        try:
            await self._sessions.change(session, lambda now: now.pin(entries[0]))
        except NotPossible as refused:
            return f"Nothing was pinned: {refused}."
        return f"#{seq} stays in view."

    async def _unpin(self, message: Inbound, rest: str) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        seq = _number(rest) if rest else None
        count = await self._sessions.change(session, lambda now: now.unpin(seq))
        if not count:
            return "That is not pinned: /pin lists what is." if rest else "Nothing is pinned."
        return f"Unpinned {count}."


def _number(text: str) -> int:
    """The number that a text names; 0 where it names none, or several."""
    named = numbers(text)
    return named[0] if len(named) == 1 else 0


def _listed(session: Session) -> str:
    rows = ((p["seq"], p.get("who", ""), " ".join(str(p["text"]).split())) for p in session.pins)
    return "\n".join(f"#{seq} {who}: {text[:SHOWN_CHARS]}" for seq, who, text in rows)


SHOWN = 20
"""Conversations that `/sessions` lists, the newest ones."""
EXPORT_CHARS = 8000
"""How much of an export fits into an answer."""


class SessionCommands:
    """Lists, switches, renames, forks, takes back and exports a chat's conversations.

    They are numbered from the first one on, so that a number means the same one tomorrow.
    """

    def __init__(self, *, sessions: Sessions, runner: Runner) -> None:
        self._sessions = sessions
        self._runner = runner
        self.commands = (
            Command(
                name="sessions", usage="this chat's conversations, /sessions WORDS", run=self._list
            ),
            Command(
                name="switch",
                usage="go on with another one, /switch NUMBER",
                run=self._switch,
                writes=_always,
            ),
            Command(
                name="rename",
                usage="give this one a title, /rename TITLE",
                run=self._rename,
                writes=_always,
            ),
            Command(
                name="undo", usage="take back the last exchange", run=self._undo, writes=_always
            ),
            Command(
                name="fork",
                usage="go on in a copy; this one stays as it is",
                run=self._fork,
                writes=_always,
            ),
            Command(name="export", usage="this one as text, /export md or json", run=self._export),
        )

    async def _list(self, message: Inbound, words: str) -> str:
        infos = await self._sessions.of_key(message.session_key)
        here = await self._sessions.current_id(message.session_key)
        numbers = {info.id: number for number, info in enumerate(infos, 1)}
        if words:
            infos = matching(infos, words) or await self._saying(infos, words)
        rows = [_row(numbers[info.id], info, here) for info in infos[-SHOWN:]]
        if len(infos) > SHOWN:
            rows.insert(0, f"... and {len(infos) - SHOWN} before these: /sessions WORDS finds them")
        return "\n".join(rows) or "There is no such conversation here."

    async def _saying(self, infos: list[SessionInfo], words: str) -> list[SessionInfo]:
        return [info for info in infos if await mentions(self._sessions.store, info.id, words)]

    async def _switch(self, message: Inbound, wanted: str) -> str:
        key = message.session_key
        infos = await self._sessions.of_key(key)
        known = {info.id: info for info in infos} | {str(n): i for n, i in enumerate(infos, 1)}
        if wanted not in known:
            said = f"There is no conversation {wanted!r} here" if wanted else "Which one"
            return f"{said}: /sessions lists them, /switch NUMBER goes to one."
        session = await self._sessions.switch(key, known[wanted].id)
        return f"Here goes on: {session.title or session.id}"

    async def _rename(self, message: Inbound, title: str) -> str:
        if not title:
            return "/rename takes the new title: /rename Our trip to Rome"
        session = await self._sessions.current_fresh(message.session_key)
        await self._sessions.rename(session, title)
        return f"This conversation is called {session.title} now."

    async def _undo(self, message: Inbound, _: str) -> str:
        key = message.session_key
        session = await self._sessions.current_fresh(key)
        try:
            taken = await self._sessions.undo(session)
        except NotPossible as refused:
            return f"Nothing was taken back: {refused}."
        said = " ".join(str(taken[0].content.get("text") or "").split()) if taken else ""
        return (
            f"Taken back, with its answer: {said[:60]}"
            if taken
            else "There is nothing to take back."
        )

    async def _fork(self, message: Inbound, _: str) -> str:
        key = message.session_key
        session = await self._sessions.current_fresh(key)
        fork = await self._sessions.fork(session.id, key=key)
        await self._sessions.switch(key, fork.id)
        return "Here goes on a copy; /sessions lists both."

    async def _export(self, message: Inbound, form: str) -> str:
        if form not in {"", "md", "json"}:
            return f"/export knows md and json, not {form!r}."
        session = await self._sessions.current_fresh(message.session_key)
        whole = await self._sessions.store.get(session.id)
        work = whole.dump_json if form == "json" else whole.to_markdown
        text = await anyio.to_thread.run_sync(work)
        if len(text) <= EXPORT_CHARS:
            return text
        command = f"nanoloop sessions export {session.id} --format {form or 'md'}"
        return f"{text[:EXPORT_CHARS]}\n... cut here; the whole comes from `{command}`"


def _row(number: int, info: SessionInfo, here: str) -> str:
    mark = " (here)" if info.id == here else ""
    about = f"{info.entries} entries, {info.updated_at:%Y-%m-%d}"
    return f"{number}. {info.title or info.id}{mark} - {about}"
