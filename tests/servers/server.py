"""A server process with a port and a folder, gone when the tests are, however those end."""

import os
import random
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

LIMIT_SECONDS = 30
GUARD = """
while read -r line; do server=$line; done # until the tests close it, or are killed
if [ -n "$server" ]; then
    kill -CONT "$server"; kill "-$1" "$server"
    tries=0
    while kill -0 "$server" && ! grep -q ") Z " "/proc/$server/stat" && [ $tries -lt 500 ]; do
        tries=$((tries + 1)); sleep 0.02
    done
    kill -KILL "$server"
fi
rm -rf "$2"
"""
"""Run beside the tests by `sh`; each line it reads is the server's pid, or empty for none."""


class NotInstalled(Exception):
    """There is no such server here; the message says how to get it."""


class Server:
    name: str
    stop_signal = signal.SIGKILL

    def __init__(self, *options):
        self.installed = self.find()
        self.options = options
        self.user = self.whose()
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"nanoloop-{self.name}-"))
        self._process = None
        self._guard = subprocess.Popen(
            ["sh", "-c", GUARD, "guard", str(int(self.stop_signal)), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C in the terminal is for the tests
            cwd="/",
        )

    def __enter__(self):
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    @property
    def pid(self):
        return self._process.pid

    @property
    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    @staticmethod
    def find():
        """Where it is installed, or `NotInstalled`."""
        raise NotImplementedError

    @staticmethod
    def whose():
        """Whose process it is, in `subprocess`'s words."""
        return {}

    def prepare(self):
        """What is done once, before the first start."""

    def command(self):
        raise NotImplementedError

    def answers(self):
        raise NotImplementedError

    def start(self):
        """Return when the server answers, on the same port and with the same folder each time."""
        self._process = self.launch(self.command(), run=subprocess.Popen)
        self._tell_guard(str(self.pid))
        self._wait_for(self.answers)

    def kill(self):
        """End it as `kill -9` does, with all its children."""
        self.pause()
        family = list(self._family())
        _signal(family, signal.SIGKILL)
        self._process.wait(LIMIT_SECONDS)
        self._tell_guard("")
        wait_until(lambda: not any(map(is_alive, family)))

    def restart(self):
        self.kill()
        self.start()

    def pause(self):
        """It hangs: connections stay open, nothing is answered."""
        _signal(self._family(), signal.SIGSTOP)

    def resume(self):
        _signal(self._family(), signal.SIGCONT)

    def stop(self):
        """Leave no process and no folder; the guard sees to it."""
        if self._process:
            self.resume()
        self._guard.stdin.close()
        if self._process:
            self._process.wait(LIMIT_SECONDS)
        self._guard.wait(LIMIT_SECONDS)

    def launch(self, command, *, run=subprocess.run, **more):
        """Run one of the server's programs, away from the terminal; what it says is in the log."""
        with (self.folder / "log").open("ab") as log:
            return run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"},
                start_new_session=True,
                **self.user,
                **more,
            )

    def _wait_for(self, state):
        wait_until(lambda: self._process.poll() is not None or state(), otherwise=lambda: self.log)
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended at once: {self.log[-2000:]}")

    def _family(self):
        """The process, then its children as they are by then (where /proc tells)."""
        if self._process.poll() is None:
            yield self.pid
            everyone = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
            yield from (pid for pid in everyone if _standing(pid)[1] == str(self.pid))

    def _tell_guard(self, pid):
        self._guard.stdin.write(f"{pid}\n".encode())
        self._guard.stdin.flush()


def free_port():
    """A port that no outgoing connection can take while a server is down."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def is_alive(pid):
    return _standing(pid)[0] not in "XZ"


def _standing(pid):
    """A process's state and its parent's pid; dead and nobody's where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "X", ""


def _signal(pids, number):
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_until(state, otherwise=str):
    end = time.monotonic() + LIMIT_SECONDS
    while not state():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {LIMIT_SECONDS} s: {otherwise()[-2000:]}")
        time.sleep(0.005)
