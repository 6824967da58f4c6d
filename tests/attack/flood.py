"""Anyone who reaches the port: connections that send what no request needs.

    python -m tests.attack.flood

It is told what to do by lines of JSON: `[["trailers", {"port": 8080, ...}], ...]` begins, `[]` ends
once each connection has been cut; each is answered by one line. Its connections come from
`ADDRESS`, so that a server can tell them apart.
"""

import json
import socket
import sys
import time
from collections.abc import Mapping
from threading import Event, Semaphore, Thread
from typing import NamedTuple

ADDRESS = "127.0.0.66"
BOUND_BYTES = 64_000 + 2 * 262_144
"""What a listener may take before it cuts: its bound, what it reads at once, and what waits."""
PATIENCE_SECONDS = 120
MANY = b"".join(b"x%d: y\r\n" % number for number in range(5000))


class Kind(NamedTuple):
    """How a connection begins, what it sends again and again, and in what pieces."""

    first: bytes
    again: bytes
    piece: int = 65_536


BODY = b"POST PATH HTTP/1.1\r\nHost: localhost\r\nHEADERTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"GET PATH HTTP/1.1\r\nHost: localhost\r\nHEADER"
KINDS: Mapping[str, Kind] = {
    "trailers": Kind(BODY + b"0\r\n", MANY),
    "one trailer": Kind(BODY + b"0\r\nx: ", b"y" * 65_536),
    "chunk extensions": Kind(BODY, b"1;" + b"e" * 60_000 + b"\r\nx\r\n"),
    "one chunk extension": Kind(BODY + b"1;", b"e" * 65_536),
    "one header": Kind(HEAD + b"x: ", b"y" * 262_144, 262_144),
    "one header byte by byte": Kind(HEAD + b"x: ", b"y" * 20_000, 1),
    "headers": Kind(HEAD, MANY),
    "one target": Kind(b"GET /", b"y" * 65_536),
    "half requests": Kind(HEAD, b""),
}


class Target(NamedTuple):
    """Where a flood goes, and from how many connections at once."""

    port: int
    path: str = "/api/messages"
    header: str = ""
    count: int = 10


class Flood:
    """Connections that go on until they are cut, each time anew."""

    def __init__(self, kind: str, target: Target) -> None:
        header = f"{target.header}\r\n" if target.header else ""
        first, again, piece = KINDS[kind]
        first = first.replace(b"PATH", target.path.encode()).replace(b"HEADER", header.encode())
        self._kind = Kind(first, again, piece)
        self._port = target.port
        self._is_over = Event()
        self._begun = Semaphore(0)
        self._ends = float("inf")
        self._threads = [Thread(target=self._go_on) for _ in range(target.count)]
        self._ended: list[tuple[int, bool]] = []

    def begin(self) -> None:
        """Start all connections; returns when each has been made."""
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            self._begun.acquire()

    def end(self) -> dict[str, int]:
        """Make no more of them; what came of them, once each has been cut, or is given up."""
        self._ends = time.monotonic() + PATIENCE_SECONDS
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        sent, cut = zip(*self._ended, strict=True)
        return {"made": len(sent), "cut": sum(cut), "most_bytes": max(sent)}

    def _go_on(self) -> None:
        while not self._is_over.is_set():
            self._ended.append(self._send_all())
            self._is_over.wait(0.05)

    def _send_all(self) -> tuple[int, bool]:
        """Send until it is cut; how much that was, and whether it was cut."""
        sent = 0
        address = ("127.0.0.1", self._port)
        with socket.create_connection(address, source_address=(ADDRESS, 0)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(1)
            self._begun.release()
            data = self._kind.first
            while time.monotonic() < self._ends:
                try:
                    for start in range(0, len(data), self._kind.piece):
                        connection.sendall(data[start : start + self._kind.piece])
                        sent += self._kind.piece
                    if not self._kind.again and not connection.recv(1000):
                        return sent, True
                except TimeoutError:
                    pass
                except OSError:
                    return sent, True
                data = self._kind.again
        return sent, False


def main() -> None:
    """Begin and end as told."""
    floods: list[Flood] = []
    for line in sys.stdin:
        if told := json.loads(line):
            floods = [Flood(kind, Target(**target)) for kind, target in told]
            for flood in floods:
                flood.begin()
            print("[]", flush=True)  # noqa: T201
        else:
            print(json.dumps([flood.end() for flood in floods]), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
