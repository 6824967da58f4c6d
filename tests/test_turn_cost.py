"""A turn beside a bare loop over the SDK, in calls and not in seconds: no busy machine matters."""

from statistics import median

import anyio
import pytest

from nanoloop.providers.openai import OpenAIProvider
from nanoloop.stores.jsonl.store import JsonlStore
from nanoloop.stores.sqlite import SqliteStore
from tests.bench.calls import Calls
from tests.bench.living import SAID, running, server
from tests.bench.turn_cost import MODEL, BareLoop, Whole

TURNS = 20
"""From one trim to the next: windows of every length."""
ROUNDS = 6


async def calls_a_turn(calls, turn):
    """The median turn, of each the round with the fewest: in the others a clock had its tasks run
    beside it. A summary runs beside one or two of the turns.
    """

    async def counted():
        before = calls.count
        await turn()
        return calls.count - before

    for _ in range(TURNS + 7):  # until the window was cut for the first time
        await turn()
    rounds = [[await counted() for _ in range(TURNS)] for _ in range(ROUNDS)]
    return median(map(min, *rounds))


STORES = {
    "jsonl": (JsonlStore, 4700),  # with the locks on its files
    "sqlite": (lambda folder: SqliteStore(folder / "sessions.sqlite"), 4400),
}


@pytest.mark.slow
@pytest.mark.parametrize(("store", "most"), STORES.values(), ids=STORES.keys())
def test_a_durable_turn_makes_a_small_part_of_the_calls_that_a_bare_one_makes(
    store, most, tmp_path
):
    calls = Calls()
    made = {}

    async def measure(url):
        bare = BareLoop(url)
        provider = OpenAIProvider(model=MODEL, api_key="none", base_url=url)
        async with running(provider, store(tmp_path)) as loop:
            whole = Whole(loop.bus)
            made["durable"] = await calls_a_turn(calls, lambda: whole.ask(SAID))
            made["bare"] = await calls_a_turn(calls, bare.turn)
        await provider.close()
        await bare.close()

    with server() as url, calls.listening():
        anyio.run(measure, url)
    assert made["durable"] < 0.07 * made["bare"], made
    assert made["durable"] < most, made  # some 1,700 of them in the SDK
