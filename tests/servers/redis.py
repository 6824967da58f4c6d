"""A real Redis (7 or newer) or Valkey, from PATH."""

import re
import shutil
import socket
import subprocess
from functools import cache

from tests.servers.server import NotInstalled, Server

OLDEST = 7


class Redis(Server):
    name = "redis"

    @staticmethod
    @cache
    def find():
        for path in filter(None, map(shutil.which, ("redis-server", "valkey-server"))):
            if version(path) >= OLDEST:
                return path
        raise NotInstalled(
            f"redis-server {OLDEST} or newer is not installed: apt install redis-server"
        )

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self):
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        return [self.installed, *where, "--save", "", *self.options]

    def answers(self):
        try:
            return self.ask("PING") == b"+PONG\r\n"
        except OSError:
            return False

    def ask(self, command):
        """One command in one line, and the first line of its answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
            connection.sendall(f"{command}\r\n".encode())
            return connection.makefile("rb").readline()

    def fresh(self):
        """The URL, with nothing left behind it."""
        for command in ("FLUSHALL", "SCRIPT FLUSH", "FUNCTION FLUSH"):
            assert self.ask(command) == b"+OK\r\n"
        return self.url


def version(path):
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    return int(re.search(r"\bv=(\d+)", said)[1])
