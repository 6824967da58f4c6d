"""`nanoloop service`: a unit that systemd takes, a plist, and what their managers are told."""

import os
import plistlib
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import anyio
import pytest

from nanoloop.cli import service
from nanoloop.cli.service import Launchd, NoService, Service, Systemd
from tests.openai_server import OpenAIServer
from tests.stages.command_line import CommandLine

KEY = 'a "quoted" $value with `ticks` and a \\'
STAND_IN = """#!/bin/sh
# Does nothing, but for saying so.
echo "$(basename "$0") $*" >> "{folder}/told"
case "$(basename "$0") $*" in
    {failing}) echo "why it fails" >&2; exit 1;;
esac
"""


class World:
    """A home with a systemd that takes note of what it is told."""

    def __init__(self, folder, url):
        self.folder = folder
        self.nanoloop = CommandLine(folder, url)
        self.unit = folder / ".config" / "systemd" / "user" / "nanoloop.service"
        self.variables = folder / ".config" / "nanoloop" / "service.env"
        self.stand_in()

    def stand_in(self, failing="nothing"):
        programs = self.folder / "bin"
        programs.mkdir(exist_ok=True)
        for name in ("systemctl", "loginctl", "journalctl"):
            (programs / name).write_text(STAND_IN.format(folder=self.folder, failing=failing))
            (programs / name).chmod(0o700)
        self.nanoloop.set(PATH=f"{programs}:{os.environ['PATH']}", OPENAI_API_KEY=KEY)

    @property
    def told(self):
        return (self.folder / "told").read_text().splitlines()

    @property
    def says(self):
        return dict(
            line.split("=", 1) for line in self.unit.read_text().splitlines() if "=" in line
        )


@pytest.fixture
async def world(tmp_path):
    async with OpenAIServer() as server:
        yield World(tmp_path, server.url)


@pytest.mark.slow
async def test_install_writes_the_unit_and_the_keys_for_their_owner_only_and_starts_it(world):
    out, _ = await world.nanoloop.run("service", "install")
    assert [path.stat().st_mode & 0o777 for path in (world.unit, world.variables)] == [0o600] * 2
    assert world.told == [
        "systemctl --user show-environment",
        "systemctl --user daemon-reload",
        "systemctl --user enable nanoloop",
        "systemctl --user restart nanoloop",
        f"loginctl enable-linger {os.environ.get('USER', 'root')}",
    ]
    assert str(world.unit) in out
    assert (world.variables.parent / "AGENTS.md").exists()
    assert "OPENAI_API_KEY" in out
    assert "quoted" not in out + world.unit.read_text()


@pytest.mark.slow
async def test_what_the_unit_starts_is_a_daemon_that_says_when_it_is_ready(world):
    await world.nanoloop.run("service", "install")
    says = world.says
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(world.folder / "notify"))
    env = service._variables_in(world.variables)
    assert env["OPENAI_API_KEY"] == KEY
    env |= {"HOME": str(world.folder), "NOTIFY_SOCKET": str(world.folder / "notify")}
    env |= {"PYTHONPATH": os.environ.get("PYTHONPATH", str(Path(service.__file__).parents[2]))}
    command = shlex.split(says["ExecStart"])
    async with await anyio.open_process(command, env=env, cwd=says["WorkingDirectory"]) as process:
        with anyio.fail_after(20):
            await anyio.wait_readable(manager)
        assert manager.recv(100) == b"READY=1"
        process.terminate()
        assert await process.wait() == 0
    manager.close()


@pytest.mark.slow
async def test_keys_of_an_earlier_install_stay_if_this_shell_does_not_have_them(world):
    await world.nanoloop.run("service", "install")
    world.nanoloop.set(OPENAI_API_KEY="")
    out, _ = await world.nanoloop.run("service", "install")
    assert service._variables_in(world.variables)["OPENAI_API_KEY"] == KEY
    assert "It was restarted." in out


@pytest.mark.slow
async def test_a_unit_that_does_not_start_is_told_in_a_sentence(world):
    world.stand_in(failing='"systemctl --user restart nanoloop"')
    _, err = await world.nanoloop.run("service", "install", code=1)
    assert err == (
        "nanoloop: systemd could not restart it: why it fails; `nanoloop service logs` shows why\n"
    )


@pytest.mark.slow
async def test_without_linger_it_says_how_to_stay_when_logged_out(world):
    world.stand_in(failing="loginctl*")
    out, _ = await world.nanoloop.run("service", "install")
    assert "sudo loginctl enable-linger" in out


@pytest.mark.slow
async def test_the_others_ask_systemd_though_the_settings_are_wrong(world):
    await world.nanoloop.run("service", "install")
    (world.folder / "nanoloop.toml").write_text("modle = 1")
    (world.folder / "told").write_text("")
    await world.nanoloop.run("service", "status")
    await world.nanoloop.run("service", "logs", "-n", "7")
    await world.nanoloop.run("service", "restart")
    await world.nanoloop.run("service", "uninstall")
    asked = [line for line in world.told if "show-environment" not in line]
    assert asked == [
        "systemctl --user --no-pager --lines=0 status nanoloop",
        "journalctl --user-unit nanoloop --output=cat --no-pager --lines=7",
        "systemctl --user restart nanoloop",
        "systemctl --user disable --now nanoloop",
        "systemctl --user daemon-reload",
    ]
    assert not world.unit.exists()
    assert world.variables.exists()


@pytest.mark.slow
async def test_where_no_service_is_installed_the_others_say_how_to(world):
    for name in ("status", "logs", "restart", "uninstall"):
        _, err = await world.nanoloop.run("service", name, code=1)
        assert "no service is installed: `nanoloop service install`" in err


@pytest.mark.slow
async def test_print_shows_the_unit_and_changes_nothing(world):
    out, _ = await world.nanoloop.run("service", "install", "--print")
    assert "ExecStart=" in out
    assert not world.unit.exists()


@pytest.mark.slow
async def test_without_a_model_nothing_is_written(tmp_path):
    _, err = await CommandLine(tmp_path).run("service", "install", code=3)
    assert "no model is set" in err
    assert not (tmp_path / ".config").exists()


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "with space"))
    return Systemd()


def test_a_word_of_the_command_is_read_as_it_was(systemd):
    words = ["/usr/bin/python3", "a b", 'with "quotes"', "100%", "$HOME", "back\\slash"]
    text = systemd.written(Service(command=words, folder=Path("/")))
    (line,) = re.findall("^ExecStart=(.*)$", text, re.MULTILINE)
    assert shlex.split(line.replace("%%", "%").replace("$$", "$")) == words


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit_of_a_user(systemd, tmp_path):
    unit = tmp_path / "nanoloop.service"
    made = Service(command=["/bin/true", "50%", "a b"], folder=tmp_path)
    unit.write_text(systemd.written(made))
    verify = ["systemd-analyze", "verify", "--user", "--man=no", unit]
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(verify, capture_output=True, text=True, check=False, env=env)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_unit_of_a_user_has_all_else_that_the_one_of_a_system_has(systemd):
    made = systemd.written(Service(command=["/bin/true"], folder=Path("/")))
    for line in ("Type=notify", "WatchdogSec=60", "RestartPreventExitStatus=2 3", "UMask=0077"):
        assert line in service.unit().splitlines()
        assert line in made.splitlines()
    for name in ("DynamicUser", "ProtectSystem", "PrivateDevices", "StateDirectory", "Environment"):
        assert f"\n{name}=" in service.unit()
        assert f"\n{name}=" not in made


@pytest.mark.parametrize("value", ["plain", KEY, "", "ends with \\", "a=b#c"])
def test_a_variable_is_read_as_it_was(tmp_path, value):
    (tmp_path / "service.env").write_text(f"A=1\nB={service._escaped(value)}\n")
    assert service._variables_in(tmp_path / "service.env") == {"A": "1", "B": value}


def test_launchd_is_given_the_same_service_and_keeps_the_keys_it_has(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    launchd = Launchd()
    command = [sys.executable, "-m", "nanoloop", "run"]
    list(launchd.keep(Service(command=command, folder=tmp_path, variables={"A_KEY": KEY})))
    list(launchd.keep(Service(command=command, folder=tmp_path, variables={"B": "2"})))
    said = plistlib.loads(launchd.file.read_bytes())
    assert launchd.file.stat().st_mode & 0o777 == 0o600
    assert said["ProgramArguments"] == command
    assert said["EnvironmentVariables"] == {"A_KEY": KEY, "B": "2"}
    assert (said["ExitTimeOut"], said["Umask"]) == (60, 0o077)


def test_without_systemd_or_launchd_it_says_so(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NoService, match=r"neither systemd nor launchd: start `nanoloop run`"):
        service._manager()
