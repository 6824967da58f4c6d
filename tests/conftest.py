"""What every test may ask for."""

import os

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
