"""The tool `shell`: runs a command in a sandbox with one folder, no secrets and a time limit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE, TimeoutExpired
from typing import Annotated, Any

import anyio
from anyio.abc import ByteReceiveStream
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from nanoloop import children
from nanoloop.errors import SettingsError, ToolError
from nanoloop.plugins import Plugin
from nanoloop.protocols import Approve, Effect
from nanoloop.tools.function import FunctionTool

NAME = "shell"
INSIDE = "/work"
"""The path of the folder inside the sandbox."""
MOST_COMMAND = 20_000
"""How many characters a command may have."""
MOST_BYTES = 1_000_000
"""How much of the output is kept: half from its beginning and half from its end."""
TMP_BYTES = 200_000_000
FILE_BLOCKS = 2_000_000
"""The maximum size of a file that a command may write, in blocks of 512 bytes."""
PROBE_SECONDS = 10
MORE_SECONDS = 10
"""How much longer than the command the call may take, so that it can report the output."""
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache")
_OF_NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki")
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
    "HOME": "/tmp",  # noqa: S108 - the sandbox's own
    "LANG": "C.UTF-8",
}
_BEGIN = f'exec </dev/null 2>&1; ulimit -f {FILE_BLOCKS}; exec "$0" -c "$1"'


_tried: set[tuple[str, ...]] = set()
"""The sandboxes that work here, so that a reload need not test them again."""


class ShellSettings(BaseModel):
    """Commands that a person approves, each run in a sandbox (bubblewrap) with one folder."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )

    folder: Annotated[Path, Field(strict=False), AfterValidator(Path.expanduser)] = Field(
        examples=["/srv/workshop"]
    )
    """The folder that commands see as /work, and may write to."""
    network: bool = False
    """Whether commands may use the network, this machine's own included."""
    timeout_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 60
    """How long a command may take before it is stopped. (seconds)"""


class Sandbox:
    """Runs commands in bubblewrap, with their own file system, processes and network."""

    def __init__(self, own: ShellSettings, *, program: str) -> None:
        """Create a sandbox; `program` is the path of `bwrap`."""
        self._own = own
        self._program = program
        self._shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"

    def words(self, command: str) -> Sequence[str]:
        """Return the command line that runs this command in the sandbox."""
        own = self._own
        alone = ["--unshare-all", "--unshare-user", *(["--share-net"] if own.network else [])]
        places = [*_SYSTEM, *(_OF_NETWORK if own.network else ())]
        known = [word for name, value in _ENVIRONMENT.items() for word in ("--setenv", name, value)]
        return [
            self._program,
            *(*alone, "--die-with-parent", "--cap-drop", "ALL", "--clearenv", *known),
            *("--ro-bind", "/usr", "/usr"),
            *(word for place in places for word in ("--ro-bind-try", place, place)),
            *("--proc", "/proc", "--dev", "/dev"),
            *("--size", str(TMP_BYTES), "--tmpfs", "/tmp"),  # noqa: S108 - as above
            *("--bind", str(own.folder.absolute()), INSIDE, "--chdir", INSIDE),
            *("--", "/bin/sh", "-c", _BEGIN, self._shell, command),
        ]

    async def run(self, command: str) -> str:
        """Run a command; return how it ended, and its output."""
        output, complaints = Output(), Output()
        began, seconds = time.monotonic(), self._own.timeout_seconds
        async with children.open_group(self.words(command)) as process:
            with anyio.move_on_after(seconds) as limit:
                async with anyio.create_task_group() as group:
                    group.start_soon(output.take, process.stdout, name="output")
                    group.start_soon(complaints.take, process.stderr, name="complaints")
                await children.has_ended(process)
        took = time.monotonic() - began
        if limit.cancelled_caught:
            return f"[stopped after {seconds:g} s]\n{output.text}"
        how = children.how_it_ended(process.returncode)
        told = "\n".join(filter(None, (output.text, complaints.text)))
        return f"[{how} after {took:.1f} s]\n{told}"

    def problem(self) -> str:
        """Return why no sandbox can be created here, or an empty text; this blocks."""
        words = self.words("exit 0")
        if tuple(words) in _tried:
            return ""
        try:
            ended = children.run(
                words, stdout=PIPE, stderr=PIPE, timeout=PROBE_SECONDS, check=False
            )
        except (OSError, TimeoutExpired) as error:
            return type(error).__name__
        if not ended.returncode:
            _tried.add(tuple(words))
            return ""
        lines = ended.stderr.decode("utf-8", "replace").strip().splitlines()
        return lines[-1] if lines else children.how_it_ended(ended.returncode)


class Output:
    """The beginning and the end of a program's output."""

    def __init__(self) -> None:
        self._head, self._tail = bytearray(), bytearray()
        self._left_out = 0

    async def take(self, stream: ByteReceiveStream | None) -> None:
        """Read everything until the program closes its output."""
        if stream is None:
            return
        half = MOST_BYTES // 2
        async for data in stream:
            room = half - len(self._head)
            self._head += data[:room]
            self._tail += data[room:]
            if len(self._tail) > 2 * half:
                self._left_out += len(self._tail) - half
                del self._tail[:-half]

    @property
    def text(self) -> str:
        """The output, with a note on what was left out."""
        half, left_out = MOST_BYTES // 2, self._left_out
        tail = self._tail[-half:]
        left_out += len(self._tail) - len(tail)
        note = f"\n[{left_out:,} bytes are left out here]\n".encode() if left_out else b""
        return (self._head + note + tail).decode("utf-8", "replace").replace("\0", "\ufffd")


class ShellTool:
    """Runs a command that a person has approved."""

    effect: Effect = "writes"
    approve: Approve = "always"
    repeatable = True
    """The same command may be repeated on purpose, because files may have changed in between."""

    def __init__(self, sandbox: Sandbox, own: ShellSettings) -> None:
        self._run = FunctionTool(sandbox.run, name=NAME, description=_description(own))
        self.spec = self._run.spec
        self.timeout_seconds = own.timeout_seconds + MORE_SECONDS
        self.origin = str(own.folder.absolute())
        """An approval applies to commands in this folder."""

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise `ToolError` if this can't be a command, before anyone is asked to approve it."""
        self._run.check(arguments)
        command = arguments["command"]
        if len(command) > MOST_COMMAND or "\0" in command:
            raise ToolError(f"a command has at most {MOST_COMMAND:,} characters, and none is NUL")

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """Run the command; raise `ToolError` if it can't be a command."""
        self.check(arguments)
        return await self._run.call(arguments)


def _description(own: ShellSettings) -> str:
    network = "The network can be used." if own.network else "There is no network."
    return (
        f"Run a shell command in a sandbox, in the folder {INSIDE}, after a person has approved "
        f"it. {network} It is stopped after {own.timeout_seconds:g} s, what it does in the "
        f"background too; files outside of {INSIDE} are not kept."
    )


def make(own: ShellSettings) -> ShellTool:
    """Return the tool; raise `SettingsError` if there is no sandbox."""
    if not own.folder.is_dir():
        raise SettingsError(
            f'tools.shell.folder is "{own.folder}", but there is no such folder: create it, or '
            "choose another one"
        )
    program = shutil.which("bwrap")
    if program is None:
        raise SettingsError(
            "tools.shell needs bubblewrap, which is not installed: `apt install bubblewrap`, or "
            "remove [tools.shell]"
        )
    sandbox = Sandbox(own, program=program)
    if problem := sandbox.problem():
        raise SettingsError(
            f"tools.shell can't be used, because there is no sandbox here ({problem}): allow user "
            "namespaces, or run nanoloop outside of a container"
        )
    return ShellTool(sandbox, own)


PLUGIN = Plugin(name=NAME, settings=ShellSettings, make=make)
