"""A channel of your own: over TCP, the first line names a chat, each further one is a message."""

import anyio
from anyio.abc import SocketAttribute, SocketStream, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream

from nanoloop import AgentLoop, Inbound, Outbound
from nanoloop.events import TextStreamed
from nanoloop.protocols import Bus
from nanoloop.providers.scripted import ScriptedProvider

LONGEST = 10_000


class LineChannel:
    """Knows the bus and nothing else: what comes in is put there, what goes out is sent."""

    name = "line"
    streams = False  # only whole answers, no pieces

    def __init__(self) -> None:
        self.port = 0
        self._clients: dict[str, SocketStream] = {}

    async def run(
        self, bus: Bus, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until cancelled."""

        async def talk(client: SocketStream) -> None:
            async with client:
                lines = BufferedByteReceiveStream(client)
                chat = await read_line(lines)
                self._clients[chat] = client
                while text := await read_line(lines):
                    await bus.put(Inbound(channel=self.name, chat=chat, text=text))

        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            self.port = listener.extra_attributes[SocketAttribute.local_port]()
            task_status.started()
            await listener.serve(talk)

    async def send(self, item: Outbound | TextStreamed) -> None:
        """Bring an answer to its chat; a client that left is logged, and stops nobody."""
        await self._clients[item.chat].send(f"{item.text}\n".encode())


async def read_line(stream: BufferedByteReceiveStream) -> str:
    """The next line, or an empty one at the end."""
    try:
        return (await stream.receive_until(b"\n", LONGEST)).decode()
    except anyio.IncompleteRead:
        return ""


async def main() -> None:
    """Serve the channel, and be its first client."""
    loop, channel = AgentLoop(provider=ScriptedProvider()), LineChannel()
    loop.bus.attach(channel)
    async with anyio.create_task_group() as group:
        await group.start(loop.run)
        await group.start(channel.run, loop.bus)
        async with await anyio.connect_tcp("127.0.0.1", channel.port) as client:
            await client.send(b"ada\nHello over TCP\n")
            print("answer:", await read_line(BufferedByteReceiveStream(client)))
        group.cancel_scope.cancel()


anyio.run(main)
