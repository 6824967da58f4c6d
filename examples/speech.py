"""What is said in voice messages, asked of any server with OpenAI's API for it."""

import os

import httpx2

from nanoloop.channels.platform.platform import File


async def words_of(file: File, data: bytes) -> str:
    """The words of one voice message."""
    url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
    async with httpx2.AsyncClient(timeout=50) as client:
        response = await client.post(
            f"{url}/audio/transcriptions",
            headers={"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}"},
            data={"model": "whisper-1"},
            files={"file": (file.name or "voice.ogg", data)},
        )
    return str(response.raise_for_status().json()["text"])
