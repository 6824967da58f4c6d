"""A real IRC server, ngIRCd 26 or newer, from PATH or where Debian has it."""

import os
import shutil
import socket
from functools import cache

from tests.servers.server import NotInstalled, Server

PASSWORD = "open"
OPERATOR = "root"
SETTINGS = """
[Global]
    Name = irc.example.org
    Info = for the tests
    AdminInfo1 = nobody
    Listen = 127.0.0.1
    Ports = {port}
    Password = {password}
[Limits]
    MaxConnections = 0
    MaxConnectionsIP = 0
    MaxJoins = 0
    MaxNickLength = 30
    MaxPenaltyTime = 0
[Options]
    DNS = no
    Ident = no
    PAM = no
[Operator]
    Name = {operator}
    Password = {operator}
"""


class Ngircd(Server):
    name = "ngircd"

    @staticmethod
    @cache
    def find():
        found = shutil.which("ngircd", path=f"{os.environ['PATH']}:/usr/sbin")
        if found is None:
            raise NotInstalled("ngircd is not installed: apt install ngircd")
        return found

    def prepare(self):
        said = SETTINGS.format(port=self.port, password=PASSWORD, operator=OPERATOR)
        (self.folder / "ngircd.conf").write_text(said)

    def command(self):
        return [self.installed, "--nodaemon", "--config", self.folder / "ngircd.conf"]

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False
