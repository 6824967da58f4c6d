"""`nanoloop service`: runs the daemon as this user's service, with systemd or launchd."""

from __future__ import annotations

import getpass
import os
import plistlib
import re
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from nanoloop import children
from nanoloop.cli import Exit, add_actions
from nanoloop.cli.agents_file import write_agents_file
from nanoloop.cli.amounts import whole
from nanoloop.cli.config import values
from nanoloop.cli.first_run import fetch_local_models, no_model
from nanoloop.cli.output import say
from nanoloop.errors import NanoloopError
from nanoloop.files import make_folder, replace_file, shipped, user_folder
from nanoloop.settings import Settings

NAME = "nanoloop"
_UNIT = "config/nanoloop.service"
"""The system-wide unit, from which the user's unit is made."""
_FOR_ROOT = re.compile(
    "Wants|After|Environment|EnvironmentFile|DynamicUser|User|StateDirectory(Mode)?"
    "|CapabilityBoundingSet|Protect.*|Private.*"
)
"""Options that only a system-wide systemd supports, or that differ for each user."""
_NEEDED = re.compile(
    "(HTTPS?|ALL|NO)_PROXY|SSL_CERT_(FILE|DIR)|XDG_(CONFIG|DATA)_HOME|PYTHONPATH", re.IGNORECASE
)
"""Matches variables that affect the daemon but are not settings."""
_CALL_KEEPS = ("XDG_*", "DBUS_*", "SYSTEMD_*", "TERM", "COLUMNS", "LINES", "PAGER", "LESS*")
"""Variables that systemctl and journalctl need to find this user's systemd and show its output."""
_CALL_SECONDS = 120
_LINES = 50


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of `nanoloop service`."""
    action = add_actions(parser)
    made = action("install", "install the service and start it, now and at each login", _install)
    made.add_argument(
        "--print", action="store_true", help="print the service file without changing anything"
    )
    for name, promise, act in (
        ("status", "show whether the service is running", _status),
        ("restart", "restart the service, for example after an update", _restart),
        ("logs", "show the latest log lines of the service", _logs),
        (
            "uninstall",
            "stop and remove the service; settings and conversations are kept",
            _uninstall,
        ),
    ):
        made = action(name, promise, _without_settings)
        made.set_defaults(run=act)  # invalid settings may be the reason for asking
        if name == "logs":
            made.add_argument("-f", "--follow", action="store_true", help="keep showing new lines")
            made.add_argument(
                "-n",
                "--lines",
                metavar="COUNT",
                type=whole,
                default=_LINES,
                help="how many lines to show (%(default)s)",
            )


def _without_settings(_: Namespace, __: Settings) -> None:
    """Do nothing; used by actions that read no settings."""


class NoService(NanoloopError):
    """There is no service manager on this machine, or a request to it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A command for a service manager to run."""

    command: Sequence[str]
    folder: Path
    """The working directory."""
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables, which may include keys."""


class Manager(Protocol):
    """A service manager for one user."""

    @property
    def file(self) -> Path:
        """The file in which the manager looks for the service."""
        ...

    def written(self, service: Service) -> str:
        """Return the service file's text."""
        ...

    def keep(self, service: Service) -> Iterator[str]:
        """Write the service with its variables; yields a line for each additional file."""
        ...

    def start(self) -> Iterator[str]:
        """Start the service now and automatically later, and yield advice.

        Raise `NoService` if that fails.
        """
        ...

    def restart(self) -> None:
        """Restart the service; raise `NoService` if that fails."""
        ...

    def remove(self) -> None:
        """Stop and uninstall the service."""
        ...

    def status(self) -> int:
        """Print the service's status; return 0 only if it is running."""
        ...

    def logs(self, lines: int, *, follow: bool) -> int:
        """Print the end of the service's log."""
        ...


def install(settings: Settings) -> None:
    """Write and start the service for these settings, and report it.

    Raise `NoService` if that fails.
    """
    fetch_local_models(settings)  # otherwise, the first start would take that long
    manager, service = _manager(), service_for(settings)
    there = manager.file.exists()
    said = [*manager.keep(service)]
    say("\n".join((f"Written: {manager.file}", *said)))
    if agents := write_agents_file(settings):
        say(f"Wrote {agents}, for anyone who helps you with the bot")
    say("\n".join((*manager.start(), "It was restarted." if there else "It is running now.")))
    say("Next: nanoloop service status, logs, restart, uninstall")


def service_for(settings: Settings) -> Service:
    """Return a service that runs the daemon with the current settings."""
    if settings.file != settings.own_file and settings.file is not None:
        raise NoService(
            f"{settings.file} in the current folder is not trusted, so no service is installed: "
            f"name it with --config {settings.file}, or trust it: nanoloop config trust"
        )
    file = settings.own_file.absolute() if settings.own_file else None
    # `-P` prevents a folder's files from being imported in place of real modules.
    command = [sys.executable, "-P", "-m", "nanoloop", "run"]
    command += ["--config", str(file)] if file else []
    command += ["--data", str(settings.data.absolute())]
    named = {key: settings.origin(key) for key, _ in values(settings)}
    for key, flag in (("model", "--model"), ("log.level", "--log-level")):
        if named[key].kind == "flag":
            command += [flag, str(settings.model if key == "model" else settings.log.level)]
    names = {origin.name for origin in named.values() if origin.kind == "env"}
    names |= set(filter(_NEEDED.fullmatch, os.environ))
    variables = {name: os.environ[name] for name in sorted(names) if os.environ.get(name)}
    folder = file.parent if file and file.parent == Path.cwd() else Path.home()
    return Service(command=command, folder=folder, variables=variables)


def _install(args: Namespace, settings: Settings) -> int:
    if not settings.has_model:
        say(f"nanoloop: {no_model(settings)}", err=True)
        return Exit.NOT_CONFIGURED
    if args.print:
        say(_manager(is_used=False).written(service_for(settings)), end="")
    else:
        install(settings)
    return Exit.DONE


def _status(_: Namespace) -> int:
    return _installed().status()


def _restart(_: Namespace) -> int:
    _installed().restart()
    say("It was restarted.")
    return Exit.DONE


def _logs(args: Namespace) -> int:
    return _installed().logs(args.lines, follow=args.follow)


def _uninstall(_: Namespace) -> int:
    manager = _installed()
    manager.remove()
    say(f"Stopped, and removed: {manager.file}\nSettings, keys and conversations are kept.")
    return Exit.DONE


def _installed() -> Manager:
    manager = _manager(is_used=False)
    if not manager.file.exists():
        raise NoService("no service is installed: `nanoloop service install` writes and starts it")
    return _manager()


def _manager(*, is_used: bool = True) -> Manager:
    """Return this machine's service manager; raises `NoService` if it is missing or fails."""
    if sys.platform == "darwin":
        return Launchd()
    if shutil.which("systemctl") is None:
        raise NoService(
            "this machine has neither systemd nor launchd: start `nanoloop run` with its own "
            "service manager"
        )
    if is_used and _call("systemctl", "--user", "show-environment").returncode:
        raise NoService(
            f"systemd runs no services for {getpass.getuser()} here: log in directly (not with "
            "`su`), or start `nanoloop run` in another way"
        )
    return Systemd()


class Systemd:
    """One user's systemd."""

    def __init__(self) -> None:
        config = user_folder("config", os.environ)
        self.file = config.parent / "systemd" / "user" / f"{NAME}.service"
        self._variables = config / "service.env"

    def written(self, service: Service) -> str:
        """Return the unit's text."""
        return "\n".join(self._lines(service)) + "\n"

    def _lines(self, service: Service) -> Iterator[str]:
        yield f"# Written by `nanoloop service install`, from nanoloop's {_UNIT}."
        for line in unit().splitlines():
            name, is_set, _ = line.partition("=")
            if name == "ExecStart":
                yield f"ExecStart={' '.join(map(_quoted, service.command))}"
                yield f"WorkingDirectory={str(service.folder).replace('%', '%%')}"
                yield f"EnvironmentFile=-{str(self._variables).replace('%', '%%')}"
            elif name == "WantedBy":
                yield "WantedBy=default.target"
            elif not line.startswith("#") and not (is_set and _FOR_ROOT.fullmatch(name)):
                yield line

    def keep(self, service: Service) -> Iterator[str]:
        """Write the unit and its variables, keeping earlier variables that this shell lacks."""
        before = _variables_in(self._variables)
        if now := before | dict(service.variables):
            text = "".join(f"{name}={_escaped(value)}\n" for name, value in now.items())
            _put(self._variables, text)
            yield f"Variables, readable only by you: {self._variables} ({', '.join(now)})"
        _put(self.file, self.written(service))

    def start(self) -> Iterator[str]:
        """Start the service now, and at boot if this user is allowed to."""
        self._do("daemon-reload")
        self._do("enable", NAME)
        self.restart()
        user = getpass.getuser()
        if _call("loginctl", "enable-linger", user).returncode:
            yield (
                f"It stops when you log out: `sudo loginctl enable-linger {user}` keeps it "
                "running, and starts it at boot."
            )

    def restart(self) -> None:
        """Restart the service and wait until it is ready."""
        self._do("restart", NAME)

    def remove(self) -> None:
        """Stop the service and remove its unit."""
        _call("systemctl", "--user", "disable", "--now", NAME)
        self.file.unlink(missing_ok=True)
        self._do("daemon-reload")

    def status(self) -> int:
        """Print the status that systemd reports."""
        code = _show("systemctl", "--user", "--no-pager", "--lines=0", "status", NAME)
        return Exit.FAILED if code else Exit.DONE

    def logs(self, lines: int, *, follow: bool) -> int:
        """Print the service's lines from the journal."""
        words = ["--user-unit", NAME, "--output=cat", "--no-pager", f"--lines={lines}"]
        return Exit.FAILED if _show("journalctl", *words, *["--follow"] * follow) else Exit.DONE

    def _do(self, *words: str) -> None:
        done = _call("systemctl", "--user", *words)
        if done.returncode:
            raise NoService(
                f"systemd could not {words[0]} it: {_last_line(done)}; `nanoloop service logs` "
                "shows why"
            )


class Launchd:
    """A macOS user's launchd."""

    def __init__(self) -> None:
        library = Path.home() / "Library"
        self.file = library / "LaunchAgents" / f"{NAME}.plist"
        self._log = library / "Logs" / f"{NAME}.log"

    def written(self, service: Service) -> str:
        """Return the property list, with the timeouts and permissions of the unit."""
        said = dict(line.split("=", 1) for line in unit().splitlines() if "=" in line)
        return plistlib.dumps(
            {
                "Label": NAME,
                "ProgramArguments": [*service.command],
                "WorkingDirectory": str(service.folder),
                "EnvironmentVariables": self._variables() | dict(service.variables),
                "RunAtLoad": True,
                "KeepAlive": {"SuccessfulExit": False},
                "ThrottleInterval": 60,
                "ExitTimeOut": int(said["TimeoutStopSec"]),
                "Umask": int(said["UMask"], 8),
                "StandardErrorPath": str(self._log),
            }
        ).decode()

    def _variables(self) -> dict[str, str]:
        """Return the variables that the file already contains."""
        with suppress(OSError, plistlib.InvalidFileException):
            found: dict[str, str] = plistlib.loads(self.file.read_bytes())["EnvironmentVariables"]
            return found
        return {}

    def keep(self, service: Service) -> Iterator[str]:
        """Write the property list, which includes the variables."""
        text = self.written(service)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        _put(self.file, text)
        if service.variables:
            yield f"Variables in it, readable only by you: {', '.join(service.variables)}"

    def start(self) -> Iterator[str]:
        """Start the service now and at each login."""
        _call("launchctl", "bootout", self._place)
        done = _call("launchctl", "bootstrap", self._domain, str(self.file))
        if done.returncode:
            raise NoService(f"launchd could not start it: {_last_line(done)}")
        yield f"It logs to {self._log}."

    def restart(self) -> None:
        """Restart the service."""
        done = _call("launchctl", "kickstart", "-k", self._place)
        if done.returncode:
            raise NoService(f"launchd could not restart it: {_last_line(done)}")

    def remove(self) -> None:
        """Stop the service and remove its file."""
        _call("launchctl", "bootout", self._place)
        self.file.unlink(missing_ok=True)

    def status(self) -> int:
        """Print the status that launchd reports."""
        return Exit.FAILED if _show("launchctl", "print", self._place) else Exit.DONE

    def logs(self, lines: int, *, follow: bool) -> int:
        """Print the end of the service's log."""
        words = ["-n", str(lines), *["-F"] * follow, str(self._log)]
        return Exit.FAILED if _show("tail", *words) else Exit.DONE

    @property
    def _domain(self) -> str:
        return f"gui/{os.getuid()}"

    @property
    def _place(self) -> str:
        return f"{self._domain}/{NAME}"


def unit() -> str:
    """Return the systemd unit for a system-wide service."""
    return shipped(_UNIT).read_text(encoding="utf-8")


def _quoted(word: str) -> str:
    """Quote a word for `ExecStart` in a systemd unit."""
    word = word.replace("%", "%%").replace("$", "$$")
    if re.fullmatch(r"[\w%$@:,./+=-]+", word):
        return word
    return '"{}"'.format(word.replace("\\", "\\\\").replace('"', '\\"'))


_SPECIAL = re.compile(r'[\\"`$]')


def _escaped(value: str) -> str:
    """Escape a value for a systemd environment file."""
    return '"{}"'.format(_SPECIAL.sub(r"\\\g<0>", value))


def _variables_in(file: Path) -> dict[str, str]:
    """Return the variables in an environment file."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    found = re.findall(r'^(\w+)="((?:[^"\\]|\\.)*)"$', text, re.MULTILINE | re.DOTALL)
    found += re.findall(r"^(\w+)=([^\"\n]*)$", text, re.MULTILINE)
    return {name: re.sub(r"\\(.)", r"\1", value) for name, value in found}


def _put(file: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    make_folder(file.parent)
    replace_file(file, text.encode(), durable=True)


def _call(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a program to completion and capture its output."""
    try:
        return children.run(
            words,
            keeps=_CALL_KEEPS,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=_CALL_SECONDS,
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(words, 127, "", f"there is no {words[0]}")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"it took more than {_CALL_SECONDS} s")


def _show(*words: str) -> int:
    """Run a program and let it print its output."""
    sys.stdout.flush()
    try:
        return children.run(words, keeps=_CALL_KEEPS, check=False).returncode
    except FileNotFoundError:
        raise NoService(f"{words[0]} is not installed: install it") from None


def _last_line(done: subprocess.CompletedProcess[Any]) -> str:
    lines = f"{done.stdout}\n{done.stderr}".strip().splitlines()
    return lines[-1].rstrip(".") if lines else f"code {done.returncode}"
