"""Chat commands such as /help: the table of commands, and the code that runs them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import anyio

from nanoloop.approvals import ApprovalCommands
from nanoloop.errors import (
    IndexUnusable,
    InvalidSessionId,
    NanoloopError,
    NotPinnable,
    PartOfSummary,
    PinsFull,
    SessionNotFound,
    StillAnswering,
    ToolError,
)
from nanoloop.events import RecallFailed, about, announce
from nanoloop.intake import user_entry
from nanoloop.memory.summarizer import Summarizer, state_text
from nanoloop.messages import Inbound, Quote, Speaker
from nanoloop.protocols import SessionInfo
from nanoloop.sending import Notices
from nanoloop.sentences import Say, role
from nanoloop.session.digest import MOST_PINS
from nanoloop.session.entry import ERASED, MESSAGE, Entry
from nanoloop.session.log import message_count
from nanoloop.session.queue import (
    heard_by,
    hearer_of,
    is_for_loop,
    last_exchange,
    message_id_of,
    messages_among,
    without,
)
from nanoloop.session.session import Session
from nanoloop.sessions import Sessions, matching, mentions
from nanoloop.tools.listing import visible
from nanoloop.words import nearest

if TYPE_CHECKING:
    from nanoloop.agents import Agent, Agents
    from nanoloop.memory.recall import Recall


class Runner(Protocol):
    """The parts of the loop that commands need."""

    is_serving: bool
    """True while the loop accepts messages."""

    @property
    def node(self) -> str:
        """The name of this process among those that use the store."""
        ...

    @property
    def channels(self) -> Mapping[str, str]:
        """The state of each channel that reports one."""
        ...

    def stop(self, key: str) -> bool:
        """Stop the turn in progress in this lane; return False if there is none."""
        ...

    async def stop_anywhere(self, key: str) -> bool:
        """Like `stop`, but also reach a turn in another process, after a short delay."""
        ...

    def waiting(self, key: str) -> int:
        """Return how many messages are waiting in this lane."""
        ...

    def is_answering(self, key: str) -> bool:
        """Return True if a turn is in progress in this lane."""
        ...

    def is_busy(self, key: str) -> bool:
        """Return True if a message is being processed or waiting in this lane."""
        ...


def _never(_: str) -> bool:
    return False


def _always(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command with its name and its function; the sentence `help_NAME` describes it in /help."""

    name: str
    run: Callable[[Inbound, str, Say], Awaitable[str]]
    writes: Callable[[str], bool] = _never
    """Tells from the arguments whether the command changes something and must be queued."""


HISTORY_SHOWN = 10
"""How many messages `/history` shows by default."""
HISTORY_LIMIT = 100
"""The maximum number of messages that `/history` shows; `/export` shows all of them."""
ENTRIES_A_MESSAGE = 4
"""How many entries are read per message shown, to allow for tool calls and results."""


class Commands:
    """Run commands and return the answers for the chats that sent them."""

    def __init__(
        self,
        *,
        sessions: Sessions,
        agents: Agents,
        summarizer: Summarizer,
        recall: Recall | None = None,
        runner: Runner,
        notices: Notices,
        buffer_limit: int,
        buffer_min: int,
    ) -> None:
        self._notices = notices
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
        erasing = ErasingCommands(sessions=sessions, summarizer=summarizer)
        shelf = SessionCommands(sessions=sessions, runner=runner)
        approvals = ApprovalCommands(sessions=sessions, agents=agents, node=runner.node)
        self._prompts = PromptCommands(sessions=sessions, agents=agents)
        known = (
            Command(name="help", run=self._help),
            Command(
                name="new",
                run=self._new,
                writes=_always,
            ),
            Command(name="stop", run=self._stop),
            Command(name="status", run=self._status),
            *self._memory.commands,
            *PinCommands(sessions=sessions).commands,
            *erasing.commands,
            Command(name="history", run=self._history),
            Command(name="recall", run=self._recall),
            Command(
                name="agent",
                run=self._agent,
                writes=bool,
            ),
            *shelf.commands,
            Command(name="yes", run=approvals.yes, writes=_always),
            Command(name="no", run=approvals.no, writes=_always),
            Command(name="always", run=approvals.always, writes=_always),
            Command(name="answer", run=approvals.answer, writes=_always),
        )
        self._commands = {command.name: command for command in known}

    def is_at_once(self, text: str) -> bool:
        """Return True for a command that changes nothing and needn't wait for earlier messages."""
        name, rest = _parsed(text)
        if name not in self._commands:
            return not self._prompts.has(name)
        return not self._commands[name].writes(rest)

    async def answer(self, message: Inbound) -> str:
        """Run a command and return its answer, or suggest a similar command."""
        name, rest = _parsed(message.text)
        say = partial(self._notices.text, message)  # in the agent's language at that time
        if name not in self._commands:
            asked = await self._prompts.run(message, name, rest, say)
            return self._unknown(name, say) if asked is None else asked
        return await self._commands[name].run(message, rest, say)

    def _unknown(self, name: str, say: Say) -> str:
        if near := nearest(name, self._commands):
            return say("unknown_command_near", name=name, near=near)
        return say("unknown_command", name=name)

    async def _help(self, message: Inbound, _: str, say: Say) -> str:
        prompts: list[str] = []
        with suppress(NanoloopError):  # loads the session, so that its agent's language is known
            await self._sessions.current(message.session_key, agent=message.agent)
            prompts += await self._prompts.lines(message, say)
        lines = [f"/{name} - {say(f'help_{name}')}" for name in self._commands]
        return "\n".join((*lines, *prompts))

    async def _new(self, message: Inbound, _: str, say: Say) -> str:
        key = message.session_key
        session = await self._sessions.start_new(key, agent=message.agent)
        waiting = len(messages_among(session.waiting))
        more = [say("new_waiting", count=waiting)] if waiting else []
        return say("between").join([say("new_begun"), *more])

    async def _stop(self, message: Inbound, _: str, say: Say) -> str:
        key = message.session_key
        said = say("stopped" if await self._runner.stop_anywhere(key) else "nothing_to_stop")
        waiting = self._runner.waiting(key)
        more = [say("stop_waiting", count=waiting)] if waiting else []
        return say("between").join([said, *more])

    async def _status(self, message: Inbound, _: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        key = message.session_key
        rows = {
            say("status_session"): session.id,
            say("status_agent"): self._agents.of(session).name,
            say("status_messages"): self._window_text(session, say),
            say("status_tokens"): say("window_tokens", count=session.context_size()),
            **self._memory.rows(session, say),
            say("status_now"): say("answering" if self._runner.is_answering(key) else "idle"),
            say("status_waiting"): str(self._runner.waiting(key)),
            **self._runner.channels,
        }
        return "\n".join(say("row", name=name, value=value) for name, value in rows.items())

    def _window_text(self, session: Session, say: Say) -> str:
        count = message_count(session.window)
        return say("window_messages", count=count, limit=self._limit, entries=session.entry_count)

    async def _history(self, message: Inbound, rest: str, say: Say) -> str:
        if rest and not (rest.isascii() and rest.isdigit()):
            return say("history_number", given=rest)
        session = await self._sessions.current_fresh(message.session_key)
        shown = min(int(rest or HISTORY_SHOWN), HISTORY_LIMIT)
        after = max(0, session.last_seq - ENTRIES_A_MESSAGE * shown)
        entries = await self._sessions.store.entries(session.id, after=after)
        said = [e for e in entries if e.type == MESSAGE and e.content.get("text")]
        said = said[-shown:] if shown else []
        lines = [f"#{e.seq} {role(e.role, say)}: {e.content['text']}" for e in said]
        return "\n".join(lines) or say("nothing_said")

    async def _recall(self, message: Inbound, words: str, say: Say) -> str:
        if self._found_by is None:
            return say("recall_off")
        if not words:
            return say("recall_words")
        session = await self._sessions.current_fresh(message.session_key)
        return await self._found_by.recall_text(session, words, say=say)

    async def _agent(self, message: Inbound, name: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key, agent=message.agent)
        known = self._agents.among(message.agents)  # other agents' names are not revealed
        if not name:
            here = self._agents.of(session).name
            marks = {agent: say("here") if agent == here else "" for agent in known}
            return "\n".join(f"{agent}{mark}" for agent, mark in marks.items())
        if name not in known:
            if near := nearest(name, known):
                return say("unknown_agent_near", name=name, near=near)
            return say("unknown_agent", name=name)
        await self._sessions.change(session, lambda now: setattr(now, "agent", name))
        return say("agent_chosen", name=name)


def _parsed(text: str) -> tuple[str, str]:
    """Split a command into its name and the text after it."""
    word, _, rest = text[1:].strip().partition(" ")
    return word.partition("@")[0].lower(), rest.strip()  # chats write /help@bot


PROMPTS_SHOWN = 20
"""How many prompts `/help` lists."""
_WHY_CHARS = 300
"""How many characters of a server's error the chat is shown."""


class PromptCommands:
    """The prompts of tool servers, each as a command such as /tickets:review.

    What a server says is quoted in the message of the person who asked for it.
    """

    def __init__(self, *, sessions: Sessions, agents: Agents) -> None:
        self._sessions = sessions
        self._agents = agents

    def has(self, name: str) -> bool:
        """Return True if any agent has this prompt."""
        return ":" in name and any(name in agent.prompts for agent in self._agents.values())

    async def lines(self, message: Inbound, say: Say) -> list[str]:
        """Return the lines about the chat's prompts for `/help`."""
        prompts = (await self._agent(message)).prompts.values()
        shown = [*prompts][:PROMPTS_SHOWN]
        rows = [" - ".join(filter(None, (each.usage, each.listed.description))) for each in shown]
        more = len(prompts) - len(shown)
        return [*rows, say("prompts_more", count=more)] if more else rows

    async def run(self, message: Inbound, name: str, rest: str, say: Say) -> str | None:
        """Ask the model with this prompt; return "", why it can't be asked, or None if unknown."""
        prompt = (await self._agent(message)).prompts.get(name)
        if prompt is None:
            return None
        given = prompt.arguments(rest)
        if missing := prompt.missing(given):
            return say("prompt_needs", names=", ".join(missing), usage=prompt.usage)
        try:
            texts = await prompt.texts(given)
        except ToolError as error:
            why = visible(str(error))[:_WHY_CHARS]
            return say("prompt_failed", name=name, why=why)
        if not texts:
            return say("prompt_empty", name=name)
        quotes = (Quote(text=t, speaker=Speaker(name=prompt.speaker(r))) for r, t in texts)
        await self._ask(message, (*message.quotes, *quotes))
        return ""

    async def _agent(self, message: Inbound) -> Agent:
        session = await self._sessions.current_fresh(message.session_key, agent=message.agent)
        return self._agents.to_answer(session, wanted=message.agent, channel=message.channel)

    async def _ask(self, message: Inbound, quotes: tuple[Quote, ...]) -> None:
        """Replace the command in the queue with a question that has these quotes, in one commit."""
        # It is meant for the model now, although its text still begins with a slash.
        asked = without(user_entry(replace(message, quotes=quotes)), "origin")

        def act(session: Session) -> None:
            behind = [entry for entry in session.waiting if not _is_of(entry, message)]
            here = next((entry for entry in session.waiting if _is_of(entry, message)), asked)
            session.hold(heard_by(asked, hearer_of(here)))
            for entry in behind:  # they keep their places
                session.let_go_held(entry.id)
                session.hold(entry)

        session = await self._sessions.current_fresh(message.session_key)
        await self._sessions.change(session, act)


def _is_of(entry: Entry, message: Inbound) -> bool:
    """Return True if the message contains this command."""
    is_same = message_id_of(entry) == message.message_id
    return is_for_loop(entry) and is_same and entry.content.get("text") == message.text


MOST = 1000
"""How many entries can be erased at once."""
_RANGE = re.compile(r"#?(\d{1,9})(?:\s*-\s*#?(\d{1,9}))?")


class ErasingCommands:
    """The /forget command, which erases messages from the log and everything derived from it."""

    def __init__(self, *, sessions: Sessions, summarizer: Summarizer) -> None:
        self._sessions = sessions
        self._summarizer = summarizer
        self.commands = (
            Command(
                name="forget",
                run=self._forget,
                writes=_always,
            ),
        )

    async def _forget(self, message: Inbound, rest: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        last = last_exchange(session.window) if rest == "last" else ()
        seqs = [entry.seq for entry in last] or numbers(rest)
        if not seqs:
            return say("nothing_said" if rest == "last" else "forget_usage")
        between = {"after": seqs[0] - 1, "upto": seqs[-1]}
        entries = await self._sessions.store.entries(session.id, **between)
        entries = [entry for entry in entries if entry.seq in seqs]
        # Include entries that were erased before, in case erasing from the index failed then.
        said = [entry.seq for entry in entries]
        if not said:
            return say("no_message", number=rest)
        new = sum(entry.type != ERASED for entry in entries)
        told = (say("erased", count=new), *await self._erase(session, said, say))
        return say("between").join(told)

    async def _erase(self, session: Session, seqs: list[int], say: Say) -> list[str]:
        """Erase these entries, and return the sentences to tell the chat."""
        before = session.summary
        session = await self._sessions.erase(session.id, seqs)
        if session.summary == before:
            return await self._leave_index(session, say)
        self._summarizer.fire_and_forget(session, force=True)
        told = say("summary_anew", seq=session.pending_seq)
        return [told, *await self._leave_index(session, say)]

    async def _leave_index(self, session: Session, say: Say) -> list[str]:
        """Remove erased entries from the search index; return a sentence if that fails."""
        try:
            await self._sessions.finish_erasing(session)
        except IndexUnusable as failure:
            with about(session_id=session.id):
                announce(RecallFailed(reason=str(failure)))
            return [say("index_behind")]
        return []


def numbers(text: str) -> range:
    """Parse a number or range, such as 12 or 12-15; return an empty range for any other text."""
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        return range(0)
    first, last = int(found[1]), int(found[2] or found[1])
    return range(first, last + 1) if 0 < first <= last < first + MOST else range(0)


class MemoryCommands:
    """The /summary and /compact commands, which show, correct and speed up the summary."""

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
                run=self._summary,
                writes=bool,
            ),
            Command(
                name="compact",
                run=self._compact,
                writes=_always,
            ),
        )

    def rows(self, session: Session, say: Say) -> dict[str, str]:
        """Return the lines about summaries for `/status`."""
        return {
            say("status_summary"): self._summary_state(session, say),
            say("status_summaries"): state_text(self._summarizer, say),
        }

    def _summary_state(self, session: Session, say: Say) -> str:
        covered = session.covered_seq
        reach = say("summary_covers", count=covered) if session.summary else say("summary_none")
        waiting = max(0, session.pending_seq - covered)
        if session.summary_in_progress:
            return say("summary_running", reach=reach, count=waiting)
        if not waiting:
            return reach
        why = say(f"wait_{self._summarizer.waits_for(session.id) or 'next'}")
        return say("summary_waits", reach=reach, count=waiting, why=why)

    async def _summary(self, message: Inbound, rest: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        if not rest:
            return session.summary or say("no_summary")
        word, *text = rest.split(maxsplit=1)
        if word != "edit" or not text:
            return say("summary_usage")
        await self._sessions.correct_summary(session, text[0])
        return say("summary_corrected")

    async def _compact(self, message: Inbound, focus: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        evicted = await self._summarizer.compact(session, keep=self._keep, focus=focus)
        if evicted is not None:
            if self._found_by is not None:
                self._found_by.follow(session.id)
            return say("compacted", count=evicted)
        if session.summary_in_progress:
            return say("summary_under_way")
        return say("nothing_to_compact", count=self._keep)


SHOWN_CHARS = 60
"""How many characters of a pinned message the list shows."""


class PinCommands:
    """The /pin and /unpin commands; /forget erases pinned messages too."""

    def __init__(self, *, sessions: Sessions) -> None:
        self._sessions = sessions
        self.commands = (
            Command(name="pin", run=self._pin, writes=bool),
            Command(
                name="unpin",
                run=self._unpin,
                writes=_always,
            ),
        )

    async def _pin(self, message: Inbound, rest: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        if not rest:
            return _listed(session, say) or say("no_pins")
        seq = _number(rest)
        store = self._sessions.store
        entries = await store.entries(session.id, after=seq - 1, upto=seq) if seq else []
        if not entries:
            return say("no_message", number=rest)
        try:
            await self._sessions.change(session, lambda now: now.pin(entries[0]))
        except NotPinnable:
            return say("not_pinnable", seq=seq)
        except PinsFull:
            return say("pins_full", count=MOST_PINS)
        return say("pinned", seq=seq)

    async def _unpin(self, message: Inbound, rest: str, say: Say) -> str:
        session = await self._sessions.current_fresh(message.session_key)
        seq = _number(rest) if rest else None
        count = await self._sessions.change(session, lambda now: now.unpin(seq))
        if not count:
            return say("pin_unknown" if rest else "nothing_pinned")
        return say("unpinned", count=count)


def _number(text: str) -> int:
    """Parse a single number, or return 0 for any other text."""
    named = numbers(text)
    return named[0] if len(named) == 1 else 0


def _listed(session: Session, say: Say) -> str:
    rows = ((p["seq"], p.get("who", ""), " ".join(str(p["text"]).split())) for p in session.pins)
    return "\n".join(f"#{seq} {role(who, say)}: {text[:SHOWN_CHARS]}" for seq, who, text in rows)


SHOWN = 20
"""How many of the newest conversations `/sessions` lists."""
EXPORT_CHARS = 8000
"""How many characters of an export fit into an answer."""


class SessionCommands:
    """The commands that list, switch, rename, fork, undo and export a chat's conversations.

    Conversations are numbered starting with the oldest, so that their numbers never change.
    """

    def __init__(self, *, sessions: Sessions, runner: Runner) -> None:
        self._sessions = sessions
        self._runner = runner
        self.commands = (
            Command(
                name="sessions",
                run=self._list,
            ),
            Command(
                name="switch",
                run=self._switch,
                writes=_always,
            ),
            Command(
                name="rename",
                run=self._rename,
                writes=_always,
            ),
            Command(name="undo", run=self._undo, writes=_always),
            Command(
                name="fork",
                run=self._fork,
                writes=_always,
            ),
            Command(name="export", run=self._export),
        )

    async def _list(self, message: Inbound, words: str, say: Say) -> str:
        infos = await self._sessions.of_key(message.session_key)
        here = await self._sessions.current_id(message.session_key)
        numbers = {info.id: number for number, info in enumerate(infos, 1)}
        if words:
            infos = matching(infos, words) or await self._saying(infos, words)
        rows = [_row(numbers[info.id], info, here, say) for info in infos[-SHOWN:]]
        if len(infos) > SHOWN:
            rows.insert(0, say("sessions_before", count=len(infos) - SHOWN))
        return "\n".join(rows) or say("no_sessions")

    async def _saying(self, infos: list[SessionInfo], words: str) -> list[SessionInfo]:
        return [info for info in infos if await mentions(self._sessions.store, info.id, words)]

    async def _switch(self, message: Inbound, wanted: str, say: Say) -> str:
        key = message.session_key
        infos = await self._sessions.of_key(key)
        known = {info.id: info for info in infos} | {str(n): i for n, i in enumerate(infos, 1)}
        session_id = known[wanted].id if wanted in known else await self._put_away(key, wanted)
        if session_id is None:
            return say("switch_unknown", wanted=wanted) if wanted else say("switch_which")
        session = await self._sessions.switch(key, session_id)
        return say("switched", title=session.title or session.id)

    async def _put_away(self, key: str, session_id: str) -> str | None:
        """Return this id if it belongs to an unlisted conversation in the same chat."""
        with suppress(SessionNotFound, InvalidSessionId):
            session = await self._sessions.open(session_id)
            return session.id if session.key == key else None
        return None

    async def _rename(self, message: Inbound, title: str, say: Say) -> str:
        if not title:
            return say("rename_usage")
        session = await self._sessions.current_fresh(message.session_key)
        await self._sessions.rename(session, title)
        return say("renamed", title=session.title)

    async def _undo(self, message: Inbound, _: str, say: Say) -> str:
        key = message.session_key
        session = await self._sessions.current_fresh(key)
        try:
            taken = await self._sessions.undo(session)
        except StillAnswering:
            return say("still_answering")
        except PartOfSummary:
            return say("in_summary")
        if not taken:
            return say("nothing_to_undo")
        said = " ".join(str(taken[0].content.get("text") or "").split())
        return say("undone", said=said[:SHOWN_CHARS])

    async def _fork(self, message: Inbound, _: str, say: Say) -> str:
        key = message.session_key
        session = await self._sessions.current_fresh(key)
        fork = await self._sessions.fork(session.id, key=key)
        await self._sessions.switch(key, fork.id)
        return say("forked")

    async def _export(self, message: Inbound, form: str, say: Say) -> str:
        if form not in {"", "md", "json"}:
            return say("export_form", form=form)
        session = await self._sessions.current_fresh(message.session_key)
        whole = await self._sessions.store.get(session.id)
        work = whole.dump_json if form == "json" else whole.to_markdown
        text = await anyio.to_thread.run_sync(work)
        if len(text) <= EXPORT_CHARS:
            return text
        command = f"nanoloop sessions export {session.id} --format {form or 'md'}"
        return f"{text[:EXPORT_CHARS]}\n{say('export_cut', command=command)}"


def _row(number: int, info: SessionInfo, here: str, say: Say) -> str:
    return say(
        "session_row",
        number=number,
        title=info.title or info.id,
        here=say("here") if info.id == here else "",
        entries=info.entries,
        date=f"{info.updated_at:%Y-%m-%d}",
    )
