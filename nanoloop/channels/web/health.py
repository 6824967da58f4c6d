"""For who runs it: is it alive, is it ready, what has it counted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import anyio
from starlette.responses import JSONResponse, PlainTextResponse, Response

from nanoloop.channels.web.api import ApiCall, Backend, Operation

STORE_SECONDS = 3
"""How long the store may take to say anything."""
PROBE = "web:readyz"
"""A key that means no session."""
_METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def alive(_: ApiCall) -> Response:
    """It answers."""
    return JSONResponse({"status": "ok"})


async def ready(call: ApiCall) -> Response:
    """It can take messages: the loop runs, and the store can be reached."""
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


async def metrics(call: ApiCall) -> Response:
    """What was counted, in Prometheus' form."""
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


OPERATIONS: Sequence[Operation] = (
    Operation(
        method="GET",
        path="/healthz",
        says="Whether it is alive",
        run=alive,
        is_public=True,
        is_counted=False,
    ),
    Operation(
        method="GET",
        path="/readyz",
        says="Whether it takes messages",
        run=ready,
        is_public=True,
        is_counted=False,
    ),
    Operation(
        method="GET",
        path="/metrics",
        says="What was counted, for Prometheus",
        run=metrics,
        produces="text/plain",
    ),
)
