"""A platform of your own: IRC, by the kit. `[channels.others.irc.options]` are its settings."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from nanoloop.channels.kit import Hear, Heard, Limits, Place, Platform, Refused, Text, Upload
from nanoloop.channels.kit.markdown import utf8
from nanoloop.errors import SendLater, SettingsError

LOST = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead)


@dataclass(kw_only=True)
class Irc(Platform):
    """A bot on an IRC server; what IRC has not, such as edits, is left as `Platform` has it."""

    name = "irc"
    limits = Limits(text=340, size=utf8, edit_seconds=None)  # 512 bytes with the names before it
    host: str
    nick: str
    port: int = 6697
    tls: bool = True
    password: str = ""
    channels: Sequence[str] = ()
    _sending: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _pongs: dict[str, anyio.Event] = field(default_factory=dict, init=False)

    async def listen(self, hear: Hear, connected: Callable[[], None]) -> None:
        """Read lines, and don't wait for `hear` there: the PONGs of `post` are among them."""
        connecting = anyio.connect_tcp(self.host, self.port, tls=self.tls)
        async with await connecting as self._stream, anyio.create_task_group() as group:
            lines = BufferedByteReceiveStream(self._stream)
            hello = f"PASS {self.password or '-'}", f"NICK {self.nick}", f"USER {self.nick} 0 * :-"
            await self._send(*hello)
            with suppress(*LOST):
                while line := words(await lines.receive_until(b"\n", 10_000)):
                    await self._obey(line, connected)
                    if line[1] in ("PRIVMSG", "NOTICE"):
                        group.start_soon(hear, self._heard(*line))
            await anyio.aclose_forcefully(self._stream)  # before: what is posted now must fail
            for pong in self._pongs.values():
                pong.set()  # it won't come any more

    async def _obey(self, line: list[str], connected: Callable[[], None]) -> None:
        match line:
            case [_, "PING", token, *_]:
                await self._send(f"PONG :{token}")
            case [_, "PONG", *_, token] if token in self._pongs:
                self._pongs.pop(token).set()
            case [_, "001", *_]:
                await self._send(*(f"JOIN {channel}" for channel in self.channels))
                connected()
            case [_, "433", *_]:
                raise SendLater("the nick is taken")
            case [_, "432" | "464" | "465", *_, why]:
                raise Refused(f"IRC refuses the nick or password: {why}")
            case [_, "ERROR", why] if "password" in why:
                raise Refused(f"IRC wants another password: {why}")

    def _heard(self, sender: str, kind: str, to: str, text: str) -> Heard:
        nick, private = sender.partition("!")[0], to.lower() == self.nick.lower()
        me = self.nick.lower()
        named = next((word for word in text.split() if word.strip("@:,.?!").lower() == me), "")
        return Heard(
            chat=(nick if private else to).lower(),
            id=uuid4().hex,
            sender=sender,
            name=nick,
            text=text,
            private=private,
            addressed=bool(named),
            mention=named,
            is_bot=kind == "NOTICE" or text.startswith("\x01"),  # by custom never answered
        )

    async def _send(self, *lines: str) -> None:
        async with self._sending:
            await self._stream.send("".join(f"{line}\r\n" for line in lines).encode())

    async def post(self, place: Place, text: Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - the seam's
        """Say it, further lines behind a space; the PONG tells that the server has it."""
        self._pongs[id] = pong = anyio.Event()
        said = f"\r\nPRIVMSG {place.chat} : ".join(filter(str.strip, text.plain.splitlines()))
        with anyio.move_on_after(60), suppress(*LOST):
            await self._send(f"PRIVMSG {place.chat} :{said}", f"PING :{id}")
            await pong.wait()
        if self._pongs.pop(id, None):
            raise SendLater("the connection was lost")
        return id

    async def upload(self, place: Place, file: Upload, *, reply_to: str | None, id: str) -> str:  # noqa: A002 - the seam
        """Say that there is a file."""
        return await self.post(place, Text(plain=f"({file.name})"), reply_to=reply_to, id=id)


def words(received: bytes) -> list[str]:
    """Who sent a line, its command, and what that is given."""
    line = received.decode("utf-8", "replace").rstrip("\r")
    sender, line = line[1:].split(" ", 1) if line.startswith(":") else ("", line)
    start, colon, last = line.partition(" :")
    return [sender, *start.split(), *([last] if colon else [])]


def make(options: dict[str, Any], folder: Path) -> Irc:  # noqa: ARG001 - IRC keeps nothing
    """`irc = "irc_channel:make"` below a package's `[project.entry-points."nanoloop.channels"]`."""
    try:
        return Irc(**options)
    except TypeError as wrong:
        raise SettingsError(f"channels.others.irc.options: {wrong}") from None
