"""Providers, stores and gates that fail or wait when a test says so."""

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
"""The outcome of a call: `slow` waits for the gate, `hangs` never ends, `bug` is a RuntimeError."""

FAULTS: tuple[Fault, ...] = get_args(Fault)


def seeded(seed: int, *, share: float = 0.3, kinds: Sequence[Fault] = FAULTS) -> Iterator[Fault]:
    """Yield faults forever, always the same for a seed; `share` is the share of failing calls."""
    chance = random.Random(seed)  # noqa: S311 - it has to be the same each time
    faults = [kind for kind in kinds if kind != "fine"]
    while True:
        yield chance.choice(faults) if faults and chance.random() < share else "fine"


class Faulty:
    """A provider whose calls fail as planned; after the plan, all calls succeed."""

    def __init__(
        self, provider: Provider, plan: Iterable[Fault] = (), *, gate: Gate | None = None
    ) -> None:
        self._provider = provider
        self._plan = iter(plan)
        self.gate = gate or Gate()
        """The gate at which slow calls wait."""
        self.calls: list[Fault] = []
        """The outcomes of the calls so far."""

    async def chat(
        self,
        *,
        messages: Sequence[ChatMessage],
        tools: Sequence[ToolSpec] | None = None,
        model: str | None = None,
        on_text: OnText | None = None,
    ) -> Reply:
        """Answer, or fail as planned."""
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
"""The outcome of a save: `before` and `after` raise `StoreError` before or after writing."""


class FaultyStore:
    """A store whose saves fail as planned; all other calls are passed on."""

    def __init__(self, store: Store, plan: Iterable[SaveFault] = ()) -> None:
        self._store = store
        self._plan = iter(plan)
        self.saves: list[SaveFault] = []
        """The outcomes of the saves so far."""

    async def save(self, session: Session) -> None:
        """Save, or fail as planned; also raises the store's own errors."""
        fault: SaveFault = next(self._plan, "fine")
        self.saves.append(fault)
        if fault != "before":
            await self._store.save(session)
        if fault != "fine":
            raise StoreError(f"this save failed {fault} it wrote: the fault was injected by a test")

    async def create(self, **given: Any) -> Session:
        """Call the store's `create`."""
        return await self._store.create(**given)

    async def add(self, session: Session, *, replace: bool = False) -> None:
        """Call the store's `add`."""
        await self._store.add(session, replace=replace)

    async def get(self, session_id: str) -> Session:
        """Call the store's `get`."""
        return await self._store.get(session_id)

    async def load(self, session_id: str) -> Session:
        """Call the store's `load`."""
        return await self._store.load(session_id)

    async def revision(self, session_id: str) -> int:
        """Call the store's `revision`."""
        return await self._store.revision(session_id)

    async def entries(
        self, session_id: str, *, after: int = 0, upto: int | None = None, limit: int | None = None
    ) -> list[Entry]:
        """Call the store's `entries`."""
        return await self._store.entries(session_id, after=after, upto=upto, limit=limit)

    def list(self) -> AsyncIterator[SessionInfo]:
        """Call the store's `list`."""
        return self._store.list()

    async def erase(self, session: Session, seqs: Collection[int]) -> None:
        """Call the store's `erase`."""
        await self._store.erase(session, seqs)

    async def delete(self, session_id: str) -> None:
        """Call the store's `delete`."""
        await self._store.delete(session_id)

    async def delete_expired(self) -> int:
        """Call the store's `delete_expired`."""
        return await self._store.delete_expired()

    async def has_heard(self, chat: str, message_id: str) -> bool:
        """Call the store's `has_heard`."""
        return await self._store.has_heard(chat, message_id)

    def owing(self, *, pending: bool = False) -> AsyncIterator[OwedSession]:
        """Call the store's `owing`."""
        return self._store.owing(pending=pending)

    async def beat(self, node: Node) -> Sequence[Node]:
        """Call the store's `beat`."""
        return await self._store.beat(node)

    async def leave(self, node_id: str) -> None:
        """Call the store's `leave`."""
        await self._store.leave(node_id)

    async def bind(self, key: str, session_id: str) -> None:
        """Call the store's `bind`."""
        await self._store.bind(key, session_id)

    async def bound(self, key: str) -> str | None:
        """Call the store's `bound`."""
        return await self._store.bound(key)

    async def close(self) -> None:
        """Close the store."""
        await self._store.close()


class Gate:
    """Makes callers wait until the test releases them."""

    def __init__(self, *, is_open: bool = False) -> None:
        self._is_open = is_open
        self._waiting: deque[anyio.Event] = deque()
        self._news = anyio.Event()
        self.count = 0
        """How many callers have arrived so far, including those that were released."""

    @property
    def waiting(self) -> int:
        """How many callers are waiting now."""
        return len(self._waiting)

    async def passes(self) -> None:
        """Wait until the test releases this caller; return at once if the gate is open."""
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
            if turn in self._waiting:  # a cancelled caller gives up its place
                self._waiting.remove(turn)

    async def reached(self, count: int = 1) -> None:
        """Wait until this many callers have arrived."""
        while self.count < count:
            await self._news.wait()

    def open(self, count: int | None = None) -> int:
        """Release `count` waiting callers; without `count`, all callers from now on.

        Return how many waiting callers were released.
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
