"""What every test may ask for."""

import os
import subprocess
import sys
from statistics import median

import pytest
from hypothesis import HealthCheck, settings

from nanoloop.events import hearing
from nanoloop.memory.index import Index
from tests.servers.postgres import Postgres
from tests.servers.redis import Redis
from tests.servers.server import NotInstalled
from tests.servers.synapse import Synapse

# How fast a machine draws examples, and runs them, says nothing of the code.
settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any")

SLOW_SECONDS = 1.0
"""A test that takes longer is marked `slow`, so that the others are a matter of minutes."""
USUAL_SECONDS = 0.012
"""What half of the tests take at most where nothing else runs."""
AGAIN = "TESTS_MEASURED_AGAIN"
FEW = 100
"""Of fewer tests the median says nothing of the machine."""


class Tiers:
    """Fails a run in which a test took long that is not marked so, for how busy the machine is."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and not {"slow", "long"} & report.keywords.keys():
            self._seconds[report.nodeid] = report.duration

    @property
    def limit(self) -> float:
        if AGAIN in os.environ:  # too few tests to tell how busy it is
            return float(os.environ[AGAIN])
        usual = median(self._seconds.values()) if len(self._seconds) > FEW else USUAL_SECONDS
        return SLOW_SECONDS * max(1.0, usual / USUAL_SECONDS)

    @property
    def slow(self) -> list[str]:
        found = sorted(self._seconds.items(), key=lambda item: -item[1])
        return [f"{seconds:.2f} s  {name}" for name, seconds in found if seconds > self.limit]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and self.slow and not self._again():
            session.exitstatus, self._failed = pytest.ExitCode.TESTS_FAILED, True

    def _again(self) -> bool:
        """Whether they are quick enough alone: something else may have kept the machine busy."""
        if AGAIN in os.environ:
            return False
        names = [line.split("  ", 1)[1] for line in self.slow]
        told = [sys.executable, "-m", "pytest", "-q", "--numprocesses=0", *names]
        return not subprocess.run(
            told, env={**os.environ, AGAIN: f"{self.limit}"}, check=False
        ).returncode

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._failed:
            terminalreporter.section(f"over {self.limit:.2f} s: mark them `slow`, or mend them")
            terminalreporter.write_line("\n".join(self.slow))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # of several processes the one that hears of all tests
        config.pluginmanager.register(Tiers(), "tiers")


@pytest.fixture
async def heard():
    """What is told in the test and in the tasks that it begins; for tests that are awaited."""
    events = []
    with hearing(events.append):
        yield events


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def running(kind, *options):
    """A server while a test needs it; where it is not installed, CI fails and others skip."""
    try:
        with kind(*options) as server:
            yield server
    except NotInstalled as missing:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(str(missing))


@pytest.fixture(scope="session")
def shared_redis():
    yield from running(Redis)


@pytest.fixture(scope="session")
def shared_postgres():
    yield from running(Postgres)


@pytest.fixture(scope="session")
def synapse():
    """A Matrix homeserver for all tests, each with accounts of its own; it may be restarted."""
    yield from running(Synapse)


@pytest.fixture
def redis_url(shared_redis):
    """An empty Redis, the same server for all tests: not to be killed or configured."""
    return shared_redis.fresh()


@pytest.fixture
def postgres_url(shared_postgres):
    """An empty database, on the same server for all tests: not to be killed or configured."""
    return shared_postgres.fresh()


@pytest.fixture
def redis_server():
    """A Redis of the test's own, to be killed; what it has confirmed is there after a restart."""
    yield from running(Redis, "--appendonly", "yes", "--appendfsync", "always")


@pytest.fixture
def postgres_server():
    """A PostgreSQL of the test's own, to be killed."""
    yield from running(Postgres)


@pytest.fixture
def make_index():
    """Makes indexes of what was said, in memory or in a file, that are closed behind the test."""
    made = []

    def make(path=None, *, kind=Index):
        made.append(kind(path))
        return made[-1]

    yield make
    for index in made:
        index.close()
