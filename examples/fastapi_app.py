"""A chat over HTTP with FastAPI: `pip install fastapi uvicorn`, then `uvicorn fastapi_app:app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse, StreamingResponse

from nanoloop import AgentLoop, ScriptedProvider, TurnFailed

# A real model: AgentLoop("openai:gpt-5.4-mini", store="sqlite:bot.db")
loop = AgentLoop(ScriptedProvider())


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Start the loop with the server, and close it with that."""
    async with loop:
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/chats/{chat}")
async def ask(chat: str, text: str) -> str:
    """Answer as a whole."""
    return await loop.ask(text, chat)


@app.post("/chats/{chat}/stream")
async def stream(chat: str, text: str) -> StreamingResponse:
    """Answer in pieces; a client that leaves stops its answer."""
    return StreamingResponse(loop.stream(text, chat), media_type="text/plain")


@app.exception_handler(TurnFailed)
async def failed(_: object, error: TurnFailed) -> JSONResponse:
    """Say in words for people that there is no answer."""
    return JSONResponse({"detail": error.told}, status_code=502)
