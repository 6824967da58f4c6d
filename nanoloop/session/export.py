"""Export a session, import it in whole or in part, and show it to people."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from nanoloop.events import NumberMended, announce
from nanoloop.session.approvals import told_of
from nanoloop.session.chat import (
    HandedMessages,
    begins_apart,
    entries_of,
    messages_of,
    result_text,
    spans_of,
    words_of,
)
from nanoloop.session.digest import quotes_by_place, quotes_in, quotes_moved
from nanoloop.session.entry import (
    APPROVAL,
    MESSAGE,
    THINKING,
    TOOL_CALL,
    TOOL_RESULT,
    Entry,
    entries_in,
    from_rfc3339,
    rfc3339,
)
from nanoloop.session.head import (
    ABOUT,
    MEMO,
    SETTINGS,
    STATE,
    SUMMARY,
    Head,
    checked_id,
    is_place,
    place_in,
)
from nanoloop.session.options import Options
from nanoloop.session.speech import for_people

if TYPE_CHECKING:
    from nanoloop.session.session import Session

FULL, CURRENT = "full_chat_history", "current_chat_history"
_POSITIONS = (CURRENT, "memo_cursor", "summary_cursor")
"""The values that are positions in the whole history."""


def exported(session: Session) -> dict[str, Any]:
    """Return a session's complete state, without any secrets from its settings."""
    with session.lock:
        entries, head = session.whole(), session.head()
        ledger = list(quotes_by_place(session.ledger, entries))
        pins = list(quotes_by_place(session.pins, entries))
        return {
            **session.about.dump(),
            "updated_at": rfc3339(head.updated_at),
            "expires_at": rfc3339(head.expires_at) if head.expires_at else None,
            "memo": session.memo,
            "summary": session.summary,
            **({"ledger": ledger} if ledger else {}),
            FULL: session.full_chat_history,
            CURRENT: session.current_chat_history,
            "settings": session.settings.exported(),
            "state": session.state,
            "turns": session.turns,
            "last_resize_turn": session.last_resize_turn,
            "last_resize": session.last_resize,
            "memo_cursor": session.memo_cursor,
            "summary_cursor": _place_of(head.covered, entries),
            "entries": [entry.to_dict() for entry in entries],
            "window": positions(session.log.window, entries),
            **({"pins": pins} if pins else {}),
        }


def _place_of(seq: int, entries: Iterable[Entry]) -> int:
    """Return how many of the entries have this number or a lower one."""
    return sum(entry.seq <= seq for entry in entries)


def take_in(session: Session, data: Mapping[str, Any]) -> None:
    """Import all or part of an export; raise TypeError or ValueError before anything is changed."""
    data, odd = checked_data(parsed(data))
    history = imported_history(data)
    odd += ["window"] if history is not None and history.has_odd_places else []
    with session.lock:
        if history is None and any(data.get(name) is not None for name in _POSITIONS):
            session.whole()
        session.restore(_head_without_history(session, data), _parts_without_history(session, data))
        memo_cursor = _memo_cursor(session, data, history)
        if history is not None:
            session.take_history(history.entries, history.window)
        elif data.get(CURRENT) is not None:
            session.current_chat_history = data[CURRENT]
        digests = {SUMMARY: _summary(session, data), MEMO: _memo(session, data, memo_cursor)}
        session.restore(session.head(), digests)
        session.restore(_counted_head(session, data, is_new=history is not None), {})
        session.touch(ABOUT, STATE, SUMMARY, MEMO, SETTINGS)
        if data.get("updated_at"):
            session.updated_at = from_rfc3339(data["updated_at"])
    for name in odd:
        announce(NumberMended(session_id=session.id, number=name))


def _head_without_history(session: Session, data: Mapping[str, Any]) -> Head:
    head = session.head()
    if "expires_at" not in data:
        return head
    expires_at = data["expires_at"]
    return replace(head, expires_at=from_rfc3339(expires_at) if expires_at else None)


def _parts_without_history(session: Session, data: Mapping[str, Any]) -> dict[str, Any]:
    names = ("key", "agent", "title", "metadata", "max_history", "ttl", "sliding", "created_at")
    about = {**session.about.dump(), **{name: data[name] for name in names if name in data}}
    if data.get("id") is not None and not session.revision:
        about["id"] = data["id"]
    settings = data.get("settings")
    return {
        ABOUT: about,
        STATE: data.get("state"),
        SETTINGS: None if settings is None else Options(settings).explicit(),
    }


def _memo_cursor(
    session: Session, data: Mapping[str, Any], history: ImportedHistory | None
) -> int | None:
    if data.get("memo_cursor") is not None:
        return int(data["memo_cursor"])
    return None if history is None or not session.log.is_whole else session.memo_cursor


def _summary(session: Session, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the summary as stores save it."""
    summary: dict[str, Any] = session.part(SUMMARY)
    before = session.log.start - 1
    if data.get("summary_cursor") is not None:
        entries = session.whole()[: int(data["summary_cursor"])]
        summary["seq"] = entries[-1].seq if entries else before
    if data.get("summary") is not None:
        summary["value"] = str(data["summary"])
        summary["ledger"] = quotes_moved(quotes_in(data.get("ledger")), before)
    if data.get("pins") is not None:
        summary["pins"] = quotes_moved(quotes_in(data["pins"]), before)
    return summary


def _memo(session: Session, data: Mapping[str, Any], cursor: int | None) -> dict[str, Any]:
    """Return the memo as stores save it."""
    memo: dict[str, Any] = session.part(MEMO)
    if "memo" in data:
        memo["value"] = data["memo"]
    if cursor is not None:
        memo["seq"] = _seq_behind(session, cursor)
    return memo


def _seq_behind(session: Session, messages: int) -> int:
    """Return the number of the last entry among the history's first `messages` messages."""
    spans = [span for span in spans_of(session.whole()) if span.message is not None][:messages]
    return spans[-1].entries[-1].seq if spans else session.log.start - 1


def _counted_head(session: Session, data: Mapping[str, Any], *, is_new: bool) -> Head:
    head = session.head()
    if data.get("turns") is not None:
        head = replace(head, turns=int(data["turns"]))
    last = data.get("last_resize") or {}
    if data.get("last_resize_turn") is None and not last:
        return head
    turn = place_in(data.get("last_resize_turn") or last.get("turn") or 0)
    turn = min(turn, head.turns) if is_new and data.get("turns") is None else turn
    seq = session.memo_seq if is_new else int(head.resized.get("seq", 0))
    resized = {"type": None, "reason": None, **last, "turn": turn, "seq": seq}
    return replace(head, resized=resized if turn or last else {})


def copy_upto(session: Session, fork: Session, upto: int | str | None) -> None:
    """Copy a session's history up to an entry, and its state, to a new session.

    The entry is given by number or id. Summary and memo are copied only if they cover nothing after
    the entry.
    """
    last = _fork_point(session, upto)
    entries = [entry for entry in session.whole() if entry.seq <= last]
    shown = {entry.seq for entry in session.log.window}
    fork.take_history(entries, [entry for entry in entries if entry.seq in shown] or entries)
    fork.title = session.title
    summary, memo = session.part(SUMMARY), session.part(MEMO)
    pins = quotes_by_place((pin for pin in session.pins if pin["seq"] <= last), entries)
    parts = {name: session.part(name) for name in (STATE, SETTINGS)}
    parts[SUMMARY] = {"pins": pins}
    if summary["seq"] <= last:
        parts[SUMMARY] |= {
            "value": summary["value"],
            "seq": _place_of(summary["seq"], entries),
            "ledger": quotes_by_place(session.ledger, entries),
        }
    if memo["seq"] <= last:
        parts[MEMO] = {"value": memo["value"], "seq": _place_of(memo["seq"], entries)}
    fork.restore(fork.head(), parts)
    fork.touch(ABOUT, STATE, SUMMARY, MEMO, SETTINGS)


def _fork_point(session: Session, upto: int | str | None) -> int:
    if upto is None:
        return session.last_seq
    if isinstance(upto, int):
        return upto
    for entry in session.whole():
        if entry.id == upto:
            return entry.seq
    raise ValueError(f"session {session.id!r} has no entry {upto!r}")


_PLACES = ("turns", "last_resize_turn", "memo_cursor", "summary_cursor")
_TIMES = ("created_at", "updated_at", "expires_at")
_MAPPINGS = ("settings", "state", "metadata", "last_resize")
_INNER = ("_turns", "_last_resize_turn", "_memo_cursor")
"""The original implementation's names for the counts."""


def checked_data(data: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the data with all positions and counts corrected, and the names of the invalid values.

    An invalid position becomes the beginning, and an invalid number of turns is counted again.
    Raise TypeError or ValueError if anything else is wrong.
    """
    data = {(name[1:] if name in _INNER else name): value for name, value in data.items()}
    if data.get("id") is not None:
        checked_id(data["id"])
    odd = [name for name in _PLACES if data.get(name) is not None and not is_place(data[name])]
    for name in _PLACES:
        if data.get(name) is not None:
            data[name] = None if name in odd and name == "turns" else place_in(data[name])
    if data.get("max_history") is not None:
        data["max_history"] = int(data["max_history"])
    for name in _TIMES:
        from_rfc3339(data.get(name))
    for name in _MAPPINGS:
        if data.get(name) is not None and not isinstance(data[name], Mapping):
            raise TypeError(f"{name} must be an object with keys, not {type(data[name]).__name__}")
    return data, odd


def positions(window: Sequence[Entry], entries: Sequence[Entry]) -> list[int | dict[str, Any]]:
    """Return the window as positions in the history, with other entries in full."""
    places = {entry.seq: index for index, entry in enumerate(entries)}
    return [places[e.seq] if e.seq in places else e.to_dict() for e in window]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedHistory:
    """The history in an import, which is read before anything is changed."""

    entries: Sequence[Entry]
    window: Sequence[Entry]
    has_odd_places: bool = False
    """True if the window contained invalid positions."""


def imported_history(data: Mapping[str, Any]) -> ImportedHistory | None:
    """Read the history, or return None; raise TypeError or ValueError if it is invalid.

    `entries` has more details than `full_chat_history`, but the latter takes priority if someone
    edited it.
    """
    if data.get("entries") is None and data.get(FULL) is None:
        return None
    entries = entries_in(_list_in(data, "entries"))
    full = _messages_in(data, FULL)
    if full is not None and (data.get("entries") is None or messages_of(entries) != full):
        entries = _entries_of_all(full)
        return _with_window(data, entries, None)
    return _with_window(data, entries, data.get("window"))


def _with_window(data: Mapping[str, Any], entries: list[Entry], places: Any) -> ImportedHistory:
    current = _messages_in(data, CURRENT)
    found = [_at(place, entries) for place in places] if isinstance(places, list) else []
    shown = [entry for entry in found if entry is not None]
    is_odd = len(shown) < len(found)
    if not isinstance(places, list) or (is_odd and not shown):
        shown = entries
    if current is not None and messages_of(shown) != current:
        shown = HandedMessages(entries).all_entries_for(current)
    return ImportedHistory(entries=entries, window=shown, has_odd_places=is_odd)


def _at(place: Any, entries: Sequence[Entry]) -> Entry | None:
    """Return the entry at this position in the history; entries outside it are given in full."""
    if isinstance(place, Mapping):
        return entries_in([place])[0]
    is_there = isinstance(place, int) and 0 <= place < len(entries)
    return entries[place] if is_there else None


def _entries_of_all(messages: Sequence[Mapping[str, Any]]) -> list[Entry]:
    entries: list[Entry] = []
    for message in messages:
        entries += begins_apart(entries_of(message), entries[-1] if entries else None)
    return entries


def _list_in(data: Mapping[str, Any], name: str) -> list[Any]:
    value = data.get(name)
    if value is not None and not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list, not {type(value).__name__}")
    return list(value or ())


def _messages_in(data: Mapping[str, Any], name: str) -> list[Mapping[str, Any]] | None:
    if data.get(name) is None:
        return None
    messages = _list_in(data, name)
    for message in messages:
        if not isinstance(message, Mapping):
            raise TypeError(f"{name} must contain messages, not {type(message).__name__}")
    return messages


Format = Literal["json", "yaml"]
_ODD = re.compile("[\x80-\x9f\u2028\u2029\ufeff\ud800-\udfff]")
"""Characters that YAML treats as line breaks, or rejects unless they are escaped."""


def dumped(data: Mapping[str, Any], format: str = "json") -> str:  # noqa: A002 - the original API's name
    """Return the data as text in this format; values that have no JSON form become text."""
    text = json.dumps(data, ensure_ascii=False, default=str, indent=2)
    if _checked_format(format) == "json":
        return text
    import yaml  # noqa: PLC0415 - only needed for YAML

    is_plain = not _ODD.search(text)
    return str(yaml.safe_dump(json.loads(text), allow_unicode=is_plain, sort_keys=False, width=100))


def parsed(
    text: str | bytes | Mapping[str, Any],
    format: str | None = None,  # noqa: A002 - the original API's name
    key_path: str | None = None,
) -> Mapping[str, Any]:
    """Return the mapping in this text, or the one at a dotted path within it.

    Raise ValueError with the position of a syntax error, or TypeError if the value is not a
    mapping.
    """
    value = text if isinstance(text, Mapping) else _value_in(text, format)
    for name in key_path.split(".") if key_path else ():
        if not isinstance(value, Mapping):
            raise TypeError(f"can't look up {name!r} of {key_path!r} in {_kind(value)}")
        if name not in value:
            raise ValueError(f"there is no {name!r} in the path {key_path!r}")
        value = value[name]
    if not isinstance(value, Mapping):
        raise TypeError(f"a session must be an object with keys, not {_kind(value)}")
    return value


def _value_in(text: str | bytes, format: str | None) -> Any:  # noqa: A002 - as above
    if isinstance(text, bytes):
        text = text.decode()
    if not isinstance(text, str):
        raise TypeError(f"a session can be read from text or a mapping, not {_kind(text)}")
    if not text.strip():
        raise TypeError("a session must be an object with keys, not an empty string")
    return (
        _json_value(text)
        if _checked_format(format or _guessed(text)) == "json"
        else _yaml_value(text)
    )


def _guessed(text: str) -> Format:
    return "json" if text.lstrip()[0] in '{["' else "yaml"


def _checked_format(format: str) -> str:  # noqa: A002 - as above
    if format.lower() not in ("json", "yaml"):
        raise ValueError(f"{format!r} is not a session format: use 'json' or 'yaml'")
    return format.lower()


def _json_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as broken:
        raise ValueError(f"this is not valid JSON: {broken}") from broken  # with its position


def _yaml_value(text: str) -> Any:
    import yaml  # noqa: PLC0415 - only needed for YAML

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as broken:
        mark = getattr(broken, "problem_mark", None)
        place = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        problem = getattr(broken, "problem", None) or broken
        raise ValueError(f"this is not valid YAML{place}: {problem}") from broken


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


_NAMES = {"user": "User", "assistant": "Assistant", "system": "System"}


def as_markdown(entries: Sequence[Entry], *, title: str, about: str = "", summary: str = "") -> str:
    """Return a heading, the summary, and each message and tool with its time, without reasoning."""
    blocks = [f"# {title or 'Conversation'}"]
    blocks += [about] if about else []
    blocks += [f"## Summary of what came before\n\n{summary}"] if summary else []
    blocks += [block for entry in entries if (block := _markdown_block(entry))]
    return "\n\n".join(blocks) + "\n"


def _markdown_block(entry: Entry) -> str:
    if entry.type == MESSAGE:
        role = str(entry.role or "")
        text = for_people(entry)
        return f"**{_NAMES.get(role, role.title())}** · {_time(entry.timestamp)}\n\n{text}".rstrip()
    if entry.type == TOOL_CALL:
        given = json.dumps(entry.content.get("parameters"), ensure_ascii=False, default=str)
        return f"**Tool call** `{entry.content.get('tool', '')}`\n\n{_fenced(given, 'json')}"
    if entry.type == TOOL_RESULT:
        return f"**Tool result** `{entry.content.get('tool', '')}`\n\n{_fenced(result_text(entry))}"
    return f"**Approval** · {told_of(entry)}" if entry.type == APPROVAL else ""


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M")


def _fenced(text: str, language: str = "") -> str:
    """Return the text in a fence longer than any fence inside the text."""
    longest = max((len(run) for run in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


HEADING = "Session Summary:"
_ELLIPSIS = "..."


def displayed(entries: Sequence[Entry], *, last: int = 20, width: int = 80) -> str | None:
    """Return the last messages, one line per message and tool use, or None if there are none.

    A `last` or `width` of 0 means no limit.
    """
    spans = [span for span in spans_of(entries) if span.message is not None]
    if not spans:
        return None
    shown = spans[-last:] if last > 0 else spans
    lines = [line for span in shown for entry in span.entries for line in _display_lines(entry)]
    return f"{HEADING}\n\n" + "\n".join(shortened(line, width) for line in lines)


def _display_lines(entry: Entry) -> Iterator[str]:
    if entry.type == MESSAGE:
        text = words_of(entry)
        if text or "parts" not in entry.content:
            yield f"[{str(entry.role or '').upper()}] {_on_one_line(text)}"
    elif entry.type == TOOL_CALL:
        yield f"[TOOL] tool_use: {entry.content.get('tool', '')}"
    elif entry.type == TOOL_RESULT:
        yield f"[TOOL] tool_result: {_on_one_line(result_text(entry))}"


def _on_one_line(text: str) -> str:
    return text.replace("\r\n", "\\n").replace("\n", "\\n")


def shortened(line: str, width: int) -> str:
    """Return the line shortened to this many columns, ending in `...` if it was cut."""
    if width <= 0 or sum(map(_columns, line)) <= width:
        return line
    room = max(0, width - len(_ELLIPSIS))
    used = 0
    for index, character in enumerate(line):
        used += _columns(character)
        if used > room:
            return line[:index] + _ELLIPSIS[:width]
    return line


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def counted(entries: Sequence[Entry]) -> dict[str, Any]:
    """Count the messages by role and the tool calls, and list the tools in order of use."""
    said = [span.message for span in spans_of(entries) if span.message is not None]
    roles = [message["role"] for message in said]
    calls = [entry for entry in entries if entry.type == TOOL_CALL]
    results = sum(entry.type == TOOL_RESULT for entry in entries)
    return {
        "user": roles.count("user"),
        "assistant": roles.count("assistant"),
        "tool": roles.count("tool"),
        # A result without a recorded call also counts as a call.
        "tool_calls": max(len(calls), results),
        "tools_used": [str(call.content.get("tool", "")) for call in calls],
    }


def conversation_text(entries: Sequence[Entry]) -> str:
    """Return `[role] content` for each message, separated by blank lines."""
    said = [span for span in spans_of(entries) if span.message is not None]
    return "\n\n".join(f"[{_role(span.message)}] {_spoken(span.entries)}" for span in said)


def _role(message: Mapping[str, Any] | None) -> str:
    return str((message or {}).get("role", ""))


def _spoken(entries: Sequence[Entry]) -> str:
    return "\n".join(text for text in map(_words, entries) if text)


def _words(entry: Entry) -> str:
    if entry.type == MESSAGE:
        return str(entry.content.get("text") or "")
    if entry.type == TOOL_RESULT:
        return result_text(entry)
    return f"tool_use: {entry.content.get('tool', '')}" if entry.type == TOOL_CALL else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """An entry of the context as text."""

    type: str
    """A message's role, or the type of any other entry."""
    text: str


def rendered(entry: Entry) -> Rendered:
    """Return the entry as text; for an unknown type, return its content as JSON."""
    text = {
        MESSAGE: _rendered_message,
        TOOL_CALL: _rendered_call,
        TOOL_RESULT: _rendered_result,
        THINKING: _rendered_message,
    }.get(entry.type, _rendered_content)(entry)
    return Rendered(type=entry.role or entry.type, text=text)


def _rendered_message(entry: Entry) -> str:
    return str(entry.content.get("text") or "")


def _rendered_call(entry: Entry) -> str:
    parameters = _rendered_json(entry.content.get("parameters"))
    return f"Tool: {entry.content.get('tool', '')}\nParameters: {parameters}"


def _rendered_result(entry: Entry) -> str:
    content = entry.content
    has_worked = bool(content.get("success", True))
    value = content.get("result")
    outcome = (
        f"Result: {value if isinstance(value, str) else _rendered_json(value)}"
        if has_worked
        else f"Error: {content.get('error') or ''}"
    )
    success = "true" if has_worked else "false"
    return f"Tool: {content.get('tool', '')}\nSuccess: {success}\n{outcome}"


def _rendered_content(entry: Entry) -> str:
    return _rendered_json(entry.content)


def _rendered_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
