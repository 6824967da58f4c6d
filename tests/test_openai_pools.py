"""Many small pools act as one, and each call gives its place back."""

import ssl

import anyio
import httpx2
import pytest

from nanoloop.providers.pools import SIZE, Pools, small_pools
from tests.openai_server import Answer, OpenAIServer

CALLS = 2 * SIZE + 3


@pytest.fixture
async def server():
    async with OpenAIServer(otherwise=Answer(text="yes")) as server:
        yield server


@pytest.fixture
async def pools():
    pools = Pools()
    async with httpx2.AsyncClient(transport=pools) as client:
        pools.client = client
        yield pools


async def test_calls_side_by_side_go_by_as_many_pools_as_they_need(server, pools):
    server.answers.extend(Answer(held=True) for _ in range(CALLS))
    async with anyio.create_task_group() as group:
        for _ in range(CALLS):
            group.start_soon(ask, pools, server)
        await server.arrived(CALLS)
        assert calls(pools) == [SIZE, SIZE, 3]
        server.release()
    assert calls(pools) == [0, 0, 0]


async def test_calls_in_a_row_share_one_connection(server, pools):
    for _ in range(3):
        await ask(pools, server)
    assert calls(pools) == [0]
    assert len(pools._pools[0].transport._pool.connections) == 1


async def test_a_call_that_fails_or_is_left_gives_its_place_back(server, pools):
    with pytest.raises(httpx2.ConnectError):
        await pools.client.get("http://127.0.0.1:1/")
    server.answers.append(Answer(held=True))
    with anyio.move_on_after(0.05):
        await ask(pools, server)
    server.release()
    assert calls(pools) == [0]


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy", "ALL_PROXY"])
def test_where_a_proxy_is_set_the_client_goes_its_own_way(name, monkeypatch):
    monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert small_pools() is None


async def test_what_is_encrypted_goes_by_pools_of_its_own_that_look_at_certificates(server, pools):
    await ask(pools, server)
    with pytest.raises(httpx2.ConnectError):
        await pools.client.get("https://127.0.0.1:1/")
    assert [pool.scheme for pool in pools._pools] == ["http", "https"]
    assert pools._verify.verify_mode is ssl.CERT_REQUIRED


def calls(pools):
    return [pool.calls for pool in pools._pools]


async def ask(pools, server):
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    response = await pools.client.post(f"{server.url}/chat/completions", json=body)
    assert response.status_code == 200
