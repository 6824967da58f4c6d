"""The sentences that chats receive: a fixed list, in every language.

English is defined here, and each other language in a file under `languages` with the same names.
Every failure is reported twice. The chat gets the incident's id and one of these sentences, chosen
by the error's class and never by its text; the operator gets the error's own text and the same id.
"""

from __future__ import annotations

import os
import tomllib
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, get_args

from nanoloop.errors import (
    AnswerRefused,
    AttachmentsFull,
    BadImage,
    BusFull,
    ContextTooLong,
    EmptyAnswer,
    ImagesRefused,
    IndexUnusable,
    LaneFull,
    ModelResting,
    NanoloopError,
    OverQuota,
    ProviderError,
    ProviderTimeout,
    SessionDamaged,
    SessionNotFound,
    StoreConflict,
    StoreError,
    ToolError,
    UnknownModel,
    WrongKey,
    place_of,
)
from nanoloop.messages import Language

FAILURES: Mapping[str, str] = MappingProxyType(
    {
        "model_down": "The model can't answer right now. Please try again in a few minutes.",
        "model_busy": "The model can't take more requests right now. Please try again later.",
        "model_key": "I have no access to the model. Please tell whoever runs this bot.",
        "model_unknown": "My model is not available. Please tell whoever runs this bot.",
        "too_long": "Our conversation is longer than the model can read. "
        "Please send something shorter, or start a new conversation with /new.",
        "refused": "A content filter stopped the answer. Please rephrase your message.",
        "no_images": "The model can't take these pictures, or not this many. Please use words "
        "instead.",
        "bad_image": "The model can't read one of the pictures. Please send it in another format.",
        "empty": "The model gave no answer. Please ask again, or ask for something shorter.",
        "timeout": "The model took too long to answer. Please try again in a few minutes.",
        "store_down": "Our conversation can't be read or saved right now. "
        "Please try again in a few minutes.",
        "changed": "Our conversation was changed somewhere else at the same time. "
        "Please try again.",
        "damaged": "Our conversation can't be read any more. Please start a new one with /new.",
        "gone": "This conversation was deleted or has expired. Please start a new one.",
        "recall_down": "Earlier messages can't be searched right now. Please try again later.",
        "files_full": "There is no room for more files. Please tell whoever runs this bot.",
        "full": "I have too much to do right now and could not accept your message. "
        "Please send it again soon.",
        "busy": "I am still busy with your earlier messages and could not accept this one. "
        "Please send it again soon.",
        "interrupted": "I was restarted before I could answer your last message. "
        "Please send it again.",
        "crashed": "Something went wrong on my side. Please try again.",
        "kept": "Your message is kept.",
        "incident": "incident",
    }
)
"""The sentences for failures; "kept" and "incident" are added to the others."""

ENGLISH: Mapping[str, str] = MappingProxyType(
    {
        **FAILURES,
        "between": " ",
        "row": "{name}: {value}",
        # Of files that belong to an answer.
        "file_unknown": "A file that belongs here is missing: it is not part of this conversation.",
        "file_gone": "The file {name} is missing: it is no longer in this conversation.",
        "file_large": "The file {name} is missing: it has {size} MB, and at most {most} MB can be "
        "sent here.",
        "file_refused": "The file {name} is missing: it is not accepted here.",
        # Each command's line in /help.
        "help_help": "list the commands",
        "help_new": "start a new conversation; this one is kept",
        "help_stop": "stop the current answer",
        "help_status": "show the state of this conversation",
        "help_summary": "show the summary of older messages; correct it: /summary edit TEXT",
        "help_compact": "summarise older messages now: /compact WHAT TO KEEP IN MIND",
        "help_pin": "keep a message in view: /pin NUMBER",
        "help_unpin": "stop keeping a message in view: /unpin NUMBER, or all: /unpin",
        "help_forget": "erase a message for good: /forget NUMBER, or the last exchange: /forget "
        "last",
        "help_history": "show the last messages: /history 20",
        "help_recall": "search earlier messages: /recall WORDS",
        "help_agent": "list the agents, or choose one: /agent NAME",
        "help_sessions": "list this chat's conversations, or search them: /sessions WORDS",
        "help_switch": "continue another conversation: /switch NUMBER",
        "help_rename": "give this conversation a title: /rename TITLE",
        "help_undo": "take back the last exchange",
        "help_fork": "continue in a copy; this one stays as it is",
        "help_export": "show this conversation as text: /export md, or /export json",
        "help_yes": "approve a waiting tool call: /yes NUMBER",
        "help_no": "refuse a waiting tool call: /no NUMBER, with a reason if you like",
        "help_always": "approve it and equal calls from now on: /always NUMBER; list permissions: "
        "/always; revoke them: /always off",
        "help_answer": "answer a question of a tool: /answer NUMBER TEXT",
        "prompts_more_one": "and 1 more prompt from the tool servers",
        "prompts_more": "and {count} more prompts from the tool servers",
        # The commands' answers.
        "prompt_needs": "This prompt needs {names}: {usage}",
        "prompt_failed": "/{name} can't be used now: {why}",
        "prompt_empty": "/{name} is empty: its server returned no text.",
        "unknown_command": "There is no /{name}: /help lists the commands.",
        "unknown_command_near": "There is no /{name}: did you mean /{near}?",
        "here": " (here)",
        "new_begun": "This is a new conversation; the old one is kept.",
        "new_waiting_one": "1 waiting message will be answered in the new conversation.",
        "new_waiting": "{count} waiting messages will be answered in the new conversation.",
        "stopped": "Stopped.",
        "nothing_to_stop": "There is nothing to stop.",
        "stop_waiting_one": "1 waiting message will be answered next.",
        "stop_waiting": "{count} waiting messages will be answered next.",
        "history_number": "/history takes a number, not {given!r}: /history 20",
        "nothing_said": "Nothing has been said yet.",
        "role_user": "user",
        "role_assistant": "assistant",
        "role_tool": "tool",
        "recall_off": "Nothing can be searched here: recall is turned off.",
        "recall_words": "/recall needs the words to search for: /recall birthday",
        "recall_nothing": "Nothing said earlier in this conversation matches {words!r}: "
        "try other words.",
        "recall_behind_one": "The newest entry is not searchable yet; "
        "more can be found in a moment.",
        "recall_behind": "The {count} newest entries are not searchable yet; "
        "more can be found in a moment.",
        "left_out": "[…{count} characters left out]",
        "unknown_agent": "There is no agent {name!r}: /agent lists the agents.",
        "unknown_agent_near": "There is no agent {name!r}: did you mean {near}?",
        "agent_chosen": "From now on {name} answers here.",
        "forget_usage": "/forget takes a number from /history, or two: "
        "/forget 12, /forget 12-15, /forget last",
        "no_message": "There is no message #{number} here: /history shows the numbers.",
        "erased_one": "Erased for good: 1 entry.",
        "erased": "Erased for good: {count} entries.",
        "summary_anew": "The summary mentioned it, so it is being rewritten from what remains up "
        "to #{seq}.",
        "index_behind": "But /recall may still find it: please repeat /forget later.",
        "no_summary": "There is no summary yet: nothing has left the window.",
        "summary_usage": "/summary shows it; /summary edit TEXT replaces it.",
        "summary_corrected": "This is now the summary.",
        "compacted_one": "1 message left the window and will be summarised.",
        "compacted": "{count} messages left the window and will be summarised.",
        "summary_under_way": "A summary is already being written.",
        "nothing_to_compact": "Nothing to do: the last {count} messages are always kept word for "
        "word.",
        "no_pins": "Nothing is pinned: use /pin NUMBER with a number from /history.",
        "pinned": "#{seq} stays in view.",
        "not_pinnable": "Nothing was pinned: message #{seq} has no text to pin.",
        "pins_full": "Nothing was pinned: {count} messages are already pinned. /unpin one first.",
        "pin_unknown": "That is not pinned: /pin lists what is.",
        "nothing_pinned": "Nothing is pinned.",
        "unpinned": "Unpinned {count}.",
        "sessions_before": "... and {count} older ones: /sessions WORDS finds them",
        "no_sessions": "There is no such conversation here.",
        "session_row": "{number}. {title}{here} - {entries} entries, {date}",
        "switch_unknown": "There is no conversation {wanted!r} here: "
        "/sessions lists them, /switch NUMBER switches to one.",
        "switch_which": "Which one? /sessions lists them, /switch NUMBER switches to one.",
        "switched": "Continuing: {title}",
        "rename_usage": "/rename takes the new title: /rename Our trip to Rome",
        "renamed": "This conversation is now called {title}.",
        "undone": "Taken back, with its answer: {said}",
        "nothing_to_undo": "There is nothing to take back.",
        "still_answering": "Nothing was taken back: its answer is still being written. Wait for "
        "it, or /stop it first.",
        "in_summary": "Nothing was taken back: the last exchange is already part of the summary. "
        "Start a new conversation, or fork this one from an earlier message.",
        "forked": "You are now in the copy; /sessions lists both.",
        "export_form": "/export can write md or json, not {form!r}.",
        "export_cut": "... cut off here; for the whole text, run `{command}`",
        # Questions about tool calls, and the answers to them.
        "form_ask": "{tool} asks: (number {number})",
        "form_how": "Answer /answer {number} {fields} or /no {number} within {time}.",
        "form_needs": "Please answer number {number} like this: /answer {number} {fields}",
        "form_none": "Number {number} needs no text: answer /yes {number} or /no {number}.",
        "approval_ask": "May I call {tool}? (number {number})",
        "approval_ask_operator": "An operator has to approve a call to {tool}. (number {number})",
        "approval_how": "Answer /yes {number} or /no {number} within {time}.",
        "approval_yes": "Yes",
        "approval_no": "No",
        "approval_yes_words": "yes y ok okay",
        "approval_no_words": "no n",
        "approval_none": "Nothing is waiting for an answer here.",
        "approval_which": "Several calls are waiting. Which one?",
        "void_others": "Only the person whose message led to this may answer it.",
        "void_operators": "Only an operator of this bot may answer it.",
        "void_early": "I only asked about number {number} after you wrote that. Please answer "
        "it again.",
        "void_answered": "Number {number} was already answered.",
        "void_edited": "Number {number} is not run: the message that led to it was edited or "
        "deleted.",
        "void_erased": "Number {number} is not run: what led to it was erased or taken back.",
        "void_expired": "Number {number} is not run: the answer came too late.",
        "void_left": "Number {number} is not run: this chat has left its conversation.",
        "void_stopped": "Number {number} is not run: it was stopped.",
        "void_changed": "Number {number} is not run: the tool has changed since, or is gone. "
        "Please ask again.",
        "void_elsewhere": "There is no question with number {number} in this conversation.",
        "yes_usage": "/yes takes the number of a question and nothing else: /yes 2. To have it "
        "done differently, answer /no 2 and say how.",
        "always_none": "Every call is asked about: /always NUMBER approves a call and equal ones "
        "from now on.",
        "always_same": "{tool}, with the same arguments",
        "always_off_one": "1 permission was revoked.",
        "always_off": "{count} permissions were revoked.",
        "always_usage": "/always takes the number of a question: /always 2. /always lists the "
        "permissions, /always off revokes them.",
        "always_arguments": "Give one pattern for each argument of {tool} ({names}): /always 2 "
        "NAME=PATTERN",
        # The rows of /status, and their values.
        "status_session": "session",
        "status_agent": "agent",
        "status_messages": "messages",
        "status_tokens": "tokens",
        "status_summary": "summary",
        "status_summaries": "summaries",
        "status_now": "now",
        "status_waiting": "waiting",
        "window_messages": "{count} in the window (at most {limit}), {entries} entries in the log",
        "window_tokens": "about {count} in the window",
        "answering": "answering",
        "idle": "idle",
        "summary_covers": "covers the first {count} entries",
        "summary_none": "none yet",
        "summary_running": "{reach}; {count} entries are being summarised",
        "summary_waits": "{reach}; {count} entries wait {why}",
        "wait_next": "for the next attempt",
        "wait_failure": "for another attempt",
        "wait_breaker": "for the model to recover",
        "wait_budget": "for tomorrow's token budget",
        "wait_small": "for more messages",
        "summaries_running": "{count} running",
        "summaries_waiting": "{count} waiting {why}",
        "model_open": "breaker of {model} open",
        "model_half-open": "breaker of {model} half-open",
        "model_as_answers": "the answering model",
        "summaries_today": "today {calls} calls, {tokens} tokens",
        # Answers that the loop gives when the model finds none.
        "gave_up": "I stopped after {steps} steps without reaching an answer.",
        "in_a_circle": "I stopped after {steps} steps: "
        "the model asked for the same thing {times} times in a row{tools}.",
        # Messages from the platforms' access control.
        "stranger": "This is a private bot. Its operator can give you access: your id is {person}.",
        "pair": "This is a private bot. To get access, give its operator this code within an hour:"
        "\n{code}\n(`nanoloop pair approve {code}`, or `/pair {code}` in a chat with me.)",
        "day_over": "This chat has reached its limit for today. Please come back tomorrow.",
        "operators_only": "Only an operator of this bot may do that here.",
        "code_unknown": "That code is unknown or has expired.",
        "paired": "{name} has access now.",
        "welcome": "You have access now.",
        "encrypted_room": "I can't read this room: it is encrypted, and I have no keys. "
        "Please write to me in a room without encryption.",
    }
)
"""All sentences. A sentence whose name ends in `_one` is used instead if `count` is 1."""

_NAMES: Mapping[type[BaseException], str] = {
    ProviderError: "model_down",
    OverQuota: "model_busy",
    ModelResting: "model_busy",
    WrongKey: "model_key",
    UnknownModel: "model_unknown",
    ContextTooLong: "too_long",
    AnswerRefused: "refused",
    ImagesRefused: "no_images",
    BadImage: "bad_image",
    EmptyAnswer: "empty",
    ProviderTimeout: "timeout",
    StoreError: "store_down",
    StoreConflict: "changed",
    SessionDamaged: "damaged",
    SessionNotFound: "gone",
    IndexUnusable: "recall_down",
    AttachmentsFull: "files_full",
    BusFull: "full",
    LaneFull: "busy",
    BaseException: "crashed",
}
"""The sentence for each error class; it also applies to subclasses without their own."""

SAID_CHARS = 500
"""How many characters of an error's own text the operator sees."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """A failure as the operator sees it, without message text or secrets."""

    incident: str
    """The incident's id, which is also sent to the chat."""
    error: str
    """The error's class."""
    where: str
    said: str
    """The text of one of our own errors; for any other error, only its class and place."""

    @property
    def facts(self) -> dict[str, str]:
        """The incident's fields, as the event takes them."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Apology:
    """The text that tells a chat about a failure."""

    text: str
    incident: str


INCIDENTS = 100
"""How many recent failures are remembered; a terminal shows them below the sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentReport:
    """An incident, with its time and place."""

    time: datetime
    place: str
    """The session's id, or the path of the request."""
    incident: Incident


class Incidents:
    """The latest failures that a chat or client was told about."""

    def __init__(self) -> None:
        self._reports: deque[IncidentReport] = deque(maxlen=INCIDENTS)

    def of(self, error: BaseException, *, place: str) -> Incident:
        """Create and remember an incident for a session or request path."""
        incident, now = incident_of(error), datetime.now(timezone.utc)
        self._reports.append(IncidentReport(time=now, place=place, incident=incident))
        return incident

    def last(self, count: int) -> list[IncidentReport]:
        """Return up to `count` of the latest incidents, newest last."""
        return list(self._reports)[-count:]

    def known(self, name: str | None) -> Incident | None:
        """Return the incident with this id, if it is among the latest."""
        known = (report.incident for report in self._reports)
        return next((incident for incident in known if incident.incident == name), None)

    def line(self, name: str | None) -> str:
        """Return the line to show below a sentence with this incident's id, if it is known."""
        incident = self.known(name)
        return "" if incident is None else f"incident {name}: {incident.said}\n"


class Say(Protocol):
    """Returns a sentence from the list, in the reader's language."""

    def __call__(self, name: str, /, **facts: Any) -> str:
        """Return the sentence with this name, with these facts filled in."""
        ...


class Sentences:
    """The sentences in one language, including the operator's own wording."""

    def __init__(
        self, texts: Mapping[str, str] | None = None, *, language: Language = "en"
    ) -> None:
        """Create the sentences; `texts` is the operator's own wording in this language."""
        self._texts = {**in_language(language), **(texts or {})}
        self._others: dict[str, Sentences] = {language: self}
        self.incidents = Incidents()
        """The incidents reported in any language."""

    def speaking(self, language: Language | None) -> Sentences:
        """Return the sentences in another language, or these if the language has no table."""
        if language is None or language not in get_args(Language):
            return self
        if language not in self._others:
            self._others[language] = other = Sentences(language=language)
            other.incidents, other._others = self.incidents, self._others
        return self._others[language]

    def text(self, name: str, /, **facts: Any) -> str:
        """Return the sentence with this name, with these facts filled in."""
        if facts.get("count") == 1 and f"{name}_one" in ENGLISH:
            name = f"{name}_one"
        text = self._texts[name]
        return text.format(**facts) if facts else text

    def joined(self, *sentences: str) -> str:
        """Join these sentences."""
        return self.text("between").join(sentences)

    def apology(self, error: BaseException, incident: str, *, is_kept: bool = False) -> Apology:
        """Return the text for an error; with `is_kept`, it adds that the message was stored."""
        parts = [self.text(name_of(error)), *([self.text("kept")] if is_kept else [])]
        told = self.joined(*parts, f"({self.text('incident')} {incident})")
        return Apology(text=told, incident=incident)


def role(name: str | None, say: Say) -> str:
    """Return a role's name for display; entries without a role belong to a tool."""
    told = f"role_{name or 'tool'}"
    return say(told) if told in ENGLISH else str(name)


@cache
def in_language(language: Language) -> Mapping[str, str]:
    """Return all sentences in this language."""
    if language == "en":
        return ENGLISH
    file = Path(__file__).parent / "languages" / f"{language}.toml"
    return MappingProxyType(tomllib.loads(file.read_text(encoding="utf-8")))


in_english: Say = Sentences().text


def name_of(error: BaseException) -> str:
    """Return the name of the sentence for an error, chosen by its class alone."""
    return next(_NAMES[kind] for kind in type(error).__mro__ if kind in _NAMES)


def incident_of(error: BaseException) -> Incident:
    """Create an incident with the facts about an error that the operator may read."""
    error_name, where = type(error).__name__, place_of(error)
    # A tool error quotes the model's request, and other errors may contain anything.
    is_fit = isinstance(error, NanoloopError) and not isinstance(error, ToolError)
    said = " ".join(str(error).split())[:SAID_CHARS] if is_fit else ""
    return Incident(
        incident=os.urandom(3).hex(),
        error=error_name,
        where=where,
        said=said or f"{error_name} at {where}",
    )
