"""A real Synapse, the Matrix homeserver that came with pip, with SQLite and few limits."""

import json
import sys
import urllib.request
from functools import cache
from importlib.util import find_spec
from urllib.error import HTTPError, URLError

import yaml

from tests.servers.server import NotInstalled, Server

DOMAIN = "example.org"
PLENTY = {"per_second": 10_000, "burst_count": 10_000}
UNLIMITED = {
    "rc_message": PLENTY,
    "rc_registration": PLENTY,
    "rc_login": {"address": PLENTY, "account": PLENTY, "failed_attempts": PLENTY},
    "rc_joins": {"local": PLENTY, "remote": PLENTY},
    "rc_joins_per_room": PLENTY,
    "rc_invites": {"per_room": PLENTY, "per_user": PLENTY, "per_issuer": PLENTY},
    "rc_room_creation": PLENTY,
    "rc_media_create": PLENTY,
}


class Synapse(Server):
    name = "synapse"

    @staticmethod
    @cache
    def find():
        if find_spec("synapse") is None:
            raise NotInstalled("Synapse is not installed: pip install matrix-synapse")
        return sys.executable

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def prepare(self):
        (self.folder / "homeserver.yaml").write_text(yaml.safe_dump(self.configuration()))
        config = ["--config-path", self.folder / "homeserver.yaml", "--generate-keys"]
        done = self.launch([*self._program(), *config])
        if done.returncode:
            raise RuntimeError(f"Synapse made no keys: {self.log[-2000:]}")

    def command(self):
        return [*self._program(), "--config-path", self.folder / "homeserver.yaml"]

    def configuration(self):
        folder = str(self.folder)
        listener = {
            "port": self.port,
            "type": "http",
            "tls": False,
            "bind_addresses": ["127.0.0.1"],
            "resources": [{"names": ["client"]}],
        }
        return UNLIMITED | {
            "server_name": DOMAIN,
            "listeners": [listener],
            "database": {"name": "sqlite3", "args": {"database": f"{folder}/homeserver.db"}},
            "media_store_path": f"{folder}/media",
            "signing_key_path": f"{folder}/signing.key",
            "enable_registration": True,
            "enable_registration_without_verification": True,
            "bcrypt_rounds": 4,
            "report_stats": False,
            "trusted_key_servers": [],
            "presence": {"enabled": False},
        }

    def answers(self):
        try:
            return "versions" in self.ask("GET", "/_matrix/client/versions")
        except (URLError, ConnectionError):
            return False

    def register(self, name):
        """A new account: its id and its access token."""
        account = {"username": name, "password": name, "auth": {"type": "m.login.dummy"}}
        found = self.ask("POST", "/_matrix/client/v3/register", account)
        return found["user_id"], found["access_token"]

    def ask(self, method, path, body=None, *, token=None):
        """What it answers to one request, as an object."""
        request = urllib.request.Request(
            f"{self.url}{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {token}"} if token else {},
        )
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.read().decode()}") from error

    def _program(self):
        return [self.installed, "-m", "synapse.app.homeserver"]
