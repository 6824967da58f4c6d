"""The prompt of `chat` and `run`: a welcome, and a status line for the conversation."""

from __future__ import annotations

from contextlib import suppress

import anyio

from nanoloop import __version__
from nanoloop.app import App
from nanoloop.channels.screen import printable, rendered
from nanoloop.channels.terminal import TerminalChannel
from nanoloop.cli.output import say
from nanoloop.errors import SessionNotFound
from nanoloop.events import Event, SummaryCommitted, TextStreamed
from nanoloop.messages import Outbound
from nanoloop.parts import input_history
from nanoloop.protocols import Bus
from nanoloop.session.entry import Entry
from nanoloop.session.log import message_count
from nanoloop.session.queue import last_exchange
from nanoloop.session.session import Session
from nanoloop.settings import Settings

CHANNEL = TerminalChannel.name
_ASKED_SHOWN = 200
_ANSWER_SHOWN = 600
"""How many characters of the last exchange are shown in the welcome."""
_THOUSAND = 1000
_MILLION = 1_000_000
_DIM, _BOLD, _PLAIN = "\x1b[90m", "\x1b[1m", "\x1b[0m"
TO_TRY = (
    "My sister Mira is allergic to nuts. Which cake could I bake for her?",
    "Explain in three bullets how a rainbow forms.",
    "What must Mira's cake not have in it?",
)
"""Suggestions for a first conversation; the last one shows the use of memory."""
_MEMORY = "after five more questions, when only the summary knows it"
SUMMARISED = "summary written in the background · nobody waited"


class Prompt(TerminalChannel):
    """The terminal channel with a welcome and a status line."""

    def __init__(self, *, app: App, settings: Settings, chat: str, is_first: bool = False) -> None:
        """Create the channel; if `is_first`, show suggestions and report the first summary."""
        history = input_history(settings)
        super().__init__(chat=chat, history=history, status=self._status_line)
        self._is_first = is_first
        self._summarised = anyio.Event()
        """Set once the first summary is ready."""
        if is_first:
            app.observers.append(self._hear)
            app.beside.append(self._tell_when_summarised)
        self._app = app
        self.incidents = app.loop.sentences.incidents
        self._key = f"{CHANNEL}:{chat}"
        self._model = settings.model
        self._limit = settings.message_buffer_limit
        self._session: Session | None = None

    async def run(self, bus: Bus) -> None:
        """Show the welcome, then continue the conversation."""
        await self._look()
        say(self._welcome(), has_style=True)
        await super().run(bus)
        self._app.stop()  # also ends a daemon, which would not notice that the user quit

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Show one item and update the status line."""
        await self._look()
        await super().send(item)
        await self._tell_summarised()

    def _hear(self, event: Event) -> None:
        if isinstance(event, SummaryCommitted):
            self._summarised.set()

    async def _tell_when_summarised(self) -> None:
        await self._summarised.wait()
        await self._tell_summarised()

    async def _tell_summarised(self) -> None:
        """Report once that the first summary is ready, but not in the middle of an answer."""
        if self._is_first and self._summarised.is_set() and not self._waiting:
            self._is_first = False
            await self._show([("ansibrightblack", f"{SUMMARISED}\n\n")])

    async def _look(self) -> None:
        """Find the chat's current session, which `/new` or a first message changes."""
        sessions = self._app.loop.sessions
        session_id = await sessions.current_id(self._key)
        if self._session is None or self._session.id != session_id:
            self._session = None
            with suppress(SessionNotFound):
                self._session = await sessions.open(session_id)

    def _welcome(self) -> str:
        session = self._session
        answers = session.turns if session else 0
        so_far = f"{answers} answer{'s'[: answers != 1]} so far" if answers else "new"
        facts = (
            f"{_BOLD}nanoloop {__version__}{_PLAIN}",
            self._model,
            f"conversation {self.chat!r}, {so_far}",
        )
        hint = f"{_DIM}/help lists commands · Esc Enter starts a new line · Ctrl-D quits{_PLAIN}"
        return "\n".join((" · ".join(facts), hint, "", *self._to_try(), *self._last_exchange()))

    def _to_try(self) -> list[str]:
        if not self._is_first:
            return []
        *others, last = TO_TRY
        lines = [*others, f"{last}  {_DIM}({_MEMORY}){_PLAIN}"]
        return ["To try:", *(f"  {line}" for line in lines), ""]

    def _last_exchange(self) -> list[str]:
        """Return the last exchange, to remind a returning user where they left off."""
        said = last_exchange(self._session.window if self._session else ())
        if not said:
            return []
        lines = [f"{_BOLD}› {_text(said[0], _ASKED_SHOWN)}{_PLAIN}", ""]  # noqa: RUF001 - the prompt's mark
        if answers := [entry for entry in said if entry.role == "assistant"]:
            lines += [rendered(_text(answers[-1], _ANSWER_SHOWN), self._columns), ""]
        return lines

    def _status_line(self) -> str:
        # Kept short: together with the terminal's hint, it must fit in 80 columns.
        return f"{self._model} · {self._window()} · {self._tokens()} · {self._summary()}"

    def _window(self) -> str:
        if self._session is None:
            return f"window 0/{self._limit}"
        size = short(self._session.context_size())
        return f"window {message_count(self._session.window)}/{self._limit}, ~{size} tokens"

    def _tokens(self) -> str:
        sums = self._app.telemetry.sums
        return f"{short(sums['turn_finished.tokens_in'] + sums['turn_finished.tokens_out'])} used"

    def _summary(self) -> str:
        session = self._session
        if session is None:
            return "no summary"
        reach = f"summary to {session.covered_seq}" if session.summary else "no summary"
        pending = max(0, session.pending_seq - session.covered_seq)
        if not pending:
            return reach
        return f"{reach}, {'folding' if session.summary_in_progress else 'waiting'} {pending}"


def _text(entry: Entry, most: int) -> str:
    text = printable(str(entry.content.get("text") or "")).strip()
    return text if len(text) <= most else f"{text[:most].rstrip()} …"


def short(number: float) -> str:
    """Format a number for display: 950, 1.2k, 3.4M."""
    if number < _THOUSAND:
        return f"{number:.0f}"
    if number < _MILLION:
        return f"{number / _THOUSAND:.1f}k"
    return f"{number / _MILLION:.1f}M"
