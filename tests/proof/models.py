"""The two models of a proof: one talks, one summarises; both watch what they are given."""

import itertools
import json
import random
import re

from nanoloop import tool
from nanoloop.errors import ContextTooLong, NoConnection
from nanoloop.protocols import Reply, ToolCall
from nanoloop.providers.scripted import ScriptedProvider
from nanoloop.testing.faults import Faulty, Gate
from nanoloop.testing.trial import HandedOver, pair_violations
from tests.proof.marks import marks_in, newest_mark

SUMMARY = re.compile(r"S\d+ stands")
KINDS = ("raises", "times_out", "bug", "empty", "tool_call", "cut_off", "too_long", "slow")


@tool
async def look(mark: str) -> str:
    """Find something.

    Args:
        mark: What to look for.
    """
    return f"r{mark[1:]} found"


@tool
async def fail(mark: str) -> str:
    """Fail.

    Args:
        mark: What to fail at.
    """
    raise ValueError(f"r{mark[1:]} not found")


class Talker:
    """Does what the newest message says: `m7z tools look fail`, `m7z crash`, `m7z held` …"""

    def __init__(self, wrong, *, repeats_ids):
        self.wrong = wrong
        self._repeats_ids = repeats_ids  # as some servers do, from turn to turn
        self.gate = Gate()
        self.asking = ""
        """The session whose turn asks now."""
        self.requests = {}
        """The last request of each session since its prompt was swapped."""
        self._shrunk = set()

    async def chat(self, *, messages, tools=None, model=None, on_text=None):
        self._watch(messages)
        mark = newest_mark(messages)
        words = self._words(messages)
        if "held" in words:
            await self.gate.passes()
        if "crash" in words:
            raise RuntimeError("a bug")
        if "unreachable" in words:
            raise NoConnection("nothing answers")
        if "huge" in words and mark not in self._shrunk:
            self._shrunk.add(mark)
            raise ContextTooLong("too long")
        if "tools" in words and messages[-1]["role"] != "tool":
            return self._calling(mark, words)
        if on_text:
            on_text(f"a{mark[1:]}")
        return Reply(text="" if "silent" in words else f"a{mark[1:]} answered")

    @staticmethod
    def _words(messages):
        said = [message["content"] for message in messages if message["role"] == "user"]
        return json.dumps(said[-1:]).strip('[]"').split()

    def _calling(self, mark, words):
        names = [word for word in words if word in {"look", "fail", "hang", "nowhere"}]
        calls = []
        for i, name in enumerate(names):
            call = f"c{mark[1:-1]}.{i}z"
            call_id = f"call-{i}" if self._repeats_ids else f"call-{call}"
            calls.append(ToolCall(id=call_id, name=name, arguments=json.dumps({"mark": call})))
        text = f"w{mark[1:]} one moment" if "aloud" in words else ""
        return Reply(text=text, tool_calls=tuple(calls), finish_reason="tool_calls")

    def _watch(self, messages):
        self.wrong += pair_violations(messages)
        before = self.requests.get(self.asking)
        if before is not None and SUMMARY.findall(str(before[0])) != SUMMARY.findall(
            str(messages[0])
        ):
            before = None  # swapped in memory, its save is under way
        if before is not None and messages[: len(before)] != before:
            self.wrong.append(f"the request of {self.asking} does not begin with the one before")
        self.requests[self.asking] = [dict(message) for message in messages]

    async def close(self):
        pass


class Digester:
    """Writes summaries that can be told apart, and goes wrong as models do."""

    def __init__(self, chance: random.Random, clock):
        self._numbers = itertools.count(1)
        self._clock = clock
        self.begun_at = []
        """When each call was begun."""
        self.faulty = Faulty(
            ScriptedProvider(otherwise=self._say, keep_calls=0), self._plan(chance)
        )
        self.ledger = HandedOver(self.faulty)
        self.is_well = False
        self.holds_next = False
        self.pause = Gate(is_open=True)
        """Closed while the rules look."""

    def _plan(self, chance):
        while True:
            if self.holds_next:
                self.holds_next = False
                yield "slow"
            else:
                yield chance.choice(KINDS) if not self.is_well and chance.random() < 0.4 else "fine"

    async def chat(self, **asked):
        await self.pause.passes()
        self.begun_at.append(self._clock())
        return await self.ledger.chat(**asked)

    def good_calls(self):
        """The calls whose answer may become a summary, by its number."""
        good = {}
        for call in self.ledger.finished:
            reply = call.reply
            if reply.text.strip() and reply.finish_reason == "stop" and not reply.tool_calls:
                good[number_of(reply.text)] = call
        return good

    def _say(self, messages, tools, model):
        number = next(self._numbers)
        return f"S{number} stands for {len(marks_in(messages[-1]['content']))} things."

    @property
    def held(self):
        """Calls that nothing but a gate's opening lets go on."""
        return self.faulty.gate.waiting + self.pause.waiting

    async def close(self):
        pass


def number_of(summary):
    """Which summary it is; 0 for none."""
    found = re.match(r"S(\d+) ", summary)
    return int(found[1]) if found else 0
