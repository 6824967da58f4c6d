"""The process that a model runs in, as seen from here: started, watched, ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import suppress

from nanoloop.errors import ProviderError
from nanoloop.providers.local.order import Order, Report

COMMAND = (sys.executable, "-P", "-m", "nanoloop.providers.local.child")
LAST_LINES = 8
"""What of llama.cpp's own words is kept while it loads; afterwards nothing is."""
SHOWN = 200


class ModelProcess:
    """One process from its start to its end. It belongs to no event loop, and any may wait."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._ready: Future[Report] = Future()
        self._ready.set_running_or_notify_cancel()  # who gives up waiting ends nobody else's
        self._last_lines: deque[bytes] = deque(maxlen=LAST_LINES)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_unwanted = False
        self.end = ""
        """How it ended, once it has."""
        # A thread of its own, for as long as it runs: Linux ends a child with the thread, not
        # with the process, that started it.
        self._keeper = threading.Thread(target=self._keep, name="local model", daemon=True)
        self._keeper.start()

    @property
    def has_ended(self) -> bool:
        """Whether there is no such process any more."""
        return not self._keeper.is_alive()

    @property
    def pid(self) -> int | None:
        """Its number, once it has one."""
        return self._process.pid if self._process else None

    async def ready(self) -> Report:
        """Wait until the model can be asked; raises `ProviderError` where it never will be."""
        report = await asyncio.wrap_future(self._ready)
        if report.problem:
            raise ProviderError(report.problem)
        return report

    def end_now(self) -> None:
        """Kill it, and block until it is gone; it keeps nothing that could be lost."""
        self._is_unwanted = True
        if self._process is not None:
            self._process.kill()
        self._keeper.join()

    def _keep(self) -> None:
        try:
            self.end = _how(self._run())
        except OSError as error:
            self.end = f"can't be started ({error.strerror})"
        finally:
            if not self._ready.done():
                self._ready.set_result(Report(problem=self._why_not_ready()))

    def _run(self) -> int:
        with subprocess.Popen(  # noqa: S603 - this package's own module
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            start_new_session=True,  # Ctrl-C is for us: the answer going on may be finished
        ) as self._process:
            if self._is_unwanted:
                self._process.kill()
            self._send_order(self._process)
            self._listen(self._process)
        return self._process.returncode

    def _send_order(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with suppress(BrokenPipeError):  # it has ended, and what it said tells why
            process.stdin.write(self._order.line())
            process.stdin.flush()  # and it stays open: its end is the child's

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        for line in process.stdout:
            if self._ready.done():
                continue
            report = Report.read(line)
            if report is not None:
                self._ready.set_result(report)
            elif line.strip():
                self._last_lines.append(line)

    def _why_not_ready(self) -> str:
        words = self._last_lines[-1].decode("utf-8", "replace").strip() if self._last_lines else ""
        return f"{self._order.model} could not be started, its process {self.end}" + (
            f" ({words[:SHOWN]})" if words else ""
        )


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with {code}"
    name = signal.Signals(-code).name
    return f"was killed ({name})" + (", most often for want of memory" if name == "SIGKILL" else "")
