"""What a chat can do with its own stored conversations; it never reaches another chat's."""

from __future__ import annotations

import anyio

from nanoloop.commands.command import BUSY, Command, Runner
from nanoloop.errors import NotPossible
from nanoloop.messages import Inbound
from nanoloop.protocols import SessionInfo
from nanoloop.search import found, says
from nanoloop.sessions import Sessions

SHOWN = 20
"""Conversations that `/sessions` lists, the newest ones."""
EXPORT_CHARS = 8000
"""How much of an export fits into an answer."""


class Shelf:
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
                name="switch", usage="go on with another one, /switch NUMBER", run=self._switch
            ),
            Command(name="rename", usage="give this one a title, /rename TITLE", run=self._rename),
            Command(name="undo", usage="take back the last exchange", run=self._undo),
            Command(name="fork", usage="go on in a copy; this one stays as it is", run=self._fork),
            Command(name="export", usage="this one as text, /export md or json", run=self._export),
        )

    async def _list(self, message: Inbound, words: str) -> str:
        infos = await self._sessions.of_key(message.session_key)
        here = await self._sessions.current_id(message.session_key)
        numbers = {info.id: number for number, info in enumerate(infos, 1)}
        if words:
            infos = found(infos, words) or await self._saying(infos, words)
        rows = [_row(numbers[info.id], info, here) for info in infos[-SHOWN:]]
        if len(infos) > SHOWN:
            rows.insert(0, f"... and {len(infos) - SHOWN} before these: /sessions WORDS finds them")
        return "\n".join(rows) or "There is no such conversation here."

    async def _saying(self, infos: list[SessionInfo], words: str) -> list[SessionInfo]:
        return [info for info in infos if await says(self._sessions.store, info.id, words)]

    async def _switch(self, message: Inbound, wanted: str) -> str:
        key = message.session_key
        infos = await self._sessions.of_key(key)
        known = {info.id: info for info in infos} | {str(n): i for n, i in enumerate(infos, 1)}
        if wanted not in known:
            said = f"There is no conversation {wanted!r} here" if wanted else "Which one"
            return f"{said}: /sessions lists them, /switch NUMBER goes to one."
        if self._runner.is_busy(key):
            return BUSY
        session = await self._sessions.switch(key, known[wanted].id)
        return f"Here goes on: {session.title or session.id}"

    async def _rename(self, message: Inbound, title: str) -> str:
        if not title:
            return "/rename takes the new title: /rename Our trip to Rome"
        session = await self._sessions.current(message.session_key)
        session.title = " ".join(title.split())
        await self._sessions.store.save(session)
        return f"This conversation is called {session.title} now."

    async def _undo(self, message: Inbound, _: str) -> str:
        key = message.session_key
        session = await self._sessions.current(key)
        if not session.shows_earlier:  # then the window would be empty afterwards
            session = await self._sessions.store.get(session.id)
        # No await between this and the undo: a message that comes then waits for its turn.
        if self._runner.is_busy(key):
            return BUSY
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
        session = await self._sessions.current(key)
        if self._runner.is_busy(key):
            return BUSY
        fork = await self._sessions.fork(session.id, key=key)
        await self._sessions.switch(key, fork.id)
        return "Here goes on a copy; /sessions lists both."

    async def _export(self, message: Inbound, form: str) -> str:
        if form not in {"", "md", "json"}:
            return f"/export knows md and json, not {form!r}."
        session = await self._sessions.current(message.session_key)
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
