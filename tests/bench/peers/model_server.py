"""The model server of the comparison: answers at once, or late, and says what it was asked.

python tests/bench/peers/model_server.py [--delay-seconds S] [--summary-seconds S] [--record]
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from os.path import commonprefix
from pathlib import Path
from typing import Any

import anyio

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.bench.peers.said import ANSWERED, PROMPT
from tests.openai_server import Answer, OpenAIServer, Request

QUARTER, STEP = 4, 64
"""Bytes of a request a token; the count is rounded, so that few answers have to be rendered."""
NANOBOT_SUMMARY = b"replacement checkpoint for this session"
"""It asks for a summary with the bot's own prompt before it."""
SUMMARY = "They talked about the market. " * 8


class ModelServer(OpenAIServer):
    """Answers turns, and requests for a summary."""

    def __init__(
        self, *, delay_seconds: float = 0, summary_seconds: float = 0, record: bool = False
    ) -> None:
        super().__init__(keep=1)
        self._answer = Answer(text=ANSWERED, delay_seconds=delay_seconds)
        self._summary = Answer(text=SUMMARY, delay_seconds=summary_seconds)
        self._tells_apart = bool(summary_seconds) or record
        self._record = record
        self._last = ""
        self._told = {"turns": 0, "summaries": 0, "characters": 0, "shared": 0, "compared": 0}

    def answer(self, request: Request) -> Answer:
        """What to say to one request; `GET /told` is what was asked so far."""
        if request.head.startswith(b"GET /told"):
            return Answer(body=json.dumps(self._told).encode())
        if self._tells_apart and not is_turn(request):
            self._told["summaries"] += 1
            return self._summary
        self._told["turns"] += 1
        if self._record:
            self._compare(request.json)
        tokens = len(request.body) // (QUARTER * STEP) * STEP
        return replace(self._answer, usage=(tokens, 20, 0))

    def _compare(self, asked: Any) -> None:
        """Note what begins as the request before did, as a provider's prefix cache sees it."""
        now = json.dumps([asked.get("tools"), asked["messages"]], ensure_ascii=False)
        if self._last:
            self._told["shared"] += len(commonprefix([self._last, now]))  # noqa: RUF071 - no paths
            self._told["compared"] += len(now)
        self._told["characters"] += len(now)
        self._last = now


def is_turn(request: Request) -> bool:
    """Whether it has the bot's prompt and is no request for a summary."""
    return PROMPT.encode() in request.body and NANOBOT_SUMMARY not in request.body


async def serve(server: ModelServer) -> None:
    """Answer until killed; the first line that is printed is the URL."""
    await server.start()
    print(server.url, flush=True)  # noqa: T201 - whoever started it reads the URL
    await anyio.sleep_forever()


def main() -> None:
    """Serve what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay-seconds", type=float, default=0)
    parser.add_argument("--summary-seconds", type=float, default=0)
    parser.add_argument("--record", action="store_true")
    anyio.run(serve, ModelServer(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()
