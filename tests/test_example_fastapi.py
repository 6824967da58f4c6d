"""The example with FastAPI, served by uvicorn."""

import contextlib
from functools import partial

import anyio
import httpx
import uvicorn

from nanoloop import AgentLoop, ScriptedProvider
from nanoloop.errors import WrongKey
from tests.examples import load
from tests.test_embedding import FirstHeld


@contextlib.asynccontextmanager
async def served(app):
    """A client of it, as it is served by uvicorn."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on")
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    async with anyio.create_task_group() as group:
        group.start_soon(server.main_loop)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
            yield client
        server.should_exit = True
    await server.shutdown()


async def test_it_answers_whole_and_in_pieces():
    async with served(load("fastapi_app").app) as client:
        answer = await client.post("/chats/42", params={"text": "Hello"})
        assert (answer.status_code, answer.json()) == (200, "You said: Hello")
        asking = client.stream("POST", "/chats/42/stream", params={"text": "And now?"})
        async with asking as answer:
            pieces = [piece async for piece in answer.aiter_text()]
        assert "".join(pieces) == "You said: And now?"


async def test_it_stops_the_answer_of_a_client_that_leaves():
    app = load("fastapi_app")
    provider = FirstHeld()
    app.loop = AgentLoop(provider)
    async with served(app.app) as client:
        with anyio.move_on_after(20) as leaving:
            async with anyio.create_task_group() as group:
                group.start_soon(partial(client.post, "/chats/42/stream", params={"text": "Hello"}))
                await provider.is_asked.wait()
                leaving.cancel()
        with anyio.fail_after(5):
            answer = await client.post("/chats/42", params={"text": "And now?"})
        assert answer.json() == "You said: And now?"


async def test_it_tells_of_a_failure():
    app = load("fastapi_app")
    app.loop = AgentLoop(ScriptedProvider([WrongKey("set OPENAI_API_KEY")]))
    async with served(app.app) as client:
        answer = await client.post("/chats/42", params={"text": "Hello"})
    assert answer.status_code == 502
    assert "have no access" in answer.json()["detail"]
