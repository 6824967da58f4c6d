"""A platform of your own: IRC, by the kit; a package of yours names it as an entry point.

    [project.entry-points."nanoloop.channels"]
    irc = "irc_channel:PLUGIN"

Then its settings stand in `[channels.irc]`, or in NANOLOOP_CHANNELS__IRC__PASSWORD and the like.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from pydantic import SecretStr

from nanoloop.channels import kit
from nanoloop.channels.kit.markdown import utf8
from nanoloop.errors import SendLater

LOST = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.IncompleteRead)


class IrcSettings(kit.PlatformSettings):
    """What `[channels.irc]` takes, beside `users` and what else each platform does."""

    host: str
    nick: str
    port: int = 6697
    tls: bool = True
    password: SecretStr = SecretStr("-")
    channels: kit.Names = ()


@dataclass
class Irc(kit.Platform):
    """A bot on an IRC server; what IRC has not, such as edits, is left as `Platform` has it."""

    name = "irc"
    limits = kit.Limits(text=340, size=utf8, edit_seconds=None)  # of 512 bytes, with the names
    own: IrcSettings
    _sending: anyio.Lock = field(default_factory=anyio.Lock, init=False)
    _pongs: dict[str, anyio.Event] = field(default_factory=dict, init=False)

    async def listen(self, hear: kit.Hear, connected: Callable[[], None]) -> None:
        """Read lines, and don't wait for `hear` there: the PONGs of `post` are among them."""
        connecting = anyio.connect_tcp(self.own.host, self.own.port, tls=self.own.tls)
        async with await connecting as self._stream, anyio.create_task_group() as group:
            lines = BufferedByteReceiveStream(self._stream)
            password, nick = self.own.password.get_secret_value(), self.own.nick
            await self._send(f"PASS {password}", f"NICK {nick}", f"USER {nick} 0 * :-")
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
                await self._send(*(f"JOIN {channel}" for channel in self.own.channels))
                connected()
            case [_, "433", *_]:
                raise SendLater("the nick is taken")
            case [_, "432" | "464" | "465", *_, why]:
                raise kit.Refused(f"IRC refuses the nick or password: {why}")
            case [_, "ERROR", why] if "password" in why:
                raise kit.Refused(f"IRC wants another password: {why}")

    def _heard(self, sender: str, kind: str, to: str, text: str) -> kit.Heard:
        me = self.own.nick.lower()
        nick, private = sender.partition("!")[0], to.lower() == me
        named = next((word for word in text.split() if word.strip("@:,.?!").lower() == me), "")
        return kit.Heard(
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

    async def post(self, place: kit.Place, text: kit.Text, *, reply_to: str | None, id: str) -> str:  # noqa: A002, ARG002 - the seam's
        """Say it, further lines behind a space; the PONG tells that the server has it."""
        self._pongs[id] = pong = anyio.Event()
        said = f"\r\nPRIVMSG {place.chat} : ".join(filter(str.strip, text.plain.splitlines()))
        with anyio.move_on_after(60), suppress(*LOST):
            await self._send(f"PRIVMSG {place.chat} :{said}", f"PING :{id}")
            await pong.wait()
        if self._pongs.pop(id, None):
            raise SendLater("the connection was lost")
        return id

    async def upload(self, place: kit.Place, file: kit.Upload, **told: Any) -> str:
        """Say that there is a file."""
        return await self.post(place, kit.Text(plain=f"({file.name})"), **told)


def words(received: bytes) -> list[str]:
    """Who sent a line, its command, and what that is given."""
    line = received.decode("utf-8", "replace").rstrip("\r")
    sender, line = line[1:].split(" ", 1) if line.startswith(":") else ("", line)
    start, colon, last = line.partition(" :")
    return [sender, *start.split(), *([last] if colon else [])]


def make(own: IrcSettings, folder: Path) -> Irc:  # noqa: ARG001 - IRC keeps nothing
    """The platform; the folder of the data is for those that keep something."""
    return Irc(own)


PLUGIN = kit.Plugin(name="irc", settings=IrcSettings, make=make)
