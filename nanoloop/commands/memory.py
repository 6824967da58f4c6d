"""What a chat can do about its own memory: see its summary, set it right, have one made now."""

from __future__ import annotations

from nanoloop.commands.command import Command, messages
from nanoloop.events import Announce, WindowTrimmed
from nanoloop.memory.state import WAITS, state_text
from nanoloop.memory.summarizer import Summarizer
from nanoloop.messages import Inbound
from nanoloop.session.session import Session
from nanoloop.session.window import message_count
from nanoloop.sessions import Sessions


class Memory:
    """Shows, corrects and hurries what stands for the messages that left the window."""

    def __init__(
        self, *, sessions: Sessions, summarizer: Summarizer, buffer_min: int, announce: Announce
    ) -> None:
        self._sessions = sessions
        self._summarizer = summarizer
        self._keep = buffer_min
        self._announce = announce
        self.commands = (
            Command(
                name="summary",
                usage="what stands for older messages, /summary edit TEXT sets it right",
                run=self._summary,
            ),
            Command(
                name="compact",
                usage="summarise older messages now, /compact WHAT TO KEEP IN MIND",
                run=self._compact,
            ),
        )

    def rows(self, session: Session) -> dict[str, str]:
        """How the summaries stand, for `/status`."""
        return {
            "summary": self._summary_state(session),
            "summaries": state_text(self._summarizer.state()),
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
        session = await self._sessions.current(message.session_key)
        if not rest:
            return session.summary or "There is no summary yet: nothing has left the window."
        word, *text = rest.split(maxsplit=1)
        if word != "edit" or not text:
            return "/summary shows it; /summary edit TEXT puts TEXT in its place."
        is_being_written = session.summary_in_progress
        session.update_summary(text[0])
        session.summary_in_progress = (
            is_being_written  # that one finds it changed, and drops its own
        )
        await self._sessions.store.save(session)
        return "This is the summary now."

    async def _compact(self, message: Inbound, focus: str) -> str:
        session = await self._sessions.current(message.session_key)
        evicted, did_trim = session.trim_if_needed(limit=self._keep, min_keep=self._keep)
        if did_trim:
            await self._sessions.store.save(session)
            session.release()
            self._announce_trim(session, len(evicted))
        if self._summarizer.fire_and_forget(session, force=True, focus=focus) or did_trim:
            return f"{messages(len(evicted))} left the window and go into the summary."
        if session.summary_in_progress:
            return "A summary is being written already."
        return f"Nothing to do: the last {self._keep} messages always stay word for word."

    def _announce_trim(self, session: Session, evicted: int) -> None:
        kept = message_count(session.window)
        self._announce(WindowTrimmed(session_id=session.id, evicted=evicted, kept=kept))
