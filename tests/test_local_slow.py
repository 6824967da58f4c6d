"""The useful model: `python -m pytest -m slow`. It takes 1 GB of disk, 2.5 of memory, minutes."""

import anyio
import pytest

from nanoloop import AgentLoop
from nanoloop.channels.direct import DirectChannel
from nanoloop.events import SummaryCommitted, ToolFinished
from nanoloop.providers.local.provider import LocalProvider
from nanoloop.tools.ready import calculator, clock
from tests.bench.facts import FACTS, Talk, answered
from tests.stages.local_model import USEFUL, model_file

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]


@pytest.fixture(autouse=True, scope="module")
def _model_is_here():
    model_file(USEFUL)


@pytest.fixture
async def provider():
    options = {"temperature": 0, "max_tokens": 400}
    provider = LocalProvider(model_file(USEFUL), options=options)
    yield provider
    await provider.close()


async def test_facts_told_early_are_still_known_after_two_summaries(provider):
    talk = Talk(provider)
    request = await talk.run()
    assert talk.count(SummaryCommitted) >= 2
    shown = str(request[1:])
    assert not any(fact.said in shown for fact in FACTS)
    known, _ = await answered(provider, request)
    assert len(known) >= len(FACTS) / 3


async def test_a_tool_is_called_and_its_result_is_told(provider, heard):
    loop = AgentLoop(provider=provider, tools=[clock, calculator])
    direct = DirectChannel(loop.bus)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        answer = await direct.ask("What is 1234 * 567? Use the calculator.")
        loop.bus.close()
    called = [event.tool for event in heard if isinstance(event, ToolFinished) and event.success]
    assert called == ["calculator"]
    assert "699678" in answer.text.replace(",", "")
