"""One question of an agent to its model, and what its session keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio

from nanoloop.agents.hooks import Outcome
from nanoloop.agents.recording import content_of
from nanoloop.context import build_messages
from nanoloop.errors import EmptyAnswer, HistoryNotLoaded, ProviderError, SessionNotFound
from nanoloop.events import ResizeFailed
from nanoloop.protocols import OnText, Provider, Store, vendor_of
from nanoloop.session.entry import Entry
from nanoloop.session.pairs import open_calls
from nanoloop.session.session import Session
from nanoloop.turn import Answer, Turn

if TYPE_CHECKING:
    from nanoloop.agents.agent import Agent


class Request:
    """Recorded as it goes, unless a handler says at the end what is recorded."""

    def __init__(
        self,
        agent: Agent,
        provider: Provider,
        session: Session,
        given: Any,
        *,
        store: Store | None = None,
        on_text: OnText | None = None,
    ) -> None:
        self._agent = agent
        self._session = session
        self._given = given
        self._store = store
        self._shown = Entry.message("user", content_of(given))
        self._asked = 0
        self._vendor = vendor_of(provider, agent.model)
        self._held: list[Entry] | None = [] if agent.recording.handler else None
        """What was said so far, where a handler has still to say what is kept of it."""
        self._turn = Turn(
            provider=agent.hooks.before(provider, agent),
            toolbox=agent.toolbox,
            model=agent.model,
            max_steps=agent.max_steps,
            on_text=on_text,
            announce=agent.announce,
            session_id=session.id,
        )

    async def answered(self) -> str:
        """The model's answer; raises `ProviderError`, and the user's message is kept then."""
        # Kept before the model is asked: whatever happens then, the question is not lost.
        await self._begin()
        try:
            answer = await self._turn.run(self)
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                await self._fail(error)
            raise
        await self._finish(answer)
        return answer.text

    async def _begin(self) -> None:
        if self._session.agent is None:
            self._session.agent = self._agent.name
        if self._held is not None:
            self._held.append(self._shown)
        else:
            kept = self._agent.recording.question(self._given)
            self._asked = self._session.add_entry(kept).seq
        await self._save()

    async def _finish(self, answer: Answer) -> None:
        with anyio.CancelScope(shield=True):
            await self._keep(answer)
        await self._resize()
        await self._agent.hooks.after(Outcome(given=self._given, answer=answer), self._agent)

    async def _keep(self, answer: Answer) -> None:
        if self._held is None:
            await self.record(self._agent.recording.answer(answer.entries))
            return
        try:
            said = await self._agent.recording.by_handler(self._given, answer.text)
        except BaseException:
            self._session.add_entry(self._agent.recording.question(self._given))
            raise
        if said:
            self._session.add_chat_history(said)
            await self._save()

    async def _fail(self, error: BaseException) -> None:
        if isinstance(error, EmptyAnswer):
            self._take_back()
        elif self._held is not None:
            self._session.add_entry(self._agent.recording.question(self._given))
        else:
            self._keep_what_there_is(error)
        with suppress(SessionNotFound):  # deleted meanwhile: nothing is revived
            await self._save()
        await self._agent.hooks.after(Outcome(given=self._given, error=error), self._agent)

    def _take_back(self) -> None:
        """Forget a question that came to nothing, unless tools have acted on it."""
        newest = self._session.newest
        if newest is not None and newest.seq == self._asked:
            with suppress(HistoryNotLoaded):
                self._session.undo()

    def _keep_what_there_is(self, error: BaseException) -> None:
        for entry in self._turn.finished:
            self._session.add_entry(entry)
        for call in open_calls([e for e in self._session.window if e.seq >= self._asked]):
            why = "the turn ended before it finished"
            name = call.content.get("tool", "")
            self._session.add_entry(Entry.tool_result(name, None, why, call_id=call.call_id))
        if isinstance(error, anyio.get_cancelled_exc_class()) and self._turn.said.strip():
            said = Entry.message("assistant", self._turn.said, metadata={"stopped": True})
            self._session.add_entry(said)

    async def _resize(self) -> None:
        read = partial(self._store.entries, self._session.id) if self._store else None
        try:
            await self._session.async_resize(read=read)
        except ProviderError as error:  # the memo stays as it was; the answer is there all the same
            name = type(error).__name__
            self._agent.announce(ResizeFailed(session_id=self._session.id, error=name))
        await self._save()

    async def _save(self) -> None:
        if self._store is None:
            return
        # One that no store knows yet was made elsewhere and attached.
        save = self._store.save if self._session.revision else self._store.add
        await save(self._session)

    # What a turn needs of it

    def request(self) -> list[dict[str, Any]]:
        """The messages for the model, as of now."""
        window = [self._shown if e.seq == self._asked else e for e in self._session.window]
        return build_messages(
            self._agent.prompt,
            [*window, *(self._held or ())],
            summary=self._session.summary,
            memo=self._session.memo,
            pins=self._session.pins,
            ledger=self._session.ledger,
            vendor=self._vendor,
        )

    async def record(self, entries: Sequence[Entry]) -> None:
        """Add these entries; durable when this returns, where there is a store."""
        if self._held is not None:
            self._held.extend(entries)
            return
        for entry in entries:
            self._session.add_entry(entry)
        await self._save()

    def shrink(self) -> int:
        """Cut the window harder; how many entries are left in it, or 0 if nothing more can go."""
        return len(self._session.window) if self._session.shrink() else 0
