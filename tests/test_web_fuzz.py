"""Every operation of the API, asked all sorts of things: answered as its description says."""

from dataclasses import dataclass

import anyio
import httpx2
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, openapi
from schemathesis.checks import ignored_auth, positive_data_acceptance
from schemathesis.config import SchemathesisConfig

from nanoloop.app import App
from nanoloop.channels.web.channel import OPERATIONS
from nanoloop.parts import make_with_program
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from tests.images import png
from tests.web_server import ASKED, TOKENS, bearer

ENDING = [o for o in OPERATIONS if o.produces != ("text/event-stream",)]
TAKING = [o for o in ENDING if o.query or o.body]
MODES = [(o, GenerationMode.POSITIVE) for o in ENDING] + [
    (o, GenerationMode.NEGATIVE) for o in TAKING
]
FOR_ALL = {401, 403, 404, 409, 429, 503}
"""What a request in the right form may be told by any operation."""
REFUSED = ["400", "401", "403", "404", "405", "409", "413", "415", "422"]
"""What one in a wrong form is told."""
CONFIG = {"checks": {"negative_data_rejection": {"expected-statuses": REFUSED}}}

# The former is below, by what each operation says; wrong tokens are slowed down after a while.
EXCLUDED = [positive_data_acceptance, ignored_auth]


async def serve(folder, tokens, *, task_status):
    """Serve until cancelled, from a thread: the tests here have no event loop."""
    web = {
        "port": 0,
        "open_on_loopback": not tokens,
        "requests_per_minute": 10**6,
        "tokens": tokens,
    }
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


@dataclass
class Served:
    """A server, what it says of itself, and what there is on it."""

    address: str
    headers: dict
    schema: object
    there: dict
    """Parts of paths, by name."""

    def headers_of(self, case):
        """Those of a request: with the right token, unless there is to be none."""
        has_token = "Authorization" in (case.headers or {})
        is_right = case.meta.generation.mode is GenerationMode.POSITIVE or has_token
        return self.headers if is_right else ASKED


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({}, id="open"),
        pytest.param(TOKENS, id="with tokens", marks=pytest.mark.slow),
    ],
)
def served(tmp_path_factory, request):
    headers = {**ASKED, **(bearer() if request.param else {})}
    with start_blocking_portal() as portal:
        folder = tmp_path_factory.mktemp("web")
        task, address = portal.start_task(serve, folder, request.param)
        with httpx2.Client(base_url=address, headers=headers, timeout=10) as client:
            described = client.get("/openapi.json").json()
            session = client.post("/api/sessions", json={}).json()["id"]
            file = client.post("/api/attachments", content=png()).json()["id"]
        schema = openapi.from_dict(described, config=SchemathesisConfig.from_dict(CONFIG))
        yield Served(address, headers, schema, {"session": session, "attachment": file})
        task.cancel()


@pytest.mark.parametrize(
    ("operation", "mode"), MODES, ids=[f"{o.method} {o.path} {mode.value}" for o, mode in MODES]
)
def test_each_request_is_answered_as_the_description_says(served, operation, mode):
    described = served.schema[operation.path][operation.method]
    allowed = FOR_ALL | {int(code) for code in operation.refuses}

    @settings(
        max_examples=12,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(described.as_strategy(generation_mode=mode), st.booleans())
    def check(case, is_there):
        if is_there and operation.method != "DELETE":
            known = set(case.path_parameters or {}) & set(served.there)
            case.path_parameters = {
                **(case.path_parameters or {}),
                **{name: served.there[name] for name in known},
            }
        headers = served.headers_of(case)
        response = case.call(base_url=served.address, headers=headers, timeout=10)
        case.validate_response(response, headers=headers, excluded_checks=EXCLUDED)
        if mode is GenerationMode.POSITIVE:  # the statuses that this operation says it has
            assert response.status_code < 400 or response.status_code in allowed, (
                case.as_curl_command(),
                response.text,
            )

    check()
