"""A real Synapse, the Matrix homeserver that came with pip, with SQLite and few limits."""

import base64
import hashlib
import hmac
import json
import os
import sys
import urllib.request
from functools import cache
from importlib.util import find_spec
from urllib.error import HTTPError, URLError

import yaml

from tests.servers.server import NotInstalled, Server

DOMAIN = "example.org"
SECRET = "who knows it registers anyone"
LOG = {
    "version": 1,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"level": "WARNING", "handlers": ["console"]},
}
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
        for name, text in self._files().items():
            (self.folder / name).write_text(text)

    def command(self):
        program = [self.installed, "-m", "synapse.app.homeserver"]
        return [*program, "--config-path", self.folder / "homeserver.yaml"]

    def _files(self):
        key = base64.b64encode(os.urandom(32)).decode().rstrip("=")
        return {
            "homeserver.yaml": yaml.safe_dump(self._configuration()),
            "log.yaml": yaml.safe_dump(LOG),
            "signing.key": f"ed25519 a_test {key}\n",
        }

    def _configuration(self):
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
            "log_config": f"{folder}/log.yaml",
            "macaroon_secret_key": "of the tests",
            "registration_shared_secret": SECRET,
            "enable_registration": "registers" in self.options,
            "enable_registration_without_verification": "registers" in self.options,
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

    def register(self, name, *, admin=False):
        """A new account: its id and its access token."""
        path = "/_synapse/admin/v1/register"
        nonce = self.ask("GET", path)["nonce"]
        said = "\0".join((nonce, name, name, "admin" if admin else "notadmin"))
        mac = hmac.new(SECRET.encode(), said.encode(), hashlib.sha1).hexdigest()
        account = {"nonce": nonce, "username": name, "password": name, "admin": admin, "mac": mac}
        found = self.ask("POST", path, account)
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
