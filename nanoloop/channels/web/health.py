"""For who runs it: is it alive, is it ready, what has it counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import anyio
from starlette.responses import JSONResponse, PlainTextResponse, Response

from nanoloop.channels.web.api import ApiCall, Backend, Operation, serve

STORE_SECONDS = 3
"""How long the store may take to say anything."""
PROBE = "web:readyz"
"""A key that means no session."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@serve("GET", "/healthz", is_public=True, is_counted=False)
async def alive(_: ApiCall) -> Response:
    """Whether it is alive."""
    return JSONResponse({"status": "ok"})


@serve("GET", "/readyz", is_public=True, is_counted=False)
async def ready(call: ApiCall) -> Response:
    """Whether it takes messages."""
    checks = {"loop": call.backend.is_serving(), "store": await _reaches_store(call.backend)}
    status = 200 if all(checks.values()) else 503
    return JSONResponse({"status": "ok" if status == 200 else "not ready", **checks}, status)  # noqa: PLR2004 - HTTP's own


async def _reaches_store(backend: Backend) -> bool:
    try:
        with anyio.fail_after(STORE_SECONDS):
            await backend.parts.sessions.store.bound(PROBE)
    except Exception:  # noqa: BLE001 - whatever is wrong with it, it is not ready
        return False
    return True


@serve("GET", "/metrics", produces="text/plain")
async def metrics(call: ApiCall) -> Response:
    """What was counted, for Prometheus."""
    counted = call.backend.parts.snapshot()
    own = {"open_streams": len(call.backend.streams), "feeds": len(call.backend.feeds)}
    text = "\n".join([*_lines(counted, own), ""])
    return PlainTextResponse(text, media_type=_METRICS)


def _lines(counted: Mapping[str, Mapping[str, float]], own: Mapping[str, float]) -> Iterator[str]:
    yield "# HELP nanoloop_events_total How often each event happened."
    yield "# TYPE nanoloop_events_total counter"
    for name, value in sorted(counted["counts"].items()):
        yield f'nanoloop_events_total{{event="{name}"}} {value}'
    yield "# HELP nanoloop_event_sum_total What a number of an event adds up to."
    yield "# TYPE nanoloop_event_sum_total counter"
    yield from _numbered("nanoloop_event_sum_total", counted["sums"])
    yield "# HELP nanoloop_event_latest The latest value of a number of an event."
    yield "# TYPE nanoloop_event_latest gauge"
    yield from _numbered("nanoloop_event_latest", counted["latest"])
    for name, value in own.items():
        yield f"# TYPE nanoloop_web_{name} gauge"
        yield f"nanoloop_web_{name} {value}"


def _numbered(metric: str, values: Mapping[str, float]) -> Iterator[str]:
    for name, value in sorted(values.items()):
        event, _, number = name.partition(".")
        if re.fullmatch(r"\w+", event) and re.fullmatch(r"\w+", number):
            yield f'{metric}{{event="{event}",number="{number}"}} {value}'


OPERATIONS: Sequence[Operation] = (alive, ready, metrics)
