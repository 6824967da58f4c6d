"""`nanoloop` as a process of its own, talking with a model server of the test's."""

import os
import re
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

ROOT = Path(__file__).parent.parent.parent
UNSEEN = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[ -Z\\^-~]|[\x00-\x20\x7f]")
"""What a terminal obeys or shows as nothing."""
_LOOK_SECONDS = 0.05
WHERE_IS_THE_CURSOR, AT_HOME = "\x1b[6n", "\x1b[1;1R"


class CommandLine:
    """Starts `nanoloop` in a world of its own: one folder, one server or none."""

    def __init__(self, folder, url=None):
        self.data = folder / "data"
        self.log = self.data / "nanoloop.log"
        self._folder = folder
        self._env = {
            "HOME": str(folder),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "NANOLOOP_DATA": str(self.data),
            "TERM": "xterm",
            "LANG": "C.UTF-8",
        }
        if url is not None:
            self._env["OPENAI_BASE_URL"] = url

    @property
    def turns_ended(self):
        """How many messages were answered, or failed, as the log tells it."""
        return len(re.findall(r'"event": "turn_(?:finished|failed)"', self.log.read_text()))

    def set(self, **variables):
        """Let further variables stand in its environment."""
        self._env |= variables

    async def run(self, *words, text=None, code=0):
        """Run to the end, with this text as standard input; returns what it printed."""
        with anyio.fail_after(20):
            done = await anyio.run_process(
                self.words(*words),
                input=(text or "").encode(),
                check=False,
                cwd=self._folder,
                env=self._env,
            )
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"{out}\n{err}"
        return out, err

    @asynccontextmanager
    async def started(self, *words, terminal=None, **options):
        """Run it meanwhile; it is gone at the end. A terminal is all three of its files."""
        if terminal is not None:
            files = dict.fromkeys(("stdin", "stdout", "stderr"), terminal.slave)
            options = files | {"start_new_session": True} | options
        process = await anyio.open_process(
            self.words(*words), cwd=self._folder, env=self._env, **options
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            with anyio.CancelScope(shield=True):
                await process.wait()
                await process.aclose()

    def words(self, *words):
        return [sys.executable, "-m", "nanoloop", *words]


async def ended(process, *, pressing=None):
    """Its exit code, soon; with a signal that is sent twice, as an impatient person does.

    Not a third time: nobody listens any more in a process that is on its way out.
    """
    with anyio.fail_after(20):
        for _ in range(2 if pressing else 0):
            process.send_signal(pressing)
            with anyio.move_on_after(0.5):
                await process.wait()
                break
        return await process.wait()


async def line_with(stream, word):
    """The next line of a process's output that has this word."""
    lines = BufferedByteReceiveStream(stream)
    with anyio.fail_after(20):
        while word not in (line := (await lines.receive_until(b"\n", 100_000)).decode()):
            pass
    return line


class Terminal:
    """A terminal for a process: what it shows, and keys."""

    def __init__(self, *, columns=90):
        self._master, self.slave = os.openpty()
        size = ["rows", "24", "cols", str(columns)]
        subprocess.run(["stty", *size], stdin=self.slave, check=True)
        self.seen = ""
        self.stillness = 0.0
        """The longest time, while a person waited for it, in which nothing new was to be seen."""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._master)
        os.close(self.slave)

    def type(self, text):
        os.write(self._master, text.encode())

    async def shows(self, text, **patience):
        """Wait until it has shown this, since the last time; returns what came before."""
        await self.until(lambda: text in self.seen, **patience)
        before, _, self.seen = self.seen.partition(text)
        return before

    async def until(self, condition, *, within=20, is_awaited=True):
        """Show what comes until then; a person may not wait for it."""
        moved = monotonic()
        with anyio.fail_after(within):
            while not condition():
                with anyio.move_on_after(_LOOK_SECONDS):
                    await anyio.wait_readable(self._master)
                    if self._read() and is_awaited:
                        self.stillness = max(self.stillness, monotonic() - moved)
                        moved = monotonic()

    def _read(self):
        """Whether anything in what it now shows is to be seen."""
        piece = os.read(self._master, 65536).decode(errors="replace")
        if WHERE_IS_THE_CURSOR in piece:
            self.type(AT_HOME)
        self.seen += piece
        return bool(UNSEEN.sub("", piece))
