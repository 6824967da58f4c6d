"""A server that takes payments, each once by its key, and drops connections at random.

`python -m tests.servers.payments LEDGER PORT SEED`: the ledger has a line for each payment taken.
"""

import random
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

DROPPED_BEFORE, DROPPED_BEHIND = 0.15, 0.3
"""Below the first, a request is dropped before anything is done; below the second, behind it."""


class Payments(ThreadingHTTPServer):
    """Takes `POST /KEY/ORDER`, and says at `GET /KEY` which order was paid with a key."""

    daemon_threads = True

    def __init__(self, ledger, port, seed):
        super().__init__(("127.0.0.1", port), Request)
        self._ledger = Path(ledger)
        self._chance = random.Random(seed)
        self._lock = Lock()
        self._paid = dict(line.split() for line in self._ledger.read_text().splitlines())

    def fate(self):
        with self._lock:
            return self._chance.random()

    def pay(self, key, order):
        with self._lock:
            if key not in self._paid:
                self._paid[key] = order
                with self._ledger.open("a") as ledger:
                    ledger.write(f"{key} {order}\n")

    def order(self, key):
        with self._lock:
            return self._paid.get(key)


class Request(BaseHTTPRequestHandler):
    def do_POST(self):
        fate = self.server.fate()
        if fate < DROPPED_BEFORE:
            return
        _, key, order = self.path.split("/")
        self.server.pay(key, order)
        if fate > DROPPED_BEHIND:
            self.reply(200, f"paid {order}")

    def do_GET(self):
        order = self.server.order(self.path[1:])
        if self.server.fate() > DROPPED_BEFORE:
            self.reply(200 if order else 404, f"paid {order}" if order else "not paid")

    def reply(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    LEDGER, PORT, SEED = sys.argv[1:]
    Payments(LEDGER, int(PORT), int(SEED)).serve_forever()
