"""What is said in voice messages, asked of any server with OpenAI's API for it."""

from openai import AsyncOpenAI

from nanoloop.channels.kit.platform import File


async def words_of(file: File, data: bytes) -> str:
    """The words of one voice message; the SDK reads OPENAI_API_KEY and OPENAI_BASE_URL."""
    recording = (file.name or "voice.ogg", data)
    async with AsyncOpenAI(timeout=50) as client:
        said = await client.audio.transcriptions.create(model="whisper-1", file=recording)
    return said.text
