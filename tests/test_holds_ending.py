"""A loop that is ended at once while a message is being kept for its turn."""

import anyio

from nanoloop.loop import AgentLoop
from nanoloop.messages import Inbound
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from nanoloop.testing.faults import Gate


class Slow(InMemoryStore):
    """A store whose saves wait at a gate, as one that is in a thread: no cancelling reaches it."""

    def __init__(self):
        super().__init__()
        self.gate = Gate(is_open=True)

    async def save(self, session):
        with anyio.CancelScope(shield=True):
            await self.gate.passes()
            await super().save(session)


async def test_what_is_being_kept_when_the_loop_is_ended_is_kept_in_peace():
    store, provider = Slow(), ScriptedProvider(held=True)
    loop = AgentLoop(provider=provider, store=store)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        loop.bus.put_nowait(Inbound(channel="c", chat="1", text="one"))
        await provider.asked()
        store.gate.close()
        loop.bus.put_nowait(Inbound(channel="c", chat="1", text="two"))
        await store.gate.reached(store.gate.count + 1)
        group.cancel_scope.cancel()
        store.gate.open()
    assert [info.waiting async for info in store.list()] == [1]
