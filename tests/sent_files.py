"""Answers with files, for tests of channels: a tool that returns them, and what a chat shows."""

from contextlib import asynccontextmanager

from nanoloop import FileResult, tool
from nanoloop.attachments import Attachments
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.channels.stage import Bot
from nanoloop.tools.toolbox import Toolbox
from tests.images import png

PNG = png()
PDF = FileResult(b"%PDF-1.7\n" + b"x" * 3_000_000, name="report.pdf")
PICTURE = FileResult(PNG, name="chart.png")
SOUND = FileResult(b"OggS" + bytes(5000), name="said.ogg", mime_type="audio/ogg")


def calling(answer="Here it is.", calls=1):
    """A model that calls `make` and then says this, a text or a function of the messages."""
    asked = Reply(
        text="",
        model="scripted",
        finish_reason="tool_calls",
        tool_calls=tuple(ToolCall(id=f"c{n}", name="make", arguments="{}") for n in range(calls)),
    )
    return ScriptedProvider([asked, answer])


def making(*results):
    """A tool that returns these, one call each."""
    left = [*results]

    @tool(repeatable=True)
    async def make() -> object:
        """Make a file."""
        return left.pop(0)

    return Toolbox([make])


@asynccontextmanager
async def bot_with(platform, folder, *results, answer="Here it is.", **more):
    """A bot whose model has `make` return each of these, and then says this."""
    kept = Attachments(folder / "kept", limit_bytes=200_000_000)
    provider = calling(answer, calls=len(results)) if results else ScriptedProvider([answer])
    async with Bot(platform, folder, provider=provider, attachments=kept, **more) as bot:
        bot.loop.agents.default.toolbox = making(*results)
        bot.kept = kept
        yield bot


def told(provider, call=-1):
    """What the model was told that the calls of its tools returned."""
    said = provider.calls[call].messages
    return [message["content"] for message in said if message["role"] == "tool"]
