"""A chat's worker: everything that arrives is done once, in order, in its conversation."""

from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.stores.in_memory import InMemoryStore
from tests.test_amending import CALL, Looking
from tests.test_holds import log_of, running, said, store  # noqa: F401 - a fixture

KEY = "test:a"


async def test_a_command_that_steers_is_run_and_not_told_to_the_model():
    looking, store = Looking(), InMemoryStore()  # noqa: F811
    provider = ScriptedProvider([CALL, "1", "2"])
    async with running(provider, store, agent=looking.agent) as loop:
        loop.bus.put_nowait(said("one"))
        await looking.gate.reached(1)
        await loop.bus.hand_in(said("/new", steers=True))
        await loop.bus.hand_in(said("two", steers=True))
        looking.gate.open()
        await loop.chat.until(3)
    assert [m["content"] for m in provider.calls[2].messages if m["role"] == "user"] == ["two"]
    assert "/new" not in str(await log_of(store))
