"""A chat platform in a folder: a file for each chat, a line for each message."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import anyio

from nanoloop.channels import kit

BOT, NAMED = "bot", "@bot"


class PigeonholeSettings(kit.PlatformSettings):
    """What `[channels.pigeonhole]` takes, beside `users` and what else each platform does."""

    needs = ("folder",)
    folder: kit.Folder | None = None


class Pigeonhole(kit.Platform):
    """Reads what people append to the files, and appends the answers."""

    name = "pigeonhole"
    limits = kit.Limits(text=2000, edit_seconds=None)

    def __init__(self, folder: Path, data: Path) -> None:
        self._folder = folder
        self._noted = data / "pigeonhole.json"

    async def listen(self, hear: kit.Hear, connected: Callable[[], None]) -> None:
        """Pass on each new line; it is noted as read once it is durable."""
        self._folder.mkdir(parents=True, exist_ok=True)
        read = json.loads(self._noted.read_text()) if self._noted.exists() else {}
        connected()
        while True:
            for file in sorted(self._folder.glob("*.jsonl")):
                lines = file.read_text().splitlines()
                for line in lines[read.get(file.stem, 0) :]:
                    await hear(heard(file.stem, json.loads(line)))
                    read[file.stem] = read.get(file.stem, 0) + 1
                    self._noted.write_text(json.dumps(read))
            await anyio.sleep(0.02)

    async def post(
        self,
        place: kit.Place,
        text: kit.Text,
        *,
        reply_to: str | None,
        id: str,  # noqa: A002
    ) -> str:
        """Append it; under the same id it is there once."""
        file = self._folder / f"{place.chat}.jsonl"
        with suppress(FileNotFoundError):
            if any(json.loads(line)["id"] == id for line in file.read_text().splitlines()):
                return id
        append(file, text.plain, sender=BOT, name=id)
        return id

    async def upload(
        self,
        place: kit.Place,
        file: kit.Upload,
        *,
        reply_to: str | None,
        id: str,  # noqa: A002
    ) -> str:
        """Say that there is a file."""
        return await self.post(place, kit.Text(plain=f"({file.name})"), reply_to=reply_to, id=id)


def heard(chat: str, said: dict[str, str]) -> kit.Heard:
    """A line as the kit takes it."""
    return kit.Heard(
        chat=chat,
        id=said["id"],
        sender=said["sender"],
        name=said["sender"],
        text=said["text"],
        private=not chat.startswith("#"),
        addressed=NAMED in said["text"],
        mention=NAMED if NAMED in said["text"] else "",
        is_bot=said["sender"].startswith(BOT),
    )


def append(file: Path, text: str, *, sender: str, name: str = "") -> str:
    """Say something in a chat; returns the message's id."""
    said = {"id": name or uuid4().hex, "sender": sender, "text": text}
    with file.open("a") as chat:
        chat.write(json.dumps(said) + "\n")
    return said["id"]


def make(own: PigeonholeSettings, data: Path) -> Pigeonhole:
    """The platform of these settings."""
    data.mkdir(parents=True, exist_ok=True)
    return Pigeonhole(own.folder, data)


PLUGIN = kit.Plugin(name="pigeonhole", settings=PigeonholeSettings, make=make)
