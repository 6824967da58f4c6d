"""A web server with one file, for downloads that go wrong: cut off, moved, changed, refused."""

import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class FileServer:
    """Gives `content` under any name; the attributes say how it misbehaves."""

    def __init__(self, content, *, trust=None):
        self.content = content
        self.tag = '"first"'
        self.cuts = []
        """After how many bytes the next answers are cut off."""
        self.status = None
        self.knows_ranges = True
        self.says_length = True
        self.moved_to = ""
        self.asked = []
        """Path and range of each request."""
        self.stops_after = None
        """After how many bytes it falls silent until `release`."""
        self._released = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        if trust is not None:
            self._server.socket = trust.wrap_socket(self._server.socket, server_side=True)
        self.root = f"http{'s' if trust else ''}://127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.release()
        self._server.shutdown()
        self._server.server_close()

    def url(self, name="tiny.gguf"):
        return f"{self.root}/{name}"

    def release(self):
        self.stops_after = None
        self._released.set()

    @property
    def ranges(self):
        return [asked for _, asked in self.asked]

    def _handler(server):  # noqa: N805 - `self` is the handler's below
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                with suppress(ConnectionError):  # it may be enough for whoever asked
                    server.answer(self)

            def log_message(self, *_):
                pass

        return Handler

    def answer(self, to):
        self.asked.append((to.path, to.headers.get("Range")))
        if to.path.startswith(("/moved/", "/forever/")):
            to.send_response(302)
            to.send_header("Location", self.moved_to + to.path.removeprefix("/moved"))
            to.end_headers()
            return
        if self.status is not None:
            to.send_error(self.status)
            return
        self._send(to, self._start(to))

    def _start(self, to):
        asked = re.fullmatch(r"bytes=(\d+)-", to.headers.get("Range") or "")
        same = to.headers.get("If-Range") in (None, self.tag)
        return int(asked[1]) if asked and self.knows_ranges and same else 0

    def _send(self, to, start):
        if start >= len(self.content):
            to.send_error(416)
            return
        rest = self.content[start:]
        to.send_response(206 if start else 200)
        if start:
            last, size = len(self.content) - 1, len(self.content)
            to.send_header("Content-Range", f"bytes {start}-{last}/{size}")
        if self.says_length:
            to.send_header("Content-Length", str(len(rest)))
        to.send_header("ETag", self.tag)
        to.end_headers()
        if self.stops_after is not None:
            to.wfile.write(rest[: self.stops_after])
            self._released.wait(20)
            return
        to.wfile.write(rest[: self.cuts.pop(0)] if self.cuts else rest)
