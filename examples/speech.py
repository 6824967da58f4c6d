"""What is said in voice messages, asked of any server with OpenAI's API for it."""

import openai

from nanoloop.channels.platform.platform import File

client = openai.AsyncOpenAI()  # with OPENAI_API_KEY, and OPENAI_BASE_URL for a server of your own


async def words_of(file: File, data: bytes) -> str:
    """The words of one voice message."""
    recording = (file.name or "voice.ogg", data)
    said = await client.audio.transcriptions.create(model="whisper-1", file=recording)
    return said.text
