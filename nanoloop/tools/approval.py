"""Which tool calls a person has to approve first, and the question that the person reads."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any

from nanoloop.events import Event, announce
from nanoloop.messages import Choice
from nanoloop.protocols import Approve, Tool, approve_of, effect_of
from nanoloop.sentences import Say
from nanoloop.session.approvals import Approval, Permission, Who, is_same_person
from nanoloop.session.entry import APPROVAL, Entry
from nanoloop.tools.questions import UNSEEN, fields_text, needs_words

WAITS = "a person's approval"
"""The text that tells the model what a call is waiting for."""
LONGEST_SHOWN = 1_500
"""How many characters of arguments fit into a question; calls with longer arguments are refused."""
DAY_SECONDS = 86_400.0
_STRICTNESS: Sequence[Approve] = ("never", "writes", "always")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(Event):
    """A chat was asked whether a tool call may run, or what the call's tool wants to know."""

    number: int
    tool: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswered(Event):
    """A person answered a question about a tool call."""

    word: str
    """The command: yes, no, always or answer."""
    number: int
    tool: str
    void: str = ""
    """Why the answer does not count; empty if it does."""


def announce_asked(entry: Entry) -> None:
    """Announce each question in this log entry."""
    for ask in entry.content.get("asks") or ():
        announce(ApprovalAsked(number=ask["number"], tool=str(ask.get("tool"))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRules:
    """Which calls need approval, who may give it, and for how long."""

    rules: tuple[tuple[str, Approve], ...] = ()
    """Globs of tool names, and which of their calls need approval; the first match counts."""
    who: Who = "asker"
    """`asker`: the person whose message led to the call. `operators`: any operator of the bot."""
    seconds: float = DAY_SECONDS
    """How long a call waits for approval before it is given up."""

    def asks_first(self, tool: Tool) -> bool:
        """Return True if calls of this tool need approval; its own `approve` is the minimum."""
        if getattr(tool, "is_ours", False):  # it reads only what the chat was sent
            return False
        name = tool.spec.name
        said = next((which for glob, which in self.rules if fnmatchcase(name, glob)), "never")
        which = max(said, approve_of(tool), key=_STRICTNESS.index)
        return which == "always" or (which == "writes" and effect_of(tool) == "writes")


def digest_of(tool: Tool, arguments: Any = None) -> str:
    """Return a digest of what a person approves: the tool as it is now, and the arguments."""
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
    permissions: Iterable[Permission],
    tool: Tool,
    arguments: Any,
    *,
    asker: Mapping[str, Any],
    who: Who,
) -> bool:
    """Return True if a person who may do that has permanently allowed this call."""
    return any(
        each.tool == tool.spec.name
        and (each.who == "operators" or who == "asker")
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
    """Return an argument in the form that patterns are compared with."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


# The question


def shown_arguments(arguments: Any) -> str:
    """Return all arguments as JSON, with invisible characters escaped."""
    text = json.dumps(arguments, ensure_ascii=False, indent=2, default=str)
    return "".join(each if _is_seen(each) else f"\\u{{{ord(each):x}}}" for each in text)


def _is_seen(character: str) -> bool:
    if character == "\n":  # between arguments; inside texts, JSON escapes it
        return True
    return character.isprintable() and not UNSEEN.match(character)


def question_entry(approvals: Sequence[Approval]) -> Entry:
    """Return the log entry that asks about these calls; the calls' entries have the arguments."""
    asks = [
        {
            "number": each.number,
            "tool": each.tool,
            "code": each.code,
            "seq": each.seq,
            "who": each.who,
            "seconds": each.expires_at - each.asked_at,
            **({"form": each.form} if each.form else {}),
        }
        for each in approvals
    ]
    return Entry(type=APPROVAL, content={"asks": asks})


def shown_seqs(entry: Entry) -> list[int]:
    """Return the numbers of the entries with what the question shows."""
    return [ask.get("form") or ask["seq"] for ask in entry.content.get("asks") or ()]


def question_text(entry: Entry, shown: Mapping[int, Entry], say: Say) -> str:
    """Return the question, given the entries that it shows by their numbers in the log."""
    told = zip(entry.content.get("asks") or (), shown_seqs(entry), strict=True)
    asks = [(ask, shown[seq]) for ask, seq in told if seq in shown]
    return "\n\n".join(
        _form_asked(ask, there, say) if ask.get("form") else _asked(ask, there, say)
        for ask, there in asks
    )


def choices_in(entry: Entry, say: Say) -> tuple[Choice, ...]:
    """Return the answers to choose from; a form is answered with words."""
    every = entry.content.get("asks") or ()
    asks = [ask for ask in every if not ask.get("form")]
    words = {"yes": say("approval_yes"), "no": say("approval_no")}
    return tuple(
        Choice(
            label=f"{label} {ask['number']}" if len(every) > 1 else label,
            text=f"/{command} {ask['number']} {ask['code']}",
            is_only=len(every) == 1,
        )
        for ask in asks
        for command, label in words.items()
    )


def _asked(ask: Mapping[str, Any], call: Entry, say: Say) -> str:
    tool, number = str(call.content.get("tool")), ask["number"]
    given = shown_arguments(call.content.get("parameters"))
    # A fence that no text in the arguments can close.
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", given)), default=0))
    is_for_operators = ask.get("who") == "operators"
    asked = say(
        "approval_ask_operator" if is_for_operators else "approval_ask", number=number, tool=tool
    )
    how = say("approval_how", number=number, time=_time(float(ask.get("seconds") or 0)))
    return f"{asked}\n{fence}\n{given}\n{fence}\n{how}"


def _form_asked(ask: Mapping[str, Any], entry: Entry, say: Say) -> str:
    form, number = entry.content["form"], ask["number"]
    message = "".join(
        each if _is_seen(each) else " " for each in str(form.get("message")).replace("\r", "\n")
    )
    # What a server says is quoted, so that it can't pass for our own words.
    quoted = "\n".join(f"> {line}" for line in message.splitlines() or ("",))
    asked = say("form_ask", number=number, tool=ask.get("tool"))
    fields, time = fields_text(form), _time(float(ask.get("seconds") or 0))
    if needs_words(form):
        how = say("form_how", number=number, time=time, fields=fields)
    else:
        how = say("approval_how", number=number, time=time)
    return f"{asked}\n{quoted}\n\n{how}"


def _time(seconds: float) -> str:
    hours = seconds / 3600
    return f"{hours:g} h" if hours == int(hours) else f"{max(1, round(seconds / 60))} min"
