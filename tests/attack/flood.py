"""Anyone who reaches the port: connections that send what no request needs.

    python -m tests.attack.flood KIND PORT SECONDS [--count 10] [--path /api/messages] [--token T]

Prints, as JSON, how long each connection lived after it had sent more than any bound allows.
"""

import argparse
import json
import socket
import time
from collections.abc import Mapping
from threading import Thread
from typing import NamedTuple

BOUND_BYTES = 64_000 + 2 * 262_144
"""What a listener may take before it cuts: its bound, what it reads at once, and what waits."""
PATIENCE_SECONDS = 60
MANY = b"".join(b"x%d: y\r\n" % number for number in range(5000))


class Kind(NamedTuple):
    """How a connection begins, what it sends again and again, and in what pieces."""

    first: bytes
    again: bytes
    piece: int = 65_536


BODY = b"POST PATH HTTP/1.1\r\nHost: localhost\r\nTOKENTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"GET PATH HTTP/1.1\r\nHost: localhost\r\nTOKEN"
KINDS: Mapping[str, Kind] = {
    "trailers": Kind(BODY + b"0\r\n", MANY),
    "one trailer": Kind(BODY + b"0\r\nx: ", b"y" * 65_536),
    "chunk extensions": Kind(BODY, b"1;" + b"e" * 60_000 + b"\r\nx\r\n"),
    "one chunk extension": Kind(BODY + b"1;", b"e" * 65_536),
    "one header": Kind(HEAD + b"x: ", b"y" * 262_144, 262_144),
    "one header byte by byte": Kind(HEAD + b"x: ", b"y" * 20_000, 1),
    "headers": Kind(HEAD, MANY),
    "one target": Kind(b"GET /", b"y" * 65_536),
}


class Flood:
    """One connection that goes on until it is cut, or the time is over."""

    def __init__(self, kind: Kind, port: int, ends: float) -> None:
        self._kind = kind
        self._port = port
        self._ends = ends
        self._passed: float | None = None
        self.sent = 0
        self.is_cut = False

    @property
    def seconds_beyond(self) -> float:
        """How long it lived behind the bound."""
        return 0.0 if self._passed is None else time.monotonic() - self._passed

    def run(self) -> None:
        """Send until it is cut."""
        with socket.create_connection(("127.0.0.1", self._port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(1)
            try:
                self._send(connection, self._kind.first)
                while time.monotonic() < self._ends and self.seconds_beyond < 3:
                    self._send(connection, self._kind.again)
            except TimeoutError:
                return
            except OSError:
                self.is_cut = True

    def _send(self, connection: socket.socket, data: bytes) -> None:
        for start in range(0, len(data), self._kind.piece):
            connection.sendall(data[start : start + self._kind.piece])
            self.sent += self._kind.piece
            if self._passed is None and self.sent > BOUND_BYTES:
                self._passed = time.monotonic()


def main() -> None:
    """Send from so many connections at once, each anew when it was cut."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("port", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--path", default="/api/messages")
    parser.add_argument("--token", default="")
    args = parser.parse_args()
    token = f"Authorization: Bearer {args.token}\r\n" if args.token else ""
    kind = KINDS[args.kind]
    first = kind.first.replace(b"PATH", args.path.encode()).replace(b"TOKEN", token.encode())
    kind = kind._replace(first=first)
    ends = time.monotonic() + args.seconds
    made: list[Flood] = []

    def again_and_again() -> None:
        # The first one in any case until it is cut: a slow machine sends little in this time.
        until = ends + PATIENCE_SECONDS
        while time.monotonic() < until:
            made.append(flood := Flood(kind, args.port, until))
            flood.run()
            until = ends if flood.is_cut else until
            time.sleep(0.05)

    threads = [Thread(target=again_and_again) for _ in range(args.count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {"made": len(made), "cut": sum(flood.is_cut for flood in made)}
    print(json.dumps(found | {"most_bytes": max(flood.sent for flood in made)}))  # noqa: T201


if __name__ == "__main__":
    main()
