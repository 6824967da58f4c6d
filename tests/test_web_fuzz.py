"""Every operation of the API, asked all sorts of things: never an error of ours."""

import anyio
import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, openapi

from nanoloop.app import App
from nanoloop.channels.web.api import document
from nanoloop.channels.web.channel import OPERATIONS
from nanoloop.parts import make_with_program
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from tests.web_server import ASKED

SERVER_ERROR = 500
SCHEMA = openapi.from_dict(document(OPERATIONS))
ENDING = [o for o in OPERATIONS if o.produces != "text/event-stream"]
TAKING = [o for o in ENDING if o.takes or "{" in o.path]
MODES = [(o, GenerationMode.POSITIVE) for o in ENDING] + [
    (o, GenerationMode.NEGATIVE) for o in TAKING
]


async def serve(folder, *, task_status):
    """Serve until cancelled, from a thread: the tests here have no event loop."""
    web = {"port": 0, "open_on_loopback": True, "requests_per_minute": 10**6}
    given_settings = Settings(data=folder, channels={"web": web})
    telemetry = Telemetry(level="error")
    app = App.of(given_settings, provider=ScriptedProvider(), telemetry=telemetry)
    channel = make_with_program(given_settings, "web", app)
    address = channel.bind()
    app.add(channel)
    async with anyio.create_task_group() as group:
        await group.start(app.loop.run)
        group.start_soon(channel.run, app.loop.bus)
        task_status.started(address)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with start_blocking_portal() as portal:
        folder = tmp_path_factory.mktemp("web")
        task, address = portal.start_task(serve, folder)
        with httpx2.Client(base_url=address, headers=ASKED, timeout=10) as client:
            yield client
        task.cancel()


@pytest.fixture(scope="module")
def session(client):
    return client.post("/api/sessions", json={}).json()["id"]


@pytest.mark.parametrize(
    ("operation", "mode"), MODES, ids=[f"{o.method} {o.path} {mode.value}" for o, mode in MODES]
)
def test_no_request_is_an_error_of_ours(client, session, operation, mode):
    @settings(
        max_examples=12,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(
        SCHEMA[operation.path][operation.method].as_strategy(generation_mode=mode), st.booleans()
    )
    def check(case, is_there):
        if is_there and operation.method != "DELETE" and "session" in (case.path_parameters or {}):
            case.path_parameters["session"] = session
        response = case.call(base_url=str(client.base_url), headers=ASKED, timeout=10)
        assert response.status_code < SERVER_ERROR, case.as_curl_command()

    check()
