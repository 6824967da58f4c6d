"""Parts that fail or wait when a test says so."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import anyio

from nanoloop.errors import NoConnection, ProviderTimeout, StoreError
from nanoloop.protocols import (
    ChatMessage,
    Node,
    OnText,
    OwedSession,
    Provider,
    Reply,
    SessionInfo,
    Store,
    ToolCall,
    ToolSpec,
)
from nanoloop.session.entry import Entry
from nanoloop.session.session import Session

Fault = Literal[
    "fine", "raises", "times_out", "bug", "empty", "tool_call", "cut_off", "too_long", "slow",
    "hangs",
]  # fmt: skip
"""How a call goes: `slow` waits for the gate, `hangs` never ends, `bug` isn't a `ProviderError`."""

FAULTS: tuple[Fault, ...] = get_args(Fault)


def seeded(seed: int, *, share: float = 0.3, kinds: Sequence[Fault] = FAULTS) -> Iterator[Fault]:
    """Endless faults, the same ones for the same seed; `share` of the calls go wrong."""
    chance = random.Random(seed)  # noqa: S311 - it has to be the same each time
    faults = [kind for kind in kinds if kind != "fine"]
    while True:
        yield chance.choice(faults) if faults and chance.random() < share else "fine"


class Faulty:
    """Asks a provider, and makes each call go as planned; after the plan, all go well."""

    def __init__(
        self, provider: Provider, plan: Iterable[Fault] = (), *, gate: Gate | None = None
    ) -> None:
        self._provider = provider
        self._plan = iter(plan)
        self.gate = gate or Gate()
        """Where slow calls wait."""
        self.calls: list[Fault] = []
        """How each call so far went."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer, or fail."""
        fault: Fault = next(self._plan, "fine")
        self.calls.append(fault)
        await self._before(fault)
        reply = await self._provider.chat(
            messages=messages, tools=tools, model=model, on_text=on_text
        )
        return _spoiled(reply, fault, messages)

    async def _before(self, fault: Fault) -> None:
        if fault == "raises":
            raise NoConnection("nothing answers: this fault was injected by a test")
        if fault == "times_out":
            raise ProviderTimeout("no answer in time: this fault was injected by a test")
        if fault == "bug":
            raise RuntimeError("this bug was injected by a test")
        if fault == "slow":
            await self.gate.passes()
        if fault == "hangs":
            await anyio.sleep_forever()

    async def close(self) -> None:
        """Close the provider."""
        await self._provider.close()


def _spoiled(reply: Reply, fault: Fault, messages: Sequence[ChatMessage]) -> Reply:
    if fault == "empty":
        return replace(reply, text="")
    if fault == "cut_off":
        return replace(reply, text=reply.text[: len(reply.text) // 2], finish_reason="length")
    if fault == "tool_call":
        call = ToolCall(id="injected", name="injected", arguments="{}")
        return replace(reply, tool_calls=(call,), finish_reason="tool_calls")
    if fault == "too_long":
        size = sum(len(str(message.get("content"))) for message in messages)
        return replace(reply, text=f"{reply.text} {'and so on ' * (size // 5 + 100)}")
    return reply


SaveFault = Literal["fine", "before", "after"]
"""How a save goes: `before` writes nothing, `after` writes all; both raise `StoreError`."""


class FaultyStore:
    """Passes everything on to a store, and makes each save go as planned."""

    def __init__(self, store: Store, plan: Iterable[SaveFault] = ()) -> None:
        self._store = store
        self._plan = iter(plan)
        self.saves: list[SaveFault] = []
        """How each save so far went."""

    async def save(self, session: Session) -> None:
        """Save, or fail; also raises what the store's own raises."""
        fault: SaveFault = next(self._plan, "fine")
        self.saves.append(fault)
        if fault != "before":
            await self._store.save(session)
        if fault != "fine":
            raise StoreError(f"this save failed {fault} it wrote: the fault was injected by a test")

    async def create(self, **given: Any) -> Session:
        """Like the store's."""
        return await self._store.create(**given)

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Like the store's."""
        await self._store.add(session, replace=replace)

    async def get(self, session_id: str) -> Session:
        """Like the store's."""
        return await self._store.get(session_id)

    async def load(self, session_id: str) -> Session:
        """Like the store's."""
        return await self._store.load(session_id)

    async def revision(self, session_id: str) -> int:
        """Like the store's."""
        return await self._store.revision(session_id)

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Like the store's."""
        return await self._store.entries(session_id, after=after, upto=upto, limit=limit)

    def list(self) -> AsyncIterator[SessionInfo]:
        """Like the store's."""
        return self._store.list()

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Like the store's."""
        await self._store.erase(session, seqs)

    async def delete(self, session_id: str) -> None:
        """Like the store's."""
        await self._store.delete(session_id)

    async def delete_expired(self) -> int:
        """Like the store's."""
        return await self._store.delete_expired()

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Like the store's."""
        return await self._store.has_heard(chat, message_id)

    def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Like the store's."""
        return self._store.owing(pending=pending)

    async def beat(self, node: Node) -> Sequence[Node]:
        """Like the store's."""
        return await self._store.beat(node)

    async def leave(self, node_id: str) -> None:
        """Like the store's."""
        await self._store.leave(node_id)

    async def bind(self, key: str, session_id: str) -> None:
        """Like the store's."""
        await self._store.bind(key, session_id)

    async def bound(self, key: str) -> str | None:
        """Like the store's."""
        return await self._store.bound(key)

    async def close(self) -> None:
        """Like the store's."""
        await self._store.close()


class Gate:
    """Makes callers wait until the test lets them through."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._is_open = is_open
        self._waiting: deque[anyio.Event] = deque()
        self._news = anyio.Event()
        self.count = 0
        """How many callers have come so far, let through or not."""

    @property
    def waiting(self) -> int:
        """How many callers are waiting now."""
        return len(self._waiting)

    async def passes(self) -> None:
        """Wait until it is opened; returns at once if it is open."""
        self.count += 1
        self._news.set()
        self._news = anyio.Event()
        if self._is_open:
            return
        turn = anyio.Event()
        self._waiting.append(turn)
        try:
            await turn.wait()
        finally:
            if turn in self._waiting:  # cancelled: it takes nobody's place
                self._waiting.remove(turn)

    async def reached(self, count: int = 1) -> None:
        """Wait until this many callers have come."""
        while self.count < count:
            await self._news.wait()

    def open(self, count: int | None = None) -> int:
        """Let this many waiting callers through; without a number, all of them and those to come.

        Returns how many were let through.
        """
        if count is None:
            self._is_open = True
        let = len(self._waiting) if count is None else min(count, len(self._waiting))
        for _ in range(let):
            self._waiting.popleft().set()
        return let

    def close(self) -> None:
        """Make callers wait from now on."""
        self._is_open = False
