"""The real SDK behind a proxy that cuts connections at random: each order is placed once."""

import json
import random
from contextlib import AsyncExitStack
from itertools import chain, count

import anyio
import httpx2
import openai
import pytest

from nanoloop import tool
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.tools.toolbox import Toolbox
from tests.servers.proxy import faulty
from tests.web_openai import NOBODY, text_of
from tests.web_server import serving

CUTS = ("asking", "thinking", "ordering", "thinking again", "answering")
"""When a connection is cut: the request is on its way, the model is asked and answers only when the
client is back, the tool runs, the model is asked again, the answer is on its way."""
REQUEST_BYTES, ANSWER_BYTES = 1000, 500
BACK_SECONDS = 9
RETRIES = 5


class Customer:
    """Places orders one after the other, over a line that is cut in the middle of them."""

    def __init__(self, name, proxy, chance):
        self.name = name
        self._proxy = proxy
        self._chance = chance
        self._cut = None
        self._cuts_left = 0
        proxy.after_cut = self._plan
        self._client = openai.AsyncOpenAI(
            api_key=NOBODY, base_url=f"{proxy.url}/v1", max_retries=RETRIES, timeout=20
        )

    async def order(self, number):
        """Place it, cut off up to three times; returns what was answered."""
        item = f"{self.name}-{number}"
        self._cuts_left = self._chance.choice([1, 1, 2, 3])
        self._plan()
        # The SDK sends again by itself what has not begun to come; a stream that has, it doesn't.
        answer = await (self._streamed if self._chance.random() < 0.5 else self._whole)(item)
        self._cuts_left, self._cut = 0, None
        self._proxy.cut_after(to_server=10**9, from_server=10**9)
        return answer

    async def close(self):
        await self._client.close()

    def _plan(self):
        self._cut = self._chance.choice(CUTS) if self._cuts_left else None
        self._cuts_left -= 1
        if self._cut == "asking":
            self._proxy.cut_after(to_server=self._chance.randrange(REQUEST_BYTES))
        elif self._cut == "answering":
            self._proxy.cut_after(from_server=self._chance.randrange(1, ANSWER_BYTES))

    async def reached(self, place):
        """The server is there with an order of this one."""
        if self._cut == place:
            self._proxy.cut()
            if place.startswith("thinking"):
                with anyio.move_on_after(BACK_SECONDS):
                    await self._proxy.new_connection()

    async def _whole(self, item):
        answer = await self._client.chat.completions.create(**self._asked(item))
        return answer.choices[0].message.content

    async def _streamed(self, item):
        key = {"Idempotency-Key": item}
        while True:
            try:
                chunks = await self._client.chat.completions.create(
                    **self._asked(item), stream=True, extra_headers=key
                )
                return text_of([chunk async for chunk in chunks])
            except (openai.APIConnectionError, httpx2.TransportError):
                continue

    def _asked(self, item):
        messages = [{"role": "user", "content": item}]
        return {"model": "assistant", "messages": messages, "user": self.name}


class Shop:
    """A model that has each order placed by a tool, which writes it into a ledger."""

    def __init__(self, ledger):
        self._ledger = ledger
        self._calls = count(1)
        self.customers = {}

        @tool
        async def order(item: str) -> str:
            """Order it."""
            with self._ledger.open("a") as file:
                file.write(f"{item}\n")
            await self._reached(item, "ordering")
            return f"{item} is ordered"

        self.toolbox = Toolbox([order])

    async def answer(self, messages, _tools, _model):
        newest = messages[-1]
        if newest["role"] == "user":
            await self._reached(newest["content"], "thinking")
            arguments = json.dumps({"item": newest["content"]})
            call = ToolCall(id=f"call_{next(self._calls)}", name="order", arguments=arguments)
            return Reply(text="", tool_calls=(call,), finish_reason="tool_calls")
        item = newest["content"].split()[0]
        await self._reached(item, "thinking again")
        return f"Yes, {newest['content']}."

    async def _reached(self, item, place):
        await self.customers[item.partition("-")[0]].reached(place)


@pytest.mark.parametrize(
    ("customers", "orders"),
    [
        pytest.param(4, 5, marks=pytest.mark.slow, id="short"),
        pytest.param(8, 25, marks=[pytest.mark.long, pytest.mark.timeout(600)], id="long"),
    ],
)
async def test_an_order_that_is_cut_off_is_placed_once(tmp_path, customers, orders):
    ledger = tmp_path / "ledger"
    shop, answers = Shop(ledger), {}
    provider = ScriptedProvider(otherwise=shop.answer)

    async def visit(customer):
        answers[customer.name] = [await customer.order(number) for number in range(orders)]

    async with AsyncExitStack() as stack:
        web = await stack.enter_async_context(serving(tmp_path, provider=provider))
        web.app.loop.agents.default.toolbox = shop.toolbox
        proxies = []
        for number in range(customers):
            proxies.append(await stack.enter_async_context(faulty(str(web.client.base_url))))
            customer = Customer(f"c{number}", proxies[-1], random.Random(number))
            shop.customers[customer.name] = customer
            stack.push_async_callback(customer.close)
        async with anyio.create_task_group() as group:
            for customer in shop.customers.values():
                group.start_soon(visit, customer)
        said = {
            name: [m["text"] for m in await messages_of(web, name) if m["role"] == "user"]
            for name in shop.customers
        }
    wanted = {name: [f"{name}-{number}" for number in range(orders)] for name in shop.customers}
    assert said == wanted
    assert sorted(ledger.read_text().split()) == sorted(chain(*wanted.values()))
    assert answers == {n: [f"Yes, {i} is ordered." for i in items] for n, items in wanted.items()}
    assert sum(proxy.cuts for proxy in proxies) >= customers * orders


async def messages_of(web, name):
    return await web.messages(f"web:local.{name}", limit=200)
