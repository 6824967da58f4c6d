"""Keep a history small for the model: decide when to resize it, do so, and update the memo."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nanoloop.errors import HistoryNotLoaded, SettingsError, installer
from nanoloop.protocols import Provider
from nanoloop.session.chat import HandedMessages, char_size, messages_of, total_chars
from nanoloop.session.digest import Digest
from nanoloop.session.entry import Entry, copied
from nanoloop.session.log import cut
from nanoloop.session.options import Options
from nanoloop.session.sync import Handler, Mutex, called, fitting

if TYPE_CHECKING:
    from nanoloop.session.session import Session

LITE, DEEP = "lite", "deep"
FORCED = 1000
"""The severity of a resize on request."""
LAST_RESIZE = "last_resize"
"""The memo's key for the last resize, which is never shown to a model."""
CATCH_UP_CHARS = 24_000
"""The maximum length of text in one call that updates a memo; longer texts take several calls."""
RESULT_LIMIT = 2000
"""How many characters of a tool's result are used for a memo."""
REF_LIMIT = 500
"""How many characters of a reference are shown; a longer reference probably contains data."""
_FENCE = re.compile(r"^```\w*\s*\n(.*?)\n?```\s*$", re.DOTALL)
_REFS = ("file", "url", "path", "id", "name")
_FACTS = ("name", "mime_type", "size", "width", "height", "duration")
_TEXT = {"text", "input_text", "output_text", "tool_use", "tool_result"}

Change = Callable[[Callable[["Session"], Any]], Awaitable[Any]]
"""Applies a change to a session in one commit, and returns the result of the change."""
Decision = dict[str, Any]
"""The decision's `type` and, if known, `reason`, `severity` and `meta`."""
Schema = Callable[[Any], Any] | Mapping[str, Any]
"""A check for memos: a function that returns False or raises, a pydantic model or a JSON schema."""


class ReadEntries(Protocol):
    """Reads entries that are only in the store."""

    def __call__(self, *, after: int, upto: int) -> Awaitable[list[Entry]]:
        """Return the entries with `after < seq <= upto`, oldest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeInput:
    """A session at one moment; entries that are added later are not part of the resize."""

    entries_after: Callable[[int], Awaitable[list[Entry]]]
    """Returns the entries after a number, up to `end`."""
    window: Sequence[Entry]
    memo: Any
    memo_seq: int
    end: int
    """The number of the newest entry when the resize began."""
    epoch: int
    turns: int
    options: Options

    @property
    def kept_from(self) -> int:
        """The index of the first entry in the window that the limits allow to keep."""
        return cut(self.window, keep=self.options.messages, chars=self.options.chars)

    @property
    def keeps_memo(self) -> bool:
        """True if a built-in resize updates the memo."""
        return self.options.memo_enabled and isinstance(self.memo, dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeResult:
    """The session's new content after a resize."""

    current: Sequence[Entry]
    """The new window; entries without a number are in no log."""
    memo: Any
    memo_seq: int
    full: Sequence[Entry] | None = None
    """The new history, or None if it doesn't change."""


@dataclass(slots=True, kw_only=True)
class ResizeHandlers:
    """The functions that control a session's resizes; each takes priority over the settings."""

    policy: Handler | None = None
    """Replaces the rules; called with (full, current, settings)."""
    resizes: dict[str, Resize] = field(default_factory=lambda: dict(DEFAULT_RESIZES))
    """The resize functions by type."""
    memo_update: Handler | None = None
    """Returns the new memo as a dict; called with (memo, messages, attachments, settings)."""
    attachments: Handler | None = None
    """Returns summaries of a message's attachments; called with the message."""
    fits: Callable[[Any], bool] = lambda _: True
    """Returns True if a new memo is acceptable."""
    provider: Provider | None = None
    """The model that updates a memo if there is no handler."""
    mutex: Mutex = field(default_factory=Mutex)
    """Allows only one resize of a session at a time."""

    @property
    def are_built_in(self) -> bool:
        """True if no user function is involved, which might have to be awaited."""
        own = (self.policy, self.memo_update, self.attachments)
        return own == (None, None, None) and self.resizes == DEFAULT_RESIZES

    def copy(self) -> ResizeHandlers:
        """Return a copy of the handlers for another session."""
        return replace(self, resizes=dict(self.resizes), mutex=Mutex())


Resize = Callable[[ResizeInput, ResizeHandlers], Awaitable[ResizeResult]]


# When to resize


async def judge(
    session: Session, by: ResizeHandlers, force: object, read: ReadEntries | None
) -> Decision | None:
    """Return the type and reason if a resize is due, or None.

    Raise TypeError if the policy's answer is invalid.
    """
    if force:
        kind = force if isinstance(force, str) else DEEP
        return {"type": kind, "reason": "force", "severity": FORCED}
    if by.policy is None:
        return due_by_rules(session)
    with session.lock:
        options, current = session.settings.snapshot(), session.messages
    history = await _entries_after(session, 0, session.last_seq, read)
    given = fitting(by.policy, messages_of(history), current, options)
    return _checked_decision(await called(by.policy, *given))


def due_by_rules(session: Session) -> Decision | None:
    """Return what the rules decide for this session."""
    with session.lock:
        options, current = session.settings.snapshot(), session.messages
        turns = session.turns - session.last_resize_turn
    return default_decision(current, options, turns=turns)


def default_decision(
    messages: Sequence[Mapping[str, Any]], options: Options, *, turns: int
) -> Decision | None:
    """Return what the rules decide for this window, `turns` turns after the last resize."""
    rules = (
        (DEEP, "max_messages_text_length", 100, 0 < options.chars <= total_chars(messages)),
        (LITE, "max_keep_messages_count", 50, 0 < options.messages < len(messages)),
        (LITE, "every_n_turns", 10, 0 < options.every_n_turns <= turns),
    )
    # The first rule that applies decides, so the most severe one comes first.
    due = ((kind, reason, severity) for kind, reason, severity, is_due in rules if is_due)
    for kind, reason, severity in due:
        return {"type": kind, "reason": reason, "severity": severity}
    return None


def _checked_decision(said: object) -> Decision | None:
    if said is None:
        return None
    if isinstance(said, str):
        return {"type": said}
    if isinstance(said, Mapping) and isinstance(said.get("type"), str):
        return dict(said)
    raise TypeError(
        f"a policy must return None, a type, or a dict with a type, not {type(said).__name__}: "
        f"{said!r}"
    )


# How to resize


async def run(
    session: Session, by: ResizeHandlers, force: object, read: ReadEntries | None
) -> list[dict[str, Any]]:
    """Resize if necessary or forced, and return the window as chat messages.

    Raise KeyError for a type without a handler, and any error that a handler raises; in both cases,
    nothing has changed.
    """
    async with by.mutex:
        decision = await judge(session, by, force, read)
        if decision is not None:
            await _resize(session, by, decision, is_forced=bool(force), read=read)
        return session.messages


async def _resize(
    session: Session,
    by: ResizeHandlers,
    decision: Decision,
    *,
    is_forced: bool,
    read: ReadEntries | None,
) -> None:
    resize = by.resizes.get(decision["type"])
    if resize is None:
        raise KeyError(f"no handler for a resize of type {decision['type']!r}")
    now = _input(session, read)
    is_default = resize in DEFAULT_RESIZES.values()
    if is_default and _is_done(session, now) and not is_forced:
        return
    _apply(session, now, await resize(now, by), decision, is_default=is_default)


def _is_done(session: Session, now: ResizeInput) -> bool:
    """Return True if there is nothing left for a built-in resize to do."""
    return not now.kept_from and now.end == session.resized.get("seq", 0)


def _input(session: Session, read: ReadEntries | None) -> ResizeInput:
    with session.lock:
        end = session.last_seq
        return ResizeInput(
            entries_after=lambda after: _entries_after(session, after, end, read),
            window=session.window,
            memo=session.memo,
            memo_seq=session.memo_seq,
            end=end,
            epoch=session.epoch,
            turns=session.turns,
            options=session.settings.snapshot(),
        )


async def _entries_after(
    session: Session, after: int, upto: int, read: ReadEntries | None
) -> list[Entry]:
    log = session.log
    with session.lock:
        after, released = max(after, log.start - 1), log.released
        present = list(log.between(after, upto))
    if after >= released:
        return present
    if read is None:
        raise HistoryNotLoaded(session.id)
    stored = await read(after=after, upto=min(released, upto))
    return [*(entry for entry in stored if not log.is_hidden(entry.seq)), *present]


def _apply(
    session: Session,
    now: ResizeInput,
    result: ResizeResult,
    decision: Decision,
    *,
    is_default: bool,
) -> None:
    with session.lock:
        if session.epoch != now.epoch:
            return
        shown = _still_shown(session, now, result.current)
        if result.full is not None:
            whole = [*result.full, *session.log.between(now.end, session.last_seq)]
            again = dict(zip(map(id, whole), session.rewrite(whole), strict=True))
            shown = [again.get(id(entry), entry) for entry in shown]
        session.show(shown)
        reason = decision.get("reason")
        resized = {
            "type": decision["type"],
            "turn": now.turns,
            "reason": reason or f"{decision['type']}_resize",
        }
        memo = result.memo
        if isinstance(memo, dict) and (reason or is_default):
            memo = {**memo, LAST_RESIZE: resized}
        digest = Digest(value=memo, seq=result.memo_seq)
        session.note_resize({**resized, "seq": now.end}, digest)


def _still_shown(session: Session, now: ResizeInput, current: Iterable[Entry]) -> list[Entry]:
    """Return the new window, including any changes made to the entries in the meantime."""
    was_shown = {entry.seq for entry in now.window}
    is_shown = {entry.seq for entry in session.log.window}
    kept = [e for e in current if e.seq in is_shown or e.seq not in was_shown]
    kept = [e for e in kept if not session.log.is_hidden(e.seq)]
    return [*kept, *(e for e in session.log.window if e.seq > now.end)]


async def lite(now: ResizeInput, by: ResizeHandlers) -> ResizeResult:
    """Add new messages to the memo, and cut the window."""
    return await _default(now, by, after=now.memo_seq)


async def deep(now: ResizeInput, by: ResizeHandlers) -> ResizeResult:
    """Add the whole history to the memo, piece by piece, and cut the window."""
    return await _default(now, by, after=0, piece_chars=now.options.chars)


DEFAULT_RESIZES: Mapping[str, Resize] = {LITE: lite, DEEP: deep}


async def _default(
    now: ResizeInput, by: ResizeHandlers, *, after: int, piece_chars: int = 0
) -> ResizeResult:
    memo, memo_seq = now.memo, now.end
    if now.keeps_memo:
        if by.memo_update is not None or by.provider is not None:
            messages = messages_of(await now.entries_after(after))
            for chunk in chunks(messages, piece_chars):
                memo = await _updated_memo(memo, chunk, now.options, by)
        else:
            memo_seq = now.memo_seq  # no model to ask: new messages wait until there is one
    return ResizeResult(current=now.window[now.kept_from :], memo=memo, memo_seq=memo_seq)


# In two steps: first the window, later the memo


def cut_by_rules(session: Session, least_severity: int) -> int:
    """Resize if a rule of at least this severity applies, but leave the memo for later.

    Return how many entries left the window. The memo's number does not change, and marks where the
    next update of the memo must begin.
    """
    with session.lock:
        decision = due_by_rules(session)
        if decision is None or decision["severity"] < least_severity:
            return 0
        now = _input(session, None)
        if _is_done(session, now):
            return 0
        seq = now.memo_seq if now.keeps_memo else now.end
        current = now.window[now.kept_from :]
        result = ResizeResult(current=current, memo=now.memo, memo_seq=seq)
        _apply(session, now, result, decision, is_default=True)
        return now.kept_from


async def update_memo(
    session: Session, by: ResizeHandlers, change: Change, read: ReadEntries | None
) -> bool:
    """Update the memo after the last resize; return False if it was changed in the meantime.

    Raise the provider's errors, in which case nothing has changed.
    """
    async with by.mutex:
        # Durable first: the numbers that the memo covers must not become another writer's entries.
        now: ResizeInput = await change(partial(_input, read=read))
        if session.resized.get("type") == DEEP:
            result = await deep(now, by)
        else:  # like `lite`, in pieces: after days of failures, one call is not enough
            result = await _default(now, by, after=now.memo_seq, piece_chars=CATCH_UP_CHARS)
        return bool(await change(partial(_take_memo, now=now, result=result)))


def _take_memo(session: Session, *, now: ResizeInput, result: ResizeResult) -> bool:
    with session.lock:
        memo, stands = session.memo, (session.epoch, session.memo_seq)
        if stands != (now.epoch, now.memo_seq) or _seen(memo) != _seen(now.memo):
            return False
        value = result.memo
        if isinstance(memo, dict) and LAST_RESIZE in memo:  # perhaps from a later cut
            value = {**value, LAST_RESIZE: memo[LAST_RESIZE]}
        session.note_resize(session.resized, Digest(value=value, seq=result.memo_seq))
        return True


def chunks(messages: Sequence[dict[str, Any]], chars: int) -> Iterator[list[dict[str, Any]]]:
    """Yield chunks of at most `chars` characters; 0 means a single chunk.

    A longer message is a chunk of its own.
    """
    chunk: list[dict[str, Any]] = []
    filled = 0
    for message in messages:
        size = char_size(message)
        if chunk and 0 < chars < filled + size:
            yield chunk
            chunk, filled = [], 0
        chunk.append(message)
        filled += size
    if chunk:
        yield chunk


def checked_type(name: object) -> str:
    """Return the type of resize; raise ValueError if no policy could return it."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(
            f"{name!r} is not a type of resize: register the handler under a type that a policy "
            f"returns, such as {LITE!r} or {DEEP!r}"
        )
    return name


def custom(handler: Handler) -> Resize:
    """Wrap a user's handler, which maps (full, current, memo, settings) to a new triple."""

    async def resize(now: ResizeInput, _: ResizeHandlers) -> ResizeResult:
        handed = HandedMessages(await now.entries_after(0))
        current = handed.shown(now.window)
        before = copied(current)
        given = ([*handed.messages], current, copied(now.memo), now.options)
        full, kept, memo = _checked_result(await called(handler, *given))
        entries, shown = handed.resolved(full, kept)
        return ResizeResult(
            full=None if handed.is_same(full) else entries,
            current=now.window if list(kept) == before else shown,
            memo=copied(memo),
            memo_seq=now.memo_seq,
        )

    return resize


def _checked_result(said: Any) -> tuple[list[Any], list[Any], Any]:
    """Return a handler's result; raise TypeError if it isn't (full, current, memo)."""
    if isinstance(said, (tuple, list)) and len(said) == 3:  # noqa: PLR2004 - see the docstring
        full, current, memo = said
        if _are_messages(full) and _are_messages(current):
            return list(full), list(current), memo
    raise TypeError(
        f"a resize handler must return (full, current, memo): two lists of messages and the memo; "
        f"got {type(said).__name__}"
    )


def _are_messages(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(item, Mapping) for item in value)


# The memo


async def _updated_memo(
    memo: Any, messages: Sequence[dict[str, Any]], options: Options, by: ResizeHandlers
) -> Any:
    """Return the memo updated with these messages, or unchanged if the answer is unusable."""
    attachments = [about for message in messages for about in await _summaries(message, by)]
    said: Any = None
    if by.memo_update is not None:
        given = (_seen(memo), copied(messages), attachments, options)
        said = copied(await called(by.memo_update, *given))
    elif by.provider is not None:
        asked = _memo_request(memo, messages, attachments, options)
        model = options.get("session.memo.model")
        reply = await by.provider.chat(messages=asked, tools=None, model=model)
        said = unwrapped(_object_in(reply.text))
    return said if isinstance(said, dict) and by.fits(said) else memo


async def _summaries(message: dict[str, Any], by: ResizeHandlers) -> list[Any]:
    if by.attachments is None:
        return list(attachment_summaries(message))
    said = await called(by.attachments, message)
    if said is None:
        return []
    return list(said) if isinstance(said, (list, tuple)) else [said]


def _memo_request(
    memo: Any,
    messages: Sequence[Mapping[str, Any]],
    attachments: Sequence[Any],
    options: Options,
) -> list[dict[str, Any]]:
    """Return the request to the model: the instructions, then the data as JSON."""
    given = {
        "current_memo": _seen(memo),
        "messages": [_serialised(message) for message in messages],
        "attachments": list(attachments),
    }
    text = json.dumps(given, ensure_ascii=False, default=str)
    return [
        {"role": "system", "content": options.instruct},
        {"role": "user", "content": text},
    ]


def _seen(memo: Any) -> Any:
    """Return a copy of the memo for the model."""
    if not isinstance(memo, Mapping):
        return copied(memo)
    return {key: copied(value) for key, value in memo.items() if key != LAST_RESIZE}


def _serialised(message: Mapping[str, Any]) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.get("role"), "content": _content(message)}
    if calls := message.get("tool_calls"):
        functions = [call.get("function") or {} for call in calls]
        said["tool_calls"] = [
            {name: function.get(name) for name in ("name", "arguments")} for function in functions
        ]
    return said


def _content(message: Mapping[str, Any]) -> Any:
    content = message.get("content")
    if isinstance(content, Mapping):
        content = content.get("content")
    text = without_payloads(content)
    if message.get("role") == "tool" and isinstance(text, str) and len(text) > RESULT_LIMIT:
        return text[:RESULT_LIMIT] + "…"
    return text


def _object_in(text: str) -> Any:
    """Return the JSON value in this text, ignoring anything around it, or None."""
    fenced = _FENCE.match(text.strip())
    whole = fenced[1] if fenced else text.strip()
    for candidate in (whole, whole[whole.find("{") : whole.rfind("}") + 1]):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None


def unwrapped(said: Any) -> dict[str, Any] | None:
    """Return the value of `memo` if it is a dict, else the dict itself, or None for no dict."""
    if not isinstance(said, Mapping):
        return None
    inner = said.get("memo")
    return dict(inner) if isinstance(inner, Mapping) else dict(said)


def check_of(schema: Schema | None) -> Callable[[Any], bool]:
    """Return a function that checks a memo's shape; without a schema, it accepts any memo.

    For a JSON schema, raise `SettingsError` if the package for it is missing.
    """
    if schema is None:
        return lambda _: True
    if isinstance(schema, Mapping):
        return _json_schema_check(schema)
    check = getattr(schema, "model_validate", schema)

    def fits(memo: Any) -> bool:
        try:
            return check(memo) is not False
        except (ValueError, TypeError, KeyError, AssertionError):
            return False

    return fits


def _json_schema_check(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    try:
        from jsonschema.validators import (  # type: ignore[import-untyped]  # noqa: PLC0415 - if it is there
            validator_for,
        )
    except ImportError:
        raise SettingsError(
            "memo_schema is a JSON schema, but the jsonschema package is not installed: "
            f"{installer()} jsonschema, or use a pydantic model or a function"
        ) from None
    validator = validator_for(schema)
    validator.check_schema(schema)
    return lambda memo: bool(validator(schema).is_valid(memo))


# Attachments


def attachment_summaries(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the type, reference and known facts of each non-text part of a message."""
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    return [
        {"type": part["type"], "ref": _ref(part), "meta": _facts(part)}
        for part in parts
        if isinstance(part, Mapping) and part.get("type") and part["type"] not in _TEXT
    ]


def _ref(part: Mapping[str, Any]) -> Any:
    """Return the first reference in the part itself, or else in a nested value."""
    wrapped = [value for value in part.values() if isinstance(value, Mapping)]
    for holder in (part, *wrapped):
        for name in _REFS:
            value = holder.get(name)
            if value and not isinstance(value, (Mapping, list)):
                return _shown_ref(value)
    plain = part.get(str(part["type"]))
    return _shown_ref(plain) if isinstance(plain, str) and plain else None


def _shown_ref(ref: Any) -> Any:
    if not isinstance(ref, str):
        return ref
    if ref.startswith("data:"):
        return ref.partition(",")[0][:REF_LIMIT]
    return ref if len(ref) <= REF_LIMIT else ref[:REF_LIMIT] + "…"


def _facts(part: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part[name] for name in _FACTS if part.get(name)}


def without_payloads(content: Any) -> Any:
    """Return the content with its attachments named rather than included."""
    if not isinstance(content, list):
        return content
    return "\n".join(filter(None, (_in_words(part) for part in content)))


def _in_words(part: Any) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return ""
    if isinstance(part.get("text"), str):
        return str(part["text"])
    if part.get("type") == "tool_use":
        return f"[calls {part.get('name', '')}]"
    return " ".join(f"[{about['type']}]" for about in attachment_summaries({"content": [part]}))
