"""Which tool calls a person has to approve first, and the question that the person reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from nanoloop.messages import Choice
from nanoloop.protocols import Approve, Tool, approve_of, effect_of
from nanoloop.sentences import Say
from nanoloop.session.approvals import APPROVAL, Approval, Permission, Who, is_same_person
from nanoloop.session.entry import Entry

WAITS = "a person's approval"
"""What the model is told that a call waits for."""
LONGEST_SHOWN = 1_500
"""How many characters of arguments fit into a question; calls with longer ones are refused."""
DAY_SECONDS = 86_400.0
_STRICTNESS: Sequence[Approve] = ("never", "writes", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """Which calls need approval, who may give it, and for how long."""

    rules: tuple[tuple[str, Approve], ...] = ()
    """Globs of tool names, and which of their calls need approval; the first match counts."""
    who: Who = "asker"
    """`asker`: the person whose message led to the call. `operators`: any operator of the bot."""
    seconds: float = DAY_SECONDS
    """After how many seconds a call that nobody has approved is given up."""

    def asks_first(self, tool: Tool) -> bool:
        """Return True if calls of this tool need approval; its own `approve` is the least."""
        name = tool.spec.name
        said = next((which for glob, which in self.rules if fnmatchcase(name, glob)), "never")
        which = max(said, approve_of(tool), key=_STRICTNESS.index)
        return which == "always" or (which == "writes" and effect_of(tool) == "writes")


def digest_of(tool: Tool, arguments: Any = None) -> str:
    """Return a digest of all that a person approves: the tool as it is now, and the arguments."""
    spec, function = tool.spec, getattr(tool, "function", type(tool))
    origin = (
        getattr(function, "__module__", ""),
        getattr(function, "__qualname__", ""),
        getattr(tool, "origin", ""),
    )
    known = [spec.name, spec.description, spec.parameters, effect_of(tool), origin, arguments]
    text = json.dumps(known, sort_keys=True, default=str)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def is_allowed(
    permissions: Iterable[Permission], tool: Tool, arguments: Any, asker: Mapping[str, Any]
) -> bool:
    """Return True if a person has allowed this call for good."""
    return any(
        each.tool == tool.spec.name
        and (each.patterns is not None or is_same_person(each.asker, asker))
        and _covers(each, tool, arguments)
        for each in permissions
    )


def _covers(permission: Permission, tool: Tool, arguments: Any) -> bool:
    if permission.patterns is None:
        return permission.digest == digest_of(tool, arguments)
    if permission.digest != digest_of(tool) or not isinstance(arguments, Mapping):
        return False
    globs = permission.patterns
    return arguments.keys() == globs.keys() and all(
        fnmatchcase(as_pattern(arguments[name]), glob) for name, glob in globs.items()
    )


def as_pattern(value: Any) -> str:
    """Return an argument as patterns are compared with it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# The question

_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
"""Characters that count as printable and show nothing."""


def shown_arguments(arguments: Any) -> str:
    """Return all arguments as JSON, with characters that can't be seen written as escapes."""
    text = json.dumps(arguments, ensure_ascii=False, indent=2, default=str)
    return "".join(each if _is_seen(each) else f"\\u{{{ord(each):x}}}" for each in text)


def _is_seen(character: str) -> bool:
    if character == "\n":  # between arguments: inside of texts, JSON escapes it
        return True
    return character.isprintable() and not _UNSEEN.match(character)


def question_entry(approvals: Sequence[Approval]) -> Entry:
    """Return the log entry that asks about these calls; the calls' entries have the arguments."""
    asks = [
        {
            "number": each.number,
            "code": each.code,
            "seq": each.seq,
            "who": each.who,
            "seconds": each.expires_at - each.asked_at,
        }
        for each in approvals
    ]
    return Entry(type=APPROVAL, content={"asks": asks})


def question_text(entry: Entry, calls: Mapping[int, Entry], say: Say) -> str:
    """Return the question about these calls, which are given by their numbers in the log."""
    asks = [each for each in entry.content.get("asks") or () if each["seq"] in calls]
    return "\n\n".join(_asked(each, calls[each["seq"]], say) for each in asks)


def choices_in(entry: Entry, say: Say) -> tuple[Choice, ...]:
    """Return the answers to choose from."""
    asks = entry.content.get("asks") or ()
    words = {"yes": say("approval_yes"), "no": say("approval_no")}
    return tuple(
        Choice(
            label=f"{label} {ask['number']}" if len(asks) > 1 else label,
            text=f"/{command} {ask['number']} {ask['code']}",
        )
        for ask in asks
        for command, label in words.items()
    )


def _asked(ask: Mapping[str, Any], call: Entry, say: Say) -> str:
    tool, number = str(call.content.get("tool")), ask["number"]
    given = shown_arguments(call.content.get("parameters"))
    # A fence that nothing in the arguments can close.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", given)), default=0))
    is_for_operators = ask.get("who") == "operators"
    asked = say(
        "approval_ask_operator" if is_for_operators else "approval_ask", number=number, tool=tool
    )
    how = say("approval_how", number=number, time=_time(float(ask.get("seconds") or 0)))
    return f"{asked}\n{fence}\n{given}\n{fence}\n{how}"


def _time(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:g} h" if hours == int(hours) else f"{max(1, round(seconds / 60))} min"
