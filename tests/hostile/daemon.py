"""The daemon that is attacked: the app with its web, as `nanoloop serve` runs it, and a probe.

It writes lines of JSON: first where it serves, then each time for which its event loop was gone.
A line of JSON that it reads is a question by a channel that takes whole answers only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import anyio

from nanoloop.agents import Agents
from nanoloop.app import App
from nanoloop.channels.direct import DirectChannel
from nanoloop.cli import collect_garbage_seldom, loop_options
from nanoloop.memory import schedule, summarizer
from nanoloop.parts import make_with_program
from nanoloop.settings import Settings
from nanoloop.telemetry import Telemetry
from tests.hostile.mode import KEY

HOSTILE = "hostile"
VENDOR = "vllm"
"""One whose server is anywhere."""
TICK_SECONDS = 0.005
TOLD_SECONDS = 0.01
"""A shorter stall is not worth a line."""
CORE = Path("/proc/thread-self/schedstat")


class Whole(DirectChannel):
    """A channel that wants no pieces: the model is asked for the whole answer at once."""

    name = "whole"
    streams = False


def settings_of(args: argparse.Namespace) -> Settings:
    # Every few messages a summary, and again soon where it fails.
    schedule.RETRY_SECONDS, schedule.BREAKER_SECONDS, summarizer.IDLE_SECONDS = 0.05, 0.1, 0.1
    summary = {
        "summary_model": f"{VENDOR}:{HOSTILE}",
        "summary": {"timeout_seconds": args.call_seconds},
        "message_buffer_limit": 6,
        "message_buffer_min": 2,
    }
    return Settings(
        **(summary if args.summary else {}),
        data=args.folder,
        model="sane",
        base_url=args.sane,
        agents={HOSTILE: {"model": f"{VENDOR}:{HOSTILE}"}},
        providers={VENDOR: {"base_url": args.hostile, "api_key": KEY}},
        provider={
            "first_token_timeout_seconds": args.first_seconds,
            "call_timeout_seconds": args.call_seconds,
        },
        channels={"web": {"port": 0, "open_on_loopback": True, "requests_per_minute": 10**7}},
        log={"level": "debug", "format": "json"},
        loop={"shutdown_turns_seconds": 1},
    )


async def serve(args: argparse.Namespace) -> None:
    settings = settings_of(args)
    telemetry = Telemetry(level=settings.log.level, format=settings.log.format)
    app = App.of(settings, telemetry=telemetry)
    agents = app.loop.agents
    named = {} if args.summary else {Whole.name: HOSTILE}
    agents.renew(Agents(agents.default, dict(agents), by_channel=named))
    web, whole = make_with_program(settings, "web", app), Whole(app.loop.bus)
    tell(url=web.bind())
    app.add(web)
    collect_garbage_seldom()
    async with anyio.create_task_group() as group:
        group.start_soon(feel)
        group.start_soon(hear, whole, app.stop)
        await app.run()
        group.cancel_scope.cancel()


def tell(**said: object) -> None:
    os.write(1, json.dumps(said).encode() + b"\n")


async def feel() -> None:
    """Tell for how long the loop was gone, but for the time that other programs had its core."""
    with CORE.open("rb") as core:  # noqa: ASYNC230 - of this very thread, and in memory
        read = partial(os.pread, core.fileno(), 100, 0)
        while True:
            began, waited = time.monotonic(), int(read().split()[1])
            await anyio.sleep(TICK_SECONDS)
            gone = time.monotonic() - began - TICK_SECONDS
            if gone > TOLD_SECONDS:
                others = (int(read().split()[1]) - waited) / 1e9
                tell(at=began, gone=gone, own=max(0.0, gone - others))


async def hear(whole: Whole, end: Callable[[], None]) -> None:
    """Answer what is asked, and end with whoever asks."""
    async with anyio.create_task_group() as group:
        while line := await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            group.start_soon(answer, whole, json.loads(line))
    end()


async def answer(whole: Whole, asked: dict[str, str]) -> None:
    said = await whole.ask(asked["text"], chat=asked["chat"])
    tell(answers=asked["id"], kind=said.kind, text=said.text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sane", required=True, help="the URL of the model of all others")
    parser.add_argument("--hostile", required=True, help="the URL of the hostile one")
    parser.add_argument("--first-seconds", type=float, default=5)
    parser.add_argument("--call-seconds", type=float, default=10)
    parser.add_argument("--summary", action="store_true", help="the hostile one makes summaries")
    anyio.run(serve, parser.parse_args(), backend_options=loop_options())


if __name__ == "__main__":
    main()
